"""The core without an event loop: what a heap of timers drives decides and records as the live router does."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from results.records.decisions import DecisionRecord
from results.records.router_spec import HealthRules, InstanceSpec
from runners.router.breaker import BreakerState
from tests.runners.router.routers import SHORT, Router, instances, router, until
from tests.runners.router.simulated import BLOCK, SimulatedWorld, run_without_loop
from tests.runners.router.transfer.engines import Engine
from tests.runners.router.transfer.engines import World as EngineWorld
from tests.servers.backend import Backend

EAR = {"hot_tokens": 16, "cooldown_s": 0.0}
OWN = list(range(100, 116))
LONG = list(range(40))
PROMPT = list(range(60))
ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "runners.router"
AROUND_THE_CORE = (
    "__main__", "instances", "server", "sessions.redis_link", "sessions.shared_bindings", "transfer.accounting",
    "transfer.engines", "transfer.steps", "transfer.transfers",
)  # fmt: skip
"""Modules and folders of runners.router with a clock or a loop; every other module is of the core."""
CLOCKS = {"asyncio", "time", "threading", "uvloop", "datetime"}


class World(Protocol):
    """A router that a scenario drives, live or simulated."""

    def owner(self, session: str) -> str: ...
    def set_status(self, instance: str, status: int) -> None: ...
    def fail_transfers(self, instance: str, *, fails: bool) -> None: ...
    async def serve(self, session: str, prompt: list[int]) -> None: ...
    async def hang(self, session: str, prompt: list[int], *, streams: bool = False) -> None:
        """A request that stays at its instance, after its first token where it `streams`, or is held."""

    async def leave(self, session: str) -> None: ...
    async def release(self, sessions: list[str]) -> None: ...


Scenario = Callable[[World], Awaitable[None]]


async def migrations_and_failures(world: World) -> None:
    """A session migrates from a hot instance and back, with and without its KV; a target fails and another serves."""
    for session in ("s", "x0", "x1", "x2"):
        await world.serve(session, OWN if session == "s" else [1, 2, 3, 4, 5, 6, 7, 8])
    home = world.owner("s")
    others = [session for session in ("x0", "x1", "x2") if world.owner(session) == home]
    await world.hang(others[0], LONG)
    await world.serve("s", OWN)
    target = world.owner("s")
    assert target != home, "it has migrated"
    await world.leave(others[0])
    longer = [*OWN, *range(200, 240)]
    await world.serve("s", longer)
    other = next(session for session in ("x0", "x1", "x2") if world.owner(session) == target)
    await world.hang(other, LONG)
    await world.serve("s", longer)
    assert world.owner("s") == home, "it is back"
    await world.leave(other)
    world.set_status(home, 500)
    await world.serve("s", longer)
    assert world.owner("s") == target, "its instance failed"
    world.set_status(home, 200)
    longest = [*longer, *range(300, 340)]
    await world.serve("s", longest)
    await world.hang(other, [*LONG, *LONG])
    world.fail_transfers(target, fails=True)
    await world.serve("s", longest)
    assert world.owner("s") == home, "no KV came, and it has migrated all the same"
    await world.leave(other)


async def holds(world: World) -> None:
    """Requests wait for room, are served in their order, and one leaves before its turn."""
    for number in range(5):
        await world.hang(f"s{number}", PROMPT, streams=True)
    await world.leave("s2")
    await world.release(["s0", "s1", "s3", "s4"])
    await world.serve("s5", PROMPT)


@dataclass
class LiveWorld:
    """A live router and its instances."""

    routed: Router
    backends: dict[str, Backend]
    tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    requests: int = 0

    def owner(self, session: str) -> str:
        return self.routed.find_owner(session)

    def set_status(self, instance: str, status: int) -> None:
        self.backends[instance].status = status

    def fail_transfers(self, instance: str, *, fails: bool) -> None:
        for backend in self.backends.values():
            assert isinstance(backend, Engine)
            backend.source_status = 500 if fails else 200

    async def serve(self, session: str, prompt: list[int]) -> None:
        self.requests += 1
        headers = {"x-request-id": f"r-{self.requests - 1}", "x-session-id": session}
        body = {"prompt": prompt, "max_tokens": 4, "stream": True}
        answer = await self.routed.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200

    async def hang(self, session: str, prompt: list[int], *, streams: bool = False) -> None:
        for backend in self.backends.values():
            backend.hang = not streams
        picks, seen = len(self.routed.server.tick().latest), self._seen()
        self.tasks[session] = asyncio.create_task(self.serve(session, prompt))
        await until(lambda: len(self.routed.server.tick().latest) > picks)
        traffic = self.routed.server._traffic
        if not traffic.held:
            await until(lambda: not traffic.waiting if streams else self._seen() > seen)  # every one has its first byte
        for backend in self.backends.values():
            backend.hang = False

    async def leave(self, session: str) -> None:
        count = self._open()
        self.tasks[session].cancel()
        await until(lambda: self._open() < count)

    async def release(self, sessions: list[str]) -> None:
        for backend in self.backends.values():
            assert backend.gate is None or not backend.gate.is_set()
            if backend.gate is not None:
                backend.gate.set()
        await asyncio.gather(*(self.tasks[session] for session in sessions))

    def _open(self) -> int:
        traffic = self.routed.server._traffic
        return len(traffic.moving) + len(traffic.waiting) + len(traffic.streaming) + len(traffic.held)

    def _seen(self) -> int:
        return sum(len(backend.seen) for backend in self.backends.values())


def comparable(record: DecisionRecord) -> tuple[object, ...]:
    """A record without its times: everything the policy saw, what it decided, and what became of it."""
    request = msgspec.structs.replace(record.request, since_migration_s=record.request.since_migration_s is not None)
    gates = tuple((gate.name, gate.passed) for gate in record.decision.gates)
    outcome = record.outcome
    assert outcome is not None
    moved = outcome.transfer
    return (
        record.seq, request, record.cluster, msgspec.structs.replace(record.decision, gates=()), gates, outcome.status,
        outcome.http_status, outcome.migration,
        None if moved is None else (moved.purpose, moved.source, moved.target, moved.status, moved.prefix_tokens),
    )  # fmt: skip


def simulate(
    scenario: Scenario, policy: str, parameters: dict[str, object], specs: list[InstanceSpec]
) -> SimulatedWorld:
    """The scenario's records under a heap of timers: no loop runs, and none is asked for."""
    world = SimulatedWorld(policy, parameters, specs, SHORT)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    run_without_loop(scenario(world))  # type: ignore[arg-type]
    return world


