"""Two runs of any experiment side by side: pairs by key, opposite verdicts by name, refusals with a remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from results.records.errors import ResultsError
from results.records.estimate import Estimate, unknown
from results.records.run_folder import RunFacts
from results.registry import compare_runs
from results.report.comparison import Comparable, Measure, compare, describe_comparison, to_json
from results.report.document import render_markdown
from results.statistics.independent import DISJOINT_BY_CHANCE, chance_of_disjoint
from results.statistics.judgement import Judgement, Outcome, Verdict
from tests.results.routing import synthetic as routing_runs
from tests.results.test_reports import write_lifecycle_run, write_routing_run, write_tax_run


def run(
    name: str, *measures: Measure, outcome: Outcome = Outcome.HOLDS, trace: str = "t", stated: str = "4 req/s"
) -> Comparable:
    judged = (Judgement("H1", "it persists", "a rule", outcome, "so"),)
    return Comparable(RunFacts(name, "toy"), measures, judged, {"ref_safe": stated}, {"trace": trace})


def tax(low: float, high: float, verdict: Verdict | None, *, config: str = "nixl", at: str = "4 req/s") -> Measure:
    value = Estimate((low + high) / 2, low, high, 90, launches=3)
    return Measure("Taxes", {"config": config}, value, "%", ratio=False, verdict=verdict, at=at)


def test_opposite_verdicts_and_disjoint_intervals_are_named() -> None:
    comparison = compare(
        run("monday", tax(-0.36, -0.14, Verdict.LOWER)),
        run("tuesday", tax(0.07, 0.32, Verdict.HIGHER), outcome=Outcome.FAILS),
    )
    assert [(one.name, one.first, one.second) for one in comparison.opposite] == [
        ("H1", "holds", "fails"), ("Taxes: nixl", "lower", "higher"),
    ]  # fmt: skip
    assert [one.key["config"] for one in comparison.disjoint] == ["nixl"]
    text = describe_comparison(comparison)
    assert "Opposite verdicts: 2. Disjoint intervals: 1 of 1 pairs; chance alone makes 0.0 disjoint" in text.opening
    assert "1 or more in 0.6 % of the comparisons if pairs were independent. They are not" in text.opening
    assert text.tables[0].title == "Opposite verdicts"
    assert "higher, intervals disjoint" in str([table.rows for table in text.tables])


def test_the_share_that_chance_makes_disjoint_is_what_two_intervals_of_one_truth_are() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 400_000))
    disjoint = np.abs(first - second) > 2 * 1.96
    assert disjoint.mean() == pytest.approx(DISJOINT_BY_CHANCE, abs=0.0004)


def test_among_hundreds_of_pairs_chance_makes_some_disjoint_and_never_many() -> None:
    counts = np.random.default_rng(0).binomial(414, DISJOINT_BY_CHANCE, 200_000)
    for count in (0, 1, 3, 6):
        assert chance_of_disjoint(count, 414) == pytest.approx((counts >= count).mean(), abs=0.004)
    assert chance_of_disjoint(1, 414) > 0.9, "that none is disjoint holds for one comparison of equal runs in ten"
    assert chance_of_disjoint(12, 414) < 1e-4


def test_overlapping_intervals_and_undecided_outcomes_are_no_contradiction() -> None:
    comparison = compare(
        run("monday", tax(-0.1, 0.3, Verdict.NOT_DISTINGUISHABLE)),
        run("tuesday", tax(0.07, 0.32, Verdict.HIGHER), outcome=Outcome.UNDECIDED),
    )
    assert (comparison.opposite, comparison.disjoint) == ((), ())
    assert describe_comparison(comparison).opening.endswith(
        "Disjoint intervals: 0 of 1 pairs; chance alone makes 0.0 disjoint between equal runs."
    )


def test_a_spread_within_one_launch_is_never_disjoint() -> None:
    one = tax(0.07, 0.32, None)
    single = replace(one, estimate=replace(one.estimate, launches=1))
    comparison = compare(run("monday", tax(-0.36, -0.14, Verdict.LOWER)), run("tuesday", single))
    assert comparison.disjoint == ()
    assert "runs made with `--trials 3` give a verdict" in comparison.changes[0].withheld


def test_numbers_under_other_conditions_are_shown_and_not_compared() -> None:
    same = tax(0.1, 0.2, None, config="noop")
    comparison = compare(
        run("monday", tax(0.1, 0.2, None), same), run("tuesday", tax(0.5, 0.6, None, at="8 req/s"), same)
    )
    change = comparison.changes[0]
    assert change.change.reason == "measured at 4 req/s and at 8 req/s"
    assert not change.disjoint


def test_what_only_one_run_has_is_listed() -> None:
    both, other = tax(0.1, 0.2, None), tax(0.1, 0.2, None, config="noop")
    comparison = compare(run("monday", both, other), run("tuesday", both))
    assert (comparison.only_first, comparison.only_second) == (("Taxes: noop",), ())


def test_runs_of_two_traces_or_without_a_common_number_are_refused() -> None:
    with pytest.raises(ResultsError, match="differ in trace: t and u") as refused:
        compare(run("monday", tax(0.1, 0.2, None)), run("tuesday", tax(0.1, 0.2, None), trace="u"))
    assert refused.value.remedy == "compare runs of one trace"
    with pytest.raises(ResultsError, match="no cell in common"):
        compare(run("monday", tax(0.1, 0.2, None)), run("tuesday", tax(0.1, 0.2, None, config="noop")))


def test_a_number_that_was_not_measured_has_its_reason() -> None:
    missing = replace(tax(0.1, 0.2, None), estimate=unknown("not run"))
    same = tax(0.1, 0.2, None, config="noop")
    comparison = compare(run("monday", missing, same), run("tuesday", tax(0.1, 0.2, None), same))
    assert "first: not run" in str(describe_comparison(comparison).tables)


@pytest.mark.parametrize("write", [write_tax_run, write_routing_run, write_lifecycle_run])
def test_every_experiment_compares_its_runs_in_text_data_and_markdown(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    for name in ("monday", "tuesday"):
        write(tmp_path / name)
    comparison = compare_runs(tmp_path / "monday", tmp_path / "tuesday")
    assert comparison.changes
    assert (comparison.opposite, comparison.disjoint) == ((), ())
    assert {row.change.value for row in comparison.changes if row.change.value is not None} == {0.0}
    text = describe_comparison(comparison)
    for table in text.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    markdown = render_markdown("Two runs", text)
    for title in dict.fromkeys(change.table for change in comparison.changes):
        assert f"## {title}\n" in markdown
    data = json.loads(msgspec.json.encode(to_json(comparison)))
    assert len(data["changes"]) == len(comparison.changes)
    assert data["first"]["run"] == "monday"


def test_a_policy_that_is_slower_in_the_second_run_is_found(tmp_path: Path) -> None:
    world = routing_runs.World(sessions=24, turns=5, gap_s=0.5)
    for name, ttft in (("monday", 0.2), ("tuesday", 0.5)):
        policies = [routing_runs.Truth("round_robin"), routing_runs.Truth("sticky", ttft_s=ttft)]
        routing_runs.write_run(tmp_path / name, world, policies)
    changes = compare_runs(tmp_path / "monday", tmp_path / "tuesday").changes
    ttft_p90 = {
        one.key["policy"]: one.verdict for one in changes if one.table == "Policies" and one.key["metric"] == "TTFT p90"
    }
    assert ttft_p90 == {"round_robin": Verdict.NOT_DISTINGUISHABLE, "sticky": Verdict.HIGHER}


def test_runs_of_two_experiments_are_refused_before_they_are_read(tmp_path: Path) -> None:
    for name, write in (("monday", write_routing_run), ("tuesday", write_lifecycle_run)):
        write(tmp_path / name)
    with pytest.raises(ResultsError, match="run monday is of routing, run tuesday of pd-lifecycle") as caught:
        compare_runs(tmp_path / "monday", tmp_path / "tuesday")
    assert (caught.value.exit_code, bool(caught.value.remedy)) == (2, True)
    bare = Path(shutil.copytree(tmp_path / "monday", tmp_path / "bare"))
    (bare / "plan.json").unlink()
    for pair in ((bare, tmp_path / "monday"), (tmp_path / "monday", bare)):
        with pytest.raises(ResultsError, match=r"plan\.json is missing"):
            compare_runs(*pair)
