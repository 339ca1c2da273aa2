"""From three launches on the launch decides: its spread gives the intervals, and what all sizes share counts once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from results.pd_lifecycle import verdicts
from results.pd_lifecycle.analyze import analyze
from results.pd_lifecycle.by_launch import find_incomplete_launches, read_size
from results.pd_lifecycle.compare import build_comparable
from results.pd_lifecycle.draw import DRAWERS, draw_overhead
from results.pd_lifecycle.figures import build_figures, list_baselines
from results.pd_lifecycle.first_repetitions import compare_first_repetitions
from results.pd_lifecycle.half_step import assess_half_step
from results.pd_lifecycle.overheads import (
    COMBINED_ENGINE,
    PLAIN_ENGINE,
    OverheadCell,
    find_break_evens,
    judge_signs,
    measure_grid_overheads,
    measure_overheads,
)
from results.pd_lifecycle.page import build_page
from results.pd_lifecycle.report import list_limits
from results.pd_lifecycle.summary import collect_config_values
from results.pd_lifecycle.tables import build_tables
from results.pd_lifecycle.write import build_aggregate
from results.records.estimate import Estimate, unknown
from results.records.frames import Gap
from results.records.lifecycle import LifecycleRecord, RequestConfig
from results.report.comparison import compare
from results.report.output import draw
from results.statistics.judgement import Judgement, Outcome
from tests.results.pd_lifecycle.synthetic import Truth, grid, seen, write_run
from tests.results.statistics.in_memory import covers

ONE = seen(Truth(noise=0.0), RequestConfig(0, 512, 1)).record()


def _launched(
    rng: np.random.Generator,
    *,
    launches: int = 3,
    overhead: float = 0.0,
    connector: float = 0.0,
    by_launch: float = 0.0,
    noise: float = 0.05,
    repetitions: int = 5,
    sizes: tuple[int, ...] = (512, 2048, 8192),
) -> Iterator[LifecycleRecord]:
    """TTFTs whose logarithms differ by these amounts; `by_launch` is what a launch's disaggregation is slower by."""
    for trial in range(launches):
        shift = by_launch * rng.standard_normal()
        for context in (0, 4096):
            for size in sizes:
                for repetition in range(1, repetitions + 1):
                    base = np.log(20 + size / 100)
                    plain, colo, ttft = np.exp(
                        base + np.array([0.0, connector, connector + overhead + shift]) + noise * rng.standard_normal(3)
                    )
                    order = (repetition + trial) % 2 == 1
                    times = {
                        "client_ttft": ttft, "pdsep_overhead": ttft - colo, "pdsep_overhead_vs_plain": ttft - plain,
                    }  # fmt: skip
                    yield replace(
                        ONE,
                        config=RequestConfig(context, size, 1),
                        trial=trial,
                        repetition=repetition,
                        warmup=repetition <= 2,
                        more_ms={**ONE.more_ms, **times},
                        colo=replace(ONE.colo, ttft_ms=colo, first=order),
                        plain=replace(ONE.colo, ttft_ms=plain, first=not order),
                    )


def test_the_overheads_over_both_engines_are_named_and_differ_by_the_connector() -> None:
    records = tuple(_launched(np.random.default_rng(1), overhead=0.5, connector=0.2, noise=0.01))
    combined, plain = measure_overheads(records), measure_overheads(records, plain=True)
    assert {cell.baseline for cell in combined} == {COMBINED_ENGINE}
    assert {cell.baseline for cell in plain} == {PLAIN_ENGINE}
    assert all(cell.sign == 1 and cell.overhead_ms.launches == 3 for cell in (*combined, *plain))
    for cell, other in zip(combined, plain, strict=True):
        assert cell.change.value == pytest.approx(np.expm1(0.5), abs=0.05)
        assert other.change.value == pytest.approx(np.expm1(0.7), abs=0.05)
        assert (cell.median_ms or 0.0) == pytest.approx(cell.overhead_ms.value, rel=0.1)
    changes = {(one.arm, one.baseline): one.change.value for one in measure_grid_overheads(records)}
    assert changes[COMBINED_ENGINE, PLAIN_ENGINE] == pytest.approx(np.expm1(0.2), abs=0.03)
    assert changes["handover", PLAIN_ENGINE] == pytest.approx(np.expm1(0.7), abs=0.03)


