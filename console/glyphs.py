"""The signs beside state words, in Unicode and in plain ASCII; a state never depends on color alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from results.records.visible import visible_line

_STATES = {
    "pending": ("dim", "·", "."),
    "planned": ("dim", "·", "."),
    "running": ("live", "▶", ">"),
    "starting": ("live", "◌", "~"),
    "stopping": ("live", "◌", "~"),
    "ready": ("good", "●", "*"),
    "done": ("good", "✓", "+"),
    "paused": ("warn", "‖", "="),
    "interrupted": ("warn", "◼", "#"),
    "skipped": ("dim", "↷", "/"),
    "gone": ("dim", "○", "o"),
    "failed": ("bad", "✗", "x"),
    "degraded": ("warn", "!", "!"),
    "info": ("dim", "·", "."),
    "warning": ("warn", "!", "!"),
    "error": ("bad", "✗", "x"),
}
"""Each state and feed level: its tone, its sign in Unicode, its sign in ASCII."""
TONES: Mapping[str, str] = {state: tone for state, (tone, _, _) in _STATES.items()}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One character set."""

    signs: Mapping[str, str]
    open: str
    closed: str
    full: str
    empty: str
    rise: str
    """Nine characters from nothing to a full cell, for columns."""
    rule: str
    dot: str
    """Between two facts on a line."""

    def block(self, eighths: int, level: int) -> str:
        """The character of a column of this height on the line `level` above its foot."""
        return self.rise[max(0, min(8, eighths - 8 * level))]

    def sign(self, state: str) -> str:
        return self.signs.get(state, " ")

    def state(self, state: str) -> tuple[str, str]:
        """Glyph, word and the tone for both."""
        return f"{self.sign(state)} {state}", TONES.get(state, "")


UNICODE = Glyphs(
    signs={state: sign for state, (_, sign, _) in _STATES.items()},
    open="▾",
    closed="▸",
    full="━",
    empty="─",
    rise=" ▁▂▃▄▅▆▇█",
    rule="─",
    dot="·",
)

ASCII = Glyphs(
    signs={state: sign for state, (_, _, sign) in _STATES.items()},
    open="v",
    closed=">",
    full="=",
    empty="-",
    rise=" .:-=+*#@",
    rule="-",
    dot="-",
)


_PLAIN = {
    **dict.fromkeys("│┃┤├╎▌▐▎▊", "|"),
    **dict.fromkeys("─━═", "-"),
    **dict.fromkeys("╭╮╰╯┌┐└┘┬┴┼┏┓┗┛", "+"),
    **dict.fromkeys("▁▂▃▔", "_"),
    **dict.fromkeys("▄▅▆▇█▀▖▗▘▝", "#"),
    "–": "-",
    "—": "-",
    "…": "~",
    "·": "-",
    "•": "*",
    "●": "*",
    "▼": "v",
    "▲": "^",
    "←": "<",
    "→": ">",
    "»": ">",
    "≤": "<",
    "░": ":",
    "▶": ">",
    "\u00a0": " ",
}


class VisibleText(LineFilter):
    """Replaces control characters, wherever the text comes from, by signs in as many columns as the line has."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.control or segment.text.isprintable() for segment in segments):
            return segments
        columns = sum(segment.cell_length for segment in segments)
        shown = [
            segment if segment.control else Segment(visible_line(segment.text), segment.style) for segment in segments
        ]
        return Segment.adjust_line_length(shown, columns)


class PlainText(LineFilter):
    """Replaces what is not ASCII, wherever it comes from, with something as wide."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def to_ascii(text: str) -> str:
    """The text in ASCII, in as many cells."""
    if text.isascii():
        return text
    return "".join(each if each.isascii() else _PLAIN.get(each, "?" * cell_len(each)) for each in text)
