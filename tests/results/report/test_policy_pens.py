"""A policy has one color, in every figure and every run, and a mark for readers who do not see it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.colors import to_rgb

from results.report.policy_pens import OTHER_PENS, POLICY_PENS, assign_pens
from runners.router.policies import POLICIES

FIRST = {"load-balance": "round_robin", "sticky": "sticky", "EAR": "ear"}
SECOND = {
    "LMetric": "lmetric",
    "sticky": "sticky",
    "mine": "/somewhere/mine.py",
    "unified": "unified",
    "EAR": "ear",
    "EAR (migration only)": "ear",
}


def test_every_policy_of_ours_has_a_pen_of_its_own() -> None:
    pens = assign_pens({name: name for name in POLICIES})
    assert len({(pen.color, pen.marker) for pen in pens.values()}) == len(POLICIES)
    assert set(POLICY_PENS) <= set(POLICIES)


def test_no_two_pens_share_a_color_or_a_marker() -> None:
    pens = [*POLICY_PENS.values(), *OTHER_PENS]
    assert len({pen.color for pen in pens}) == len({pen.marker for pen in pens}) == len(pens)


def test_colors_differ_as_much_as_eyes_need() -> None:
    colors = [np.array(to_rgb(pen.color)) for pen in (*POLICY_PENS.values(), *OTHER_PENS)]
    assert min(np.linalg.norm(one - other) for one, other in combinations(colors, 2)) > 0.24


def test_the_same_policy_has_the_same_pen_beside_other_policies() -> None:
    first, second = assign_pens(FIRST), assign_pens(SECOND)
    assert {label: first[label] for label in ("sticky", "EAR")} == {label: second[label] for label in ("sticky", "EAR")}
    assert second["mine"] in OTHER_PENS
    assert assign_pens({"mine": "/elsewhere/mine.py"})["mine"] == second["mine"]


def test_settings_of_one_policy_share_its_color_and_differ_in_their_marks() -> None:
    pens = assign_pens(SECOND)
    whole, part = pens["EAR"], pens["EAR (migration only)"]
    assert whole == POLICY_PENS["ear"]
    assert (part.color, part.marker) == (whole.color, r"$\mathrm{2}$")


def test_policies_of_the_users_differ_also_where_there_are_more_than_pens() -> None:
    pens = assign_pens({f"p{number}": f"p{number}.py" for number in range(6)})
    assert len({(pen.color, pen.marker) for pen in pens.values()}) == 6
    assert set(OTHER_PENS) < set(pens.values())
