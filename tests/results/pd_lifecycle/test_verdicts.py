"""The success criteria hold, fail or stay open by their intervals, and break-even needs significant signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.pd_lifecycle import verdicts
from results.pd_lifecycle.cost_model import fit_costs
from results.pd_lifecycle.overheads import OverheadCell, find_break_evens, measure_overheads
from results.pd_lifecycle.transfer_regression import collect_transfers
from results.pd_lifecycle.volumes import measure_volumes
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import Colo, LifecycleRecord, RequestConfig
from results.statistics.judgement import Judgement, Outcome
from tests.results.pd_lifecycle.synthetic import Truth, grid, seen

SIZES = (512, 2048, 4096, 8192)


@pytest.fixture(scope="module")
def usual() -> tuple[LifecycleRecord, ...]:
    return tuple(grid(Truth()))


def test_a_breakdown_is_complete_where_all_phases_are_there(usual: tuple[LifecycleRecord, ...]) -> None:
    criterion = verdicts.judge_completeness(usual)
    assert criterion.outcome is Outcome.HOLDS
    assert criterion.measured.value == pytest.approx(0.7 / 31.0, rel=0.1), "the shortest request, client to router"


def test_a_breakdown_that_lacks_a_phase_names_it(usual: tuple[LifecycleRecord, ...]) -> None:
    lacks = seen(Truth(), RequestConfig(0, 512, 32)).record(decision=None, discarded="")
    criterion = verdicts.judge_completeness((*usual, replace(lacks, discarded="")))
    assert criterion.outcome is Outcome.FAILS
    assert "1 of 49 requests miss a phase: routing (t0_proxy_recv" in criterion.reason


def test_a_breakdown_that_the_clients_clock_contradicts_fails() -> None:
    one = seen(Truth(), RequestConfig(0, 512, 1))
    assert one.client.t_send_ns is not None
    late = replace(one.client, t_send_ns=one.client.t_send_ns - 10_000_000)
    criterion = verdicts.judge_completeness([one.record(client=late)])
    assert criterion.outcome is Outcome.FAILS
    assert verdicts.judge_completeness([]).outcome is Outcome.OPEN


def test_a_breakdown_without_the_clients_send_is_not_judged_by_the_routers_clock_alone() -> None:
    one = seen(Truth(), RequestConfig(0, 512, 1))
    criterion = verdicts.judge_completeness([one.record(), one.record(client=replace(one.client, t_send_ns=None))])
    assert criterion.outcome is Outcome.UNDECIDED
    assert "1 of 2 requests have no stamp of the client's send" in criterion.reason


@pytest.mark.parametrize(
    ("truth", "outcome"),
    [
        (Truth(), Outcome.FAILS),
        (Truth(prefill_ms_per_token=0.0001), Outcome.HOLDS),
        (Truth(prefill_ms_per_token=0.00053, noise=0.2, alpha_ms=0.5), Outcome.UNDECIDED),
    ],
)
def test_the_transfer_dominates_only_at_every_long_prompt(truth: Truth, outcome: Outcome) -> None:
    criterion = verdicts.judge_dominance(tuple(grid(truth)), 4000)
    assert criterion.outcome is outcome
    assert all("N=512" not in name and "N=2048" not in name for name in criterion.numbers)


def _without_transfer(record: LifecycleRecord) -> LifecycleRecord:
    """As where the probe lost the stamps of the write."""
    gaps = {**record.gaps, "rdma_transfer": "t5_rdma_start: no stamp"}
    return replace(record, breakdown_ms={**record.breakdown_ms, "rdma_transfer": None}, gaps=gaps)


@pytest.mark.parametrize("launches", [1, 3])
def test_a_long_prompt_whose_transfer_is_unknown_is_not_left_out_of_a_rule_about_all(launches: int) -> None:
    truth = Truth(prefill_ms_per_token=0.0001)
    whole = [replace(one, trial=trial) for trial in range(launches) for one in grid(truth, seed=trial)]
    assert verdicts.judge_dominance(whole, 4000).outcome is Outcome.HOLDS
    lacking = [_without_transfer(one) if one.config.current_new_tokens == 8192 else one for one in whole]
    criterion = verdicts.judge_dominance(lacking, 4000)
    assert (criterion.outcome, criterion.p) == (Outcome.UNDECIDED, None)
    assert criterion.reason.startswith("no interval at C=0 N=8192; C=4096 N=8192: t5_rdma_start: no stamp")
    assert criterion.reason.endswith("; by the point alone: not met, longer at 2 of 4 (C, N)")
    nothing = verdicts.judge_dominance([_without_transfer(one) for one in whole], 4000)
    assert (nothing.outcome, nothing.measured.value) == (Outcome.OPEN, None)


def test_no_long_prompt_leaves_dominance_open() -> None:
    criterion = verdicts.judge_dominance(tuple(grid(Truth(), sizes=(512,))), 4000)
    assert criterion.outcome is Outcome.OPEN
    assert "no (C, N) with N >= 4000" in criterion.reason


@pytest.mark.parametrize(
    ("truth", "outcome"),
    [(Truth(), Outcome.HOLDS), (Truth(noise=1.5), Outcome.FAILS), (Truth(noise=0.16), Outcome.UNDECIDED)],
)
def test_the_model_fits_by_the_interval_of_its_r2(truth: Truth, outcome: Outcome) -> None:
    costs = verdicts.judge_linearity(fit_costs(collect_transfers(tuple(grid(truth))), link_gbps=None, knee_share=0.9))
    assert costs.outcome is outcome


def test_only_the_new_tokens_are_moved(usual: tuple[LifecycleRecord, ...]) -> None:
    rows = measure_volumes(usual)
    assert [row.bytes_per_token for row in rows] == [512.0] * 4
    assert all(row.slope.value == 0.0 for row in rows)
    assert rows[0].block_bytes == 128 * 512
    assert verdicts.judge_increment(rows).outcome is Outcome.HOLDS


def test_a_transfer_that_grows_with_the_context_is_found() -> None:
    rows = measure_volumes(tuple(grid(Truth(not_incremental=0.5), contexts=(0, 4096, 16384))))
    assert rows[0].slope.value == pytest.approx(256.0, rel=0.01)
    assert rows[0].slope.low is not None
    assert rows[0].slope.low > 0
    criterion = verdicts.judge_increment(rows)
    assert criterion.outcome is Outcome.FAILS
    assert "blocks" in criterion.reason


def test_bytes_are_set_against_what_the_model_says_of_its_kv() -> None:
    """`N x per_token_kv_size` of the specification; a connector that moves all of it twice is still incremental."""
    (row,) = measure_volumes(tuple(grid(Truth(), sizes=(2048,))))
    assert row.of_expected == pytest.approx(1.0)
    assert "512 bytes per token (100.0 % of the model's)" in verdicts.judge_increment([row]).reason
    twice = [seen(Truth(), RequestConfig(c, 2048, 1)).record(kv_bytes_per_token=256) for c in (0, 4096)]
    assert measure_volumes(twice)[0].of_expected == pytest.approx(2.0)
    criterion = verdicts.judge_increment(measure_volumes(twice))
    assert criterion.outcome is Outcome.FAILS
    assert "not the KV size of N new tokens by the model's configuration: N=2048: 200.0 %" in criterion.reason
    blind = [seen(Truth(), RequestConfig(c, 2048, 1)).record(kv_bytes_per_token=None) for c in (0, 4096)]
    assert measure_volumes(blind)[0].of_expected is None
    criterion = verdicts.judge_increment(measure_volumes(blind))
    assert criterion.outcome is Outcome.UNDECIDED
    assert criterion.reason.startswith("constant over C, size not checked")


def test_a_block_more_is_still_incremental() -> None:
    contexts = (0, 4096)
    truth = Truth(not_incremental=128 / 4096)
    assert verdicts.judge_increment(measure_volumes(tuple(grid(truth, contexts=contexts)))).outcome is Outcome.HOLDS
    truth = Truth(not_incremental=256 / 4096)
    assert verdicts.judge_increment(measure_volumes(tuple(grid(truth, contexts=contexts)))).outcome is Outcome.FAILS


def test_without_the_bytes_of_a_block_a_partial_block_is_no_contradiction() -> None:
    """2000 tokens are no whole number of blocks of 128: what moves is off by less than one."""
    records = [seen(Truth(), RequestConfig(c, 2000, 1)).record() for c in (0, 4096)]
    assert verdicts.judge_increment(measure_volumes(records)).outcome is Outcome.HOLDS
    blind = [replace(one, transfer_detail=replace(one.transfer_detail, num_blocks=None)) for one in records]
    criterion = verdicts.judge_increment(measure_volumes(blind))
    assert criterion.outcome is Outcome.UNDECIDED
    assert criterion.reason == "the bytes of a block are unknown at N = 2000"


def test_a_size_at_one_context_is_left_out_and_named(usual: tuple[LifecycleRecord, ...]) -> None:
    alone = seen(Truth(), RequestConfig(0, 16384, 1)).record()
    criterion = verdicts.judge_increment(measure_volumes((*usual, alone)))
    assert criterion.outcome is Outcome.HOLDS
    assert criterion.reason.startswith("N = 16384 left out, measured at one C; at each of 4 N")
    assert "1 values of C" in (criterion.numbers["bytes per token of C, N=16384"].reason or "")
    assert "left out" not in verdicts.judge_increment(measure_volumes(usual)).reason


def _without_bytes(record: LifecycleRecord) -> LifecycleRecord:
    return replace(record, transfer_detail=replace(record.transfer_detail, bytes_transferred=None))


def test_a_context_at_which_no_bytes_were_counted_is_not_left_out_of_a_rule_about_all(
    usual: tuple[LifecycleRecord, ...],
) -> None:
    assert verdicts.list_unsized(usual) == ()
    lacking = [_without_bytes(one) if one.config.key[:2] == (4096, 8192) else one for one in usual]
    without = verdicts.list_unsized(lacking)
    assert without == ((4096, 8192),)
    criterion = verdicts.judge_increment(measure_volumes(lacking), without)
    assert criterion.outcome is Outcome.UNDECIDED
    assert criterion.reason.startswith(
        "no bytes were counted at C=4096 N=8192; elsewhere they are constant over C: N=512"
    )
    nowhere = [_without_bytes(one) for one in usual]
    nothing = verdicts.judge_increment(measure_volumes(nowhere), verdicts.list_unsized(nowhere))
    assert (nothing.outcome, len(verdicts.list_unsized(nowhere))) == (Outcome.OPEN, 8)
    assert nothing.reason.startswith("no bytes were counted at C=0 N=512; C=0 N=2048;")
    alone = [one for one in nowhere if one.config.prior_context == 0]
    assert verdicts.list_unsized(alone) == (), "at one C there is nothing to compare"


def test_one_context_cannot_say_whether_transfers_are_incremental() -> None:
    assert verdicts.judge_increment(measure_volumes(tuple(grid(Truth(), contexts=(0,))))).outcome is Outcome.OPEN


def _cells(signs: str, context: int = 0) -> list[OverheadCell]:
    """`+`, `-` and `?` along N: slower, faster, not significant."""
    values = {"+": (10.0, 8.0, 12.0), "-": (-10.0, -12.0, -8.0), "?": (1.0, -5.0, 7.0)}
    sign_of = {"+": 1, "-": -1, "?": None}
    return [
        OverheadCell(
            context, 512 * 2**place, Estimate(*values[sign], n=3), unknown(""), unknown(""), None, sign=sign_of[sign]
        )
        for place, sign in enumerate(signs)
    ]


def _judged(*rows: str) -> Judgement:
    cells = [cell for place, signs in enumerate(rows) for cell in _cells(signs, 4096 * place)]
    return verdicts.judge_overhead(cells, find_break_evens(cells))


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        (("++--",), Outcome.HOLDS),
        (("+?-", "+++"), Outcome.HOLDS),
        (("++", "--"), Outcome.HOLDS),
        (("+?", "?-"), Outcome.UNDECIDED),
        (("+-+",), Outcome.FAILS),
        (("++++",), Outcome.UNDECIDED),
        (("????",), Outcome.UNDECIDED),
        ((), Outcome.OPEN),
    ],
)
def test_a_threshold_is_where_the_significant_sign_changes(rows: Sequence[str], outcome: Outcome) -> None:
    assert _judged(*rows).outcome is outcome


def test_two_signs_on_no_common_line_are_named_and_are_no_threshold() -> None:
    reason = _judged("+?", "?-").reason
    where = "at 1 and faster at 1 of 4 (C, N), but no C and no N has both: the threshold is not located"
    assert reason.startswith(f"slower than the combined engine with the connector {where}")


def test_break_even_is_interpolated_and_bounded_by_the_significant_signs() -> None:
    (row,) = find_break_evens(_cells("++--"))
    assert row.new_tokens.value == pytest.approx(1024 * 2**0.5)
    assert (row.new_tokens.low, row.new_tokens.high) == (1024.0, 2048.0)
    assert row.slower_above is False
    (row,) = find_break_evens(_cells("-??+"))
    assert (row.new_tokens.low, row.new_tokens.high) == (512.0, 4096.0)
    assert row.slower_above is True
    assert _judged("++++").reason.startswith("slower than the combined engine with the connector at 4 of")
    assert _judged("++++").reason.endswith("; by the point alone: not met, one sign at every (C, N)")


def test_break_even_goes_by_the_ratios_that_decide_where_a_slow_repetition_moved_the_mean() -> None:
    slow, fast = (
        msgspec.structs.replace(cell, overhead_ms=Estimate(5.0, launches=3), change=Estimate(change, launches=3))
        for cell, change in zip(_cells("+-"), (0.1, -0.1), strict=True)
    )
    (row,) = find_break_evens([slow, fast])
    assert row.new_tokens.value is not None
    assert 512 < row.new_tokens.value < 1024
    assert row.slower_above is False


def test_break_even_is_not_interpolated_between_a_ratio_and_milliseconds() -> None:
    """A launch lacks the (C, N) in the middle: it has no ratio over the launches."""
    slow, between, fast = (
        msgspec.structs.replace(cell, overhead_ms=Estimate(30.0, launches=3), change=change)
        for cell, change in zip(
            _cells("+?-"),
            (Estimate(0.1, launches=3), Estimate(0.3, launches=2), Estimate(1 / 1.1 - 1, launches=3)),
            strict=True,
        )
    )
    (row,) = find_break_evens([slow, between, fast])
    assert row.new_tokens.value == pytest.approx(1024)
    assert (row.new_tokens.low, row.new_tokens.high, row.new_tokens.n) == (512.0, 2048.0, 2)


def test_the_overhead_of_a_grid_is_what_it_was_made_of() -> None:
    cells = measure_overheads(tuple(grid(Truth(noise=0.0), sizes=(512, 16384), lengths=(1, 32))))
    short, long = cells[0], cells[1]
    assert (short.prior_context, short.new_tokens, short.overhead_ms.n) == (0, 512, 6)
    assert short.sign == 1
    assert long.sign == -1
    crossing = find_break_evens(cells)[0].new_tokens.value
    assert crossing is not None
    assert 512 < crossing < 16384


def test_without_a_baseline_there_is_no_map() -> None:
    config = RequestConfig(0, 512, 1)
    records = [seen(Truth(), config, n).record(colo=Colo(reason="it was not asked for")) for n in (3, 4, 5)]
    cells = measure_overheads(records)
    assert cells[0].overhead_ms.value is None
    criterion = verdicts.judge_overhead(cells, find_break_evens(cells))
    assert criterion.outcome is Outcome.OPEN
    assert "it was not asked for" in criterion.reason


def test_no_criterion_breaks_on_a_run_without_requests(tmp_path: Path) -> None:
    fitted = fit_costs(collect_transfers(()), link_gbps=None, knee_share=0.9)
    criteria = [
        verdicts.judge_completeness([]),
        verdicts.judge_dominance([], 4000),
        verdicts.judge_linearity(fitted),
        verdicts.judge_increment([]),
        verdicts.judge_overhead([], []),
    ]
    assert [one.name for one in criteria] == list("12345")
    assert {one.outcome for one in criteria} == {Outcome.OPEN}
    assert all(one.reason for one in criteria)
