"""One cell of pd-lifecycle: C is what it claims in everything that counts, and what does not count is made again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.records.events import CellProgressed, InstanceSampled, LifecycleMeasured
from results.records.lifecycle import RequestConfig
from results.records.plan import CellPlan
from results.records.transfer_log import ProbeEvent
from runners.errors import CellFailed, CellSkipped
from runners.experiments.pd_lifecycle.bench import Bench
from runners.experiments.pd_lifecycle.caches import FRESH_TOKENS, NotEmptied
from runners.experiments.pd_lifecycle.cell import LifecycleCell, Measurements
from runners.experiments.pd_lifecycle.evidence import verify_context
from runners.experiments.pd_lifecycle.grid import Expected, Grid, make_shape_params
from runners.experiments.pd_lifecycle.static_pd_or_combined import COLO, HANDOVER, PLAIN
from tests.examples import examples
from tests.runners.experiments.pd_lifecycle.lifecycle_fakes import BLOCK, FakeBench, FakeEngine


def grid(**changed: Any) -> Grid:
    """Any length that a test measures is in it; `handover_first`, so that no place in it matters unless asked."""
    base = Grid((0,), (1,), (1,), engine_start_s=1.0, expected=Expected(0.1), order="handover_first")
    return msgspec.structs.replace(base, **changed)


def cell(shape: RequestConfig, place: int = 0, trial: int = 0) -> CellPlan:
    params = {**make_shape_params(shape), "position": place, "turn": place, "load_seed": 1, "why_not": ""}
    name = f"sweep/{shape.label}" + (f"/t{trial}" if trial else "")
    return CellPlan(name, "sweep", "lifecycle", "mooncake_both", shape.label, params, 1.0, trial)


async def measure(
    bench: Bench, folder: Path, shape: RequestConfig, of: Grid, *, attempt: int = 1, place: int = 0, trial: int = 0
) -> tuple[Measurements, list[Any]]:
    events: list[Any] = []
    measurements = Measurements()
    one = LifecycleCell(
        cell(shape, place, trial), attempt, of, bench, folder, lambda *said: events.extend(said), measurements
    )
    await one.run("tiny")
    return measurements, events


SHAPE = RequestConfig(4 * BLOCK, 100, 3)


async def test_a_cell_gives_all_its_repetitions_and_only_the_first_are_warm_ups(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    measurements, events = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert list(measurements.records) == [1, 2, 3, 4, 5]
    assert [record.warmup for record in measurements.records.values()] == [True, True, False, False, False]
    assert all(record.verification.ok for record in measurements.records.values())
    assert fake.handovers == fake.combined == 5
    assert [event.repetition for event in events if isinstance(event, LifecycleMeasured)] == [1, 2, 3, 4, 5]
    progress = [event.fraction for event in events if isinstance(event, CellProgressed)]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


async def test_a_record_holds_stamps_bytes_and_the_combined_instances_time(tmp_path: Path) -> None:
    measurements, _ = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    record = measurements.records[3]
    assert record.breakdown_ms["p_prefill"] == pytest.approx(5.0)
    assert record.breakdown_ms["rdma_transfer"] == pytest.approx(1.0)
    assert record.breakdown_ms["e2e"] == pytest.approx(17.0)
    assert record.residual_share == pytest.approx(0.0)
    assert record.transfer_detail.bytes_transferred == 512 * SHAPE.current_new_tokens
    assert record.colo.ttft_ms == pytest.approx(20.0)
    assert record.counts.p_cached_tokens == SHAPE.prior_context
    assert record.counts.kv_bytes_per_token == 512
    assert record.config.total_input_length == SHAPE.prior_context + SHAPE.current_new_tokens


async def test_what_a_reader_sees_is_what_the_record_says(tmp_path: Path) -> None:
    """TTFTs and E2E by the client's clock from its send: the difference of the TTFTs is the record's overhead."""
    measurements, events = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    measured_events = [event for event in events if isinstance(event, LifecycleMeasured)]
    for event in measured_events:
        record = measurements.records[event.repetition]
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
    verification = verify_context(SHAPE, None, (), (room,))
    assert (verification.ok, verification.counted_tokens) == (True, SHAPE.prior_context)
    lost = verify_context(SHAPE, None, (), (msgspec.structs.replace(room, local_tokens=0),))
    assert (lost.ok, lost.counted_tokens) == (False, 0)


async def test_the_prefill_engine_computes_the_new_tokens_alone(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "cell", SHAPE, grid(baseline=False))
    checks = 6 * 8  # one after the seeding, one before each request: the tokens that follow the prefix
    assert fake.prefill.computed == SHAPE.prior_context + 5 * SHAPE.current_new_tokens + checks
    assert fake.decode.computed == SHAPE.prior_context + checks


async def test_no_two_prompts_share_a_block_beyond_the_prefix(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    for attempt, place in ((1, 0), (1, 1), (2, 0)):
        folder = tmp_path / f"{attempt}-{place}"
        measurements, _ = await measure(bench, folder, SHAPE, grid(), attempt=attempt, place=place)
        assert not measurements.discarded


async def test_nothing_is_sent_while_something_about_an_earlier_request_is_still_written(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", late_s=0.1)
    measurements, _ = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid(repetitions=3))
    assert all(record.residual_share is not None for record in measurements.records.values())
    assert len(fake.sent) == 6
    assert fake.overtaken == []


WIDE = grid(prior_context=(0, 4 * BLOCK), new_tokens=(64, 100), output_length=(1, 3), order="counterbalanced")


@pytest.mark.parametrize("prior", WIDE.prior_context)
async def test_both_requests_of_a_pair_come_after_the_same_and_either_comes_first(tmp_path: Path, prior: int) -> None:
    fake = FakeBench(tmp_path / "bench")
    measurements, events = await measure(fake.bench(), tmp_path / "cell", RequestConfig(prior, 100, 3), WIDE)
    assert [record.colo.first for record in measurements.records.values()] == [
        WIDE.order_requests(RequestConfig(prior, 100, 3), number, 0, plain=False)[0] == COLO for number in range(1, 6)
    ]
    assert {record.colo.first for record in measurements.records.values()} == {True, False}
    assert {record.colo.through for record in measurements.records.values()} == {"router"}
    firsts = {event.repetition: event.colo_first for event in events if isinstance(event, LifecycleMeasured)}
    assert firsts == {number: record.colo.first for number, record in measurements.records.items()}
    for row in lines(tmp_path / "cell" / "requests.jsonl"):
        assert row["first"] == (row["position"] == 0)
        assert row["first"] == (measurements.records[row["repetition"]].colo.first == (row["purpose"] == "colo"))
    for engine in (fake.prefill, fake.decode):
        before = [engine.said[place - 1] for place, actual in enumerate(engine.said) if actual.startswith("measured")]
        assert before == [f"prompt {prior + FRESH_TOKENS}"] * 10


async def test_no_name_of_a_request_holds_that_of_its_pair(tmp_path: Path) -> None:
    """An engine's name of a request holds the client's: that is how a probe's events are found."""
    measurements, _ = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    for record in measurements.records.values():
        assert record.ids.request
        assert record.ids.request not in record.colo.request
        assert record.colo.request not in record.ids.request


