"""What figures of a `routing` run show: no policy squeezed away, the unseen not drawn as nothing, every mark named."""

from __future__ import annotations

from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing

from results.report.figure import Figure
from results.report.marks import WIDE
from results.report.output import draw
from results.report.policy_pens import assign_pens
from results.routing.figures import draw_apc, draw_instances, draw_latencies
from results.routing.load_figures import CELL, MEASURED, draw_coupling, draw_interference, draw_occupancy
from results.routing.migration_figures import ARROW, HEAT, MOST_ARROWS, count_moves, draw_timeline
from results.routing.schematics import draw_architecture, draw_coupling_schematic
from results.routing.sensitivity_figures import draw_thresholds
from tests.results.overlaps import overlaps


def latencies(*values: tuple[float, float, float]) -> Figure:
    """Figure 6 of these TTFT (s): value, low, high."""
    rows = [
        {"label": f"p{place}", "series": "ttft_s", "statistic": "p90", "value": value, "low": low, "high": high}
        for place, (value, low, high) in enumerate(values)
    ]
    return Figure(6, "", "", pd.DataFrame(rows))


def test_a_policy_far_slower_than_the_others_does_not_squeeze_them() -> None:
    (panel,) = draw_latencies(latencies((0.1, 0.09, 0.11), (0.2, 0.1, 0.3), (6.5, 0.0, 27.6))).axes
    assert panel.get_xscale() == "log"
    assert "log scale" in panel.get_title(loc="left")
    left, right = panel.get_xlim()
    places = [(np.log(shown) - np.log(left)) / (np.log(right) - np.log(left)) for shown in (100, 200, 6500)]
    assert 0 < left < 90  # the bound of 0 lies beyond the edge
    assert right > 27_600
    assert places[1] - places[0] > 0.05


def test_policies_of_one_size_stand_on_a_linear_axis_from_zero() -> None:
    (panel,) = draw_latencies(latencies((0.1, 0.09, 0.11), (0.2, 0.1, 0.09 * WIDE))).axes
    assert (panel.get_xscale(), panel.get_xlim()[0]) == ("linear", 0)
    assert "log" not in panel.get_title(loc="left")


def timeline(*pending: float, outcomes: tuple[str, ...] = (), hot_tokens: float | None = 1000) -> Figure:
    """Figure 10 of two instances, the first with this many tokens pending in each second, the second with nothing."""
    rows: list[dict[str, Any]] = []
    for instance, values in (("a", pending), ("b", [0.0] * len(pending))):
        for second, tokens in enumerate(values):
            hot = None if hot_tokens is None or np.isnan(tokens) else tokens > hot_tokens
            rows.append(
                {
                    "label": "ear", "trial": 0, "kind": HEAT, "instance": instance, "t_s": float(second),
                    "end_s": second + 1.0, "pending_tokens": tokens, "hot_tokens": hot_tokens, "hot": hot,
                }
            )  # fmt: skip
    for outcome in outcomes:
        own = {"label": "ear", "trial": 0, "kind": ARROW, "instance": "a", "target": "b", "t_s": 1.0}
        rows.append(own | {"session": "s", "outcome": outcome})
    columns = ("label", "trial", "kind", "instance", "target", "t_s", "end_s", "pending_tokens", "hot_tokens", "hot",
               "session", "outcome")  # fmt: skip
    return Figure(11, "", "", pd.DataFrame(rows, columns=list(columns)))


def keys(figure: Figure) -> list[str]:
    return [text.get_text() for text in draw_timeline(figure).legends[0].get_texts()]


def test_hot_stretches_are_framed_where_more_than_the_threshold_is_pending() -> None:
    drawing = draw_timeline(timeline(0, 1500, 2000, 1000, 3000, outcomes=("transferred",)))
    boxes = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in drawing.axes[0].patches]
    frames = [(float(box.x0), float(box.width)) for box in boxes]
    assert frames == [(1, 2), (4, 1)]  # 1000 is not above 1000
    assert "hot above 1000 tokens" in drawing.axes[0].get_title(loc="left")


def test_what_was_not_seen_is_not_drawn_as_nothing_pending() -> None:
    figure = timeline(0, np.nan, 500, outcomes=("transferred",))
    drawing = draw_timeline(figure)
    mesh = drawing.axes[0].collections[0].get_array()
    assert mesh is not None
    assert np.ma.getmaskarray(mesh).ravel().tolist() == [False, True, False, False, False, False]
    assert drawing.axes[0].patch.get_hatch()  # what shows there
    assert "not seen" in keys(figure)
    assert "not seen" not in keys(timeline(0, 500))