def live_records(
    scenario: Scenario, policy: str, parameters: dict[str, Any], folder: Path, *, engines: bool
) -> tuple[list[DecisionRecord], list[InstanceSpec]]:
    async def run() -> tuple[list[DecisionRecord], list[InstanceSpec]]:
        rare = HealthRules(probe_interval_s=60.0)
        if engines:
            world = EngineWorld()
            async with Engine("a", world=world) as a, Engine("b", world=world) as b:
                specs = [one.spec(kv_capacity_tokens=4096) for one in (a, b)]
                return await drive((a, b), specs, rare), specs
        async with instances("a", "b") as backends:
            backends[1].gate = asyncio.Event()
            specs = [InstanceSpec(one.name, one.url, kv_capacity_tokens=80, block_tokens=BLOCK) for one in backends]
            return await drive(backends, specs, rare), specs

    async def drive(backends: tuple[Backend, ...], specs: list[InstanceSpec], health: HealthRules) -> list[Any]:
        changes = {"instances": tuple(specs), "parameters": parameters}
        async with router(backends, policy, folder=folder, health=health, **changes) as routed:  # type: ignore[arg-type]
            await scenario(LiveWorld(routed, {one.name: one for one in backends}))
            picks = len(routed.server.tick().latest)
            return sorted(await routed.records(picks), key=lambda record: record.seq)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("scenario", "policy", "parameters", "outcomes"),
    [
        (migrations_and_failures, "ear", EAR, {"ok": 10, "aborted": 3, "retried": 1}),
        (holds, "static_pd", {"prefill_count": 1}, {"ok": 5, "held": 4}),
    ],
)
def test_a_heap_of_timers_records_what_the_live_router_records(
    scenario: Scenario, policy: str, parameters: dict[str, Any], outcomes: dict[str, int], tmp_path: Path
) -> None:
    engines = policy == "ear"
    live, specs = live_records(scenario, policy, parameters, tmp_path, engines=engines)
    simulated = simulate(scenario, policy, parameters, specs)
    records = simulated.records()
    assert Counter(record.outcome.status for record in records if record.outcome) == outcomes
    assert [comparable(record) for record in records] == [comparable(record) for record in live]
    assert simulated.traffic.is_idle
    if engines:
        assert {record.outcome.migration for record in live if record.outcome} >= {"transferred", "recomputed"}


def test_the_same_scenario_gives_the_same_records_bit_by_bit() -> None:
    specs = [InstanceSpec(name, f"http://h/{name}", kv_capacity_tokens=80, block_tokens=BLOCK) for name in ("a", "b")]
    first, second = (simulate(holds, "static_pd", {"prefill_count": 1}, specs).records() for _ in range(2))
    assert first == second
    assert all(record.decide_us == 0.0 for record in first), "the only clock is the driver's"


