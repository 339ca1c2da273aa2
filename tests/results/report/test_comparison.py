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
from results.report.comparison import Comparable, Measure, compare, to_json
from results.report.comparison_text import describe_comparison
from results.report.differences import Origin
from results.report.document import render_markdown
from results.statistics.independent import DISJOINT_BY_CHANCE
from results.statistics.judgement import Judgement, Outcome, Verdict
from tests.results.routing import synthetic as routing_runs
from tests.results.test_reports import write_lifecycle_run, write_routing_run, write_tax_run


def run(
    name: str, *measures: Measure, outcome: Outcome = Outcome.HOLDS, trace: str = "t", stated: str = "4 req/s"
) -> Comparable:
    judged = (Judgement("H1", "it persists", "a rule", outcome, "so"),)
    return Comparable(RunFacts(name, "toy"), measures, judged, {"ref_safe": stated}, {"trace": trace})


def judged_run(name: str, *judgements: Judgement, identities: dict[str, str] | None = None) -> Comparable:
    """With one number, so that it can be compared."""
    return Comparable(RunFacts(name, "toy"), (tax(0.1, 0.2, None),), judgements, identities=identities or {})


def claim(name: str, outcome: Outcome = Outcome.HOLDS) -> Judgement:
    return Judgement(name, "it persists", "a rule", outcome, f"{name}: {outcome}")


def tax(low: float, high: float, verdict: Verdict | None, *, config: str = "nixl") -> Measure:
    value = Estimate((low + high) / 2, low, high, 90, launches=3)
    return Measure("Taxes", {"config": config}, value, "%", ratio=False, verdict=verdict)


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
    assert text.opening.endswith(
        "Over 1 difference 1 stands after Holm's correction. One by one, 1 number in both, in the second against the "
        "first: 1 higher. Disjoint intervals: 1 of 1 pairs; chance alone makes 0.0 disjoint between equal runs. "
        "Opposite verdicts: 2."
    )
    assert text.tables[0].title == "Opposite verdicts"
    assert "higher, intervals disjoint" in str([table.rows for table in text.tables])


def test_the_share_that_chance_makes_disjoint_is_what_two_intervals_of_one_truth_are() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 400_000))
    disjoint = np.abs(first - second) > 2 * 1.96
    assert disjoint.mean() == pytest.approx(DISJOINT_BY_CHANCE, abs=0.0004)


def test_judgements_pair_by_their_identity_whatever_they_are_called() -> None:
    first = judged_run("monday", claim("C1: coupling, KV cache 512 MiB"), claim("H1"), identities={
        "C1: coupling, KV cache 512 MiB": "coupling; 536870912",
    })  # fmt: skip
    second = judged_run("tuesday", claim("Coupling (0.5 GiB)", Outcome.FAILS), claim("H1"), identities={
        "Coupling (0.5 GiB)": "coupling; 536870912",
    })  # fmt: skip
    comparison = compare(first, second)
    pairs = [(one.name, one.name_in_second, one.opposite) for one in comparison.verdicts]
    assert pairs == [("C1: coupling, KV cache 512 MiB", "Coupling (0.5 GiB)", True), ("H1", "H1", False)]
    opposite = describe_comparison(comparison).tables[0]
    assert opposite.rows[0][0] == "C1: coupling, KV cache 512 MiB (second: Coupling (0.5 GiB))"
    assert "chance makes at most 0.13 %" in opposite.note
    assert "C1: coupling, KV cache 512 MiB: holds" in opposite.rows[0]


def test_judgements_of_one_name_under_two_loads_are_no_pair_but_an_older_export_pairs_by_name() -> None:
    at_six = judged_run("monday", claim("C1"), identities={"C1": "C1; time_scale=6"})
    at_one = judged_run("tuesday", claim("C1", Outcome.FAILS), identities={"C1": "C1; time_scale=1"})
    older = judged_run("wednesday", claim("C1", Outcome.FAILS))
    comparison = compare(at_six, at_one)
    assert comparison.verdicts == ()
    assert (comparison.judged_only_first, comparison.judged_only_second) == (("C1: holds",), ("C1: fails",))
    text = describe_comparison(comparison)
    assert "Judged in one run only: 1 of the first, 1 of the second." in text.opening
    rows = next(table.rows for table in text.tables if table.title == "Judged in one run only")
    assert rows == (("first", "C1: holds"), ("second", "C1: fails"))
    assert [one.opposite for one in compare(at_six, older).verdicts] == [True]
    assert [one.opposite for one in compare(older, at_one).verdicts] == [False]


