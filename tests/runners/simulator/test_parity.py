"""The core under the simulator's clock, driven by live logs: the same views and picks, and what differs is named."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from results.records.decisions import DecisionRecord
from runners.router.policies import make_policy
from runners.router.prefix_index import block_keys
from runners.router.spec import TransferRules
from runners.simulator.logged_run import compare_run
from runners.simulator.parity import OLD_LOG, LoggedRouter, Parity, compare_log
from tests.runners.router.simulated import BLOCK
from tests.runners.router.test_core import EAR, LiveWorld, Scenario, World, holds, live_records, migrations_and_failures

GOLDEN = Path(__file__).parents[2] / "goldens" / "routing" / "run.tar.xz"


class LiveLog:
    """What a live router on this host logged of a scenario, and the prompts that it was sent."""

    def __init__(self, scenario: Scenario, policy: str, parameters: dict[str, Any], folder: Path) -> None:
        self.policy = make_policy(policy, parameters)
        self.prompts: dict[str, list[int]] = {}
        self.records, _ = live_records(self._record(scenario), policy, parameters, folder, engines=policy == "ear")

    def _record(self, scenario: Scenario) -> Scenario:
        async def run(world: World) -> None:
            assert isinstance(world, LiveWorld)
            serve = world.serve

            async def record(session: str, prompt: list[int]) -> None:
                self.prompts[f"r-{world.requests}"] = prompt
                await serve(session, prompt)

            world.serve = record  # type: ignore[method-assign]
            await scenario(world)

        return run

    def compare(self, records: list[DecisionRecord] | None = None, *, with_keys: bool = True) -> Parity:
        def keys_of(request: str) -> tuple[int, ...]:
            return block_keys(self.prompts[request], BLOCK)

        moved = TransferRules().min_tokens
        keys = keys_of if with_keys else None
        router = LoggedRouter(self.policy, BLOCK, moved, 0, keys, "" if with_keys else "for this test")
        return compare_log(self.records if records is None else records, router)


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> LiveLog:
    """Migrations with and without their KV, a failing instance, clients that leave."""
    return LiveLog(migrations_and_failures, "ear", EAR, tmp_path_factory.mktemp("ear"))


def test_every_decision_of_a_live_router_is_made_again_on_the_same_view(ear: LiveLog) -> None:
    parity = ear.compare()
    assert parity.first is None
    assert (parity.equal, parity.different, parity.unsure) == (len(ear.records), 0, {})
    statuses = Counter(record.outcome.status for record in ear.records if record.outcome)
    assert statuses == {"ok": 10, "aborted": 3, "retried": 1}
    assert any(record.outcome and record.outcome.kv_wait_s for record in ear.records)


def test_requests_that_wait_for_room_are_picked_when_the_live_router_picked_them(tmp_path: Path) -> None:
    log = LiveLog(holds, "static_pd", {"prefill_count": 1}, tmp_path)
    parity = log.compare()
    assert parity.first is None
    assert parity.equal == len(log.records)


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


def test_a_recorded_run_is_compared_cell_by_cell(tmp_path: Path) -> None:
    """What differs is what the router that made the recording did not count: a migration's blocks at their source."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    (run,) = tmp_path.iterdir()
    cells = compare_run(run)
    assert len(cells) == 18
    for cell in cells:
        assert cell.parity is not None
        assert cell.parity.decisions == 53
        assert cell.parity.without_index == 0
        if cell.policy != "EAR":
            assert (cell.parity.equal, cell.parity.different) == (53 - sum(cell.parity.unsure.values()), 0)
        elif cell.parity.first is not None:
            assert {name.split(".")[1] for name in cell.parity.first.fields} == {"free_kv_tokens", "retained_tokens"}


def test_a_cell_that_cannot_be_compared_says_why(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    (run,) = tmp_path.iterdir()
    (run / "trace" / "trace.jsonl").unlink()
    decisions = next(run.glob("results/*unified/trial_0/decisions.jsonl"))
    decisions.write_bytes(b"{")
    by_cell = {cell.cell: cell for cell in compare_run(run)}
    assert by_cell["trials/unified/t0"].parity is None
    assert "decisions.jsonl" in by_cell["trials/unified/t0"].reason or by_cell["trials/unified/t0"].reason
    assert "trace.jsonl" in by_cell["trials/lmetric/t0"].reason