@pytest.mark.parametrize(
    ("outcomes", "named"),
    [
        (("transferred", "recomputed"), ["KV transferred", "KV recomputed"]),
        (("unneeded",), ["KV unneeded"]),
        (("failed", "unknown"), ["failed, unknown"]),
    ],
)
def test_every_kind_of_arrow_is_named_and_no_other(outcomes: tuple[str, ...], named: list[str]) -> None:
    assert keys(timeline(0, 0, outcomes=outcomes)) == named
    assert keys(timeline(0, 2000, outcomes=outcomes, hot_tokens=None)) == named  # no threshold, nothing is hot


def test_more_moves_than_arrows_can_show_are_counted_in_bars() -> None:
    few, many = (timeline(0, 0, 0, outcomes=("transferred",) * count) for count in (MOST_ARROWS, MOST_ARROWS + 1))
    assert len(draw_timeline(few).axes[0].texts) == MOST_ARROWS
    (axes, _) = draw_timeline(many).axes
    assert not axes.texts
    assert f"bars: up to {MOST_ARROWS + 1} sessions" in axes.get_title(loc="left")
    left, came = (bar.get_path().get_extents() for bar in reversed(axes.patches))
    assert (left.y0, came.y1) == (0, 1), "a's bar hangs from its middle, b's stands on its own: the axis points down"
    assert left.height == pytest.approx(came.height)
    assert left.height > 0


def test_moves_are_counted_by_instance_and_stretch_of_time() -> None:
    at_s = pd.Series([0.0, 0.9, 1.0, 2.5, 3.0])
    grid = count_moves(pd.Series(["b", "a", "b", "b", "gone"]), at_s, ["a", "b"], np.array([0.0, 1.0, 2.0, 3.0]))
    assert grid.tolist() == [[1, 0, 0], [1, 1, 1]]


def grid(thrash: float) -> Figure:
    """Figure 9 of two settings."""
    rows = [
        {"metric": name, "hot_tokens": hot, "cooldown_s": 1.0, "value": value, "low": low, "high": high, "n": 4}
        for hot in (100.0, 200.0)
        for name, value, low, high in (
            ("ttft_p90_s", 0.1, 0.09, 0.12), ("accuracy", 0.75, 0.19, 0.99), ("thrash_rate", thrash, None, None)
        )
    ]  # fmt: skip
    return Figure(10, "", "", pd.DataFrame(rows))


def test_the_thresholds_show_intervals_counts_and_what_the_gate_makes_zero() -> None:
    times, accuracy, thrash = draw_thresholds(grid(0.0)).axes
    assert {text.get_text() for text in times.texts} == {"100\n[90.0, 120]"}
    assert {text.get_text() for text in accuracy.texts} == {"75.0\n[19.0, 99.0]\nn = 4"}
    assert "0 by construction" in thrash.get_title(loc="left")
    assert "by construction" not in draw_thresholds(grid(0.5)).axes[2].get_title(loc="left")


def occupancy(*measured_p90: float, modelled: float = 0.5) -> Figure:
    """Figure 4b of one deployment, and of measured pools that were so full nine tenths of the time at most."""
    lines = [("combined 8C", "p50" if tokens == 1e4 else "", tokens, modelled) for tokens in (1e3, 1e4, 1e5)]
    circles = [(f"pools {place}, measured", MEASURED, 1e4, p90) for place, p90 in enumerate(measured_p90)]
    rows = [
        {
            "deployment": name, "arm": "sticky", "modelled": False, "point": point, "footprint_tokens": tokens,
            "occupancy_mean": 0.001, "occupancy_p90": p90,
        }
        for name, point, tokens, p90 in (*lines, *circles)
    ]  # fmt: skip
    return Figure(3, "", "", pd.DataFrame(rows), {"wall": 0.9}, assign_pens({"sticky": "sticky"}))


@pytest.mark.parametrize("figure", [occupancy(0.2), occupancy(0.2, 0.0), occupancy(modelled=0.0)])
def test_a_share_of_zero_is_named_beside_the_panel_and_does_not_squeeze_it(figure: Figure) -> None:
    with catch_warnings():
        simplefilter("error")  # matplotlib warns where the panel has no room left
        draw(figure, {3: draw_occupancy})
    drawing = draw_occupancy(figure)
    zeros = [name for name in texts(drawing).split(" | ") if name.endswith(": 0 %")]
    assert len(zeros) == len(set(figure.table[figure.table["occupancy_p90"] == 0]["deployment"]))
    assert drawing.axes[0].get_yscale() == "log"


