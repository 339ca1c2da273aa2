"""The height of a page in print, from its HTML, its print style and the widths of Helvetica's characters.

Arial and Liberation Sans, which the style names first, have the same widths. No browser is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl

MM_PER_POINT = 25.4 / 72
A4_MM = (210.0, 297.0)
BLOCKS = {"h1": "h1", "h2": "h2", "p": "main p", "li": "main li"}
"""Tag to its rule in the print style."""
USUAL_WIDTH = 556
"""Of a character that the font's table lacks: that of a digit."""

Run = tuple[str, bool]
"""Text, and whether it is bold."""


@cache
def read_widths(bold: bool) -> dict[str, int]:
    """Thousandths of the size, by character."""
    name = "Helvetica-Bold.afm" if bold else "Helvetica.afm"
    table = (Path(mpl.get_data_path()) / "fonts" / "pdfcorefonts" / name).read_text()
    codes = re.findall(r"^C (\d+) ; WX (\d+) ;", table, re.MULTILINE)
    return {chr(int(code)): int(width) for code, width in codes}


def measure_em(text: str, bold: bool) -> float:
    widths = read_widths(bold)
    return sum(widths.get(character, USUAL_WIDTH) for character in text) / 1000


class _Blocks(HTMLParser):
    """The blocks of text of `<main>`, and its figures."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[str, list[Run]]] = []
        self.figures = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.figures += 1
            return
        self.open.append(tag)
        if "main" in self.open and tag in BLOCKS:
            rule = "main .question" if ("class", "question") in attrs else BLOCKS[tag]
            self.blocks.append((rule, []))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:  # void elements
            pass

    def handle_data(self, data: str) -> None:
        if "figcaption" in self.open or not set(BLOCKS).intersection(self.open) or "main" not in self.open:
            return
        rule, runs = self.blocks[-1]
        runs.append((data, rule in ("h1", "h2", "main .question") or "b" in self.open))


def count_lines(runs: list[Run], width_em: float) -> int:
    """Greedy, as browsers break lines: at spaces."""
    lines, at_em = 1, 0.0
    words = [(word, bold) for text, bold in runs for word in re.findall(r"\S+\s*", text)]
    for word, bold in words:
        needed_em = measure_em(word.rstrip(), bold)
        if at_em and at_em + needed_em > width_em:
            lines, at_em = lines + 1, 0.0
        at_em += measure_em(word, bold)
    return lines


def _find(pattern: str, css: str) -> list[float]:
    match = re.search(pattern, css)
    assert match is not None, pattern
    return [float(number) for number in match.groups()]


def measure_sheets_mm(html: str) -> tuple[float, float]:
    """The height of the page in print, and that of the sheet inside its margins."""
    css = html[html.index("@page") : html.index("</style>")]
    (margin_mm,) = _find(r"@page \{ size: A4; margin: ([\d.]+)mm; \}", css)
    (columns,) = _find(r"main \{ display: grid; grid-template-columns: repeat\((\d+), ", css)
    (figure_mm,) = _find(r"\.beside img \{ width: 100%; height: ([\d.]+)mm;", css)
    (gap_mm,) = _find(r"\.beside figure \{ order: 1; margin: ([\d.]+)mm 0 0; \}", css)
    (indent_mm,) = _find(r"main ul \{ margin: 0; padding: 0 0 0 ([\d.]+)mm; \}", css)
    assert ".beside { display: contents; }" in css
    page = _Blocks()
    page.feed(html[html.index("<main>") : html.index("</main>") + len("</main>")])
    height_mm = math.ceil(page.figures / columns) * (figure_mm + gap_mm)
    for rule, runs in page.blocks:
        font = r"font-size: ([\d.]+)pt; line-height: ([\d.]+)pt; margin: ([\d.]+)mm 0 ([\d.]+)mm;"
        size_pt, line_pt, above_mm, below_mm = _find(rf"\n  {re.escape(rule)} \{{ {font}", css)
        width_mm = A4_MM[0] - 2 * margin_mm - (indent_mm if rule == "main li" else 0)
        lines = count_lines(runs, width_mm / MM_PER_POINT / size_pt)
        height_mm += lines * line_pt * MM_PER_POINT + above_mm + below_mm
    return height_mm, A4_MM[1] - 2 * margin_mm


def markdown_to_html(markdown: str, css: str) -> str:
    """The page of a report.md, as the HTML of the same page has it."""
    return f"<style>{css}</style><main>{''.join(map(_convert_line, _list_lines(markdown)))}</main>"


def _list_lines(markdown: str) -> Iterator[str]:
    return filter(None, markdown.splitlines())


def _convert_line(line: str) -> str:
    if line.startswith("!["):
        return "<figure><img></figure>"
    for mark, tag in (("# ", "h1"), ("## ", "h2")):
        if line.startswith(mark):
            return f"<{tag}>{escape(line.removeprefix(mark))}</{tag}>"
    if line.startswith("- "):
        name, text = re.fullmatch(r"- (?:\*\*(.*?)\*\*)?(.*)", line).groups()  # type: ignore[union-attr]
        return f"<li><b>{escape(name or '')}</b>{escape(text)}</li>"
    if line.endswith("?**"):
        return f'<p class="question">{escape(line.strip("*"))}</p>'
    return f"<p>{escape(line.strip('*'))}</p>"
