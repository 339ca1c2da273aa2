"""A connector-tax run on one page, as the first section of the results. Import only where there is an analysis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from console.glyphs import Glyphs
from console.rows.results import load_of, outcome_tone, tax_key
from console.rows.sections import Section, ToneOf, text_row
from console.widgets.table import Cell, Column, Row, cell
from results.connector_tax.analyse import Analysis
from results.connector_tax.page import Change, Line, page_of
from results.measures.saturation import REF_SAFE

_TONES = {"higher": "warn", "lower": "good"}
_WORD = 6


def page(analysis: Analysis, folder: Path, width: int, glyphs: Glyphs, tone: ToneOf) -> Section:
    """Where it ran, plain against plain, every config, the hypotheses, and what to do next; a line each."""
    found = page_of(analysis, folder)
    room = max((len(line.config) for line in found.taxes), default=14)
    columns = (
        Column("config", "against plain", max(room, 13), left=True),
        Column("ttft", "TTFT p90", found.change_width, left=True),
        Column("ttft word", "", _WORD, left=True),
        Column("tpot", "TPOT p90", found.change_width, left=True),
        Column("tpot word", "", _WORD, left=True),
        Column("callbacks", "hooks us", 8),
        Column("rest", "", 0, left=True, flex=True),
    )
    rows: list[Row] = []
    if found.floor is not None:
        rows.append(_row(found.floor, "dim", "floor", noise=True))
    rows += [_row(line, tone(line.config), _key(analysis, line.config)) for line in found.taxes]
    if found.trouble:
        rows.append(text_row("trouble", ((_cut(found.trouble, width), "warn"),), len(columns)))
    for name, outcome, why in found.hypotheses:
        sign, shade = outcome_tone(outcome)
        spans = ((f"{name} ", "bold"), (f"{glyphs.sign(sign)} {outcome:<10}", shade), (_cut(why, width - 16), "dim"))
        rows.append(text_row(f"verdict {name}", spans, len(columns)))
    for number, (target, what) in enumerate(found.next_steps):
        rows.append(text_row(f"next {number}", tuple(_next(target, what, width)), len(columns)))
    return Section(columns, tuple(rows), f"{found.host}. {found.load}. {found.reading}", "no cell is measured yet")


def _next(target: str, what: str, width: int) -> Iterator[tuple[str, str]]:
    """The end of a path that is too long tells more than its beginning."""
    yield (target if len(target) <= width else f"...{target[3 - width :]}", "")
    if len(target) + len(what) + 2 <= width:
        yield (f"  {what}", "dim")


def _row(line: Line, tone: str, key: str, *, noise: bool = False) -> Row:
    cells: list[Cell] = [cell(line.config, tone)]
    for change in (line.ttft, line.tpot):
        cells += [cell(change.text, "dim" if noise else "bold"), _word(change)]
    return Row(key, (*cells, cell("noise" if noise else line.callbacks_us, "dim" if noise else ""), ()))


def _word(change: Change) -> Cell:
    return cell(change.word, _TONES.get(change.word, "dim"))


def _key(analysis: Analysis, config: str) -> str:
    """The key of the config's taxes at ref_safe, so that enter shows all of them."""
    own = (row for row in analysis.taxes if (row.config, row.phase, row.reference) == (config, "A", REF_SAFE))
    return tax_key(load_of(next(own)), config)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(1, width - 1)]}…"