def test_one_launch_gives_no_verdict_and_says_what_would() -> None:
    records = tuple(_launched(np.random.default_rng(1), launches=1, overhead=0.5))
    cells = measure_overheads(records)
    criterion = verdicts.require_launches(verdicts.judge_overhead(cells, find_break_evens(cells)), 1)
    assert criterion.outcome is Outcome.UNDECIDED
    assert "`--trials 3` gives a verdict" in criterion.reason
    assert all(cell.change.low is None and cell.change.reason for cell in cells)
    assert all(one.change.low is None for one in measure_grid_overheads(records))


def test_launches_that_differ_do_not_make_an_overhead() -> None:
    """No overhead, launches that differ by 20 %: 5 % of runs may show a sign; repetitions alone show one in most."""
    shown = {3: 0, 1: 0}
    runs = 60
    for seed in range(runs):
        for launches in shown:
            rng = np.random.default_rng([seed, launches])
            cells = measure_overheads(tuple(_launched(rng, launches=launches, by_launch=0.2, noise=0.01)))
            shown[launches] += any(cell.sign is not None for cell in cells)
    assert shown[3] <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs), shown
    assert shown[1] > 0.4 * runs, "the launch as unit is what makes the difference"


def test_an_overhead_without_a_sign_names_the_overheads_that_are_excluded() -> None:
    cells = measure_overheads(tuple(_launched(np.random.default_rng(4), by_launch=0.02)))
    criterion = verdicts.judge_overhead(cells, find_break_evens(cells))
    assert criterion.outcome is Outcome.UNDECIDED
    covering = [
        one.change for one in cells if one.sign is None and (one.change.low or 0) <= 0 <= (one.change.high or 0)
    ]
    low, high = min(one.low or 0 for one in covering), max(one.high or 0 for one in covering)
    assert (
        f"no sign is significant at any of 6 (C, N); overheads below {100 * low:+.1f} % and above {100 * high:+.1f} % "
        f"are excluded at each of {len(covering)} (C, N) by itself"
    ) in criterion.reason
    assert "excluded" not in judge_one_launch().reason


def judge_one_launch() -> Judgement:
    cells = measure_overheads(tuple(_launched(np.random.default_rng(4), launches=1)))
    return verdicts.judge_overhead(cells, find_break_evens(cells))


def test_a_slow_repetition_moves_the_mean_and_not_what_decides() -> None:
    records = list(_launched(np.random.default_rng(2), overhead=0.5, noise=0.01, repetitions=12))
    slow = next(index for index, one in enumerate(records) if one.counted)
    one = records[slow]
    more = {**one.more_ms, "client_ttft": 900.0, "pdsep_overhead": 900.0 - (one.colo.ttft_ms or 0.0)}
    records[slow] = replace(one, more_ms=more)
    cell = measure_overheads(tuple(records))[0]
    assert (cell.overhead_ms.value or 0.0) > 2 * (cell.median_ms or 0.0)
    assert cell.change.value == pytest.approx(np.expm1(0.5), abs=0.1)


def test_the_values_of_a_configuration_are_over_its_launches() -> None:
    records = [one for one in _launched(np.random.default_rng(3), by_launch=0.3) if one.counted]
    own = [one for one in records if one.config.key == (0, 512, 1)]
    estimate = collect_config_values(own, 3)["client_ttft"]
    each = [
        collect_config_values([one for one in own if one.trial == trial], 1)["client_ttft"].value for trial in range(3)
    ]
    assert estimate.value == pytest.approx(np.mean(np.array(each, dtype=np.float64)))
    assert (estimate.launches, estimate.n) == (3, 9)
    some = collect_config_values([one for one in own if one.trial], 3)["client_ttft"]
    assert some.value == pytest.approx(np.mean(np.array(each[1:], dtype=np.float64)))
    assert (some.low, some.reason) == (None, "2 of 3 launches have this configuration"), "no spread of repetitions"


