"""A real router over in-process instances, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import msgspec

from results.records.decisions import DecisionRecord, InstanceLoad, RoutedOutcome
from results.records.router_spec import HealthRules, InstanceSpec, Limits, RouterSpec
from runners.router import ledger
from runners.router.messages import RouterOutcome, RouterTick
from runners.router.policies import make_policy
from runners.router.server.server import Server
from tests.runners.router.views import is_idle
from tests.servers.backend import Backend

SOON_S = 30.0
"""What has to happen happens long before, also where other tests leave this one a tenth of a core."""
FAST = HealthRules(probe_interval_s=0.05, probe_timeout_s=0.25, open_s=0.1, open_max_s=0.4)
STEADY = HealthRules(probe_interval_s=60.0, probe_timeout_s=60.0, open_s=60.0, open_max_s=60.0)
"""Nothing changes with time alone: no probe fails on a busy machine, and no open breaker gets its trial."""
SHORT = Limits(connect_s=30.0, first_byte_s=30.0, stall_s=30.0, drain_s=5.0)
SETTLED_S = 0.02
"""Until picks and outcomes are counted and logged, for which tests wait: the default saves a busy router wake-ups."""


@dataclass
class Router:
    """A running router."""

    url: str
    server: Server
    http: httpx.AsyncClient
    ticks: list[RouterTick]
    decisions_path: Path | None
    outcome: RouterOutcome | None = None

    async def post(self, session: str = "", *, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        """One whole request, streamed by default."""
        headers = {"x-session-id": session} if session else {}
        payload = {"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": 4, "stream": True, **body}
        return await self.http.post(path, json=payload, headers=headers)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a client that writes HTTP itself, and has sent this."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(sent)
        return reader, writer

    @property
    def loads(self) -> tuple[InstanceLoad, ...]:
        return self.server.cluster.take_view().instances

    def load(self, instance: str) -> InstanceLoad:
        return next(load for load in self.loads if load.instance == instance)

    def find_owner(self, session: str) -> str:
        return self.server.cluster.bindings.find_owner(session)

    def counters_are_zero(self) -> bool:
        return is_idle(self.loads)

    def available(self) -> set[str]:
        return {load.instance for load in self.loads if load.available}

    async def metric(self, name: str) -> float:
        """One sample of its `/metrics`, by name with labels."""
        page = (await self.http.get("/metrics")).text
        line = next((line for line in page.splitlines() if line.startswith(f"tracon_router_{name} ")), "x 0")
        return float(line.rpartition(" ")[2])

    async def records(self, count: int) -> list[DecisionRecord]:
        """The first `count` rows of the decision log, once they are there."""
        assert self.decisions_path is not None
        path = self.decisions_path
        await until(lambda: path.read_bytes().count(b"\n") >= count)
        return msgspec.json.Decoder(DecisionRecord).decode_lines(path.read_bytes())

    async def outcome_of(self, row: int = 0) -> RoutedOutcome:
        """What that row of the decision log says of its pick, once it is there."""
        outcome = (await self.records(row + 1))[row].outcome
        assert outcome is not None
        return outcome


def members_of(backends: Iterable[Backend], *, capacity: int = 4096, block_tokens: int = 4) -> tuple[InstanceSpec, ...]:
    """The backends as instances of a router."""
    return tuple(
        InstanceSpec(one.name, one.url, kv_capacity_tokens=capacity, block_tokens=block_tokens) for one in backends
    )


@contextlib.asynccontextmanager
async def router(
    backends: Sequence[Backend],
    policy: str = "load_only",
    *,
    folder: Path | None = None,
    health: HealthRules = FAST,
    limits: Limits = SHORT,
    **changes: Any,
) -> AsyncIterator[Router]:
    """A router over the backends, which are running; its counters are seen at zero when it ends."""
    path = folder / "decisions.jsonl" if folder else None
    events_path = folder / "instance_events.jsonl" if folder else ""
    spec = RouterSpec(
        instances=members_of(backends),
        policy=policy,
        decisions_path=str(path) if path else "",
        events_path=str(events_path),
        health=health,
        limits=limits,
    )
    spec = replace(spec, **changes)
    ticks: list[RouterTick] = []
    with patch.object(ledger, "SETTLE_S", SETTLED_S):
        server = Server(spec, make_policy(spec.policy, spec.parameters), ticks.append)
        ready = await server.start()
        async with httpx.AsyncClient(base_url=ready.url, timeout=SOON_S, trust_env=False, verify=False) as http:
            running = Router(ready.url, server, http, ticks, path)
            try:
                yield running
            finally:
                running.outcome = await server.end(0.5)
    assert running.counters_are_zero(), server.cluster.take_view()


@contextlib.asynccontextmanager
async def instances(*names: str) -> AsyncIterator[tuple[Backend, ...]]:
    """Backends that run."""
    async with contextlib.AsyncExitStack() as stack:
        yield tuple([await stack.enter_async_context(Backend(name)) for name in names])


async def until(holds: Callable[[], bool], within_s: float = SOON_S) -> None:
    """Wait for something that has to become true."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  (a condition on another object's state)
            await asyncio.sleep(0.005)


BODY = b'{"prompt":[1],"stream":true}'


def raw_post(body: bytes = BODY, headers: bytes = b"", *, path: str = "/v1/completions") -> bytes:
    """A request as a client writes it. `headers`: further ones, each with the end of its line."""
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path.encode(), headers, len(body)) + body


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    return [
        json.loads(line.removeprefix("data: "))
        for line in response.text.split("\n\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


def tokens(response: httpx.Response) -> list[str]:
    """The texts of a stream."""
    return [choice["text"] for event in events(response) for choice in event.get("choices", ())]


def by(response: httpx.Response) -> str:
    return response.headers["x-tracon-instance"]
