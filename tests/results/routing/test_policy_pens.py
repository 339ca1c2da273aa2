"""A policy has one color, in every figure and every run, and a mark for readers who do not see it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Annotation

from results.report.figure import Figure
from results.routing.load_figures import CELL, MEASURED, draw_coupling, draw_occupancy
from results.routing.policy_pens import POLICY_PENS, USER_PENS, assign_pens
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
    assert set(POLICY_PENS) == set(POLICIES)
    pens = [*POLICY_PENS.values(), *USER_PENS]
    assert len({pen.color for pen in pens}) == len({pen.marker for pen in pens}) == len(pens)


def test_colors_differ_as_much_as_eyes_need() -> None:
    colors = [np.array(to_rgb(pen.color)) for pen in (*POLICY_PENS.values(), *USER_PENS)]
    assert min(np.linalg.norm(one - other) for one, other in combinations(colors, 2)) > 0.24


def test_the_same_policy_has_the_same_pen_beside_other_policies() -> None:
    first, second = assign_pens(FIRST), assign_pens(SECOND)
    assert {label: first[label] for label in ("sticky", "EAR")} == {label: second[label] for label in ("sticky", "EAR")}
    assert second["mine"] in USER_PENS
    assert assign_pens({"mine": "/elsewhere/mine.py"})["mine"] == second["mine"]


def test_settings_of_one_policy_share_its_color_and_differ_in_their_marks() -> None:
    pens = assign_pens(SECOND)
    whole, part = pens["EAR"], pens["EAR (migration only)"]
    assert whole == POLICY_PENS["ear"]
    assert (part.color, part.marker) == (whole.color, r"$\mathrm{2}$")


def test_one_policy_under_several_loads_has_one_pen() -> None:
    pens = assign_pens({"EAR time_scale=1": "ear", "EAR time_scale=2": "ear", "EAR, KV not moved time_scale=1": "ear"})
    assert pens["EAR time_scale=1"] == pens["EAR time_scale=2"] == POLICY_PENS["ear"]
    assert pens["EAR, KV not moved time_scale=1"].marker == r"$\mathrm{2}$"


def test_policies_of_the_users_differ_also_where_there_are_more_than_pens() -> None:
    pens = assign_pens({f"p{number}": f"p{number}.py" for number in range(6)})
    assert len({(pen.color, pen.marker) for pen in pens.values()}) == 6
    assert set(USER_PENS) < set(pens.values())


def coupling(policies: dict[str, str]) -> Figure:
    """Figure 8 with a cell of each."""
    rows = [
        {"kind": CELL, "load": "", "label": label, "trial": 0, "sessions": 3.0 + place, "service_s": 1.0 + place,
         "low": None, "high": None, "amplification": 1.0 + place}
        for place, label in enumerate(policies)
    ]  # fmt: skip
    return Figure(9, "", "", pd.DataFrame(rows), pens=assign_pens(policies))


def occupancy(policies: dict[str, str]) -> Figure:
    """Figure 4b with a pool of each, and a line of the first one."""
    columns = ("deployment", "arm", "modelled", "point", "footprint_tokens", "occupancy_mean", "occupancy_p90")
    arm, *_ = policies
    rows = [
        *(("combined 2C", arm, False, "", tokens, 0.1, 0.2) for tokens in (1e3, 1e5)),
        *((f"{label}, measured", label, False, MEASURED, 1e4, 0.1, 0.2) for label in policies),
    ]
    table = pd.DataFrame(rows, columns=list(columns))
    return Figure(3, "", "", table, {"wall": 0.9}, pens=assign_pens(policies))


def named_colors(axes: Axes) -> dict[str, str]:
    """The color of the leader to each name."""
    named = [text for text in axes.texts if isinstance(text, Annotation)]
    return {text.get_text(): to_hex(text.arrow_patch.get_edgecolor()) for text in named if text.arrow_patch}


def test_both_figures_of_two_runs_draw_a_policy_alike() -> None:
    in_figure_8 = [named_colors(draw_coupling(coupling(run)).axes[1]) for run in (FIRST, SECOND)]
    in_figure_4b = [
        {name.removesuffix(", measured"): color for name, color in named_colors(axes).items()}
        for axes in (draw_occupancy(occupancy(run)).axes[0] for run in (FIRST, SECOND))
    ]
    for label in ("sticky", "EAR"):
        assert len({colors[label] for colors in (*in_figure_8, *in_figure_4b)}) == 1
    assert in_figure_4b[0]["combined 2C"] == in_figure_4b[0]["load-balance"], "a line has its arm's color"
    assert len(set(in_figure_8[0].values())) == 3