async def test_the_plain_engine_is_measured_too_and_holds_the_context_as_the_others(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", plain=FakeEngine())
    measurements, events = await measure(fake.bench(), tmp_path / "cell", SHAPE, WIDE, trial=1)
    assert (fake.handovers, fake.combined) == (5, 10)
    for record in measurements.records.values():
        assert record.trial == 1
        assert record.plain.ttft_ms == pytest.approx(18.0)
        assert record.colo.ttft_ms == pytest.approx(20.0)
        assert record.ms("pdsep_overhead_vs_plain") == pytest.approx((record.client_ttft_ms or 0.0) - 18.0)
        order = WIDE.order_requests(record.config, record.repetition, 1, plain=True)
        assert record.plain.first == (order.index(PLAIN) < order.index(HANDOVER))
    assert {record.plain.first for record in measurements.records.values()} == {True, False}
    shown = {event.repetition: event for event in events if isinstance(event, LifecycleMeasured)}
    for record in measurements.records.values():
        event = shown[record.repetition]
        assert (event.plain_ttft_ms, event.plain_first) == (record.plain.ttft_ms, record.plain.first)
    assert fake.plain is not None
    asked = [actual for actual in fake.plain.said if actual.startswith("measured lpc-")]
    assert len(asked) == 5
    assert all("_t1-a1-" in actual for actual in asked)


async def test_a_repetition_whose_plain_engine_lost_the_context_does_not_count(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", plain=FakeEngine())
    bench = fake.bench()
    assert fake.plain is not None
    measured = iter(range(100))

    def forget(number: int) -> None:
        if next(measured) == 1 and fake.plain is not None:
            fake.plain.held.clear()

    fake.before = forget
    order = grid(order="handover_first", repetitions=2, warmup_repetitions=0)
    measurements, _ = await measure(bench, tmp_path / "cell", SHAPE, order)
    assert measurements.discarded == []
    assert len(measurements.seedings) == 2, "the check before the request seeded the prefix again"


async def test_a_repetition_that_is_made_again_keeps_its_order(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", failing=frozenset({1, 3}))
    measurements, _ = await measure(fake.bench(), tmp_path / "cell", SHAPE, WIDE)
    assert len(measurements.discarded) == 2
    for record in (*measurements.discarded, *measurements.records.values()):
        order = WIDE.order_requests(SHAPE, record.repetition, 0, plain=False)
        assert record.colo.first == (order[0] == COLO)


async def test_a_combined_instance_that_does_not_tell_what_it_held_is_no_baseline(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", tells=False)
    with pytest.raises(CellFailed, match="does not report its cached tokens"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid(discards=1))


@pytest.mark.parametrize("counted_by", ["probe", "counters"])
async def test_counters_are_read_where_the_probe_is_blind_and_never_while_a_request_runs(
    tmp_path: Path, counted_by: Literal["probe", "counters"]
) -> None:
    fake = FakeBench(tmp_path / "bench", counted_by=counted_by)
    measurements, _ = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    for record in measurements.records.values():
        assert (record.verification.ok, record.verification.counted_tokens) == (True, SHAPE.prior_context)
        assert record.verification.reason == ""
    for engine in (fake.prefill, fake.decode):
        actual = engine.said
        assert actual.count("metrics") == (2 if counted_by == "probe" else 2 + 2 * 10)
        assert all(actual[place + 1] == "end" for place, what in enumerate(actual) if what.startswith("measured"))


async def test_by_its_counters_a_decode_engine_that_lost_its_prefix_is_seen(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", counted_by="counters")
    fake.before = lambda number: fake.decode.held.clear() if number == 2 else None
    measurements, _ = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert [record.discarded for record in measurements.discarded] == [
        f"the decode engine held 0 tokens of the prompt, not {SHAPE.prior_context}"
    ]


async def test_the_load_of_both_engines_is_kept_and_what_is_not_counted_is_null(tmp_path: Path) -> None:
    measurements, _ = await measure(FakeBench(tmp_path / "bench").bench(), tmp_path / "cell", SHAPE, grid())
    assert set(measurements.load) == {"prefill", "decode"}
    for span in measurements.load.values():
        assert (span.begin.preemptions, span.end.preemptions, span.preemptions) == (0, 0, 0)
        assert span.end.prefix_cache_hits is None
        assert "prefix_cache_hits" in span.end.reason


async def test_the_kv_usage_of_an_idle_engine_is_neither_stored_nor_reported(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", FakeEngine(kv_usage=0.4321), FakeEngine(kv_usage=0.4321))
    measurements, events = await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert all("metrics" in engine.said for engine in (fake.prefill, fake.decode)), "the page with the gauge was read"
    assert "0.4321" not in msgspec.json.encode(measurements.load).decode()
    assert not any(isinstance(event, InstanceSampled) for event in events)
    assert "0.4321" not in repr(events)
    stored = [path.read_text() for path in (tmp_path / "cell").rglob("*") if path.is_file()]
    assert stored
    assert not any("0.4321" in content for content in stored)


async def test_a_preemption_within_the_cell_spoils_all_of_it(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    fake.before = lambda number: setattr(fake.decode, "preempted", 2)
    measurements = Measurements()
    one = LifecycleCell(cell(SHAPE), 1, grid(), fake.bench(), tmp_path / "cell", lambda *said: None, measurements)
    with pytest.raises(CellFailed, match="preempted within the cell, 2 at the decode engine"):
        await one.run("tiny")
    assert not measurements.records
    assert len(measurements.discarded) == 5


async def test_ageing_fills_both_pools_once_with_prompts_of_many_lengths(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    aged = await bench.caches.age_pools(100_000)
    assert 100_000 <= aged.tokens < 102_048
    for engine in (fake.prefill, fake.decode):
        assert engine.computed == aged.tokens
        assert len(engine.said) == aged.requests
        assert len(set(engine.said)) == 16
    await bench.caches.empty()
    assert not bench.caches.used
    measurements, _ = await measure(bench, tmp_path / "cell", SHAPE, grid())
    assert not measurements.discarded


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        measurements, events = await measure(fake.bench(), Path(folder) / "cell", SHAPE, grid())
        assert sorted(measurements.records) == [1, 2, 3, 4, 5]
        for record in measurements.records.values():
            assert record.verification.counted_tokens == SHAPE.prior_context
            assert record.counts.p_cached_tokens == SHAPE.prior_context
            assert record.transfer_detail.bytes_transferred == 512 * SHAPE.current_new_tokens
        spoiled = {number for number in (*evicting, *failing) if number < fake.handovers}
        assert len(measurements.discarded) == len(spoiled) == fake.handovers - 5
        discarded = [event for event in events if isinstance(event, LifecycleMeasured) and event.discarded]
        assert len(discarded) == len(measurements.discarded)
        assert all(record.discarded for record in measurements.discarded)


async def test_a_cell_whose_measurements_never_count_fails_and_says_why(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", failing=frozenset(range(100)))
    with pytest.raises(CellFailed, match=r"4 measurements were discarded, 3 are allowed; .*the test says so"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid(discards=3))
    assert fake.handovers <= 3 + 5


async def test_a_prefix_that_was_evicted_between_requests_is_seeded_again(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    fake.decode.held.clear()
    measurements, _ = await measure(bench, tmp_path / "second", SHAPE, grid(), place=1)
    assert not measurements.discarded
    (seeding,) = measurements.seedings
    assert seeding.emptied == "not emptied: part of the prefix had been evicted"


async def test_a_cache_that_cannot_hold_the_prefix_fails_the_cell(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench", decode=FakeEngine(blocks=3))
    with pytest.raises(CellFailed, match="and the decode engine 96"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())
    assert fake.handovers == 0


@pytest.mark.parametrize(
    ("shape", "named"),
    [(RequestConfig(BLOCK + 1, 8, 1), "whole number"), (RequestConfig(BLOCK, 900, 100), "holds 1000")],
)
async def test_a_cell_the_engines_have_no_room_for_is_skipped_with_the_reason(
    tmp_path: Path, shape: RequestConfig, named: str
) -> None:
    with pytest.raises(CellSkipped, match=named):
        await measure(FakeBench(tmp_path / "bench", capacity_tokens=1000).bench(), tmp_path / "cell", shape, grid())


async def test_an_engine_that_died_fails_the_cell_with_its_death(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")

    def die(number: int) -> None:
        fake.dead = "was ended by SIGILL"

    fake.before = die
    with pytest.raises(CellFailed, match="the prefill engine was ended by SIGILL"):
        await measure(fake.bench(), tmp_path / "cell", SHAPE, grid())


async def test_emptied_caches_hold_nothing_of_what_was_sent(tmp_path: Path) -> None:
    fake = FakeBench(tmp_path / "bench")
    bench = fake.bench()
    await measure(bench, tmp_path / "first", SHAPE, grid())
    await bench.caches.empty()
    assert not bench.caches.used
    other = RequestConfig(2 * BLOCK, 100, 1)
    measurements, _ = await measure(bench, tmp_path / "second", other, grid(), place=1)
    assert not measurements.discarded
    assert measurements.seedings[0].emptied.startswith("POST /reset_prefix_cache, then 0 of ")
    assert measurements.seedings[0].held.decode == 2 * BLOCK


@pytest.mark.parametrize("how", ["refuses", "lies"])
async def test_a_cache_that_is_not_emptied_is_noticed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.experiments.pd_lifecycle.caches.EMPTY_WITHIN_S", 0.2)
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
    combined = {row["request"] for row in rows if row["purpose"] == "colo"}
    assert (len(rows), len(handovers), len(combined)) == (10, 5, 5)
    decided = {row["request"]["request"] for row in lines(tmp_path / "second" / "decisions.jsonl")}
    assert decided == handovers | combined
    assert all(set(row["others"]) <= (combined if row["purpose"] == "handover" else handovers) for row in rows)
    assert all(len(row["others"]) == 1 for row in rows)
    probe = lines(tmp_path / "second" / "probe" / "prefill" / "transfer.1.jsonl")
    assert probe[0]["event"] == "status"
    assert {row["transfer"] for row in probe[1:]} == {f"xfer-{number}" for number in range(5, 10)}


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
