"""Draws the figures of specs/connector_tax from their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.connector_tax.combined_taxes import ADDITIVE_WITHIN
from results.connector_tax.configs import CONFIG_PENS
from results.connector_tax.curve_figures import CDF_SERIES
from results.connector_tax.figures import PARTS, SUM, WHOLE, is_distinguishable
from results.connector_tax.saturation import ABOVE_GRID, UNKNOWN_KNEE
from results.connector_tax.tax import OWN_RATE, TITLES, Metric
from results.records.reference_rates import REF_LOAD, REF_SAFE
from results.report import marks
from results.report.direct_labels import Named, label_lines
from results.report.figure import Drawers, Figure
from results.report.ink import Pen, pens, percent, rate_axis, set_plain_ticks, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_ON_GRID = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_FRAMEWORK = "#d9d9d9"
_STEPS: Mapping[str, Any] = {"scale": 1.0, "unit": " µs"}


def draw_latency(figure: Figure) -> Drawing:
    """Figures 1 and 2: lines with bars above, which criteria fired below."""
    table, name = figure.table, ("ttft" if figure.number == 1 else "tpot")
    value = f"{name}_p90_s"
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    marked = [name for name in configs if _list_marks(table, name)]
    drawing = sheet(8, 3.9 + 0.2 * len(marked))
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=(16, 1 + max(len(marked), 1)))
    _draw_references(axes, figure)
    apart, ends = marks.set_apart(configs), []
    for config, pen in pens(configs, CONFIG_PENS).items():
        rows = table[(table["config"] == config) & table[value].notna()]
        at, height = marks.column(rows, "rate_per_s", apart[config]), marks.column(rows, value, 1e3)
        marks.draw_line(axes, at, rows, value, pen, 1e3)
        hollow = (rows["degraded"] != "").to_numpy()
        axes.plot(at[hollow], height[hollow], pen.marker, color=pen.color, markerfacecolor="white", zorder=4)
        crossed = (rows["saturated"] == True).to_numpy()  # noqa: E712 - None is "not known"
        axes.plot(at[crossed], height[crossed], "x", color="black", markersize=9, markeredgewidth=1.4, zorder=5)
        ends += [Named(float(at[-1]), float(height[-1]), config, pen.color)] if len(at) else []
    shown = table[[value, f"{value}_low", f"{value}_high"]].to_numpy(dtype=np.float64).ravel() * 1e3
    set_plain_ticks(axes, "y", shown[np.isfinite(shown)])
    axes.set_ylabel(f"{name.upper()} p90 (ms)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=16)  # above the names of the reference rates
    _draw_criteria(strip, table, marked)
    rate_axis(strip, rates)
    strip.set_xlabel("send rate (requests/s)")
    label_lines(axes, ends)
    return drawing


def _list_marks(table: pd.DataFrame, config: str) -> list[tuple[float, str]]:
    """Rate and text of each cell in which criteria fired, or that could not be judged."""
    cells = []
    for row in table[table["config"] == config].to_dict("records"):
        text = " ".join(f"×{number}" for number in row["criteria_fired"].split(",") if number)
        text = "?" if row["saturated"] is None else text
        cells += [(float(row["rate_per_s"]), text)] if text else []
    return cells


def _draw_criteria(axes: Axes, table: pd.DataFrame, configs: list[str]) -> None:
    """A line per config that is saturated somewhere: the criteria that fired at each rate."""
    for row, config in enumerate(configs):
        for rate, text in _list_marks(table, config):
            axes.text(rate, row, text, ha="center", va="center", fontsize=8, bbox=_ON_GRID)
    axes.set_yticks(range(len(configs)), configs)
    axes.set_ylim(max(len(configs), 1) - 0.5, -0.5)
    axes.tick_params(length=0)
    title = "saturated by criterion" if configs else "no cell is saturated"
    axes.set_title(title, loc="left", fontsize=8)


def _draw_references(axes: Axes, figure: Figure) -> None:
    """The reference rates as lines from top to bottom, named at the top."""
    rates: dict[float, list[str]] = {}
    for name, rate in figure.lines.items():
        if name.startswith("ref_"):
            rates.setdefault(rate, []).append(name)
    for rate, names in rates.items():
        axes.axvline(rate, color="#a0a0a0", linewidth=5, alpha=0.35, zorder=0)
        marks.write_note(axes, " = ".join(names), (rate, 1), (0, 1), xycoords=marks.ON_COLUMN, ha="center", va="bottom")


def draw_throughput(figure: Figure) -> Drawing:
    """Figure 3: achieved over requested with y = x; the ratio below, on an axis of its own range."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    drawing = sheet(8, 5.4)
    axes, ratio = drawing.subplots(2, 1, sharex=True, height_ratios=(5, 4))
    axes.plot(rates, rates, color="#808080", linestyle="--", linewidth=1)
    apart, ends = marks.set_apart(configs), [Named(rates[-1], rates[-1], "y = x", "#808080")]
    for config, pen in pens(configs, CONFIG_PENS).items():
        rows = table[(table["config"] == config) & table["achieved_per_s"].notna()]
        short = np.array(["1" in fired.split(",") for fired in rows["criteria_fired"]], dtype=bool)
        at = marks.column(rows, "rate_per_s")
        for panel, name, x in ((axes, "achieved_per_s", at), (ratio, "ratio", at * apart[config])):
            height = marks.column(rows, name)
            panel.plot(x, height, **pen.line())
            panel.plot(x[short], height[short], "o", color=pen.color, markerfacecolor="none", markersize=11)
        ends += [Named(float(at[-1]), float(rows["achieved_per_s"].iloc[-1]), config, pen.color)] if len(at) else []
    set_plain_ticks(axes, "y", marks.column(table, "achieved_per_s"), spread=2)
    axes.set_ylabel("achieved (completions/s)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=6)
    _list_knees(ratio, table)
    _draw_references(ratio, figure)
    threshold = figure.lines["threshold"]
    ratio.axhline(threshold, color="black", linewidth=0.8, linestyle=":")
    low, high = min(threshold, float(table["ratio"].min())), max(1.0, float(table["ratio"].max()))
    ratio.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    ratio.set_ylabel("achieved / requested")
    rate_axis(ratio, rates)
    ratio.set_xlabel("requested (requests/s)")
    label_lines(axes, ends)
    return drawing


def _list_knees(axes: Axes, table: pd.DataFrame) -> None:
    """Beside the panel: which configs saturate first at which rate."""
    top = table[table["rate_per_s"] == table["rate_per_s"].max()]
    clear = set(top[top["saturated"] == False]["config"])  # noqa: E712 - None is "not known"
    knees: dict[str, list[str]] = {}
    for row in table.drop_duplicates("config").sort_values("saturation_rate_per_s", kind="stable").to_dict("records"):
        rate = row["saturation_rate_per_s"]
        above = ABOVE_GRID if row["config"] in clear else UNKNOWN_KNEE
        knees.setdefault(f"{rate:g} req/s" if pd.notna(rate) else above, []).append(row["config"])
    lines = ["knee (first saturated rate):"]
    for where, configs in knees.items():
        lines += [f" {where}", *(f"    {config}" for config in configs)]
    marks.write_note(axes, "\n".join(lines), (1, 1), (8, 0), xycoords="axes fraction", va="top", color="black")


def draw_cdf(figure: Figure) -> Drawing:
    """Figure 6: a panel per series of steps."""
    table = figure.table
    series = [name for name in CDF_SERIES if name in set(table["series"])]
    drawing = sheet(2 + 4.6 * len(series), 4, figure.title)
    panels = drawing.subplots(1, len(series), sharey=True, squeeze=False)[0]
    ink = pens(table["config"], CONFIG_PENS)
    for panel, name in zip(panels, series, strict=True):
        inside = table[table["series"] == name]
        for index, (config, pen) in enumerate(ink.items()):
            rows = inside[inside["config"] == config]
            panel.plot(rows["time_us"], rows["share"], markevery=(2 * index, 20), **pen.line())
        bulk = inside[(inside["share"] >= 0.005) & (inside["share"] <= 0.995)]["time_us"]
        panel.set_xlim(0.9 * bulk.min(), 1.15 * bulk.max())
        set_plain_ticks(panel, "x", bulk, spread=2.5)
        panel.set_xlabel(f"{name.removesuffix('_us')} (µs)")
        panel.set_title(CDF_SERIES[name], loc="left")
        panel.set_ylim(-0.01, 1.01)
        label_lines(panel, _name_distributions(inside, ink))
    panels[0].set_ylabel("share of steps")
    return drawing


def _name_distributions(rows: pd.DataFrame, ink: Mapping[str, Pen]) -> Iterator[Named]:
    """Each config on its line, at shares of their own because all lines end at 1: the fastest on top, so that as few
    leaders as possible cross a line."""
    lines = {config: own for config, own in rows.groupby("config", sort=False)}
    medians = {config: float(np.interp(0.5, own["share"], own["time_us"])) for config, own in lines.items()}
    order = sorted(medians, key=lambda config: medians[config])
    for config, share in zip(order, np.linspace(0.92, 0.08, len(order)).tolist(), strict=True):
        own = lines[config]
        yield Named(float(np.interp(share, own["share"], own["time_us"])), share, str(config), ink[str(config)].color)


def _prepare(rows: pd.DataFrame, configs: Sequence[str], value: str = "tax") -> pd.DataFrame:
    """The rows of `configs` in their order, with the columns that `draw_bars` reads; `value`: column and prefix."""
    sides = ("low", "high") if value == "tax" else (f"{value}_low", f"{value}_high")
    shown = rows.set_index("config").reindex(list(configs))
    bars = shown[[value, *sides]].astype(float).set_axis(["value", "low", "high"], axis="columns")
    if "verdict" in shown and value == "tax":
        bars["note"] = [_note(row) for row in shown.to_dict("records")]
    if "saturated" in shown:
        bars["saturated"] = shown["saturated"] == True  # noqa: E712 - NaN where no cell was measured
    return bars


def _note(row: Mapping[Any, Any]) -> str:
    """The note beside a tax's bar: that it has no interval or no verdict, or is not distinguishable from zero."""
    if pd.isna(row["tax"]):
        return ""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return "no interval"
    if not row["verdict"]:
        return "no verdict"
    return "" if is_distinguishable(str(row["verdict"])) else "n.d."


def _make_tax_panels(figure: Figure, configs: Sequence[str], row_height: float) -> tuple[Drawing, dict[Metric, Axes]]:
    """A sheet with a panel per metric side by side, a row per config."""
    metrics = [metric for metric in TITLES if metric in set(figure.table["metric"])]
    drawing = sheet(2 + 3.2 * len(metrics), 1.2 + row_height * len(configs), figure.title)
    panels = drawing.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        panel.set_title(TITLES[metric], loc="left")
        if metric == Metric.ENGINE_STEP_P50:
            panel.set_xlabel("µs per step over plain's")
        else:
            panel.set_xlabel("over plain's")
            percent(panel.xaxis)
    marks.name_rows(panels[0], configs)
    return drawing, dict(zip(metrics, panels, strict=True))


def draw_taxes(figure: Figure) -> Drawing:
    """Figure 4: a panel per metric, a pair of bars per config."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    drawing, panels = _make_tax_panels(figure, configs, 0.48)
    ink = pens(configs, CONFIG_PENS)
    for metric, panel in panels.items():
        groups = []
        for reference, fade in ((REF_SAFE, 1.0), (REF_LOAD, 0.4)):
            rows = table[(table["metric"] == metric) & (table["reference"] == reference)]
            if len(rows):
                label = f"{reference} ({rows['rate_per_s'].iloc[0]:g} req/s)"
                groups.append(marks.Bars(_prepare(rows, configs), [ink[name].color for name in configs], label, fade))
        marks.draw_bars(panel, groups)
    marks.name_bars(panel, [group.label for group in groups])
    return drawing


def draw_heatmaps(figure: Figure) -> Drawing:
    """Figure 5: input by output tokens, a map per config, one scale for all."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    inputs, outputs = (sorted(set(table[name])) for name in ("input_tokens", "output_tokens"))
    columns = len(configs) if len(configs) <= 4 else -(-len(configs) // 2)
    lines = -(-len(configs) // columns)
    drawing = sheet(1.6 + 2.2 * columns, 0.7 + (0.9 + 0.45 * len(inputs)) * lines, figure.title)
    panels = drawing.subplots(lines, columns, squeeze=False)
    sound = table[table["saturated"] != True]["tax"].dropna().abs()  # noqa: E712
    reach = float(sound.max()) if len(sound) else float(table["tax"].abs().max())
    for panel in panels.flat[len(configs) :]:
        panel.set_axis_off()
    for index, (panel, config) in enumerate(zip(panels.flat, configs, strict=False)):
        rows = table[table["config"] == config]
        values = marks.pivot_grid_values(rows, "tax", ("input_tokens", "output_tokens"), (inputs, outputs))
        hatched, words = np.zeros_like(values), dict[tuple[int, int], str]()
        for row in rows.to_dict("records"):
            cell = inputs.index(row["input_tokens"]), outputs.index(row["output_tokens"])
            words[cell] = _format_tax_cell(row)
            hatched[cell] = row["saturated"] is True
        labels = ([str(tokens) for tokens in inputs], [str(tokens) for tokens in outputs])
        image = marks.draw_grid(panel, values, words, labels, reach=reach or 0.01, hatched=hatched)
        panel.set_title(config, fontsize=8)
        if index % columns == 0:
            panel.set_ylabel("input tokens")
        if index >= len(configs) - columns:
            panel.set_xlabel("output tokens")
    bar = drawing.colorbar(image, ax=panels, shrink=0.8, pad=0.02, extend="both")
    bar.set_label("TTFT p90 over plain's")
    percent(bar.ax.yaxis)
    return drawing


def _format_tax_cell(row: Mapping[Any, Any]) -> str:
    """The tax; in parentheses where it is not distinguishable from zero."""
    if pd.isna(row["tax"]):
        return "saturated" if row["saturated"] else "not\nmeasured"
    shown = f"{100 * row['tax']:+.{0 if abs(row['tax']) >= 1 else 1}f} %"
    shown = shown if is_distinguishable(row["verdict"]) else f"({shown})"
    return f"{shown}\nat {row['rate_per_s']:g}/s" if row["reference"] == OWN_RATE else shown


def draw_decomposition(figure: Figure) -> Drawing:
    """Figure 7: a panel per metric; per config the framework's part, the connector's, and the whole."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    drawing, panels = _make_tax_panels(figure, configs, 0.62)
    ink = [pens(configs, CONFIG_PENS)[name].color for name in configs]
    for metric, panel in panels.items():
        rows = table[table["metric"] == metric]
        groups = (
            marks.Bars(_prepare(rows, configs, "framework"), [_FRAMEWORK] * len(configs), "framework"),
            marks.Bars(_prepare(rows, configs, "connector"), ink, "connector", fade=0.45),
            marks.Bars(_prepare(rows, configs), ink, "whole tax"),
        )
        marks.draw_bars(panel, groups, _STEPS if metric == Metric.ENGINE_STEP_P50 else None)
    marks.name_bars(panel, [group.label for group in groups])
    return drawing


def draw_additivity(figure: Figure) -> Drawing:
    """Figure 8: a panel per metric; the two parts, their sum, and the stack with the band that is linear."""
    table = figure.table
    names = (*PARTS, SUM, WHOLE)
    drawing, panels = _make_tax_panels(figure, ["sum of both" if name == SUM else name for name in names], 0.42)
    ink = pens([*PARTS, WHOLE], CONFIG_PENS)
    for metric, panel in panels.items():
        rows = table[table["metric"] == metric]
        bars = _prepare(rows, names)
        bars["note"] = bars["note"].where(bars.index != SUM, "")
        marks.draw_bars(panel, [marks.Bars(bars, [ink[name].color if name in ink else "#ffffff" for name in names])])
        whole = bars["value"][WHOLE]
        if pd.notna(whole):
            edges = sorted((whole * (1 - ADDITIVE_WITHIN), whole * (1 + ADDITIVE_WITHIN)))
            panel.axvspan(*edges, color="#e8e8e8", zorder=0)
    return drawing


DRAWERS: Drawers = {
    1: draw_latency,
    2: draw_latency,
    3: draw_throughput,
    4: draw_taxes,
    5: draw_heatmaps,
    6: draw_cdf,
    7: draw_decomposition,
    8: draw_additivity,
}
