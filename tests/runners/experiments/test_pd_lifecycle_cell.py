"""One cell of pd-lifecycle: C is what it claims in everything that counts, and what does not count is made again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.lifecycle.probe import ProbeEvent
from runners.errors import CellFailed, CellSkipped
from runners.experiments.pd_lifecycle_bench import Bench
from runners.experiments.pd_lifecycle_caches import Held, NotEmptied
from runners.experiments.pd_lifecycle_cell import LifecycleCell, Measurements
from runners.experiments.pd_lifecycle_evidence import verification
from runners.experiments.pd_lifecycle_grid import Expected, Grid, Shape
from state.events import CellProgressed, LifecycleMeasured
from state.run import CellPlan
from tests.runners.experiments.lifecycle_fakes import BLOCK, FakeBench, FakeEngine


def grid(**changed: Any) -> Grid:
    base = Grid((0,), (1,), (1,), engine_start_s=1.0, expected=Expected(0.1))
    return msgspec.structs.replace(base, **changed)


def cell(shape: Shape, place: int = 0) -> CellPlan:
    params = {**msgspec.to_builtins(shape), "place": place, "load_seed": 1, "why_not": ""}
    return CellPlan(f"sweep/{shape.name}", "sweep", "lifecycle", "mooncake_both", shape.name, params, 1.0)


async def measure(
    bench: Bench, folder: Path, shape: Shape, of: Grid, *, attempt: int = 1, place: int = 0
) -> tuple[Measurements, list[Any]]:
    events: list[Any] = []
    one = LifecycleCell(cell(shape, place), attempt, of, bench, folder, lambda *said: events.extend(said))
    return await one.run("tiny"), events


SHAPE = Shape(4 * BLOCK, 100, 3)


async def test_a_cell_gives_all_its_repetitions_and_only_the_first_are_warm_ups(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    found, events = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert list(found.records) == [1, 2, 3, 4, 5]
    assert [record.warmup for record in found.records.values()] == [True, True, False, False, False]
    assert all(record.verification.ok for record in found.records.values())
    assert fake.handovers == fake.combined == 5
    assert [event.repetition for event in events if isinstance(event, LifecycleMeasured)] == [1, 2, 3, 4, 5]
    progress = [event.fraction for event in events if isinstance(event, CellProgressed)]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


async def test_a_record_holds_stamps_bytes_and_the_combined_instances_time(tmp_path: Path) -> None:
    found, _ = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    record = found.records[3]
    assert record.breakdown_ms["p_prefill"] == pytest.approx(5.0)
    assert record.breakdown_ms["rdma_transfer"] == pytest.approx(1.0)
    assert record.breakdown_ms["e2e"] == pytest.approx(17.0)
    assert record.residual_share == pytest.approx(0.0)
    assert record.transfer_detail.bytes_transferred == 512 * SHAPE.new_tokens
    assert record.colo.ttft_ms == pytest.approx(20.0)
    assert record.counts.p_cached_tokens == SHAPE.prior_context
    assert record.counts.kv_bytes_per_token == 512
    assert record.config.total_input_length == SHAPE.prior_context + SHAPE.new_tokens


async def test_what_a_reader_sees_is_what_the_record_says(tmp_path: Path) -> None:
    """TTFTs and E2E by the client's clock from its send: the difference of the TTFTs is the record's overhead."""
    found, events = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    said = [event for event in events if isinstance(event, LifecycleMeasured)]
    for event in said:
        record = found.records[event.repetition]
        assert event.ttft_ms is not None
        assert event.colo_ttft_ms is not None
        assert event.ttft_ms - event.colo_ttft_ms == pytest.approx(record.ms("pdsep_overhead"))
        assert event.e2e_ms == record.ms("client_e2e")
        assert event.e2e_ms is not None
        assert event.e2e_ms >= event.ttft_ms
        assert event.residual_share == abs(record.client_residual_share or 0.0)


def test_a_connector_that_moves_what_is_there_already_is_measured_not_discarded() -> None:
    """What D holds is its own count of it, not what is left of the prompt: else criterion 4 could never fail."""
    room = ProbeEvent(event="blocks_allocated", t_ns=1, local_tokens=SHAPE.prior_context, external_tokens=SHAPE.tokens)
    before = Held(SHAPE.prior_context, SHAPE.prior_context)
    found = verification(SHAPE, before, None, (), (room,))
    assert (found.ok, found.counted_tokens) == (True, SHAPE.prior_context)
    lost = verification(SHAPE, before, None, (), (msgspec.structs.replace(room, local_tokens=0),))
    assert (lost.ok, lost.counted_tokens) == (False, 0)


async def test_the_prefill_engine_computes_the_new_tokens_alone(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "cell", SHAPE, grid(baseline=False))
    checks = 6 * 8  # one after the seeding, one before each request: the tokens that follow the prefix
    assert fake.prefill.computed == SHAPE.prior_context + 5 * SHAPE.new_tokens + checks
    assert fake.decode.computed == SHAPE.prior_context + checks


async def test_no_two_prompts_share_a_block_beyond_the_prefix(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    for attempt, place in ((1, 0), (1, 1), (2, 0)):
        found, _ = await measure(bench, tmp_path / f"{attempt}-{place}", SHAPE, grid(), attempt=attempt, place=place)
        assert not found.discarded


async def test_what_comes_late_is_waited_for(tmp_path: Path) -> None:
    found, _ = await measure(FakeBench(tmp_path / "bench", late_s=0.3).bench(), tmp_path / "cell", SHAPE, grid())
    assert all(record.residual_share is not None for record in found.records.values())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    evicting=st.dictionaries(st.integers(0, 9), st.sampled_from(["prefill", "decode"]), max_size=3),
    failing=st.sets(st.integers(0, 9), max_size=2),
)
async def test_what_counts_had_c_tokens_cached_and_its_kv_moved(evicting: dict[int, str], failing: set[int]) -> None:
    """Whatever an engine drops at the last moment, and whichever transfers fail."""
    with TemporaryDirectory() as folder:
        fake = FakeBench(Path(folder) / "bench", failing=frozenset(failing))

        def drop(number: int) -> None:
            if number in evicting:
                engine: FakeEngine = getattr(fake, evicting[number])
                engine.held.clear()

        fake.before = drop
        found, events = await measure(fake.bench(), Path(folder) / "cell", SHAPE, grid())
        assert sorted(found.records) == [1, 2, 3, 4, 5]
        for record in found.records.values():
            assert record.verification.counted_tokens == SHAPE.prior_context
            assert record.counts.p_cached_tokens == SHAPE.prior_context
            assert record.transfer_detail.bytes_transferred == 512 * SHAPE.new_tokens
        spoiled = {number for number in (*evicting, *failing) if number < fake.handovers}
        assert len(found.discarded) == len(spoiled) == fake.handovers - 5
        discarded = [event for event in events if isinstance(event, LifecycleMeasured) and event.discarded]
        assert len(discarded) == len(found.discarded)
        assert all(record.discarded for record in found.discarded)


async def test_a_cell_whose_measurements_never_count_fails_and_says_why(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", failing=frozenset(range(100)))
    with pytest.raises(CellFailed, match=r"4 measurements had to be discarded, 3 may be; .*the test says so"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid(discards=3))
    assert fake.handovers <= 3 + 5


async def test_a_prefix_that_was_evicted_between_requests_is_seeded_again(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    fake.decode.held.clear()
    found, _ = await measure(bench, tmp_path / "second", SHAPE, grid(), place=1)
    assert not found.discarded
    assert [seeding.emptied for seeding in found.seedings] == ["not emptied: part of the prefix had been evicted"]


async def test_a_cache_that_cannot_hold_the_prefix_fails_the_cell(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", decode=FakeEngine(blocks=3))
    with pytest.raises(CellFailed, match="and the decode engine 96"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert fake.handovers == 0


@pytest.mark.parametrize(
    ("shape", "named"), [(Shape(BLOCK + 1, 8, 1), "whole number"), (Shape(BLOCK, 900, 100), "holds 1000")]
)
async def test_a_cell_the_engines_have_no_room_for_is_skipped_with_the_reason(
    tmp_path: Path, shape: Shape, named: str
) -> None:
    with pytest.raises(CellSkipped, match=named):
        await measure(FakeBench(tmp_path / "bench", capacity_tokens=1000).bench(), tmp_path / "cell", shape, grid())


async def test_an_engine_that_died_fails_the_cell_with_its_last_words(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")

    def die(number: int) -> None:
        fake.dead = "EngineDeadError"

    fake.before = die
    with pytest.raises(CellFailed, match="the prefill engine died"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())


async def test_emptied_caches_hold_nothing_of_what_was_sent(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    await bench.caches.empty()
    assert not bench.caches.used
    other = Shape(2 * BLOCK, 100, 1)
    found, _ = await measure(bench, tmp_path / "second", other, grid(), place=1)
    assert not found.discarded
    assert found.seedings[0].emptied.startswith("POST /reset_prefix_cache, then 0 of ")
    assert found.seedings[0].held.decode == 2 * BLOCK


@pytest.mark.parametrize("how", ["refuses", "lies"])
async def test_a_cache_that_is_not_emptied_is_noticed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.experiments.pd_lifecycle_caches.EMPTY_WITHIN_S", 0.2)
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    if how == "refuses":
        fake.decode.resets = False
    else:
        forgetful = fake.decode.held

        class Kept(dict[tuple[int, ...], None]):
            def clear(self) -> None:
                """Says that it did."""

        fake.decode.held = Kept(forgetful)
    with pytest.raises(NotEmptied, match="decode engine"):
        await bench.caches.empty()


async def test_the_cells_own_part_of_the_logs_is_kept(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    await measure(bench, tmp_path / "second", SHAPE, grid(), place=1)
    rows = lines(tmp_path / "second" / "requests.jsonl")
    handovers = {row["request"] for row in rows if row["purpose"] == "handover"}
    assert len(rows) == 10
    assert {row["request"]["request"] for row in lines(tmp_path / "second" / "decisions.jsonl")} == handovers
    probe = lines(tmp_path / "second" / "probe" / "prefill" / "transfer.1.jsonl")
    assert probe[0]["event"] == "status"
    assert {row["transfer"] for row in probe[1:]} == {f"xfer-{number}" for number in range(5, 10)}


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
