"""The `kv_transfer_params` of the two requests of a transfer, by transport.

The prefill request computes the prompt (or reads it from the source's cache) and makes the source retain its blocks;
the decode request pulls the blocks that the target lacks and frees them at the source. Mooncake's decode request needs
the source's engine id, which its bootstrap server knows; NIXL's parameters are all in the source's answer. Facts about
vLLM 0.32: docs/transfer.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from launch.transfer_request import DECODE, PREFILL, Transferring
from results.records.errors import DAMAGED_JSON
from results.records.router_spec import KvEndpoint

SOURCE_CACHED = "remote_prefill_cached_tokens"
"""Dropped, because with it the target would report the source's cached tokens as its own."""


class Unsound(Exception):
    """An engine's answer lacks what the decode request needs."""


class Transport(Protocol):
    """A way to move KV between two engines."""

    connector: str
    """Its name in vLLM."""
    asks_source: bool
    """The decode request needs the engine id from the source's bootstrap server."""
    retains_after: frozenset[str]
    """Finish reasons of the prefill request after which its blocks are retained."""
    pulls_from_itself: bool
    """The source can pull its own blocks, and so free them without the target."""

    def make_source_params(self, transfer: str) -> dict[str, Any]:
        """`kv_transfer_params` of the prefill request."""

    def make_target_params(self, transfer: str, source: KvEndpoint, engine: str, offered: object) -> dict[str, Any]:
        """`kv_transfer_params` of the decode request.

        `engine`: the source's engine id, if `asks_source`; `offered`: `kv_transfer_params` of the prefill request's
        answer.
        Raises Unsound.
        """


class Mooncake:
    """vLLM's MooncakeConnector: the target asks the source to write into its blocks."""

    connector = "MooncakeConnector"
    asks_source = True
    retains_after = frozenset({"length"})
    pulls_from_itself = True

    def make_source_params(self, transfer: str) -> dict[str, Any]:
        return {PREFILL: True, DECODE: False, "transfer_id": transfer}

    def make_target_params(self, transfer: str, source: KvEndpoint, engine: str, offered: object) -> dict[str, Any]:
        return {
            PREFILL: False, DECODE: True, "transfer_id": transfer, "remote_engine_id": engine,
            "remote_bootstrap_addr": source.bootstrap.rstrip("/"),
        }  # fmt: skip


class Nixl:
    """vLLM's NixlConnector: the target reads the source's blocks, whose location is in the source's answer."""

    connector = "NixlConnector"
    asks_source = False
    retains_after = frozenset({"length", "stop"})
    pulls_from_itself = False

    def make_source_params(self, transfer: str) -> dict[str, Any]:
        return {PREFILL: True, DECODE: False}

    def make_target_params(self, transfer: str, source: KvEndpoint, engine: str, offered: object) -> dict[str, Any]:
        if not isinstance(offered, dict) or not any(offered.get("remote_block_ids") or ()):
            raise Unsound("its answer offers no blocks")
        params = {**offered, PREFILL: False, DECODE: True}
        params.pop(SOURCE_CACHED, None)
        return params


TRANSPORTS: Mapping[str, Transport] = {"mooncake": Mooncake(), "nixl": Nixl()}


def find_mismatch(source: KvEndpoint | None, target: KvEndpoint | None) -> str:
    """Why KV can never move from `source` to `target`; empty = it can."""
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


def make_connector_part(endpoint: KvEndpoint) -> Transferring:
    """Its connector and role, for the check that a request does not kill the engine."""
    return Transferring(TRANSPORTS[endpoint.transport].connector, endpoint.kv_role)


def engine_id(page: bytes) -> str:
    """The engine id in a bootstrap server's answer to GET /query, which maps data-parallel ranks to engines.

    Raises Unsound, also for several ranks: the one that answered the prefill request is unknown.
    """
    try:
        ranks = msgspec.json.decode(page, type=dict[str, dict[str, Any]])
    except DAMAGED_JSON as error:
        raise Unsound(f"its bootstrap server answers no JSON of ranks: {error}") from error
    ids = [entry.get("engine_id") for entry in ranks.values()]
    if len(ids) != 1 or not isinstance(ids[0], str) or not ids[0]:
        raise Unsound(f"its bootstrap server names {len(ids)} engines, not one with an id")
    return ids[0]
