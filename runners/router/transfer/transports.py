"""What the two legs of a transfer must say, by transport.

The source leg computes the prompt (or finds it in its cache) and keeps its blocks for the other leg; the target leg
pulls the blocks it lacks and frees them at the source. Mooncake's target has to be told the source's engine id, which
its bootstrap server knows; NIXL's source names everything in its answer. Facts about vLLM 0.32: docs/transfer.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from launch.transfer_request import DECODE, PREFILL, Transferring
from runners.router.spec import KvEndpoint

SOURCE_CACHED = "remote_prefill_cached_tokens"
"""With it the target would tell the source's cached tokens as its own, and its own are what is to be recorded."""


class Unsound(Exception):
    """What an engine said cannot be made a leg of."""


class Transport(Protocol):
    """A way to move KV between two engines."""

    connector: str
    """Its name in vLLM."""
    asks_source: bool
    """The target must be told what only the source's bootstrap server knows."""
    kept_after: frozenset[str]
    """How the source leg has to end for its blocks to be kept."""
    pulls_from_itself: bool
    """The source can be a target of its own blocks: nobody else is needed to free them."""

    def source_params(self, transfer: str) -> dict[str, Any]:
        """`kv_transfer_params` of the leg that keeps the blocks."""

    def target_params(
        self, transfer: str, source: KvEndpoint, engine: str, answered: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`kv_transfer_params` of the leg that pulls them.

        `engine`: the source's engine id, where `asks_source`; `answered`: the body of the source leg's answer.
        Raises Unsound.
        """


class Mooncake:
    """vLLM's MooncakeConnector: the target asks the source to write into its blocks."""

    connector = "MooncakeConnector"
    asks_source = True
    kept_after = frozenset({"length"})
    pulls_from_itself = True

    def source_params(self, transfer: str) -> dict[str, Any]:
        return {PREFILL: True, DECODE: False, "transfer_id": transfer}

    def target_params(
        self, transfer: str, source: KvEndpoint, engine: str, answered: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            PREFILL: False, DECODE: True, "transfer_id": transfer, "remote_engine_id": engine,
            "remote_bootstrap_addr": source.bootstrap.rstrip("/"),
        }  # fmt: skip


class Nixl:
    """vLLM's NixlConnector: the target reads the source's blocks; the source's answer says where they are."""

    connector = "NixlConnector"
    asks_source = False
    kept_after = frozenset({"length", "stop"})
    pulls_from_itself = False

    def source_params(self, transfer: str) -> dict[str, Any]:
        return {PREFILL: True, DECODE: False}

    def target_params(
        self, transfer: str, source: KvEndpoint, engine: str, answered: Mapping[str, Any]
    ) -> dict[str, Any]:
        offered = answered.get("kv_transfer_params")
        if not isinstance(offered, dict) or not any(offered.get("remote_block_ids") or ()):
            raise Unsound("its answer offers no blocks")
        params = {**offered, PREFILL: False, DECODE: True}
        params.pop(SOURCE_CACHED, None)
        return params


TRANSPORTS: Mapping[str, Transport] = {"mooncake": Mooncake(), "nixl": Nixl()}


def mismatch(source: KvEndpoint | None, target: KvEndpoint | None) -> str:
    """Why no KV can ever go from one to the other; empty = it can."""
    if source is None or target is None:
        return f"the {'source' if source is None else 'target'} has no KV transport"
    if source.transport != target.transport:
        return f"the source has {source.transport}, the target {target.transport}"
    if source.transport not in TRANSPORTS:
        return f"no transport is called {source.transport!r}"
    if source.kv_role == "kv_consumer":
        return "the source is a kv_consumer: it sends nothing"
    if target.kv_role == "kv_producer":
        return "the target is a kv_producer: it takes nothing"
    if TRANSPORTS[source.transport].asks_source and not source.bootstrap:
        return "the address of the source's bootstrap server is not known"
    return ""


def part_of(endpoint: KvEndpoint) -> Transferring:
    """Its connector and role, as the rules for requests that engines survive want them."""
    return Transferring(TRANSPORTS[endpoint.transport].connector, endpoint.kv_role)


def engine_id(page: bytes) -> str:
    """The engine id in a bootstrap server's answer to GET /query, which maps data parallel ranks to engines.

    Raises Unsound. Of several ranks nobody says which one answered a leg.
    """
    try:
        ranks = msgspec.json.decode(page, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unsound(f"its bootstrap server answers no JSON of ranks: {error}") from error
    found = [entry.get("engine_id") for entry in ranks.values()]
    if len(found) != 1 or not isinstance(found[0], str) or not found[0]:
        raise Unsound(f"its bootstrap server names {len(found)} engines, not one with an id")
    return found[0]