def _with_a_stalled_launch() -> list[LifecycleRecord]:
    """One of three launches takes twenty times as long: Student's t over the launches reaches below 0."""
    records = []
    for one in _launched(np.random.default_rng(4), repetitions=4):
        by = 20.0 if one.trial == 2 else 1.0
        ttft, colo = by * (one.more_ms["client_ttft"] or 0.0), by * (one.colo.ttft_ms or 0.0)
        more = {name: by * value for name, value in one.more_ms.items() if value is not None}
        breakdown = {name: None if value is None else by * value for name, value in one.breakdown_ms.items()}
        more["pdsep_overhead"] = ttft - colo
        records.append(
            replace(one, breakdown_ms=breakdown, more_ms={**one.more_ms, **more}, colo=replace(one.colo, ttft_ms=colo))
        )
    return records


def test_no_interval_of_a_duration_reaches_below_zero_and_those_of_differences_may() -> None:
    records = [one for one in _with_a_stalled_launch() if one.counted]
    values = collect_config_values([one for one in records if one.config.key == (0, 512, 1)], 3)
    for name in ("e2e", "p_prefill", "rdma_transfer", "client_ttft", "colo_ttft", "plain_ttft"):
        assert (values[name].low or 0.0) >= 0, name
    assert values["client_ttft"].low == 0
    assert values["pdsep_overhead"].low is not None
    assert values["pdsep_overhead"].low < 0
    (cell, *_) = measure_overheads(records)
    assert (cell.pdsep_ttft_ms.low, cell.colo_ttft_ms.low) == (0, 0)
    assert (cell.overhead_ms.low or 0.0) < 0


def test_a_table_says_where_an_interval_was_cut_at_zero(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth())))
    analysis = replace(analyze(tmp_path), overheads=measure_overheads(_with_a_stalled_launch()))
    note = next(one.note for one in build_tables(analysis) if one.title == f"Overhead over the {COMBINED_ENGINE}")
    assert "A lower bound of 0 is cut there" in note


