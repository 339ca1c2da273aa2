"""Step durations of every instance as columns over one shared axis, so that instances can be compared by eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console import format as say
from console.widgets.drawing import Drawing, place_labels
from results.records.events import STEP_BUCKETS_US
from results.records.named_number import digits

NAME_WIDTH = (12, 24)
"""The least and the most columns for the names."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The steps of one instance per bucket of STEP_BUCKETS_US, one more for the rest."""

    name: str
    tone: str
    counts: tuple[int, ...]


class Histogram(Drawing):
    """One band per instance: its name and count at the left, a column per bucket, bucket edges in ms below."""

    _bands: tuple[Counts, ...] = ()

    def show(self, bands: Sequence[Counts], empty: str = "") -> None:
        """Draw these bands; where they hold nothing, the text `empty`."""
        self._bands, self._empty = tuple(bands), empty
        self.change_content(self._bands, empty)

    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        bands = [band for band in self._bands if sum(band.counts)]
        if not bands:
            return []
        bands = bands[: max(1, height - 2)]
        filled = [index for band in bands for index, count in enumerate(band.counts) if count]
        first, last = min(filled), max(filled)
        names = min(NAME_WIDTH[1], max(NAME_WIDTH[0], *(len(band.name) for band in bands)) + 1)
        size = max(1, min(6, (width - names) // (last - first + 1)))
        tall = max(1, min(6, (height - 2) // len(bands)))
        rows: list[list[Segment]] = []
        for band in bands:
            rows += self._draw_band(band, (first, last), (size, tall), names, styles)
        axis = make_axis_labels(first, last, size)
        rule = self.glyphs.rule * (size * (last - first + 1))
        rows.append([Segment(" " * names), Segment(rule, styles["faint"])])
        rows.append([Segment("up to, ms".ljust(names), styles["dim"]), Segment(axis, styles["dim"])])
        return [Strip(row).adjust_cell_length(width) for row in rows]

    def _draw_band(
        self, band: Counts, buckets: tuple[int, int], column: tuple[int, int], names: int, styles: dict[str, Style]
    ) -> list[list[Segment]]:
        """One instance's lines. `column` = width and height of a bucket's column in cells."""
        size, tall = column
        shown = band.counts[buckets[0] : buckets[1] + 1]
        top, total = max(shown), sum(band.counts)
        labels = [
            (band.name, band.tone),
            (f"{say.tokens(total)} steps", "dim"),
            (f"peak {100 * top / total:.0f} %", "dim"),
        ]
        rows: list[list[Segment]] = []
        for line in range(tall):
            label, tone = labels[line] if line < len(labels) else ("", "")
            columns = "".join(self._draw_bucket(count / top, tall - 1 - line, tall, size) for count in shown)
            rows.append([Segment(label[: names - 1].ljust(names), styles[tone]), Segment(columns, styles[band.tone])])
        return rows

    def _draw_bucket(self, share: float, level: int, tall: int, size: int) -> str:
        """One bucket on one line: eighths of a cell; a bucket that holds anything shows at least one eighth."""
        eighths = max(round(share * tall * 8), 1 if share > 0 else 0)
        sign = self.glyphs.block(eighths, level)
        return sign * (size - 1) + " " if size > 1 else sign


def make_axis_labels(first: int, last: int, size: int) -> str:
    """Upper bucket edges in ms, as many as fit without touching."""
    return place_labels(((index - first) * size, format_edge(index)) for index in range(first, last + 1))


def format_edge(index: int) -> str:
    """A bucket's upper edge in ms; the last one has none."""
    if index >= len(STEP_BUCKETS_US):
        return f">{digits(STEP_BUCKETS_US[-1] / 1e3)}"
    return f"{STEP_BUCKETS_US[index] / 1e3:g}"
