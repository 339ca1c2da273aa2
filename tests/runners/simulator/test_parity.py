"""The core under the simulator's clock, driven by live logs: the same views and picks, and what differs is named."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from results.records.decisions import DecisionRecord
from results.records.instance_events import InstanceEvent
from results.records.layout import TrialLayout, sha256
from results.records.router_spec import HealthRules, InstanceSpec, Prewarm, TransferRules
from results.records.rows import decode_rows
from runners.router.policies import make_policy
from runners.router.prefix_index import make_block_keys
from runners.simulator.logged_run import CellParity, compare_run
from runners.simulator.parity import OLD_LOG, LoggedRouter, Parity, compare_log
from tests.goldens.fixture import ARCHIVE, HERE, unpack
from tests.ports import own_port
from tests.runners.router.kv_publisher import kv_publisher, stored
from tests.runners.router.routers import instances, router, until
from tests.runners.router.simulated import BLOCK
from tests.runners.router.test_core import (
    EAR,
    LONG,
    OWN,
    LiveWorld,
    Scenario,
    World,
    holds,
    live_records,
    migrations_and_failures,
)
from tests.runners.router.transfer.engines import Engine
from tests.runners.router.transfer.engines import World as EngineWorld
from tests.servers.backend import Backend

RETURNS = HealthRules(probe_interval_s=60.0, open_s=0.1, open_max_s=0.4)
"""Only a request finds an instance down; it is probed until it is back."""
ONE_STRIKE = TransferRules(attempts=1, failures_to_quarantine=1, quarantine_s=60.0)
PREFIX = tuple(range(16))


class LiveLog:
    """What a live router on this host logged, and the prompts that it was sent, by request."""

    def __init__(
        self, policy: str, parameters: dict[str, Any], folder: Path, prompts: dict[str, list[int]], **options: Any
    ) -> None:
        """`options`: `index` and `transfer` of its router, where they are not the defaults."""
        self.policy = make_policy(policy, parameters)
        self.prompts = prompts
        self.options = options
        rows = msgspec.json.Decoder(DecisionRecord).decode_lines((folder / "decisions.jsonl").read_bytes())
        self.records = sorted(rows, key=lambda record: record.seq)
        lines = (folder / "instance_events.jsonl").read_bytes()
        self.events = msgspec.json.Decoder(InstanceEvent).decode_lines(lines)

    def compare(
        self,
        records: list[DecisionRecord] | None = None,
        events: list[InstanceEvent] | None = None,
        *,
        with_keys: bool = True,
    ) -> Parity:
        def keys_of(request: str) -> tuple[int, ...]:
            return make_block_keys(self.prompts[request], BLOCK)

        moved = TransferRules().min_tokens
        keys, why = (keys_of, "") if with_keys else (None, "for this test")
        logged = LoggedRouter(self.policy, BLOCK, moved, 0, keys, why, **self.options)
        return compare_log(self.records if records is None else records, logged, events)

    def drop(self, what: str) -> list[InstanceEvent]:
        """The events without those of this kind after the first pick."""
        begin_ns = self.records[0].t_ns
        return [event for event in self.events if event.what != what or event.t_ns < begin_ns]

    def require_parity(self, *needed: str) -> None:
        """Every decision is the same by the events, and no longer without one of the needed kinds."""
        parity = self.compare(events=self.events)
        assert parity.first is None
        assert (parity.equal, parity.without_index, parity.index_reason) == (len(self.records), 0, "")
        for what in needed:
            assert self.compare(events=self.drop(what)).different, what


def log_scenario(scenario: Scenario, policy: str, parameters: dict[str, Any], folder: Path) -> LiveLog:
    prompts: dict[str, list[int]] = {}

    async def run(world: World) -> None:
        assert isinstance(world, LiveWorld)
        serve = world.serve

        async def record(session: str, prompt: list[int]) -> None:
            prompts[f"r-{world.requests}"] = prompt
            await serve(session, prompt)

        world.serve = record  # type: ignore[method-assign]
        await scenario(world)

    live_records(run, policy, parameters, folder, engines=policy == "ear")
    return LiveLog(policy, parameters, folder, prompts)


@dataclass
class RecordedWorld(LiveWorld):
    """A live router that a test drives, with the prompts that it was sent."""

    prompts: dict[str, list[int]] = field(default_factory=dict)

    async def serve(self, session: str, prompt: list[int]) -> None:
        self.prompts[f"r-{self.requests}"] = prompt
        await super().serve(session, prompt)

    async def serve_all(self, *turn: int) -> None:
        """A turn of each of four sessions: its own tokens, then these."""
        for session in range(4):
            await self.serve(f"s{session}", [session] * 8 + list(turn))


async def log_router(
    backends: Sequence[Backend],
    drive: Callable[[RecordedWorld], Awaitable[None]],
    folder: Path,
    policy: str = "unified",
    parameters: dict[str, Any] | None = None,
    *,
    logged: dict[str, Any] | None = None,
    **changes: Any,
) -> LiveLog:
    """Drive a live router over these backends. `logged`: options of `LiveLog`, which hold for the router as well."""
    parameters, options = parameters or {}, logged or {}
    settings: dict[str, Any] = {"health": RETURNS, "parameters": parameters, **options, **changes}
    async with router(backends, policy, folder=folder, **settings) as routed:
        world = RecordedWorld(routed, {one.name: one for one in backends})
        await drive(world)
    return LiveLog(policy, parameters, folder, world.prompts, **options)


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> LiveLog:
    """Migrations with and without their KV, a failing instance, clients that leave."""
    return log_scenario(migrations_and_failures, "ear", EAR, tmp_path_factory.mktemp("ear"))


@pytest.mark.parametrize("driven", [False, True], ids=["by the views", "by events"])
def test_every_decision_of_a_live_router_is_made_again_on_the_same_view(ear: LiveLog, driven: bool) -> None:
    parity = ear.compare(events=ear.events if driven else None)
    assert parity.first is None
    assert (parity.equal, parity.different, parity.unsure) == (len(ear.records), 0, {})
    statuses = Counter(record.outcome.status for record in ear.records if record.outcome)
    assert statuses == {"ok": 10, "aborted": 3, "retried": 1}
    assert any(record.outcome and record.outcome.kv_wait_s for record in ear.records)


def test_requests_that_wait_for_room_are_picked_when_the_live_router_picked_them(tmp_path: Path) -> None:
    log = log_scenario(holds, "static_pd", {"prefill_count": 1}, tmp_path)
    parity = log.compare()
    assert parity.first is None
    assert parity.equal == len(log.records)
    log.require_parity()


async def test_an_instance_that_dies_and_comes_back_does_so_at_its_moment(tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b):

        async def drive(world: RecordedWorld) -> None:
            routed = world.routed
            await world.serve_all()
            await a.kill()
            await world.serve_all(9, 9, 9, 9)
            index = routed.server._fleet.indexes["a"]
            await until(lambda: not len(index))
            await world.serve_all(9, 9, 9, 9, 8, 8, 8, 8)
            await a.start()
            await until(lambda: routed.available() == {"a", "b"})
            await world.serve_all(9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7)

        log = await log_router((a, b), drive, tmp_path)
    assert log.compare().without_index, "without events nothing is known of its index any more"
    log.require_parity("unavailable", "available", "lost")


async def test_a_pause_begins_when_the_instance_asked_for_it(tmp_path: Path) -> None:
    async with instances("a", "b") as (a, b):

        async def drive(world: RecordedWorld) -> None:
            a.answer_headers = {"x-recommended-pause-ms": "60000"}
            await world.serve_all()
            await world.serve_all(9, 9, 9, 9)

        log = await log_router((a, b), drive, tmp_path)
    log.require_parity("paused")


async def test_instances_come_and_go_as_the_operator_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with instances("a", "b", "c") as (a, b, c):

        async def drive(world: RecordedWorld) -> None:
            http = world.routed.http
            await world.serve_all()
            await http.post("/admin/instances/a/drain")
            await world.serve_all()
            await http.post("/admin/instances/a/resume")
            await world.serve_all()
            await http.post(
                "/admin/instances",
                json={"instance": "c", "url": c.url, "kv_capacity_tokens": 4096, "block_tokens": BLOCK},
            )
            await http.delete("/admin/instances/b?now=1")
            await world.serve_all()

        log = await log_router((a, b), drive, tmp_path, "round_robin")
    log.require_parity("draining", "resumed", "removed", "added")
    without = log.compare(events=log.drop("added")).first
    assert without is not None
    assert "c" in without.fields
    assert "policy followed failed" not in capsys.readouterr().err, "the log's pick was followed"


async def test_a_pair_is_quarantined_by_its_failed_transfer(tmp_path: Path) -> None:
    engines = EngineWorld()
    async with Engine("a", world=engines) as a, Engine("b", world=engines) as b:

        async def drive(world: RecordedWorld) -> None:
            for session in ("s", "x0", "x1", "x2"):
                await world.serve(session, OWN if session == "s" else [1, 2, 3, 4, 5, 6, 7, 8])
            home = world.owner("s")
            other = next(session for session in ("x0", "x1", "x2") if world.owner(session) == home)
            world.fail_transfers(home, fails=True)
            await world.hang(other, LONG)
            await world.serve("s", OWN)
            assert world.owner("s") != home, "it migrated"
            await world.leave(other)
            await world.serve(other, [1, 2, 3, 4, 5, 6, 7, 8])

        specs = tuple(one.spec(kv_capacity_tokens=4096) for one in (a, b))
        logged = {"transfer": ONE_STRIKE}
        log = await log_router((a, b), drive, tmp_path, "ear", EAR, logged=logged, instances=specs)
    assert any("quarantined for" in why for record in log.records for why in record.request.cut_off.values())
    log.require_parity("transfer_admitted", "transfer_failed")


async def test_kv_events_rebuild_the_index(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    endpoint = f"tcp://127.0.0.1:{own_port(20_000)}"
    prompt = list(PREFIX)
    async with instances("a") as (a,):
        member = InstanceSpec("a", a.url, kv_capacity_tokens=4096, block_tokens=BLOCK, kv_events=endpoint)

        async def drive(world: RecordedWorld) -> None:
            index: Any = world.routed.server._fleet.indexes["a"]
            with kv_publisher(endpoint) as publisher:
                await world.serve("s", prompt)
                while not len(index):
                    publisher.number = 0
                    publisher.publish(stored(1, prompt))
                    await asyncio.sleep(0.02)
                await world.serve("t", [*prompt, 7, 8])
                publisher.publish({"type": "BlockRemoved", "block_hashes": [4], "medium": "GPU"})
                await until(lambda: len(index) == 3)
                await world.serve("u", [*prompt, 7, 8])
                publisher.publish({"type": "AllBlocksCleared"})
                await until(lambda: len(index) == 0)
                await world.serve("v", [*prompt, 7, 8])

        log = await log_router((a,), drive, tmp_path, logged={"index": "events"}, instances=(member,))
    assert [record.request.cached_tokens["a"] for record in log.records] == [0, 16, 12, 0]
    log.require_parity("blocks_stored", "blocks_removed", "blocks_cleared")


async def test_a_prewarmed_prompt_is_in_the_rebuilt_indexes(tmp_path: Path) -> None:
    async with instances("a", "b") as both:

        async def drive(world: RecordedWorld) -> None:
            await world.serve("s", [*PREFIX, 99, 98, 97, 96])

        log = await log_router(both, drive, tmp_path, prewarm=Prewarm("m", PREFIX))
    log.require_parity()
    stored_blocks = [event for event in log.events if event.what == "blocks_stored"]
    assert [event.instance for event in stored_blocks] == ["a", "b"]
    assert log.compare(events=[event for event in log.events if event not in stored_blocks]).different == 1


def test_a_pick_that_comes_out_otherwise_is_named_with_both_views_and_brings_about_no_other(ear: LiveLog) -> None:
    at = 5
    record = ear.records[at]
    loads = tuple(replace(load, num_requests=load.num_requests + 7) for load in record.cluster.instances)
    wrong = replace(record, cluster=replace(record.cluster, instances=loads))
    parity = ear.compare([*ear.records[:at], wrong, *ear.records[at + 1 :]])
    assert (parity.equal, parity.different) == (len(ear.records) - 1, 1)
    assert parity.first is not None
    assert parity.first.seq == record.seq
    assert parity.first.fields == ("a.num_requests", "b.num_requests")
    assert parity.first.logged.cluster.instances == loads
    assert parity.first.simulated.cluster == record.cluster
    other = replace(record, decision=replace(record.decision, reason="another"))
    elsewhere = ear.compare([*ear.records[:at], other, *ear.records[at + 1 :]]).first
    assert elsewhere is not None
    assert elsewhere.fields == ("decision.reason",)


def test_without_the_prompts_cached_tokens_come_from_the_log(ear: LiveLog) -> None:
    parity = ear.compare(with_keys=False)
    assert (parity.equal, parity.without_index) == (len(ear.records), len(ear.records))
    assert parity.index_reason == "for this test"


def test_a_log_without_the_moments_of_its_picks_leaves_those_open_that_an_event_is_close_to(ear: LiveLog) -> None:
    old = [replace(record, t_dispatch_ns=0) for record in ear.records]
    parity = ear.compare(old)
    assert parity.different == 0
    assert parity.equal + sum(parity.unsure.values()) == len(old)
    assert set(parity.unsure) <= {OLD_LOG}


def test_a_log_without_a_decision_is_refused(ear: LiveLog) -> None:
    with pytest.raises(ValueError, match="no decision"):
        ear.compare([])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of real engines."""
    return unpack(HERE / "routing" / ARCHIVE, tmp_path)