def test_criterion_2_is_judged_over_the_launches() -> None:
    """Repetitions that agree say nothing of a launch: one of three has a fast link."""

    def launch(trial: int, alpha_ms: float) -> Iterator[LifecycleRecord]:
        truth = Truth(alpha_ms=alpha_ms, prefill_ms_per_token=0.001, noise=0.01)
        return (replace(one, trial=trial) for one in grid(truth, sizes=(4096, 8192), seed=trial))

    alike = [one for trial in range(3) for one in launch(trial, 40.0)]
    assert verdicts.judge_dominance(alike, 4000).outcome is Outcome.HOLDS
    differing = [one for trial, alpha in enumerate((40.0, 40.0, 0.01)) for one in launch(trial, alpha)]
    unsure = verdicts.judge_dominance(differing, 4000)
    assert unsure.outcome is Outcome.UNDECIDED
    assert re.search(r"; differences below -\d+\.\d % and above \+\d+\.\d % are excluded at each of \d", unsure.reason)
    sure = verdicts.judge_dominance(alike, 4000)
    assert 0 < (sure.p or 0) < 0.05 < (unsure.p or 0)
    assert verdicts.judge_dominance(alike[: len(alike) // 3], 4000).p is None, "one launch gives no p"
    lacking = [one for one in alike if one.trial or read_size(one) != (0, 4096)]
    unmeasured = verdicts.judge_dominance(lacking, 4000)
    assert unmeasured.p is None, "a size without a number is no p of all sizes"
    assert unmeasured.outcome is Outcome.UNDECIDED
    assert unmeasured.reason.startswith("no interval at C=0 N=4096: not measured in every launch")
    assert "longer at 4 of 4 (C, N)" in unmeasured.reason, "by the point it has a value"
    sizes = sorted({read_size(one) for one in alike})
    nowhere = [one for one in alike if sizes.index(read_size(one)) % 3 != one.trial]
    nothing = verdicts.judge_dominance(nowhere, 4000)
    assert (nothing.outcome, nothing.p) == (Outcome.UNDECIDED, None), "output lengths of a launch are no launches"
    assert "no size was measured in every launch" in nothing.reason


@pytest.mark.parametrize(
    ("sizes_by_launch", "left_out"),
    [
        ((6, 6, 6, 6, 2), [4]),
        ((6, 2, 6, 6, 1), [1, 4]),
        ((6, 6, 6, 3), []),
        ((6, 6, 2), []),
        ((6, 6, 2, 1), []),
        ((2, 2, 2), []),
    ],
    ids=["one short", "two short", "half is enough", "three must remain", "all or none", "none is short"],
)
def test_a_launch_with_fewer_than_half_of_the_sizes_is_left_out(
    sizes_by_launch: Sequence[int], left_out: Sequence[int]
) -> None:
    records = [
        replace(ONE, config=RequestConfig(0, 512 * place, 1), trial=trial)
        for trial, count in enumerate(sizes_by_launch)
        for place in range(1, count + 1)
    ]
    incomplete = find_incomplete_launches(records)
    assert [one.trial for one in incomplete] == left_out
    assert [(one.measured, one.of) for one in incomplete] == [(sizes_by_launch[trial], 6) for trial in left_out]


def _launch_grids(launches: int, short: int) -> Iterator[LifecycleRecord]:
    """Launches of six (C, N), of which the last one was stopped after `short` of them."""
    for trial in range(launches):
        records = grid(Truth(), sizes=(512, 2048, 8192), lengths=(1,), seed=trial)
        for one in islice(records, None if trial < launches - 1 else 5 * short):
            yield replace(one, trial=trial)


def test_a_launch_that_was_stopped_early_costs_the_others_no_verdict(tmp_path: Path) -> None:
    analysis = analyze(write_run(tmp_path, tuple(_launch_grids(5, short=2))))
    assert analysis.launches == 4
    assert len(analysis.overheads) == 6
    assert all(cell.change.launches == 4 and cell.sign is not None for cell in analysis.overheads)
    assert (analysis.costs.ordinary.r2.launches, analysis.costs.ordinary.r2.low is None) == (4, False)
    assert {row.counted for row in analysis.configs} == {12}
    why = "has 2 of 6 (C, N): left out of what is compared over launches (trial 4 in the files)"
    assert analysis.gaps[0] == build_aggregate(analysis).gaps[0] == Gap("launch 5", why)
    assert f"launch 5 {why}" in build_page(analysis).trouble
    assert "all 78 requests have all phases" in analysis.criteria[0].reason, "stamps are counted in every launch"
    phases = build_figures(analysis)[0].table
    assert set(phases["n"]) == {12}, "three counted repetitions of four launches"


def test_a_short_launch_stays_where_too_few_others_remain(tmp_path: Path) -> None:
    analysis = analyze(write_run(tmp_path, tuple(_launch_grids(3, short=2))))
    assert (analysis.launches, analysis.left_out) == (3, ())
    assert [cell.sign is None for cell in analysis.overheads] == [False, False, True, True, True, True]


def _plan_all(root: Path, launches: int) -> None:
    """The plan has every cell of the first launch in each launch."""
    path = root / "plan.json"
    plan = json.loads(path.read_bytes())
    own = [cell for cell in plan["cells"] if not cell["trial"]]
    plan["cells"] = [
        cell | {"trial": trial, "cell": f"{cell['cell']}/t{trial}"} for trial in range(launches) for cell in own
    ]
    path.write_text(json.dumps(plan))


def test_where_the_plan_has_cells_left_the_page_names_the_command_that_measures_them(tmp_path: Path) -> None:
    root = write_run(tmp_path, tuple(_launch_grids(3, short=2)))
    again = "tracon run pd-lifecycle --profile cpu-tiny --preset demo --trials"
    assert not analyze(root).pending
    assert any(again in one.decides for one in build_page(analyze(root)).undecided)
    _plan_all(root, 3)
    analysis = analyze(root)
    assert {(one.trial, *one.config.key) for one in analysis.pending} == {
        (2, context, size, 1) for context, size in ((0, 8192), (4096, 512), (4096, 2048), (4096, 8192))
    }
    remedies = {one.name: one.decides for one in build_page(analysis).undecided if "Criterion" in one.name}
    assert any(f"`tracon resume {root.name}` (4 planned cells not measured yet)" in one for one in remedies.values())
    assert not any(again in one for one in remedies.values())


def test_one_planned_launch_is_not_completed_for_a_verdict(tmp_path: Path) -> None:
    """A verdict takes three: to resume the only one would give none."""
    root = write_run(tmp_path, tuple(_launch_grids(1, short=2)))
    analysis = analyze(root)
    size = replace(analysis.planned[0], config=RequestConfig(0, 16_384, 1))
    resumable = replace(analysis, pending=(size,), planned=(*analysis.planned, size))
    assert all("--trials 3`" in one.decides for one in build_page(resumable).undecided if "Criterion 5" in one.name)


def test_criterion_3_needs_the_transfers_of_three_launches(tmp_path: Path) -> None:
    """Two of three launches recorded bytes: the cells of two launches show a line, and give no verdict."""
    records = [
        one if one.trial else replace(one, transfer_detail=replace(one.transfer_detail, bytes_transferred=None))
        for one in _launch_grids(3, short=6)
    ]
    linearity = analyze(write_run(tmp_path, records)).criteria[2]
    assert (linearity.name, linearity.outcome, linearity.p) == ("3", Outcome.UNDECIDED, None)
    assert linearity.reason.startswith("2 of 3 launches have its numbers: a verdict needs 3. Within the launches: R^2 ")


def test_a_criterion_that_the_data_leave_without_a_p_stays_in_holm_s_family(tmp_path: Path) -> None:
    """One launch lacks one (C, N): criterion 2 has no p, and criteria 3 and 5 are no more certain for that."""
    records = [
        replace(one, trial=trial)
        for trial in range(3)
        for one in grid(Truth(prefill_ms_per_token=0.0001), sizes=(512, 2048, 8192), lengths=(1,), seed=trial)
        if trial or read_size(one) != (0, 8192)
    ]
    _, dominance, linearity, _, overhead = analyze(write_run(tmp_path, records)).criteria
    assert (dominance.p, linearity.p is None, overhead.p is None) == (None, False, False)
    p = [one.p or 0.0 for one in (linearity, overhead)]
    corrected = [one.p_corrected or 0.0 for one in (linearity, overhead)]
    assert min(corrected) == pytest.approx(min(1.0, 3 * min(p)))


def test_runs_are_compared_over_the_whole_grid_too(tmp_path: Path) -> None:
    """A (C, N) with the two degrees of freedom of three launches shows hardly any change."""
    analysis = analyze(write_run(tmp_path, tuple(_launch_grids(3, short=6))))
    (measure,) = [one for one in build_comparable(analysis).measures if one.table == "TTFT over the whole grid"]
    assert dict(measure.key) == {"arm": "handover", "over": COMBINED_ENGINE, "(C, N)": "6"}
    (over,) = [one for one in analysis.grid_overheads if one.change.value is not None]
    assert (measure.estimate, measure.degrees) == (over.change, 2)


def test_means_over_grids_of_another_size_are_no_pair(tmp_path: Path) -> None:
    records = tuple(_launch_grids(3, short=6))
    smaller = [one for one in records if one.config.current_new_tokens < 8192]
    first, second = (
        {one.id for one in build_comparable(analyze(write_run(tmp_path / name, own))).measures if "grid" in one.table}
        for name, own in (("whole", records), ("smaller", smaller))
    )
    assert len(first) == len(second) == 1
    assert not first & second


def test_means_over_other_grids_of_one_size_are_no_pair_and_criteria_ask_another_question(tmp_path: Path) -> None:
    records = tuple(_launch_grids(3, short=6))
    first, second = (
        build_comparable(analyze(write_run(tmp_path / f"{left_out}", own)))
        for left_out in (512, 2048)
        for own in ([one for one in records if one.config.current_new_tokens != left_out],)
    )
    grids = [{one.id for one in run.measures if "grid" in one.table} for run in (first, second)]
    assert grids[0]
    assert not grids[0] & grids[1]
    comparison = compare(first, second)
    assert [one.name for one in comparison.verdicts] == ["2"], "both have the same N from 4k on"
    sides = {one.name: (one.first_at, one.second_at) for one in comparison.incomparable}
    assert sorted(sides) == ["1", "3", "4", "5"]
    assert sides["5"] == ("C=0/4096, N=2048/8192, O=1", "C=0/4096, N=512/8192, O=1")


def test_the_spread_between_output_lengths_is_in_no_interval_over_launches(tmp_path: Path) -> None:
    records = [replace(one, trial=trial) for trial in range(3) for one in grid(Truth(), sizes=(512, 2048), seed=trial)]
    three = analyze(write_run(tmp_path, records))
    for launches, words in ((3, "the intervals over the launches do not depend on it"), (1, "are multiplied by it")):
        tables = build_tables(replace(three, launches=launches))
        (note,) = [table.note for table in tables if table.title.startswith("Overhead over")]
        assert words in note


def _with_p(*of: tuple[float, float]) -> list[OverheadCell]:
    """Cells along N of this relative change and p, their signs at 95 %."""
    cells = [
        OverheadCell(0, 512 * 2**place, Estimate(50.0 * change, launches=3), unknown(""), unknown(""), None, p=p,
                     change=Estimate(change, launches=3))
        for place, (change, p) in enumerate(of)
    ]  # fmt: skip
    return judge_signs(cells, 0.95)


def test_the_p_of_criterion_5_is_that_of_its_whole_rule() -> None:
    """A threshold needs its less certain side, a second change of sign the least certain of three."""
    slower = verdicts.judge_overhead(cells := _with_p((0.5, 0.001), (0.5, 0.002)), find_break_evens(cells))
    assert (slower.outcome, slower.p) == (Outcome.UNDECIDED, 1.0), "all are slower"
    turned = verdicts.judge_overhead(cells := _with_p((0.5, 0.001), (-0.3, 0.01)), find_break_evens(cells))
    assert turned.outcome is Outcome.HOLDS
    assert turned.p == pytest.approx(0.01)
    assert verdicts.require_launches(turned, 1).p is None
    tangled = verdicts.judge_overhead(cells := _with_p((0.5, 1e-4), (-0.3, 1e-4), (0.5, 0.04)), find_break_evens(cells))
    assert tangled.outcome is Outcome.FAILS
    assert tangled.p == pytest.approx(0.04), "both signs are certain, that they change twice is not"
    across = [msgspec.structs.replace(cell, prior_context=cell.new_tokens, new_tokens=512) for cell in cells]
    assert verdicts.judge_overhead(across, find_break_evens(across)).outcome is Outcome.FAILS, "along C too"


def test_a_range_is_of_the_numbers_whose_signs_decide() -> None:
    """By the medians of three launches the handover is slower, and one stalled request turns the mean around."""
    cells = _with_p((0.5, 0.001), (0.3, 0.002))
    cells[1] = msgspec.structs.replace(cells[1], overhead_ms=Estimate(-9.0, launches=3))
    slower = verdicts.judge_overhead(cells, find_break_evens(cells))
    assert "at 2 of 2 (C, N), by 30 % to 50 % (ratio of medians), and nowhere" in slower.reason
    faster = verdicts.judge_overhead(cells := _with_p((-0.5, 0.001), (-0.3, 0.002)), find_break_evens(cells))
    assert ", by 30 % to 50 % (ratio of medians), and nowhere significantly the opposite" in faster.reason
    within = [
        msgspec.structs.replace(cell, change=replace(cell.change, launches=1), sign=1)
        for cell in _with_p((0.5, 0.001), (0.3, 0.002))
    ]
    assert "by 15 to 25 ms, and nowhere" in verdicts.judge_overhead(within, find_break_evens(within)).reason


def test_repetitions_of_one_launch_decide_nothing_where_the_others_lack_the_size() -> None:
    """Three launches, of which one did not measure a size: it has neither a sign nor a p, and no spread within."""
    records = tuple(_launched(np.random.default_rng(5), overhead=0.5, noise=0.01))
    lacking = tuple(one for one in records if one.trial or one.config.key != (0, 512, 1))
    cell, *others = measure_overheads(lacking)
    assert (cell.sign, cell.p, cell.overhead_ms.low) == (None, None, None)
    assert "2 of 3 launches" in (cell.overhead_ms.reason or "")
    assert all(other.sign == 1 for other in others)
    sizes = sorted({one.config.key for one in records})
    nowhere = tuple(one for one in records if sizes.index(one.config.key) % 3 != one.trial)
    cells = measure_overheads(nowhere)
    assert all((cell.sign, cell.p) == (None, None) for cell in cells), "no size has all launches"
    assert verdicts.judge_overhead(cells, find_break_evens(cells)).outcome is Outcome.UNDECIDED


def test_the_connectors_own_tax_weights_both_orders_equally() -> None:
    """Two of three repetitions have one order: the effect of the first request on the second must cancel."""
    records = [
        replace(
            one,
            colo=replace(one.colo, ttft_ms=20.0 if one.colo.first else 10.0),
            plain=replace(one.plain, ttft_ms=10.0),
        )
        for one in _launched(np.random.default_rng(6))
    ]
    changes = {(one.arm, one.baseline): one.change.value for one in measure_grid_overheads(records)}
    assert changes[COMBINED_ENGINE, PLAIN_ENGINE] == pytest.approx(np.sqrt(2) - 1)


def test_the_median_over_the_grid_has_an_interval_over_launches_and_one_size_does_not_move_it() -> None:
    """One (C, N) of six takes ten times as long: the mean follows it, the median hardly does."""
    records = list(_launched(np.random.default_rng(3), overhead=0.5, noise=0.01))
    truth = float(np.expm1(0.5))
    sizes = sorted({(one.config.prior_context, one.config.current_new_tokens) for one in records})
    slow = [
        replace(one, more_ms={**one.more_ms, "client_ttft": 10 * (one.client_ttft_ms or 0.0)})
        if (one.config.prior_context, one.config.current_new_tokens) == sizes[0]
        else one
        for one in records
    ]
    before, after = (measure_grid_overheads(rows)[0] for rows in (records, slow))
    assert covers(before.median, truth)
    assert before.median.launches == 3
    assert after.median.value == pytest.approx(before.median.value, abs=0.05)
    assert (after.change.value or 0.0) > (before.change.value or 0.0) + 0.1
    alone = measure_grid_overheads([one for one in records if one.trial == 0])[0]
    assert alone.median.value == pytest.approx(truth, abs=0.05)
    assert alone.median.low is None


def test_the_first_repetitions_stand_beside_the_others() -> None:
    rows = {one.series: one for one in compare_first_repetitions(tuple(grid(Truth(noise=0.0, jitter_ms=0.001))))}
    assert rows["client_ttft"].cells == 16
    assert rows["rdma_transfer"].change.value is not None
    assert rows["rdma_transfer"].change.value > 1, "the first transfer of each cell is 40 ms longer"
    assert rows["colo_ttft"].change.value == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("step_ms", "worthwhile", "words"), [(2.0, False, "idle and polls"), (3.0, True, "removes")])
def test_half_a_step_is_worthwhile_where_the_wait_is_for_one_step(step_ms: float, worthwhile: bool, words: str) -> None:
    assessed = assess_half_step(tuple(grid(Truth(step_ms=step_ms))))
    assert assessed.promotion_ms == pytest.approx(2.2)
    assert (assessed.worthwhile, assessed.requests) == (worthwhile, 48)
    assert words in assessed.text
    assert assess_half_step(()).worthwhile is None


def test_the_plain_engine_comes_first_and_what_decides_is_a_command(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(), sizes=(512, 2048, 8192))))
    records = tuple(_launched(np.random.default_rng(7), overhead=0.5, connector=0.2))
    plain = measure_overheads(records, plain=True)
    one = analyze(tmp_path)
    over_grid = measure_grid_overheads(records)
    three = replace(
        one, launches=3, overheads=measure_overheads(records), plain_overheads=plain, grid_overheads=over_grid
    )
    titles = [table.title for table in build_tables(three) if table.title.startswith("Overhead over")]
    assert titles == [f"Overhead over the {PLAIN_ENGINE}", f"Overhead over the {COMBINED_ENGINE}"]
    assert [row.baseline for row in over_grid][:2] == [PLAIN_ENGINE, COMBINED_ENGINE]
    overheads = [answer.name for answer in build_page(three).answers if answer.name.startswith("TTFT over")]
    assert overheads == [f"TTFT over that of the {PLAIN_ENGINE}", f"TTFT over that of the {COMBINED_ENGINE}"]
    over_plain = next(answer.text for answer in build_page(three).answers if PLAIN_ENGINE in answer.name)
    median = over_grid[0].median
    assert over_plain.startswith(f"median over {len(plain)} (C, N) {median.percent()}; slower at ")
    assert f"Extremes of {len(plain)}, chosen by value and so further out than the truth: the least " in over_plain
    again = "tracon run pd-lifecycle --profile cpu-tiny --preset demo --trials"
    assert {question.decides for question in build_page(one).undecided} == {f"`{again} 3`"}
    some = build_page(replace(three, overheads=_sign_cells(three.overheads, None, 1)))
    assert all(f"{again} 6" in question.decides for question in some.undecided)
    every = build_page(replace(three, overheads=_sign_cells(three.overheads, 1)))
    (threshold,) = (question for question in every.undecided if "Criterion 5" in question.name)
    assert again not in threshold.decides, "every sign is significant: no launch adds a threshold"
    assert "reaches further" in threshold.decides
    assert "even within this launch" in build_figures(one)[3].caption
    assert "not significant over the 3 launches" in build_figures(three)[3].caption