@pytest.mark.parametrize(
    ("first", "second"), [("32 req/s", "32 req/s"), ("32 req/s", "")], ids=["one load", "an older export"]
)
def test_judgements_over_one_load_contradict_each_other(first: str, second: str) -> None:
    sides = [
        replace(judged_run(day, claim("H1", outcome)), loads={"H1": load} if load else {})
        for day, outcome, load in (("monday", Outcome.HOLDS, first), ("tuesday", Outcome.FAILS, second))
    ]
    comparison = compare(*sides)
    assert [one.name for one in comparison.opposite] == ["H1"]
    assert comparison.incomparable == ()


@pytest.mark.parametrize(
    ("loads", "rules", "why"),
    [
        (("32 req/s", "64 req/s"), ("a rule", "a rule"), "judged over 32 req/s (second: 64 req/s)"),
        (("", ""), ("above 10 %", "above 20 %"), "by the rule above 10 % (second: above 20 %)"),
        (("1", "2"), ("a", "b"), "judged over 1 (second: 2); by the rule a (second: b)"),
    ],
    ids=["two loads", "two rules", "both"],
)
def test_judgements_that_ask_two_questions_are_no_pair_and_say_why(
    loads: tuple[str, str], rules: tuple[str, str], why: str
) -> None:
    sides = [
        replace(judged_run(day, replace(claim("H1", outcome), rule=rule)), loads={"H1": load} if load else {})
        for day, outcome, load, rule in zip(
            ("monday", "tuesday"), (Outcome.HOLDS, Outcome.FAILS), loads, rules, strict=True
        )
    ]
    comparison = compare(*sides)
    assert (comparison.verdicts, comparison.judged_only_first, comparison.judged_only_second) == ((), (), ())
    text = describe_comparison(comparison)
    assert text.opening.endswith("Opposite verdicts: 0. Not comparable: 1 judgement.")
    (row,) = next(table.rows for table in text.tables if table.title == "Not comparable")
    assert row == ("H1", "holds", "fails", why)
    (data,) = json.loads(msgspec.json.encode(to_json(comparison)))["incomparable"]
    assert (data["first"], data["second"], data["first_at"]) == ("holds", "fails", loads[0])


def test_an_identity_that_two_rows_of_a_run_share_is_none() -> None:
    twice = judged_run("monday", claim("a"), claim("b"), identities={"a": "same", "b": "same"})
    comparison = compare(twice, judged_run("tuesday", claim("b"), identities={"b": "same"}))
    assert [(one.name, one.name_in_second) for one in comparison.verdicts] == [("b", "b")]
    assert comparison.judged_only_first == ("a: holds",)


def test_numbers_pair_by_their_identity_and_are_counted_where_one_run_has_them_alone() -> None:
    renamed = replace(tax(0.1, 0.2, None), table="Tax", key={"connector": "NIXL"}, id="nixl")
    extra = replace(tax(0.1, 0.2, None), key={"config": "noop", "tax": "TTFT p90"}, id="noop")
    more = replace(extra, key={"config": "noop", "tax": "TPOT p90"}, id="noop tpot")
    comparison = compare(run("monday", replace(tax(0.1, 0.2, None), id="nixl")), run("tuesday", renamed, extra, more))
    assert [one.key for one in comparison.changes] == [{"config": "nixl"}]
    assert comparison.only_second == ("Taxes: noop, TTFT p90", "Taxes: noop, TPOT p90")
    rows = next(one.rows for one in describe_comparison(comparison).tables if one.title == "Numbers of one run only")
    assert rows == (("second", "Taxes", "noop", "2"),)


