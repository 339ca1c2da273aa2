"""Pools as measured: KV in use at 1 Hz, where prompt tokens came from, and APC where KV was moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.turns import EngineSample, RoutedEngine
from results.routing.pools import InstancePool, measure_pools
from results.routing.read import LoadedCell, count_picks, keep_own_cache
from results.routing.summary import compute_moved_apc, summarize_loaded_cell
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import T0_NS, Truth, World, loaded, measurements_of

pytestmark = pytest.mark.usefixtures("trials_differ_by_a_hair")

WORLD = World(sessions=4, turns=3, gap_s=5.0)


def engine(name: str, role: str, local: float, external: float, computed: float) -> RoutedEngine:
    sources = {"local_cache_hit": local, "external_kv_transfer": external, "local_compute": computed}
    whole = sum(sources.values())
    return RoutedEngine(name, role, "", None, "spawn", 16, 1000, whole, local + external, sources)


ENGINES = (
    engine("p", "prefill", 300.0, 0.0, 700.0),
    engine("d0", "decode", 0.0, 800.0, 0.0),
    engine("d1", "decode", 100.0, 50.0, 50.0),
)


def cell(trial: int = 0, usage: tuple[tuple[float, float], ...] = ((0.2, 0.4), (1.0, 0.9))) -> LoadedCell:
    """d0 and d1 at the seconds 1, 2, ...; a sample before the replay and one without its twin count for nothing."""
    found = loaded(WORLD, Truth("static_pd"), trial)
    samples = [
        EngineSample(T0_NS + (second + 1) * 10**9, name, 1, 0, used, 0, 1)
        for second, pair in enumerate(usage)
        for name, used in zip(("d0", "d1"), pair, strict=True)
    ]
    samples += [
        EngineSample(T0_NS - 10**9, "d0", 1, 0, 1.0, 0, 1),
        EngineSample(T0_NS + 9 * 10**9, "d0", 1, 0, None, 0, 1),
    ]
    return replace(found, record=replace(found.record, engines=ENGINES), samples=tuple(samples))


def _measure(cells: Sequence[LoadedCell]) -> tuple[InstancePool, ...]:
    return measure_pools(cells, ["static_pd"], measurements_of(cells))


def test_the_decode_pool_is_as_full_as_its_instances_said() -> None:
    found = {row.role: row for row in _measure([cell()])}
    decode = found["decode"]
    assert (decode.deployment, decode.instances) == ("1P+2D", 2)
    assert decode.values["kv_mean"].value == pytest.approx((0.3 + 0.95) / 2)
    assert decode.values["kv_max"].value == pytest.approx(0.95)
    assert decode.values["kv_p90"].value == pytest.approx(0.3 + 0.9 * 0.65)
    assert decode.values["over_wall_share"].value == 0.5  # two of four samples at 90 % or more
    assert decode.values["external_tokens"].value == 850
    assert decode.values["external_share"].value == pytest.approx(0.85)
    assert found["prefill"].values["local_hit_share"].value == pytest.approx(0.3)
    assert found["prefill"].values["kv_mean"].reason == "no sample of this pool states its KV in use"


def test_the_interval_of_a_share_ends_at_the_whole() -> None:
    cells = [cell(trial, ((used, used),)) for trial, used in enumerate((0.5, 0.95, 1.0))]
    values = next(row for row in _measure(cells) if row.role == "decode").values
    assert [values[name].high for name in ("kv_mean", "kv_p90", "kv_max", "over_wall_share")] == [1.0] * 4
    assert (values["prompt_tokens"].high or 0.0) > 1.0


def test_where_a_replay_ended_early_the_pool_has_no_interval() -> None:
    """The trials that are left are the faster ones."""
    cells = [cell(trial, ((used, used),)) for trial, used in enumerate((0.2, 0.3, 0.5))]
    early = replace(cells[0].record, trial=3, replay={**cells[0].record.replay, "stop_reason": "hard_stop"})
    values = next(row for row in _measure([*cells, replace(cells[0], record=early)]) if row.role == "decode").values
    assert (values["kv_mean"].low, values["prompt_tokens"].low) == (None, None)
    assert "in 1 of 4 trials of static_pd the replay ended early" in (values["kv_mean"].reason or "")


def test_an_engine_that_does_not_count_leaves_its_pool_unknown() -> None:
    whole = cell()
    engines = (*ENGINES[:2], replace(ENGINES[2], prompt_tokens_by_source={}))
    found = _measure([replace(whole, record=replace(whole.record, engines=engines))])
    decode = next(row for row in found if row.role == "decode")
    assert decode.values["external_share"].value is None
    assert decode.values["prompt_tokens"].value == 1000


def _log(*transfers: KvTransfer) -> list[DecisionRecord]:
    log = Log()
    for transfer in transfers:
        log.pick(0, "s", transfer.target, transfer=transfer)
    return log.records


def test_apc_is_the_share_that_no_instance_computed_without_the_prompts_of_prefill_requests() -> None:
    """2000 prompt tokens counted, 1000 of them the prefill requests'; 750 computed of the clients' 1000."""
    picks = count_picks(
        _log(moved("p", "d0", purpose="handover", prefix=800), moved("p", "d1", purpose="handover", prefix=200))
    )
    assert (picks.transfer_prompt_tokens, picks.handovers) == (1000, 2)
    assert compute_moved_apc(ENGINES, picks).value == pytest.approx(0.25)


def test_a_migration_counts_two_requests_and_a_failed_one_the_source_alone() -> None:
    failed = replace(moved("a", "b", status="failed"), t_target_sent_ns=0)
    refused = replace(moved("a", "b", status="refused"), t_source_done_ns=0, t_target_sent_ns=0)
    assert count_picks(_log(moved("a", "b"))).transfer_prompt_tokens == 3200
    assert count_picks(_log(failed)).transfer_prompt_tokens == 1600
    assert count_picks(_log(refused)).transfer_prompt_tokens == 0


def test_apc_is_unknown_where_an_engine_does_not_say_what_it_computed() -> None:
    picks = count_picks(_log(moved("p", "d0", purpose="handover")))
    found = compute_moved_apc((replace(ENGINES[0], prompt_tokens_by_source={}), *ENGINES[1:]), picks)
    assert found.value is None
    assert "by source" in (found.reason or "")


def test_what_was_handed_over_is_no_cache_hit_of_the_response() -> None:
    picks = count_picks(_log(moved("p", "d0", purpose="handover")))
    whole = cell()
    found = summarize_loaded_cell(replace(whole, turns=keep_own_cache(whole.turns, picks, whole.record), picks=picks))
    assert found.estimate("apc_usage").value is None
    assert "handed" in (found.estimate("apc_usage").reason or "")
    assert all(one.values["apc_usage"].value is None for one in found.instances)
    assert summarize_loaded_cell(whole).estimate("apc_usage").value is not None


def test_a_log_written_before_there_were_transfers_counts_none() -> None:
    log = Log()
    log.pick(0, "s", "a")
    picks = count_picks(log.records)
    assert (picks.transfers, picks.transfer_prompt_tokens, picks.handovers) == ({}, 0, 0)
