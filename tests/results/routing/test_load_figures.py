"""The figures about load draw a policy as every other figure does, in every run."""

from __future__ import annotations

import pandas as pd

from results.report.figure import Figure
from results.report.policy_pens import POLICY_PENS, assign_pens
from results.routing.load_figures import CELL, MEASURED, draw_coupling, draw_occupancy
from results.routing.loads import strip_load
from tests.results.overlaps import leader_colors
from tests.results.report.test_policy_pens import FIRST, SECOND


def test_one_policy_under_several_loads_has_one_pen() -> None:
    labels = ("EAR time_scale=1", "EAR time_scale=2", "EAR, KV not moved time_scale=1")
    pens = assign_pens(dict.fromkeys(labels, "ear"), strip_load)
    assert pens["EAR time_scale=1"] == pens["EAR time_scale=2"] == POLICY_PENS["ear"]
    assert pens["EAR, KV not moved time_scale=1"].marker == r"$\mathrm{2}$"


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


def test_both_figures_of_two_runs_draw_a_policy_alike() -> None:
    in_figure_8 = [leader_colors(draw_coupling(coupling(run)).axes[1]) for run in (FIRST, SECOND)]
    in_figure_4b = [
        {name.removesuffix(", measured"): color for name, color in leader_colors(axes).items()}
        for axes in (draw_occupancy(occupancy(run)).axes[0] for run in (FIRST, SECOND))
    ]
    for label in ("sticky", "EAR"):
        assert len({colors[label] for colors in (*in_figure_8, *in_figure_4b)}) == 1
    assert in_figure_4b[0]["combined 2C"] == in_figure_4b[0]["load-balance"], "a line has its arm's color"
    assert len(set(in_figure_8[0].values())) == 3
