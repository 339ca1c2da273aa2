"""What the report of a search says: one thing is one thing, and more are more."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from results.capacity.analyze import CapacityAnalysis, PolicyCapacity
from results.capacity.figures import build_figures
from results.capacity.report import build_page, build_report, describe_answer
from results.capacity.search import Answer, Assessed, Search, Size, answer
from results.capacity.write import build_aggregate, build_rows
from results.records.frames import Gap
from results.records.points import PointRecord
from results.records.run_folder import RunFacts
from results.report.engine_gates import ShownGates
from results.statistics.judgement import Outcome
from tests.results.capacity.test_search import LIMITS, assess_value

ONE_OF_MANY = re.compile(r"\b1 (instances|policies|traces|gaps|replays)\b")


def policy(search: Search, points: dict[Size, Assessed], unfinished: Size | None = None) -> PolicyCapacity:
    known = answer(search, points)
    shown = Answer(known.fewest, known.possible, known.not_monotone, unfinished)
    records = {size: (PointRecord("unified", size.instances, 0, 0, "", 1, 1, {}, "a model", 0.1),) for size in points}
    return PolicyCapacity("unified", search, shown, points, records)


def analysis(one: PolicyCapacity, *, distinct_traces: int = 1, gaps: tuple[Gap, ...] = ()) -> CapacityAnalysis:
    facts, gates = RunFacts("r", simulated="a model"), ShownGates(missing="no gate was checked")
    return CapacityAnalysis(facts, "ttft_p90=2s", LIMITS, 1, distinct_traces, (one,), gaps, gates)


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
    (one,) = build_aggregate(whole)["policies"]
    assert [point["standing"] for point in one["points"]] == written
    assert [list(point) for point in one["points"]] == [["size", "standing", "distance", "estimates"]] * 3
    assert build_rows(whole)["objective"].to_list() == written
    assert build_figures(whole)[0].table["objective"].to_list() == written


@pytest.mark.parametrize(("traces", "answers"), [(1, 0), (2, 0), (3, 1)])
def test_fewer_than_three_traces_give_no_answer(traces: int, answers: int) -> None:
    page = build_page(replace(analysis(policy(Search(1, 8), {Size(1): HOLDS})), traces=traces))
    assert (len(page.answers), len(page.undecided)) == (answers, 1 - answers)
    assert answers or "`--trials 3`" in page.undecided[0].decides
