"""The page of a connector-tax run for a terminal: lines that are cut at its width, never folded."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from results.connector_tax.page import Change, Line, Page

WORD = 7
"""Columns of a verdict's word."""
TONES = {"higher": "yellow", "lower": "green", "holds": "green", "fails": "yellow"}


def page_text(page: Page, width: int) -> Text:
    """The page, no line longer than `width` but paths and commands, which stay whole to be copied."""
    text = Text(no_wrap=False)
    for line in _lines(page, width):
        line.truncate(width, overflow="ellipsis")
        text.append_text(line).append("\n")
    for target, what in page.next_steps:
        text.append(target, "bold").append(f"  {what}\n" if len(target) + len(what) + 2 <= width else "\n", "dim")
    text.rstrip()
    return text


def _lines(page: Page, width: int) -> Iterator[Text]:
    yield Text(page.host, "bold")
    yield Text(page.load)
    if page.trouble:
        yield Text(page.trouble, "yellow")
    for part in textwrap.wrap(page.noise, width):
        yield Text(part)
    lines = [*([page.floor] if page.floor is not None else []), *page.taxes]
    if lines:
        room = max(len(line.config) for line in lines) + 1
        change = page.change_width
        latency = change + WORD + 1
        yield Text(f"{'against plain':<{room}}{'TTFT p90':<{latency}}{'TPOT p90':<{latency}}hooks us", "dim")
        for line in lines:
            yield _row(line, room, change, noise=line is page.floor)
    for part in textwrap.wrap(page.reading, width):
        yield Text(part, "dim")
    for name, outcome, why in page.hypotheses:
        yield Text(f"{name} ", "bold").append(f"{outcome:<10} ", TONES.get(outcome, "dim")).append(why)


def _row(line: Line, room: int, change_width: int, *, noise: bool) -> Text:
    text = Text(f"{line.config:<{room}}", "dim" if noise else "bold")
    for change in (line.ttft, line.tpot):
        _append(text, change, change_width, noise=noise)
    return text.append("noise" if noise else f"{line.callbacks_us:>5}", "dim" if noise else "")


def _append(text: Text, change: Change, width: int, *, noise: bool) -> None:
    text.append(f"{change.text:<{width}} ", "dim" if noise else "")
    text.append(f"{change.word:<{WORD}}", TONES.get(change.word, "dim"))
