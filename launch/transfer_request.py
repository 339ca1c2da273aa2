"""`kv_transfer_params` checked before they are sent.

vLLM does not refuse a request for the wrong role or without a field: the engine dies of an assertion, or holds the
request forever and dies when the client gives up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from launch.errors import LaunchError
from launch.profile import ConnectorConfig, Kind

BOOTSTRAP_PORT = "VLLM_MOONCAKE_BOOTSTRAP_PORT"
"""Sets the port on which a Mooncake engine is asked where to pull blocks from."""
PREFILL, DECODE = "do_remote_decode", "do_remote_prefill"
"""A prefill request asks for a remote decode (`do_remote_decode`), and the other way round."""
_FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "MooncakeConnector": {
        PREFILL: ("transfer_id",),
        DECODE: ("transfer_id", "remote_engine_id", "remote_bootstrap_addr"),
    },
    "NixlConnector": {
        PREFILL: (),
        DECODE: ("remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port", "tp_size"),
    },
}
_FORBIDDEN = {("kv_producer", DECODE), ("kv_consumer", PREFILL)}


class TransferRefused(LaunchError):
    """A request would harm the engine it is meant for."""


@dataclass(frozen=True, slots=True)
class Transferring:
    """The connector of a config that moves KV between engines."""

    connector: str
    role: str


def find_transferring(config: ConnectorConfig, kind: Kind) -> Transferring | None:
    """The config's connector that moves KV between engines, alone or inside a MultiConnector; None without one."""
    whole = config.merge_kv_transfer(kind) or {}
    parts: list[Mapping[str, Any]] = [whole, *whole.get("kv_connector_extra_config", {}).get("connectors", ())]
    matches = (part for part in parts if part.get("kv_connector") in _FIELDS)
    return next((Transferring(part["kv_connector"], part.get("kv_role", "kv_both")) for part in matches), None)


def check_request(body: Mapping[str, Any], config: ConnectorConfig, kind: Kind) -> None:
    """Raise TransferRefused unless an engine of `config` can take this request's `kv_transfer_params`, if it has any.

    A prefill request must also ask for exactly one token: where that token ends the text, no block is sent and the
    decode request waits for minutes.
    """
    if body.get("kv_transfer_params") is not None:
        check_transfer_request(body, find_transferring(config, kind), f"an engine of {config.name}")


def check_transfer_request(body: Mapping[str, Any], part: Transferring | None, engine: str) -> None:
    """Raise TransferRefused unless `engine` (as messages name it), whose connector is `part`, can take this request."""
    params = body["kv_transfer_params"]
    if part is None:
        raise _make_refusal(engine, "has no connector that transfers", "send the request without kv_transfer_params")
    asked = [name for name in (PREFILL, DECODE) if params.get(name)]
    if len(asked) != 1:
        raise _make_refusal(engine, f"needs one of {PREFILL} and {DECODE}, not {len(asked)}", "ask for one at a time")
    kind = asked[0]
    if (part.role, kind) in _FORBIDDEN:
        raise _make_refusal(engine, f"is a {part.role} and dies of {kind}", "send it to an engine of the other role")
    wrong = [name for name in _FIELDS[part.connector][kind] if not _is_sound(name, params.get(name))]
    if wrong:
        remedy = "fill them in, for a decode request from the prefill's response"
        raise _make_refusal(engine, f"needs {', '.join(wrong)} for {kind}", remedy)
    if kind == PREFILL and (body.get("max_tokens"), body.get("ignore_eos")) != (1, True):
        raise _make_refusal(engine, "sends blocks only after exactly one token", "set max_tokens=1 and ignore_eos=true")


def _is_sound(name: str, value: object) -> bool:
    if name == "remote_bootstrap_addr":
        parts = urlsplit(value if isinstance(value, str) else "")
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    if name == "remote_block_ids":
        return isinstance(value, list) and any(value)
    if name in ("remote_port", "tp_size"):
        return isinstance(value, int) and value > 0
    return isinstance(value, str) and bool(value)


def _make_refusal(engine: str, what: str, remedy: str) -> TransferRefused:
    return TransferRefused(f"{engine} {what}", remedy=remedy)