def _sign_cells(cells: Sequence[OverheadCell], *signs: int | None) -> tuple[OverheadCell, ...]:
    """The cells with these signs in turn."""
    return tuple(msgspec.structs.replace(cell, sign=sign) for cell, sign in zip(cells, cycle(signs), strict=False))


def test_a_result_that_moves_with_the_order_of_the_launches_is_said(tmp_path: Path) -> None:
    """The handover takes 10 % longer in each further launch; the combined engines do not."""
    write_run(tmp_path, tuple(grid(Truth(), sizes=(512, 2048, 8192))))
    moved = [
        replace(one, more_ms={**one.more_ms, "client_ttft": (one.client_ttft_ms or 0.0) * 1.1**one.trial})
        for one in _launched(np.random.default_rng(8), launches=5, overhead=0.5, noise=0.01)
    ]
    overheads = measure_grid_overheads(moved)
    slopes = {(one.arm, one.baseline): one.per_launch for one in overheads}
    for baseline in (PLAIN_ENGINE, COMBINED_ENGINE):
        slope = slopes["handover", baseline]
        assert slope is not None
        assert slope.value == pytest.approx(0.1, abs=0.01)
        assert slope.low is not None
        assert slope.low > 0
    between = slopes[COMBINED_ENGINE, PLAIN_ENGINE]
    assert between is not None
    assert between.value == pytest.approx(0.0, abs=0.01)
    one_launch = analyze(tmp_path)
    assert not any("order of the launches" in text for text in list_limits(one_launch))
    limits = list_limits(replace(one_launch, launches=5, grid_overheads=overheads))
    (limit,) = (text for text in limits if "order of the launches" in text)
    assert f"TTFT of the handover over the {PLAIN_ENGINE} by +" in limit