def test_measured_pools_at_one_footprint_are_named_apart() -> None:
    assert overlaps(draw_occupancy(occupancy(0.2, 0.2, 0.21, 0.21))) == []


def test_the_bounds_of_a_policy_are_named_over_their_marks() -> None:
    columns = ("label", "value", "low", "high", "bound_any", "bound_intra")
    rows = [("a", 0.4, 0.3, 0.5, 0.81, 0.8), ("b", 0.5, 0.4, 0.6, 0.81, 0.8)]
    drawing = draw_apc(Figure(2, "A title", "", pd.DataFrame(rows, columns=list(columns))))
    assert overlaps(drawing) == []
    assert drawing.axes[0].get_legend() is None
    assert texts(drawing) == "bound, any session | bound, own session"


def test_instances_median_and_maximum_are_named_over_their_marks() -> None:
    rows = [
        {"label": label, "kind": kind, "value": value, "low": None, "high": None}
        for label in ("a", "b")
        for kind, value in (("instance", 0.1), ("instance", 0.12), ("median", 0.11), ("max", 0.12))
    ]
    drawing = draw_instances(Figure(4, "A title", "", pd.DataFrame(rows)))
    assert overlaps(drawing) == []
    assert drawing.axes[0].get_legend() is None
    assert texts(drawing) == "instance | median | max"


def test_the_lines_of_a_joining_prefill_are_named_at_their_ends() -> None:
    rows = [
        {"prefill_tokens": tokens, "decodes": decodes, "itl_before_s": 0.02, "itl_during_s": 0.021, "slowdown": 1.05,
         "slowdown_low": 1.0, "slowdown_high": 1.1}
        for tokens in (512, 1024)
        for decodes in (4, 8)
    ]  # fmt: skip
    drawing = draw_interference(Figure(5, "", "", pd.DataFrame(rows)))
    assert overlaps(drawing) == []
    assert [axes.get_legend() for axes in drawing.axes] == [None, None]
    assert "4 decodes, before | 4 decodes, during | 8 decodes, before" in texts(drawing)


@pytest.mark.parametrize("count", [3, 13, 40])
def test_policies_at_one_point_are_named_apart(count: int) -> None:
    policies = {f"policy {number}": f"{number}.py" for number in range(count)}
    rows = [
        {"kind": CELL, "load": "", "label": label, "trial": 0, "sessions": 3.0, "service_s": 1.0 + 0.001 * place,
         "low": None, "high": None, "amplification": 1.0}
        for place, label in enumerate(policies)
    ]  # fmt: skip
    drawing = draw_coupling(Figure(9, "", "", pd.DataFrame(rows), pens=assign_pens(policies)))
    assert overlaps(drawing) == []
    assert [text.get_text() for text in drawing.axes[1].texts] == list(policies)


def texts(drawing: Drawing) -> str:
    return " | ".join(text.get_text() for axes in drawing.axes for text in axes.texts)


def test_the_loops_schematic_has_the_runs_own_times() -> None:
    times = [
        ("chatbot", "system", 0.25),
        ("chatbot", "pause", 30.0),
        ("agentic", "system", 0.25),
        ("agentic", "pause", 0.1),
    ]
    table = pd.DataFrame(times, columns=["timeline", "kind", "seconds"])
    shown = texts(draw_coupling_schematic(Figure(12, "", "", table)))
    assert "chatbot: 0.25 s in the system, 30 s until the next turn" in shown
    assert "agentic: 0.25 s in the system, 0.1 s until the next turn" in shown
    assert "sessions stay longer (L)" in shown


@pytest.mark.parametrize("count", [1, 2, 8])
def test_ears_schematic_has_the_policys_own_thresholds_and_instances(count: int) -> None:
    router = {"kind": "router", "name": "EAR", "hot_tokens": 3000, "cooldown_s": 2.0}
    table = pd.DataFrame([router, *({"kind": "instance", "name": f"e{place}"} for place in range(count))])
    shown = texts(draw_architecture(Figure(13, "", "", table)))
    assert "hot_tokens = 3000, cooldown_s = 2" in shown
    assert all(f"e{place}\n" in shown for place in range(count))
    assert ("the session's KV" in shown) == (count > 1)