def test_a_number_that_the_runs_name_otherwise_is_shown_with_both_names() -> None:
    first = replace(tax(-0.3, -0.1, Verdict.LOWER), key={"reference": "ref_load", "config": "nixl"}, id="nixl at 4")
    second = replace(tax(0.1, 0.3, Verdict.HIGHER), key={"reference": "ref_safe", "config": "nixl"}, id="nixl at 4")
    comparison = compare(run("monday", first), run("tuesday", second))
    tables = {table.title: table.rows for table in describe_comparison(comparison).tables}
    assert tables["Taxes"][0][:2] == ("ref_load (second: ref_safe)", "nixl")
    assert tables["Opposite verdicts"][0][0] == "Taxes: ref_load, nixl (second: Taxes: ref_safe, nixl)"
    data = json.loads(msgspec.json.encode(to_json(comparison)))["changes"][0]
    assert (data["key"]["reference"], data["key_in_second"]["reference"]) == ("ref_load", "ref_safe")


def test_a_ratio_to_an_interval_that_reaches_zero_says_so() -> None:
    cut = Measure("Policies", {"policy": "sticky"}, Estimate(14.0, 0.0, 32.0, 90, launches=5))
    whole = replace(cut, estimate=Estimate(74.0, 23.0, 125.0, 90, launches=5))
    (change,) = compare(run("monday", cut), run("tuesday", whole)).changes
    assert change.withheld == "first: its interval reaches 0, so a ratio to it has none"
    assert change.p is not None, "its family does not depend on where an interval ends"


def test_each_kind_of_difference_is_named_with_its_meaning() -> None:
    facts = RunFacts("monday", "toy", versions={"vllm": "0.32.0"}, host="2 cores, AMD EPYC")
    other = replace(facts, run="tuesday", versions={"vllm": "0.33.0"}, host="8 cores, AMD EPYC", simulated="H20")
    made = Origin({"preset": "demo", "tracon": "0.1"}, {"plain": {"launch/--seed": "1"}}, 100.0, "a" * 64)
    made_other = Origin({"preset": "full", "tracon": "0.2"}, {"plain": {"launch/--seed": "2"}}, 130.0, "b" * 64)
    sides = [
        Comparable(about, (tax(0.1, 0.2, None),), origin=origin)
        for about, origin in ((facts, made), (other, made_other))
    ]
    comparison = compare(*sides)
    kinds = ["engines", "settings", "host", "speed", "versions", "Tracon", "analysis", "launches"]
    assert [one.what for one in comparison.conditions] == kinds
    meaning = {one.what: one.meaning for one in comparison.conditions}
    assert "an engine model's" in meaning["engines"]
    assert "preset" in meaning["settings"]
    assert "30 % longer in the second" in meaning["speed"]
    assert f"They differ in: {', '.join(kinds)}." in describe_comparison(comparison).opening
    back = compare(*sides[::-1])
    assert "23 % shorter in the second" in {one.what: one.meaning for one in back.conditions}["speed"]
    moved = replace(sides[0], origin=replace(made, plan={**made.plan, "engine.python": "/other"}))
    assert [one.what for one in compare(sides[0], moved).conditions] == ["launches"]
    same = compare(sides[0], sides[0])
    assert same.conditions == ()
    assert "Nothing that was captured differs between them." in describe_comparison(same).opening


def test_a_host_whose_speed_differs_by_as_much_as_within_a_run_is_of_one_speed() -> None:
    sides = [Comparable(RunFacts("x", "toy"), (tax(0.1, 0.2, None),), origin=Origin(work_us=us)) for us in (100, 104)]
    assert compare(*sides).conditions == ()


def test_a_long_setting_shows_where_it_differs_and_policies_are_split_by_label() -> None:
    long = "x" * 200
    policies = [{"label": "EAR", "hot_tokens": 1}, {"label": "sticky", "fill": long}]
    other = [{"label": "EAR", "hot_tokens": 2}, policies[1], {"label": "new"}]
    sides = [
        Comparable(RunFacts("x", "toy"), (tax(0.1, 0.2, None),), origin=Origin({
            "grid.policies": json.dumps(rows), "text": f"{long}{end}",
        }))
        for rows, end in ((policies, "before"), (other, "after"))
    ]  # fmt: skip
    comparison = compare(*sides)
    assert [one.what for one in comparison.differences] == ["grid.policies.EAR", "grid.policies.new", "text"]
    rows = next(one.rows for one in describe_comparison(comparison).tables if one.title == "What differed")
    assert (rows[2][2][-7:], rows[2][3][-6:]) == ("xbefore", "xafter")