def test_figure_4_has_a_panel_for_each_combined_engine(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(), sizes=(512, 2048, 8192))))
    records = tuple(_launched(np.random.default_rng(7), overhead=0.5, connector=0.2))
    plain = measure_overheads(records, plain=True)
    both = replace(analyze(tmp_path), launches=3, overheads=measure_overheads(records), plain_overheads=plain)
    figure = build_figures(both)[3]
    assert list_baselines(figure.table) == [PLAIN_ENGINE, COMBINED_ENGINE]
    assert f"less that of the {PLAIN_ENGINE} (top) and of the {COMBINED_ENGINE} (bottom)" in figure.caption
    assert f"Over the {PLAIN_ENGINE}: no line: the overhead has one sign everywhere." in figure.caption
    titles = [axes.get_title(loc="left") for axes in draw_overhead(figure).axes]
    assert titles[:2] == [f"over the {PLAIN_ENGINE}", f"over the {COMBINED_ENGINE}"]
    assert set(draw(figure, DRAWERS)) == {"png", "svg"}
    assert figure.beside is not None
    assert list_baselines(figure.beside) == [PLAIN_ENGINE], "beside the page's text there is room for one"
    alone = build_figures(replace(both, plain_overheads=()))[3]
    assert f"less that of the {COMBINED_ENGINE}, over the counted pairs" in alone.caption
    assert alone.beside is None