def test_a_request_that_is_offered_room_and_held_again_takes_no_number_of_the_log() -> None:
    """It is offered some every 0.25 s: how many decisions there are would depend on time."""
    specs = [InstanceSpec(name, f"http://h/{name}", kv_capacity_tokens=80, block_tokens=BLOCK) for name in "ab"]
    world = SimulatedWorld("static_pd", {"prefill_count": 1}, specs, SHORT)
    for session in ("s", "t"):
        world.start(session, PROMPT)
    for _ in range(3):
        world.traffic.serve_held()
    world.answer("s")
    world.driver.advance(0.0)
    world.answer("t")
    records = world.records()
    assert Counter(record.outcome.status for record in records if record.outcome) == {"ok": 2, "held": 1}
    assert sorted(record.seq for record in records) == [0, 1, 2]


def test_a_lost_instance_costs_its_requests_a_retry_and_its_sessions_an_owner() -> None:
    specs = [InstanceSpec(name, f"http://h/{name}", kv_capacity_tokens=4096, block_tokens=BLOCK) for name in "ab"]
    world = SimulatedWorld("load_only", {}, specs, SHORT)
    for session in ("s", "t"):
        world.start(session, PROMPT)
    world.lose("a")
    assert set(world.at_instances.values()) == {"b"}
    for session in ("s", "t"):
        world.answer(session)
    assert Counter(record.outcome.status for record in world.records() if record.outcome) == {"ok": 2, "retried": 1}
    assert world.traffic.is_idle


def test_a_500_counts_when_another_instance_serves_the_request_and_not_after_the_breaker_has_opened() -> None:
    """Else requests that wait long elsewhere would open the breaker of an instance that has recovered meanwhile."""
    specs = [InstanceSpec(name, f"http://h/{name}", kv_capacity_tokens=4096, block_tokens=BLOCK) for name in "ab"]
    world = SimulatedWorld("load_only", {}, specs, SHORT)
    world.driver.advance(1.0)
    world.start("0", PROMPT)
    faulty = world.at_instances[world.requests["0"]]
    for number in range(5):
        if number:
            world.start(str(number), PROMPT)
        request = world.requests[str(number)]
        assert world.at_instances[request] == faulty, "it looks idle"
        request.answer(500)
    for number in range(3):
        assert world.health.find_state(faulty) is BreakerState.CLOSED
        world.answer(str(number))
    assert world.health.find_state(faulty) is BreakerState.OPEN
    world.driver.advance(2.0)
    world.health.note_probe(faulty, "", gone=False)
    for number in (3, 4):
        world.answer(str(number))
    assert world.health.find_state(faulty) is BreakerState.HALF_OPEN


def test_a_trial_that_is_answered_with_500_has_failed_also_where_no_other_instance_is_left() -> None:
    world = SimulatedWorld(
        "load_only", {}, [InstanceSpec("a", "http://h/a", kv_capacity_tokens=4096, block_tokens=BLOCK)], SHORT
    )
    world.driver.advance(1.0)
    world.lose("a")
    world.driver.advance(2.0)
    world.health.note_probe("a", "", gone=False)
    assert world.health.find_state("a") is BreakerState.HALF_OPEN
    world.start("trial", PROMPT)
    world.requests["trial"].answer(500)
    assert world.health.find_state("a") is BreakerState.OPEN


def _imports(path: Path) -> set[str]:
    """Modules that a module imports, in functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _router_modules() -> dict[str, Path]:
    """By dotted name."""
    paths = (ROOT / "runners" / "router").rglob("*.py")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def _is_around_the_core(module: str) -> bool:
    return any(f"{module}.".startswith(f"{PACKAGE}.{room}.") for room in AROUND_THE_CORE)


def _clocks_of(module: str) -> set[str]:
    """The clocks and loops that it imports, and the modules around the core."""
    modules = _router_modules()
    names = _imports(modules[module])
    around = {name for name in names if name in modules and _is_around_the_core(name)}
    return {name.partition(".")[0] for name in names} & CLOCKS | around


@pytest.mark.parametrize("module", sorted(name for name in _router_modules() if not _is_around_the_core(name)))
def test_a_core_module_knows_no_clock_and_no_loop_nor_one_that_does(module: str) -> None:
    assert _clocks_of(module) == set()


@pytest.mark.parametrize("room", AROUND_THE_CORE)
def test_what_is_around_the_core_has_a_clock_or_a_loop(room: str) -> None:
    modules = [name for name in _router_modules() if f"{name}.".startswith(f"{PACKAGE}.{room}.")]
    assert any(_clocks_of(module) for module in modules), "it is of the core"
