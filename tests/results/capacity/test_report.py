"""What the report of a search says: one thing is one thing, and more are more."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from results.capacity.analyze import CapacityAnalysis, PolicyCapacity
from results.capacity.figures import build_figures, draw_capacity
from results.capacity.report import build_page, build_report, describe_answer
from results.capacity.search import Answer, Assessed, Search, Size, answer, assess, estimate_needed
from results.capacity.write import build_aggregate, build_rows
from results.records.frames import Gap
from results.records.points import PointRecord
from results.records.run_folder import RunFacts
from results.report.engine_gates import ShownGates
from results.report.policy_pens import POLICY_PENS
from results.statistics.judgement import Outcome
from tests.results.capacity.test_search import LIMITS, assess_value
from tests.results.overlaps import leader_colors, overlaps

ONE_OF_MANY = re.compile(r"\b1 (instances|policies|traces|gaps|replays)\b")


def policy(
    search: Search,
    points: dict[Size, Assessed],
    unfinished: Size | None = None,
    *,
    label: str = "unified",
    name: str = "unified",
    traces: int = 3,
) -> PolicyCapacity:
    known = answer(search, points)
    shown = Answer(known.fewest, known.possible, known.not_monotone, unfinished)
    records = {size: (PointRecord(label, size.instances, 0, 0, "", 1, 1, {}, "a model", 0.1),) for size in points}
    needed = estimate_needed(search, shown, points, traces)
    return PolicyCapacity(label, name, search, shown, needed, points, records)


def analysis(*policies: PolicyCapacity, distinct_traces: int = 1, gaps: tuple[Gap, ...] = ()) -> CapacityAnalysis:
    facts, gates = RunFacts("r", simulated="a model"), ShownGates(missing="no gate was checked")
    return CapacityAnalysis(facts, "ttft_p90=2s", LIMITS, 1, distinct_traces, policies, gaps, gates)


HOLDS, MISSES, UNDECIDED = assess_value(1.0), assess_value(4.0), assess_value(2.0, spread=1.5)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (policy(Search(1, 8), {Size(1): HOLDS}), "1 instance holds it"),
        (policy(Search(1, 8), {Size(1): MISSES, Size(2): HOLDS}), "2 instances hold it"),
        (policy(Search(1, 8), {Size(1): MISSES, Size(2): HOLDS}), "; 1 misses it"),
        (policy(Search(1, 8), {Size(1): UNDECIDED, Size(2): HOLDS}), "; 1 is undecided"),
        (policy(Search(1, 8), {Size(2): MISSES, Size(3): HOLDS}), "; 2 miss it"),
        (policy(Search(1, 1), {Size(1): MISSES}), "no size of up to 1 instance holds it"),
        (policy(Search(1, 8), {}, unfinished=Size(1)), "a point of 1 instance is missing"),
        (policy(Search(1, 8), {Size(2, 1): HOLDS}), "1P+1D instances hold it"),
    ],
)
def test_one_instance_is_no_plural(one: PolicyCapacity, said: str) -> None:
    assert said in describe_answer(one)


@pytest.mark.parametrize("distinct_traces", [0, 1])
@pytest.mark.parametrize("points", [{Size(1): HOLDS}, {Size(1): MISSES}])
def test_nothing_that_is_one_is_a_plural(points: dict[Size, Assessed], distinct_traces: int) -> None:
    assert {HOLDS.outcome, MISSES.outcome} == {Outcome.HOLDS, Outcome.FAILS}
    whole = analysis(policy(Search(1, 1), points), distinct_traces=distinct_traces, gaps=(Gap("a", "is damaged"),))
    said = f"{build_page(whole)} {build_report(whole)} {build_figures(whole)[0].caption}"
    assert ONE_OF_MANY.findall(said) == []


def test_of_the_splits_of_a_size_the_figure_shows_the_one_that_the_answer_rests_on() -> None:
    """An undecided split may be nearer to the objective, on average, than one that holds it."""
    points = {Size(3, 1): assess_value(1.5, spread=2.0), Size(3, 2): assess_value(1.9, spread=1.001)}
    assert points[Size(3, 1)].distance < points[Size(3, 2)].distance
    one = policy(Search(3, 3), points)
    assert one.answer.fewest == Size(3, 2)
    (row,) = build_figures(analysis(one))[0].table.to_dict("records")
    assert (row["size"], row["objective"]) == ("2P+1D", "holds")


def test_a_size_that_fails_the_rule_misses_the_objective_in_every_file() -> None:
    whole = analysis(policy(Search(1, 8), {Size(1): MISSES, Size(2): UNDECIDED, Size(3): HOLDS}))
    written = ["misses", "undecided", "holds"]
    (one,) = msgspec.to_builtins(build_aggregate(whole))["policies"]
    assert [point["standing"] for point in one["points"]] == written
    assert [list(point) for point in one["points"]] == [["size", "standing", "distance", "estimates"]] * 3
    assert build_rows(whole)["objective"].to_list() == written
    assert build_figures(whole)[0].table["objective"].to_list() == written


@pytest.mark.parametrize(("traces", "answers"), [(1, 0), (2, 0), (3, 1)])
def test_fewer_than_three_traces_give_no_answer(traces: int, answers: int) -> None:
    page = build_page(replace(analysis(policy(Search(1, 8), {Size(1): HOLDS})), traces=traces))
    assert (len(page.answers), len(page.undecided)) == (answers, 1 - answers)
    assert answers or "`--trials 3`" in page.undecided[0].decides


def test_the_answer_has_its_interval_over_the_traces_in_page_table_and_file() -> None:
    likely = assess_value(1.9, spread=1.5)
    whole = analysis(policy(Search(1, 8), {Size(1): MISSES, Size(2): likely, Size(3): HOLDS}))
    shown = "2 [2, 3] over 3 traces"
    (question,) = build_page(whole).undecided
    (answered,) = build_page(replace(whole, traces=3)).answers
    assert f"needed: {shown}" in question.text
    assert f"needed: {shown}" in answered.text
    assert shown in str(build_report(whole).tables[1].rows)
    (one,) = msgspec.to_builtins(build_aggregate(whole))["policies"]
    assert {name: one["needed"][name] for name in ("value", "low", "high", "n")} == {
        "value": 2, "low": 2, "high": 3, "n": 3,
    }  # fmt: skip


def test_of_the_splits_of_a_size_the_answer_names_the_one_that_it_rests_on() -> None:
    """Of the size below it the undecided one, although another is nearer on average; of the largest one the nearest."""
    nearer, likely = assess_value(2.1, spread=1.001), assess_value(2.5, spread=1.5)
    held = describe_answer(policy(Search(4, 4), {Size(3, 1): nearer, Size(3, 2): likely, Size(4, 2): HOLDS}))
    assert "; 2P+1D are undecided (" in held
    assert "undecided from 2P+1D on" in held
    none = describe_answer(policy(Search(3, 3), {Size(3, 1): nearer, Size(3, 2): MISSES}))
    assert "no size of up to 3 instances holds it: at 1P+2D, " in none


def test_sizes_that_may_hold_it_are_stated_where_none_does() -> None:
    likely = assess_value(1.9, spread=1.5)
    whole = analysis(policy(Search(2, 2), {Size(1): MISSES, Size(2): likely}))
    (question,) = build_page(whole).undecided
    assert "undecided from 2 on" in question.text
    assert "2 [2, ?] over 3 traces (no size of up to 2 instances holds" in str(build_report(whole).tables[1].rows)


def test_of_one_trace_the_interval_is_null_with_a_reason() -> None:
    once = assess(LIMITS, [{"ttft_p90": 1.0}], (1.0,))
    whole = analysis(policy(Search(1, 8), {Size(1): once}, traces=1))
    (one,) = msgspec.to_builtins(build_aggregate(whole))["policies"]
    needed, (point,) = one["needed"], one["points"]
    why = "1 trace, and an interval takes 3"
    assert (needed["value"], needed["low"], needed["high"], needed["reason"]) == (1, None, None, why)
    assert point["estimates"]["ttft_p90"]["reason"] == why
    assert f"1 (no interval: {why})" in str(build_report(whole).tables[1].rows)


@pytest.mark.parametrize("traces", [1, 2])
@pytest.mark.parametrize(("value", "shown"), [(1.0, "meets every limit"), (4.0, "meets every limit: at 1, ")])
def test_below_three_traces_a_size_is_undecided_in_every_file(traces: int, value: float, shown: str) -> None:
    """The search goes on by its own comparison."""
    few = assess(LIMITS, [{"ttft_p90": value}] * traces, (1.0,) * traces)
    assert few.outcome is (Outcome.HOLDS if value < 2 else Outcome.FAILS)
    whole = replace(analysis(policy(Search(1, 1), {Size(1): few}, traces=traces)), traces=traces)
    why = f"{traces} {'trace' if traces == 1 else 'traces'}, and a verdict takes 3"
    (one,) = msgspec.to_builtins(build_aggregate(whole))["policies"]
    assert [point["standing"] for point in one["points"]] == ["undecided"]
    assert shown in one["why"]
    assert f"undecided: {why}" in one["why"]
    assert build_rows(whole)["objective"].to_list() == ["undecided"]
    figure, points = build_figures(whole)[0], build_report(whole).tables[2]
    assert figure.table["objective"].to_list() == ["undecided"]
    assert f"No size is ringed: {why}." in figure.caption
    assert points.rows[0][2] == "undecided"
    assert f"Undecided: {why} (`--trials 3` gives a verdict)." in points.note


def named_colors(policies: dict[str, str]) -> dict[str, str]:
    """The color of the leader to each name in the figure of a run with these policies."""
    points = {Size(1): MISSES, Size(2): HOLDS}
    run = analysis(*(policy(Search(1, 8), points, label=label, name=name) for label, name in policies.items()))
    drawing = draw_capacity(build_figures(run)[0])
    assert overlaps(drawing) == []
    assert [axes.get_legend() for axes in drawing.axes] == [None]
    return leader_colors(drawing.axes[0])


def test_a_policy_is_named_at_its_line_in_its_own_color_whatever_else_was_sized() -> None:
    first = named_colors({"sticky": "sticky", "mine": "unified"})
    second = named_colors({"LMetric": "lmetric", "mine": "unified", "pools": "static_pd"})
    assert first == {"sticky": POLICY_PENS["sticky"].color, "mine": POLICY_PENS["unified"].color}
    assert second["mine"] == first["mine"]
    assert list(second) == ["LMetric", "mine", "pools"]
