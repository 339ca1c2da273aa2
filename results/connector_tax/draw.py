"""Draws the figures of specs/connector_tax from their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from results.connector_tax.combined_taxes import ADDITIVE_WITHIN
from results.connector_tax.curve_figures import CDF_SERIES
from results.connector_tax.figures import PARTS, SUM, WHOLE, is_distinguishable
from results.connector_tax.tax import TITLES, Metric
from results.measures.saturation import REF_LOAD, REF_SAFE
from results.report.figure import Figure
from results.report.figure_files import Drawers
from results.report.ink import (
    FILLS,
    HATCHES,
    Pen,
    bar_lengths,
    legend_beside,
    pens,
    percent,
    plain_ticks,
    rate_axis,
    sheet,
    title_sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.image import AxesImage

_ON_GRID = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_GAP = 1.035
"""Neighbouring configs at one rate stand apart by this factor."""


def draw_latency(figure: Figure) -> Drawing:
    """Figures 1 and 2: lines with bars above, which criteria fired below."""
    table, name = figure.table, ("ttft" if figure.number == 1 else "tpot")
    value = f"{name}_p90_s"
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    drawing = sheet(9, 4.4 + 0.2 * len(configs))
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=(16, 1 + len(configs)))
    _draw_references(axes, figure)
    for place, (config, pen) in enumerate(pens(configs).items()):
        rows = table[(table["config"] == config) & table[value].notna()]
        shift = _GAP ** (place - (len(configs) - 1) / 2)
        _line_with_bars(axes, rows, rows["rate_per_s"] * shift, value, config, pen)
    shown = table[[value, f"{value}_low", f"{value}_high"]].to_numpy(dtype=np.float64).ravel() * 1e3
    plain_ticks(axes, "y", shown[np.isfinite(shown)])
    axes.set_ylabel(f"{name.upper()} p90 (ms)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=16)  # above the names of the reference rates
    legend_beside(axes)
    _draw_criteria(strip, table, configs)
    rate_axis(strip, rates)
    strip.set_xlabel("send rate (requests/s)")
    return drawing


def _line_with_bars(axes: Axes, rows: pd.DataFrame, at: pd.Series[float], value: str, config: str, pen: Pen) -> None:
    """One config (ms); saturated points are crossed, degraded ones hollow."""
    names = (value, f"{value}_low", f"{value}_high")
    height, low, high = (rows[name].to_numpy(dtype=np.float64) * 1e3 for name in names)
    axes.plot(at, height, label=config, **pen.line())
    bars = bar_lengths(height, low, high)
    axes.errorbar(at, height, yerr=bars, fmt="none", ecolor=pen.color, elinewidth=0.9, capsize=2)
    hollow = (rows["degraded"] != "").to_numpy()
    axes.plot(at[hollow], height[hollow], pen.marker, color=pen.color, markerfacecolor="white", zorder=4)
    crossed = (rows["saturated"] == True).to_numpy()  # noqa: E712 - None is "not known"
    axes.plot(at[crossed], height[crossed], "x", color="black", markersize=9, markeredgewidth=1.4, zorder=5)


def _draw_criteria(axes: Axes, table: pd.DataFrame, configs: list[str]) -> None:
    """A line per config: the criteria that fired at each rate."""
    for place, config in enumerate(configs):
        for row in table[table["config"] == config].to_dict("records"):
            text = " ".join(f"×{number}" for number in row["criteria_fired"].split(",") if number)
            if row["saturated"] is None:
                text = "?"
            axes.text(row["rate_per_s"], place, text, ha="center", va="center", fontsize=8, bbox=_ON_GRID)
    axes.set_yticks(range(len(configs)), configs)
    axes.set_ylim(len(configs) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.set_title("saturated by criterion", loc="left", fontsize=8)


def _draw_references(axes: Axes, figure: Figure) -> None:
    """The reference rates as lines from top to bottom, named at the top."""
    rates: dict[float, list[str]] = {}
    for name, rate in figure.lines.items():
        if name.startswith("ref_"):
            rates.setdefault(rate, []).append(name)
    for rate, names in rates.items():
        axes.axvline(rate, color="#a0a0a0", linewidth=5, alpha=0.35, zorder=0)
        axes.annotate(" = ".join(names), (rate, 1), xycoords=("data", "axes fraction"), xytext=(0, 1),
                      textcoords="offset points", ha="center", va="bottom", fontsize=7.5, color="#555555")  # fmt: skip


def draw_throughput(figure: Figure) -> Drawing:
    """Figure 3: achieved over requested with y = x and knees; the ratio below."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    drawing = sheet(9, 6)
    axes, ratio = drawing.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    axes.plot(rates, rates, color="#808080", linestyle="--", linewidth=1, label="y = x")
    for place, (config, pen) in enumerate(pens(configs).items()):
        rows = table[(table["config"] == config) & table["achieved_per_s"].notna()]
        shift = _GAP ** (place - (len(configs) - 1) / 2)
        knee = (rows["rate_per_s"] == rows["saturation_rate_per_s"]).to_numpy()
        for panel, column, at in (
            (axes, "achieved_per_s", rows["rate_per_s"]),
            (ratio, "ratio", rows["rate_per_s"] * shift),
        ):
            panel.plot(at, rows[column], label=config, **pen.line())
            panel.plot(at[knee], rows[column][knee], "o", color=pen.color, markerfacecolor="none", markersize=11)
    plain_ticks(axes, "y", table["achieved_per_s"].dropna(), spread=2)
    axes.set_ylabel("achieved (completions/s)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=6)
    legend_beside(axes)
    _list_knees(ratio, table)
    _draw_references(ratio, figure)
    ratio.axhline(figure.lines["threshold"], color="black", linewidth=0.8, linestyle=":")
    ratio.set_ylim(0, max(1.1, 1.05 * float(table["ratio"].max())))
    ratio.set_ylabel("achieved / requested")
    rate_axis(ratio, rates)
    ratio.set_xlabel("requested (requests/s)")
    return drawing


def _list_knees(axes: Axes, table: pd.DataFrame) -> None:
    """Beside the panel: which configs saturate first at which rate."""
    knees: dict[str, list[str]] = {}
    for row in table.drop_duplicates("config").sort_values("saturation_rate_per_s", kind="stable").to_dict("records"):
        rate = row["saturation_rate_per_s"]
        knees.setdefault(f"{rate:g} req/s" if pd.notna(rate) else "above the grid", []).append(row["config"])
    lines = ["knee (first saturated rate):"]
    for where, configs in knees.items():
        lines += [f" {where}", *(f"    {config}" for config in configs)]
    axes.annotate("\n".join(lines), (1, 1), xycoords="axes fraction", xytext=(8, 0), textcoords="offset points",
                  ha="left", va="top", fontsize=7.5)  # fmt: skip


def draw_cdf(figure: Figure) -> Drawing:
    """Figure 6: a panel per series of steps."""
    table = figure.table
    series = [name for name in CDF_SERIES if name in set(table["series"])]
    drawing = sheet(10, 4.4)
    panels = drawing.subplots(1, len(series), sharey=True, squeeze=False)[0]
    ink = pens(dict.fromkeys(table["config"]))
    for panel, name in zip(panels, series, strict=True):
        inside = table[table["series"] == name]
        for place, (config, pen) in enumerate(ink.items()):
            rows = inside[inside["config"] == config]
            panel.plot(rows["time_us"], rows["share"], label=config, markevery=(2 * place, 20), **pen.line())
        bulk = inside[(inside["share"] >= 0.005) & (inside["share"] <= 0.995)]["time_us"]
        panel.set_xlim(0.9 * bulk.min(), 1.15 * bulk.max())
        plain_ticks(panel, "x", bulk, spread=2.5)
        panel.set_xlabel(f"{name.removesuffix('_us')} (µs)")
        panel.set_title(CDF_SERIES[name], loc="left")
        panel.set_ylim(0, 1.005)
    panels[0].set_ylabel("share of steps")
    legend_beside(panels[-1])
    title_sheet(drawing, figure.title)
    return drawing


_TICKS = (-0.5, -0.25, 0, 0.25, 0.5, 1, 3, 10, 30, 100, 300, 1000)
Numbers = npt.NDArray[np.floating[Any]]
_EDGE: Mapping[str, Any] = {"edgecolor": "black", "linewidth": 0.8}


def draw_bars(figure: Figure) -> Drawing:
    """Figure 4: a panel per metric, a pair of bars per config."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    metrics = _shown_metrics(table)
    drawing = sheet(max(6.5, 2.2 + 1.15 * len(configs)), 3 * len(metrics))
    panels = drawing.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for panel, metric in zip(panels, metrics, strict=True):
        rows = table[table["metric"] == metric]
        _scale_axis(panel, rows)
        for side, reference in enumerate((REF_SAFE, REF_LOAD)):
            taxes = rows[rows["reference"] == reference].set_index("config").reindex(configs)
            at = np.arange(len(configs)) + (side - 0.5) * 0.38
            rate = taxes["rate_per_s"].dropna()
            label = f"{reference} ({rate.iloc[0]:g} req/s)" if len(rate) else f"{reference}: none"
            _draw_bars(panel, at, taxes, 0.36, side, label)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_ylabel(f"{TITLES[metric]} over plain's")
        percent(panel.yaxis)
        panel.grid(visible=False, axis="x")
    legend_beside(panels[0])
    panels[0].set_title(figure.title, loc="left", fontweight="bold")
    panels[-1].set_xticks(range(len(configs)), [_break_name(config) for config in configs])
    return drawing


def _shown_metrics(table: pd.DataFrame) -> list[Metric]:
    return [metric for metric in TITLES if metric in set(table["metric"])]


def _draw_bars(axes: Axes, at: Numbers, rows: pd.DataFrame, width: float, look: int, label: str) -> None:
    """Bars with their intervals and what to know of each."""
    tax, low, high = (rows[name].to_numpy(dtype=np.float64) for name in ("tax", "low", "high"))
    axes.bar(at, np.nan_to_num(tax), width, color=FILLS[look], hatch=HATCHES[look], label=label, **_EDGE)
    known = _draw_intervals(axes, at, tax, low, high)
    saturated = rows["saturated"].to_numpy() if "saturated" in rows else np.zeros(len(rows))
    verdicts = rows["verdict"].to_numpy()
    for place, x in enumerate(at):
        words = []
        if not np.isfinite(tax[place]):
            words.append("not\nmeasured")
        elif not known[place]:
            words.append("no\ninterval")
        elif not verdicts[place]:
            words.append("no\nverdict")
        elif not is_distinguishable(str(verdicts[place])):
            words.append("n.d.")
        if saturated[place] == True:  # noqa: E712 - NaN where no cell was measured
            words.append("s")
        top = np.nanmax([tax[place], high[place], 0.0])
        axes.annotate("\n".join(words), (float(x), float(top)), xytext=(0, 2), textcoords="offset points",
                      ha="center", va="bottom", fontsize=7)  # fmt: skip


def _draw_intervals(axes: Axes, at: Numbers, value: Numbers, low: Numbers, high: Numbers) -> npt.NDArray[np.bool_]:
    """White lines with a black rim, to be seen on any fill; returns where there are both bounds."""
    known = np.isfinite(value) & np.isfinite(low) & np.isfinite(high)
    spans = (np.clip(value - low, 0, None)[known], np.clip(high - value, 0, None)[known])
    for color, width, over in (("black", 3.0, 3), ("white", 1.2, 4)):
        axes.errorbar(at[known], value[known], yerr=spans, fmt="none", ecolor=color, elinewidth=width, zorder=over)
    return known


def _scale_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """A scale that is linear around zero and logarithmic beyond, where one tax would flatten all others."""
    sizes = np.sort(np.abs(rows["tax"].dropna().to_numpy(dtype=np.float64)))
    if sizes.size < 2 or sizes[-1] < 2 or sizes[-1] < 12 * np.median(sizes):
        axes.margins(y=0.15)
        return
    axes.set_yscale("symlog", linthresh=1.0, linscale=1.5)
    lowest = min(float(rows[["tax", "low"]].min().min()), 0.0)
    axes.set_ylim(1.3 * lowest if lowest else -0.02, sizes[-1] * 4)
    axes.set_yticks([tick for tick in _TICKS if lowest <= tick <= sizes[-1] * 4])
    axes.minorticks_off()
    axes.text(0.995, 0.98, "logarithmic above 100 %", transform=axes.transAxes, ha="right", va="top", fontsize=7)


def _break_name(config: str) -> str:
    """A long name on several lines."""
    return config.replace("_", "_\n", 1) if config.count("_") == 1 else config.replace("_", "_\n")


def draw_heatmaps(figure: Figure) -> Drawing:
    """Figure 5: input by output tokens, a map per config, one scale for all."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    inputs, outputs = (sorted(set(table[name])) for name in ("input_tokens", "output_tokens"))
    columns = len(configs) if len(configs) <= 4 else -(-len(configs) // 2)
    lines = -(-len(configs) // columns)
    drawing = sheet(1.6 + 2.35 * columns, 0.7 + (0.9 + 0.5 * len(inputs)) * lines)
    panels = drawing.subplots(lines, columns, squeeze=False)
    values = table["tax"].dropna()
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.01)
    image = None
    for place, panel in enumerate(panels.ravel()):
        if place >= len(configs):
            panel.set_axis_off()
            continue
        rows = table[table["config"] == configs[place]]
        image = _draw_heatmap(panel, rows, inputs, outputs, (low, high))
        panel.set_title(configs[place], fontsize=8)
        if place % columns == 0:
            panel.set_ylabel("input tokens")
        if place >= len(configs) - columns:
            panel.set_xlabel("output tokens")
    if image is not None:
        bar = drawing.colorbar(image, ax=panels, shrink=0.8, pad=0.02)
        bar.set_label("TTFT p90 over plain's")
        percent(bar.ax.yaxis)
    title_sheet(drawing, figure.title)
    return drawing


def _draw_heatmap(
    axes: Axes, rows: pd.DataFrame, inputs: Sequence[int], outputs: Sequence[int], scale: tuple[float, float]
) -> AxesImage:
    grid = np.full((len(inputs), len(outputs)), np.nan)
    words: dict[tuple[int, int], str] = {}
    for row in rows.to_dict("records"):
        place = inputs.index(row["input_tokens"]), outputs.index(row["output_tokens"])
        if pd.isna(row["tax"]):
            continue
        grid[place] = row["tax"]
        shown = f"{100 * row['tax']:+.{0 if abs(row['tax']) >= 1 else 1}f} %"
        words[place] = shown if is_distinguishable(row["verdict"]) else f"({shown})"
    axes.set_facecolor("white")
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("#c0c0c0")
    image = axes.imshow(grid, cmap="Blues", vmin=scale[0], vmax=scale[1], aspect="auto")
    for (line, column), text in words.items():
        dark = (grid[line, column] - scale[0]) / (scale[1] - scale[0]) > 0.6
        axes.text(column, line, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black")
    axes.set_xticks(range(len(outputs)), [str(tokens) for tokens in outputs])
    axes.set_yticks(range(len(inputs)), [str(tokens) for tokens in inputs])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    return image


def draw_decomposition(figure: Figure) -> Drawing:
    """Figure 7: a panel per metric, a stack per config, the whole as a diamond."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    metrics = _shown_metrics(table)
    drawing = sheet(1.8 + (0.9 + 0.42 * len(configs)) * len(metrics), 4.4)
    panels = drawing.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        rows = table[table["metric"] == metric].set_index("config").reindex(configs)
        _draw_stack(panel, rows)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_title(TITLES[metric], loc="left")
        panel.set_xticks(range(len(configs)), configs, rotation=60, ha="right", rotation_mode="anchor")
        panel.grid(visible=False, axis="x")
        if metric == Metric.ENGINE_STEP_P50:
            panel.set_ylabel("µs per step over plain's")
        else:
            percent(panel.yaxis)
    panels[0].set_ylabel("tax over plain's")
    legend_beside(panels[-1])
    title_sheet(drawing, figure.title)
    return drawing


def _draw_stack(axes: Axes, rows: pd.DataFrame) -> None:
    """Parts of one sign on one side of zero; where the signs differ, each on its own."""
    at = np.arange(len(rows), dtype=np.float64)
    framework, connector, whole, low, high = (
        rows[name].to_numpy(dtype=np.float64) for name in ("framework", "connector", "tax", "low", "high")
    )
    base = np.where(np.sign(framework) == np.sign(connector), framework, 0.0)
    axes.bar(at, np.nan_to_num(framework), 0.62, color=FILLS[1], hatch=HATCHES[1], label="framework", **_EDGE)
    axes.bar(at, np.nan_to_num(connector), 0.62, np.nan_to_num(base), color=FILLS[0], label="connector", **_EDGE)
    _draw_intervals(axes, at, whole, low, high)
    axes.plot(at, whole, "D", color="white", markeredgecolor="black", markersize=5, zorder=5, label="whole tax")


def draw_additivity(figure: Figure) -> Drawing:
    """Figure 8: a panel per metric; three measured bars and the sum of two."""
    table = figure.table
    metrics = _shown_metrics(table)
    drawing = sheet(1.2 + 3.2 * len(metrics), 3.9)
    panels = drawing.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        rows = table[table["metric"] == metric].set_index("config")
        measured = rows.reindex([*PARTS, WHOLE])
        whole = float(measured.loc[WHOLE, "tax"])  # type: ignore[arg-type]
        edges = sorted((whole * (1 - ADDITIVE_WITHIN), whole * (1 + ADDITIVE_WITHIN)))
        panel.axhspan(*edges, color="#e8e8e8", zorder=0)
        for place in range(len(measured)):
            _draw_bars(panel, np.array([float(place)]), measured.iloc[[place]], 0.66, (0, 1, 2)[place], "")
        _draw_sum(panel, [float(measured.loc[part, "tax"]) for part in PARTS], rows.loc[SUM])  # type: ignore[arg-type]
        panel.axhline(0, color="black", linewidth=0.8)
        panel.margins(y=0.15)
        panel.set_title(TITLES[metric], loc="left")
        panel.set_xticks(range(4), [*(_break_name(config) for config in (*PARTS, WHOLE)), "sum of the\nfirst two"])
        panel.grid(visible=False, axis="x")
        percent(panel.yaxis)
    panels[0].set_ylabel("tax over plain's")
    title_sheet(drawing, figure.title)
    return drawing


def _draw_sum(axes: Axes, parts: Sequence[float], total: pd.Series[Any]) -> None:
    """The parts on top of one another, and a mark with its interval at their sum."""
    bottom = 0.0
    for look, part in enumerate(parts):
        axes.bar(3, part, 0.66, bottom, color=FILLS[look], hatch=HATCHES[look], linestyle="--", **_EDGE)
        bottom += part
    axes.plot([2.6, 3.4], [bottom, bottom], color="black", linewidth=2)
    numbers = (3, bottom, total["low"], total["high"])
    _draw_intervals(axes, *(np.array([number], dtype=np.float64) for number in numbers))


DRAWERS: Drawers = {
    1: draw_latency,
    2: draw_latency,
    3: draw_throughput,
    4: draw_bars,
    5: draw_heatmaps,
    6: draw_cdf,
    7: draw_decomposition,
    8: draw_additivity,
}
