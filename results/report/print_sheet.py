"""The page in print: its styles as CSS, and an estimate of its height, so that it fits one sheet of A4.

A browser is not needed for the estimate: it takes every character as AVERAGE_EM wide. Arial, Liberation Sans and
Helvetica, which the print style names, have 0.44 for a page's text; a font without these metrics may be wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

MARGIN_MM = 12
WIDTH_MM, HEIGHT_MM = 210 - 2 * MARGIN_MM, 297 - 2 * MARGIN_MM
"""Usable, of A4."""
FIGURE_MM, FIGURE_GAP_MM = 48, 2
"""Height of a figure, and the gap above it. Two are side by side, below the text."""
FIGURES_PER_ROW = 2
AVERAGE_EM = 0.48
MM_PER_POINT = 25.4 / 72


class Part(StrEnum):
    """What a block of text is; the selector of its style."""

    TITLE = "h1"
    QUESTION = "main .question"
    PARAGRAPH = "main p"
    HEADING = "h2"
    ITEM = "main li"


@dataclass(frozen=True, slots=True)
class Style:
    size_pt: float
    line_pt: float
    above_mm: float = 0.0
    below_mm: float = 0.0
    indent_mm: float = 0.0


STYLES: Mapping[Part, Style] = {
    Part.TITLE: Style(11, 13),
    Part.QUESTION: Style(9, 11, above_mm=0.5, below_mm=0.5),
    Part.PARAGRAPH: Style(7.2, 8.6, below_mm=0.8),
    Part.HEADING: Style(8.5, 10.5, above_mm=1, below_mm=0.6),
    Part.ITEM: Style(7.2, 8.6, below_mm=0.2, indent_mm=3.5),
}


def _write_rule(part: Part, style: Style) -> str:
    margins = f"{style.above_mm:g}mm 0 {style.below_mm:g}mm"
    font = f"font-size: {style.size_pt:g}pt; line-height: {style.line_pt:g}pt"
    return f"  {part} {{ {font}; margin: {margins}; padding: 0; border: 0; }}"


_RULES = "\n".join(_write_rule(part, style) for part, style in STYLES.items())
PRINT_CSS = f"""
@page {{ size: A4; margin: {MARGIN_MM}mm; }}
@media print {{
  :root {{ --paper: #fff; --ink: #000; --quiet: #444; }}
  body {{ font-family: Arial, "Liberation Sans", Helvetica, sans-serif; max-width: none; margin: 0; padding: 0; }}
{_RULES}
  #appendix {{ display: none; }}
  main {{ display: grid; grid-template-columns: repeat({FIGURES_PER_ROW}, minmax(0, 1fr)); gap: 0 4mm; }}
  main > *, .beside > ul {{ grid-column: 1 / -1; }}
  main ul {{ margin: 0; padding: 0 0 0 {STYLES[Part.ITEM].indent_mm:g}mm; }}
  .beside {{ display: contents; }}
  .beside figure {{ order: 1; margin: {FIGURE_GAP_MM}mm 0 0; }}
  .beside a, .beside img {{ display: block; }}
  .beside img {{ width: 100%; height: {FIGURE_MM}mm; object-fit: contain; }}
  .beside figcaption {{ display: none; }}
  figure img {{ filter: none; border: 0; }}
}}
"""
"""Print shows the page alone: text over the whole width, then the figures; the appendix is for the screen."""


def estimate_height_mm(blocks: Iterable[tuple[Part, str]], figures: int) -> float:
    text = math.fsum(_estimate_block_mm(STYLES[part], text) for part, text in blocks)
    return text + math.ceil(figures / FIGURES_PER_ROW) * (FIGURE_MM + FIGURE_GAP_MM)


def _estimate_block_mm(style: Style, text: str) -> float:
    per_line = (WIDTH_MM - style.indent_mm) / (AVERAGE_EM * style.size_pt * MM_PER_POINT)
    lines = max(1, math.ceil(len(text) / per_line))
    return lines * style.line_pt * MM_PER_POINT + style.above_mm + style.below_mm
