"""The transport's requests to engines: prefill and decode requests, tokenization, counters, engine ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from launch.transfer_request import TransferRefused, check_transfer_request
from results.records.router_spec import InstanceSpec
from runners.router.facts import LONG_BYTES
from runners.router.failure import REFUSALS
from runners.router.instances.internal_request import InternalRequestFailed, fetch_answer, fetch_metrics
from runners.router.instances.upstream import Answer, Pool, resolve_instance
from runners.router.messages import RouterError
from runners.router.transfer.counters import Counters, read_counters
from runners.router.transfer.request_bodies import (
    ClientRequest,
    StepAnswer,
    Unfit,
    read_answer,
    token_ids,
    tokenize_body,
)
from runners.router.transfer.transports import Unsound, engine_id, make_connector_part

ASK_S = 1.0
"""Time limit of a read of `/metrics`."""
QUERY_S = 3.0
"""Time limit of a query to a bootstrap server."""
TEXT_LIMIT = 200
_Value = TypeVar("_Value")


class StepFailed(Exception):
    """A step of a transfer failed."""

    def __init__(self, text: str, *, strike: bool, retryable: bool = False, frees: bool = False) -> None:
        super().__init__(text)
        self.strike = strike
        """The pair is at fault, not the request."""
        self.retryable = retryable
        """Another attempt may succeed."""
        self.frees = frees
        """The target's engine refused the decode request or saw it dropped, and frees the source's blocks itself."""


async def read_beside_loop(read: Callable[[bytes], _Value], data: bytes) -> _Value:
    """`read(data)`, in a thread if the data are long: the streams go on meanwhile."""
    return read(data) if len(data) <= LONG_BYTES else await asyncio.to_thread(read, data)


class Engines:
    """The instances behind the router, as the transport sees them."""

    def __init__(self, pools: Mapping[str, Pool], specs: Mapping[str, InstanceSpec], timeout_s: float) -> None:
        self._pools = pools
        self._specs = specs
        self._timeout_s = timeout_s
        self._bootstraps: dict[str, Pool] = {}
        self._ids: dict[str, str] = {}
        self._block_tokens: dict[str, int] = {}

    async def send_request(
        self,
        instance: str,
        who: str,
        path: str,
        headers: bytes,
        body: Mapping[str, Any],
        sent: Callable[[int], None] | None = None,
    ) -> StepAnswer:
        """Send a prefill or decode request and wait for its answer; `sent` as in `fetch_answer`. Raises StepFailed."""
        endpoint = self._specs[instance].transfer if instance in self._specs else None
        if endpoint is None:
            raise StepFailed(f"the {who} was removed", strike=False)
        try:
            check_transfer_request(body, make_connector_part(endpoint), f"the {who}")
        except TransferRefused as error:
            raise StepFailed(f"not sent: {error}", strike=True) from error
        answer, page = await self._post_body(instance, who, path, headers, msgspec.json.encode(body), sent)
        if answer.status != 200:
            raise _make_status_failure(who, answer.status, page)
        try:
            return await read_beside_loop(read_answer, page)
        except Unfit as error:
            raise StepFailed(f"the {who}: {error}", strike=True) from error

    async def tokenize_prompt(self, instance: str, headers: bytes, asked: ClientRequest) -> tuple[int, ...]:
        """The prompt of a request in tokens, by the instance's tokenizer. Raises StepFailed."""
        answer, page = await self._post_body(instance, "target's /tokenize", "/tokenize", headers, tokenize_body(asked))
        if answer.status != 200:
            raise StepFailed(f"the target's /tokenize answers HTTP {answer.status}", strike=False)
        try:
            return await read_beside_loop(token_ids, page)
        except Unfit as error:
            raise StepFailed(f"the target: {error}", strike=False) from error

    async def fetch_counters(self, instance: str) -> Counters | None:
        pool = self._pools.get(instance)
        if pool is None:
            return None
        page = await fetch_metrics(pool, ASK_S)
        if page is None:
            return None
        counters = read_counters(page)
        if counters.block_tokens:
            self._block_tokens[instance] = counters.block_tokens
        return counters

    def block_tokens(self, instance: str) -> int | None:
        """Its KV block size from its spec or its metrics; None = unknown so far."""
        spec = self._specs.get(instance)
        return (spec.block_tokens if spec is not None else None) or self._block_tokens.get(instance)

    async def engine_id(self, instance: str) -> str:
        """Its Mooncake engine id, from its bootstrap server if not cached. Raises StepFailed."""
        known = self._ids.get(instance)
        if known is not None:
            return known
        spec = self._specs.get(instance)
        url = spec.transfer.bootstrap if spec is not None and spec.transfer is not None else ""
        try:
            pool = self._bootstraps.get(url)
            if pool is None:
                pool = self._bootstraps.setdefault(url, Pool(await resolve_instance(url), QUERY_S))
            answer, page = await fetch_answer(pool, b"/query", timeout_s=QUERY_S)
            if answer.status != 200:
                raise Unsound(f"its bootstrap server answers HTTP {answer.status}")
            known = engine_id(page)
        except InternalRequestFailed as error:
            raise StepFailed(f"the source's bootstrap server: {error}", strike=True) from error
        except (RouterError, Unsound) as error:
            raise StepFailed(f"the source: {error}", strike=True) from error
        self._ids[instance] = known
        return known

    def forget_instance(self, instance: str) -> None:
        """Drop what its engine reported: its process may be a new one."""
        self._ids.pop(instance, None)
        self._block_tokens.pop(instance, None)

    def close(self) -> None:
        for pool in self._bootstraps.values():
            pool.close()

    async def _post_body(
        self,
        instance: str,
        who: str,
        path: str,
        headers: bytes,
        body: bytes,
        sent: Callable[[int], None] | None = None,
    ) -> tuple[Answer, bytes]:
        pool = self._pools.get(instance)
        if pool is None:
            raise StepFailed(f"the {who} was removed", strike=False)
        try:
            name = path.encode("latin-1")
            return await fetch_answer(pool, name, timeout_s=self._timeout_s, headers=headers, body=body, sent=sent)
        except InternalRequestFailed as error:
            failure = error.failure
            dropped = failure.kind == "timeout"
            raise StepFailed(f"the {who}: {failure.text}", strike=failure.kind != "own", frees=dropped) from error


def _make_status_failure(who: str, status: int, page: bytes) -> StepFailed:
    text = page[:TEXT_LIMIT].decode("utf-8", "replace")
    overloaded = status in REFUSALS
    broken = status >= 500 and not overloaded
    frees = status < 500 and not overloaded
    return StepFailed(f"the {who} answers HTTP {status}: {text}", strike=broken, retryable=broken, frees=frees)