def test_a_long_setting_that_begins_with_the_other_shows_what_it_has_beyond() -> None:
    long = "x" * 200
    sides = [
        Comparable(RunFacts("x", "toy"), (tax(0.1, 0.2, None),), origin=Origin({"text": text}))
        for text in (long, f"{long} and more")
    ]
    rows = next(one.rows for one in describe_comparison(compare(*sides)).tables if one.title == "What differed")
    assert (rows[0][2][-1:], rows[0][3][-8:]) == ("x", "and more")


def test_one_run_twice_is_said() -> None:
    own = run("monday", tax(0.1, 0.2, None))
    assert "a run compared with itself confirms nothing" in describe_comparison(compare(own, own)).opening
    assert "confirms nothing" not in describe_comparison(compare(own, run("tuesday", *own.measures))).opening


def test_what_a_run_notes_of_its_host_is_shown() -> None:
    noted = replace(run("monday", tax(0.1, 0.2, None)), facts=RunFacts("monday", "toy", host_notes=("It was busy.",)))
    tables = describe_comparison(compare(noted, run("tuesday", tax(0.1, 0.2, None)))).tables
    assert next(one.rows for one in tables if one.title == "Notes of the runs") == (("first", "It was busy."),)


def test_stated_values_that_differ_are_named_with_their_consequence() -> None:
    comparison = compare(run("monday", tax(0.1, 0.2, None)), run("tuesday", tax(0.1, 0.2, None), stated="8 req/s"))
    note = next(one.note for one in describe_comparison(comparison).tables if one.title == "Stated by the runs")
    assert note.startswith("Differ: ref_safe.")


def test_overlapping_intervals_and_undecided_outcomes_are_no_contradiction() -> None:
    comparison = compare(
        run("monday", tax(-0.1, 0.3, Verdict.NOT_DISTINGUISHABLE)),
        run("tuesday", tax(0.07, 0.32, Verdict.HIGHER), outcome=Outcome.UNDECIDED),
    )
    assert (comparison.opposite, comparison.disjoint) == ((), ())
    opening = describe_comparison(comparison).opening
    assert "Over 1 difference 0 stand after Holm's correction. One by one, 1 number in both" in opening
    assert opening.endswith(
        "Disjoint intervals: 0 of 1 pairs; chance alone makes 0.0 disjoint between equal runs. Opposite verdicts: 0."
    )


def test_a_spread_within_one_launch_is_never_disjoint() -> None:
    one = tax(0.07, 0.32, None)
    single = replace(one, estimate=replace(one.estimate, launches=1))
    comparison = compare(run("monday", tax(-0.36, -0.14, Verdict.LOWER)), run("tuesday", single))
    assert comparison.disjoint == ()
    assert "runs made with `--trials 3` give a verdict" in comparison.changes[0].withheld


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


RATES = (0.01, 0.02)


def write_rates(folder: Path, *rates: float) -> Path:
    """A routing run of two policies; with several rates their labels and claims name them."""
    truths = [
        routing_runs.Truth(
            f"{policy} time_scale={rate}" if len(rates) > 1 else policy, policy, hit_share=share, time_scale=rate
        )
        for policy, share in (("unified", 0.9), ("sticky", 0.7))
        for rate in rates
    ]
    return routing_runs.write_run(folder, routing_runs.World(sessions=20, turns=4), truths)


def test_a_load_of_a_sweep_pairs_with_the_run_of_that_load_alone(tmp_path: Path) -> None:
    alone, swept = write_rates(tmp_path / "alone", RATES[0]), write_rates(tmp_path / "swept", *RATES)
    comparison = compare_runs(alone, swept)
    names = {one.name: one.name_in_second for one in comparison.verdicts}
    assert names["log: unified keeps more than sticky"] == "log: unified keeps more than sticky, time_scale 0.01"
    assert comparison.judged_only_first == ()
    assert all("time_scale 0.02" in name for name in comparison.judged_only_second)
    assert {one.key["policy"] for one in comparison.changes if one.table == "Policies"} == {"unified", "sticky"}
    assert comparison.only_first == ()
    assert all("time_scale=0.02" in name for name in comparison.only_second)


def test_policies_under_another_load_are_not_compared(tmp_path: Path) -> None:
    slow, fast = (write_rates(tmp_path / name, rate) for name, rate in zip(("slow", "fast"), RATES, strict=True))
    with pytest.raises(ResultsError, match="no cell in common"):
        compare_runs(slow, fast)


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
