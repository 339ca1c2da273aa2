"""The marks of all figures: rows, bars and lines with intervals, grids of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.report.ink import Pen, set_plain_ticks
from results.statistics.estimates import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

QUIET = "#555555"
"""Color of notes inside a panel."""
EDGE: Mapping[str, Any] = {"edgecolor": "black", "linewidth": 0.8}
WIDE = 10.0
"""Times that differ by more than this factor have a logarithmic axis: on a linear one, one slow policy would squeeze
all others into a corner."""
FAR = 6.0
"""A bar that is this many times as long as the median one is cut; otherwise it would flatten the others."""
SATURATED = "////"
"""Hatch of bars and cells whose load was more than the engine sustained."""
_HATCHED: Mapping[str, Any] = {"fill": False, "hatch": SATURATED, "edgecolor": "#606060", "linewidth": 0}
GAP = 1.035
"""Factor between neighboring lines at one x of a logarithmic axis."""
DIVERGING = "PuOr_r"
"""From less (purple) through none (white) to more (orange)."""
ON_ROW, ON_COLUMN = ("axes fraction", "data"), ("data", "axes fraction")
"""`xycoords` of a note: its height, or its position across, is a value; the other is a fraction of the panel."""


def column(rows: pd.DataFrame, name: str, scale: float = 1.0) -> Samples:
    """A column as numbers; NaN where there is none."""
    return rows[name].to_numpy(dtype=np.float64) * scale


def measure_error_lengths(
    value: Samples, rows: pd.DataFrame, sides: tuple[str, str] = ("low", "high"), scale: float = 1.0
) -> tuple[Samples, Samples]:
    """From each value down and up to its bounds, the columns `sides`; 0 where it has none."""
    low, high = (column(rows, side, scale) for side in sides)
    below, above = (np.where(np.isfinite(side), side, 0).clip(0) for side in (value - low, high - value))
    return below, above


def set_apart(names: Sequence[str]) -> dict[str, float]:
    """A factor on x per name, for lines at the same x; that of the first is 1."""
    return {name: GAP ** ((index + 1) // 2 * (1 if index % 2 else -1)) for index, name in enumerate(names)}


def draw_line(axes: Axes, x: Iterable[float], rows: pd.DataFrame, value: str, pen: Pen, scale: float = 1.0) -> None:
    """A line with the interval of each point, from the columns `value`, `value`_low and `value`_high."""
    at, height = np.asarray(x, dtype=np.float64), column(rows, value, scale)
    spans = measure_error_lengths(height, rows, (f"{value}_low", f"{value}_high"), scale)
    axes.errorbar(at, height, yerr=spans, fmt="none", ecolor=pen.color, elinewidth=0.9, capsize=2)
    axes.plot(at, height, **pen.line())


def write_note(axes: Axes, text: str, at: tuple[float, float], apart: tuple[float, float], **look: Any) -> None:
    """Text `apart` (points) from a position, gray and of 7.5 points. `look`: what else, or other than that."""
    quiet: dict[str, Any] = {"fontsize": 7.5, "color": QUIET}
    axes.annotate(text, at, xytext=apart, textcoords="offset points", **(quiet | look))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """The first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def draw_panel(axes: Axes, rows: pd.DataFrame, names: Sequence[str], title: str, unit: str, scale: float) -> None:
    """One metric as dots; `rows` by name."""
    draw_dots(axes, rows.reindex(list(names)), scale)
    scaled = scale_time_axis(axes, rows, scale)
    axes.set_title(f"{title} ({unit}{scaled})", loc="left", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)


