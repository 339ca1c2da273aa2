"""The look of every figure: marker, dash and hatch distinguish things, not color alone; the bytes are reproducible."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawing

FORMATS = ("png", "svg")
DPI = 150
HATCHES = ("", "////", "xxx")
FILLS = ("#4d4d4d", "#d9d9d9", "#ffffff")
"""With HATCHES: bars of one group, with very different lightness."""
READABLE = 4.5
"""Contrast of letters with white that WCAG 2 asks for."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every host draws the same letters
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "svg.hashsalt": "tracon",  # element ids would be random otherwise
    "svg.fonttype": "path",
}


@dataclass(frozen=True, slots=True)
class Pen:
    """How one line is drawn."""

    color: str
    marker: str
    dashes: Any

    def line(self) -> dict[str, Any]:
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes}


_COLORS = ("#000000", "#7f7f7f", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#e69f00", "#cc79a7")
"""Okabe and Ito's palette for color-blind readers, with gray instead of yellow."""
_MARKERS = ("o", "s", "^", "v", "D", "P", "p", "*")
_DASHES: Sequence[Any] = (
    "-",
    (0, (1, 1)),
    (0, (5, 1)),
    (0, (5, 3)),
    "-",
    (0, (4, 1, 1, 1)),
    (0, (2, 1)),
    (0, (6, 1, 1, 1, 1, 1)),
)
PENS = tuple(map(Pen, _COLORS, _MARKERS, _DASHES))
_LETTERED = "#303030"
"""Ink of lines beyond the palette, which have letters as markers."""


def pens(names: Iterable[str], own: Mapping[str, Pen] | None = None) -> dict[str, Pen]:
    """One per name: its `own`, or else one of PENS that is left; names with their own come first.

    Where there are more names than pens, the others have letters in one ink: no color stands for two things.
    """
    unique = list(dict.fromkeys(names))
    chosen = {name: own[name] for name in unique if own and name in own}
    others = [name for name in unique if name not in chosen]
    spare = [pen for pen in PENS if pen not in chosen.values()]
    if len(others) <= len(spare):
        return chosen | dict(zip(others, spare, strict=False))
    return chosen | dict(zip(others, make_lettered_pens(), strict=False))


def make_lettered_pens() -> Iterator[Pen]:
    """Pens of one ink with A, B, ... as markers, for more names than there are colors."""
    return (Pen(_LETTERED, write_marker(letter), "-") for letter in _list_letters())


def write_marker(text: str) -> str:
    """Letters or digits as a marker."""
    return rf"$\mathrm{{{text}}}$"


def _list_letters() -> Iterator[str]:
    """A to Z, then AA, AB, ..."""
    yield from ascii_uppercase
    for first in ascii_uppercase:
        yield from (first + second for second in ascii_uppercase)


def darken(color: str) -> str:
    """The color for letters: itself, or its hue dark enough to be read on white (a contrast of READABLE)."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(color)
    for share in (step / 20 for step in range(20, 0, -1)):
        darker = (share * red, share * green, share * blue)
        if compute_contrast_with_white(darker) >= READABLE:
            return to_hex(darker)
    return "#000000"


def compute_contrast_with_white(color: Sequence[float]) -> float:
    """Contrast of a color's red, green and blue (0 to 1), by the formula of WCAG 2: 1 to 21."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def sheet(width: float, height: float, title: str = "") -> Drawing:
    """An empty sheet (inches) that lays itself out, with a title over all its panels; empty = a panel has the title.

    A title may contain the name of a file, in which `$` begins no formula.
    """
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    if title:
        drawing.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=9, parse_math=False)
    return drawing


def make_panel_sheet(width: float, height: float, title: str, gap: float | None = None) -> tuple[Drawing, Axes]:
    """A sheet (inches) with one panel and its title. `gap`: points between them, where names are above the panel."""
    drawing = sheet(width, height)
    axes = drawing.subplots()
    axes.set_title(title, loc="left", fontweight="bold", pad=gap, parse_math=False)
    return drawing, axes


def to_bytes(drawing: Drawing, form: str) -> bytes:
    """The drawing as PNG or SVG, without dates or versions: the same numbers give the same bytes."""
    sink = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[form]
    drawing.savefig(sink, format=form, metadata=metadata)
    return sink.getvalue()


def set_plain_ticks(axes: Axes, side: Literal["x", "y"], values: Iterable[float], *, spread: float = 4.0) -> None:
    """A logarithmic axis with 1-2-5 ticks where the values above 0 span a factor of `spread`, else a linear one."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axis = axes.xaxis if side == "x" else axes.yaxis
    positive = [value for value in values if value > 0]
    log = bool(positive) and max(positive) / min(positive) >= spread
    if log:
        (axes.set_xscale if side == "x" else axes.set_yscale)("log")
        wide = max(positive) / min(positive) > 1e3
        axis.set_major_locator(LogLocator(base=10, subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=12))
        axis.set_minor_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=40) if wide else NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _position: f"{value:g}")


def rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    """Send rates on a logarithmic axis, each with its own tick."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(rates)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{rate:g}" for rate in rates]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(rates) / 1.25, max(rates) * 1.25)


def shares(axis: Axis) -> None:
    """Fractions of a whole as per cent."""
    axis.set_major_formatter(lambda value, _position: f"{100 * value:g} %")


def percent(axis: Axis) -> None:
    """Ratios as per cent with their sign."""
    axis.set_major_formatter(lambda value, _position: f"{100 * value:+g} %" if value else "0")