def test_a_recorded_run_is_compared_cell_by_cell(recorded: Path) -> None:
    """What differs is what the router that made the recording did not count: a migration's blocks at their source."""
    cells = compare_run(recorded)
    assert len(cells) == 18
    for cell in cells:
        assert cell.parity is not None
        assert cell.parity.decisions == 53
        assert cell.parity.without_index == 0
        if cell.policy != "EAR":
            assert (cell.parity.equal, cell.parity.different) == (53 - sum(cell.parity.unsure.values()), 0)
        elif cell.parity.first is not None:
            assert {name.split(".")[1] for name in cell.parity.first.fields} == {"free_kv_tokens", "retained_tokens"}


def finish_with(layout: TrialLayout, events: Sequence[InstanceEvent], lost: int = 0) -> None:
    """Finish the cell with these instance events."""
    layout.instance_events.write_bytes(msgspec.json.Encoder().encode_lines(events))
    cell = msgspec.json.decode(layout.cell.read_bytes())
    cell["router"]["events_lost"] = lost
    cell["checksums"][layout.instance_events.name] = sha256(layout.instance_events)
    layout.cell.write_bytes(msgspec.json.encode(cell))


def test_the_instance_events_of_a_run_drive_it_where_they_are_whole(recorded: Path) -> None:
    layout = TrialLayout(next(recorded.glob("results/*_unified/trial_0")))
    first = min(decode_rows(layout.decisions.read_bytes(), DecisionRecord), key=lambda record: record.t_ns)
    events = [
        InstanceEvent(load.instance, "added", t_ns=first.t_ns - 1, kv_capacity_tokens=load.kv_capacity_tokens)
        for load in first.cluster.instances
    ]

    def compare() -> CellParity:
        return next(cell for cell in compare_run(recorded) if cell.cell == "trials/unified/t0")

    finish_with(layout, events)
    whole = compare().parity
    assert whole is not None
    assert (whole.equal, whole.different) == (53 - sum(whole.unsure.values()), 0)
    finish_with(layout, events[1:])
    without = compare().parity
    assert without is not None
    assert without.different
    finish_with(layout, events, lost=2)
    assert compare().reason == "ValueError: 2 instance events were lost"
    layout.instance_events.write_bytes(b"{}")
    assert "differs from the checksum" in compare().reason


def test_a_cell_that_cannot_be_compared_says_why(recorded: Path) -> None:
    (recorded / "trace" / "trace.jsonl").unlink()
    decisions = next(recorded.glob("results/*unified/trial_0/decisions.jsonl"))
    decisions.write_bytes(b"{")
    by_cell = {cell.cell: cell for cell in compare_run(recorded)}
    assert by_cell["trials/unified/t0"].parity is None
    assert "decisions.jsonl" in by_cell["trials/unified/t0"].reason or by_cell["trials/unified/t0"].reason
    assert "trace.jsonl" in by_cell["trials/lmetric/t0"].reason