def draw_dots(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """A dot with its interval on each row; a note where nothing was measured."""
    at = np.arange(len(rows), dtype=np.float64)
    value = column(rows, "value", scale)
    draw_spans(axes, value, at, rows, scale)
    axes.plot(value, at, "o", color="black", markersize=4.5, zorder=4, clip_on=False)
    for row in np.flatnonzero(~np.isfinite(value)):
        write_note(axes, "not measured", (0, float(row)), (4, 0), xycoords=ON_ROW, va="center", fontsize=7)


def draw_spans(axes: Axes, value: Samples, at: Samples, rows: pd.DataFrame, scale: float) -> None:
    """The interval of each value along x."""
    below, above = measure_error_lengths(value, rows, scale=scale)
    known = np.isfinite(value)
    axes.errorbar(value[known], at[known], xerr=(below[known], above[known]), fmt="none", ecolor="#404040",
                  elinewidth=1, capsize=2.5, zorder=3)  # fmt: skip


def scale_time_axis(axes: Axes, rows: pd.DataFrame, scale: float) -> str:
    """Logarithmic where the values and bounds above zero span more than WIDE, else from 0; returns the title's suffix.

    A bound of 0 then lies beyond the left edge.
    """
    drawn = rows[["value", "low", "high"]].to_numpy(dtype=np.float64).ravel() * scale
    known = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not known.size or known.max() <= WIDE * known.min():
        axes.set_xlim(left=0, right=1.06 * float(known.max()) if known.size else None)
        return ""
    from matplotlib.ticker import LogLocator

    set_plain_ticks(axes, "x", known.tolist(), spread=WIDE)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=12))
    axes.set_xlim(left=float(known.min()) / 1.3, right=float(known.max()) * 1.3)
    return ", log scale"


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar per row, around zero."""

    rows: pd.DataFrame
    """In order: `value`, `low`, `high`; optional `note` (written at the bar's end) and `saturated`."""
    colors: Sequence[str]
    label: str = ""
    fade: float = 1.0


def draw_bars(axes: Axes, groups: Sequence[Bars], show: Mapping[str, Any] | None = None) -> None:
    """Horizontal bars with their intervals, those of all groups beside each other on every row.

    A saturated bar is hatched. A bar far longer than the rest is cut at the edge, with its numbers there; `show`: their
    `scale` and `unit`, per cent by default.
    """
    thick = 0.8 / len(groups)
    low, high = _find_reach(pd.concat([group.rows for group in groups]))
    axes.set_xlim(low, high)
    for number, group in enumerate(groups):
        at = np.arange(len(group.rows)) + (number - (len(groups) - 1) / 2) * thick
        for y, row, color in zip(at.tolist(), group.rows.to_dict("records"), group.colors, strict=True):
            _draw_bar(axes, y, thick * 0.9, row, color, group, show or {})
    axes.axvline(0, color="black", linewidth=0.8)
    axes.locator_params(axis="x", nbins=5)


def name_bars(axes: Axes, labels: Sequence[str]) -> None:
    """The bars of the first row, named to the right of the panel."""
    thick = 0.8 / len(labels)
    for number, label in enumerate(labels):
        up = (number - (len(labels) - 1) / 2) * thick
        write_note(axes, label, (1, up), (4, 0), xycoords=ON_ROW, va="center", fontsize=7)


def _find_reach(rows: pd.DataFrame) -> tuple[float, float]:
    """Limits that show zero and every bar with its interval, except bars far longer than the median one."""
    known = rows[rows["value"].notna()]
    if known.empty:
        return -1.0, 1.0
    sound = known[known["saturated"] != True] if "saturated" in known else known  # noqa: E712 - None is "not known"
    sound = sound if len(sound) else known
    most = FAR * float(sound["value"].abs().median())
    ends = sound[["value", "low", "high"]].to_numpy(dtype=np.float64).ravel()
    ends = np.append(ends[np.isfinite(ends)], 0.0)
    if np.abs(sound["value"]).max() > most > 0:
        ends = ends.clip(-most, most)
    room = 0.18 * (ends.max() - ends.min() or 1.0)
    return float(ends.min() - room), float(ends.max() + room)


def _draw_bar(
    axes: Axes, at: float, thick: float, row: Mapping[Any, Any], color: str, group: Bars, show: Mapping[str, Any]
) -> None:
    value, low, high = (float("nan") if row[name] is None else float(row[name]) for name in ("value", "low", "high"))
    left, right = axes.get_xlim()
    if not np.isfinite(value):
        write_note(axes, "not measured", (0, at), (3, 0), va="center", fontsize=6.5)
        return
    hatch = SATURATED if row.get("saturated") is True else ""
    axes.barh(at, value, thick, color=color, alpha=group.fade)
    axes.barh(at, value, thick, facecolor="none", hatch=hatch, **EDGE)
    cut = not left < value < right
    if np.isfinite(low) and np.isfinite(high) and not cut:
        for ink, width in (("white", 3.0), ("black", 1.2)):
            span = np.clip([low, high], left, right)
            axes.plot(span, [at, at], color=ink, linewidth=width, solid_capstyle="butt", zorder=4)
    note = str(row.get("note") or "")
    if cut or (np.isfinite(high) and not (left <= low and high <= right)):
        scale, unit = show.get("scale", 100.0), show.get("unit", " %")
        bounds = f" [{low * scale:+.0f}, {high * scale:+.0f}]" if np.isfinite(low) else ""
        note = f"{value * scale:+.0f}{unit}{bounds}{' ' if note else ''}{note}{' ▸' if value > 0 else ' ◂'}"
    end = max(value, high if np.isfinite(high) else value, 0.0)
    inside = cut or end >= right  # the note is then inside the panel, at its edge
    where = (right if value >= 0 else left) if inside else end
    leftward = inside and value >= 0
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if inside and note else None
    axes.annotate(note, (where, at), xytext=(-3 if leftward else 3, 0), textcoords="offset points", va="center",
                  ha="right" if leftward else "left", fontsize=6.5, zorder=6, bbox=box)  # fmt: skip


def pivot_grid_values(
    rows: pd.DataFrame, name: str, axes: tuple[str, str], ticks: tuple[Sequence[object], Sequence[object]]
) -> Samples:
    """A column over two others, the first by the second, at these ticks; NaN where there is none."""
    grid = rows.pivot_table(index=axes[0], columns=axes[1], values=name, dropna=False)
    return grid.reindex(index=list(ticks[0]), columns=list(ticks[1])).to_numpy(dtype=np.float64)


def draw_grid(
    axes: Axes,
    values: Samples,
    words: Mapping[tuple[int, int], str],
    labels: tuple[Sequence[str], Sequence[str]],
    *,
    reach: float | None = None,
    hatched: Samples | None = None,
) -> AxesImage:
    """Numbers as shaded cells, rows by columns, each with its text.

    `reach`: diverging around zero, full color there; None = from the least to the most in grays. `hatched`: 1 where
    the cell is saturated.
    """
    from matplotlib.patches import Rectangle

    known = values[np.isfinite(values)]
    if reach is None:
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        high += 0.6 * max(high - low, 1e-12)  # no cell is too dark to read its text
    else:
        low, high = -reach, reach
    image = axes.imshow(values, cmap="Greys" if reach is None else DIVERGING, vmin=low, vmax=high, aspect="auto",
                        origin="lower")  # fmt: skip
    if hatched is not None:
        for row, col in np.argwhere(hatched == 1).tolist():
            axes.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, **_HATCHED))
    for (row, col), text in words.items():
        dark = reach is not None and abs(values[row, col]) > 0.75 * reach
        light = hatched is not None and hatched[row, col] == 1
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85} if light else None
        color = "white" if dark and not light else "black"
        axes.text(col, row, text, ha="center", va="center", fontsize=7, color=color, bbox=box)
    down, across = labels
    axes.set_xticks(range(len(across)), list(across))
    axes.set_yticks(range(len(down)), list(down))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    return image
