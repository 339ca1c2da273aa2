"""The palette: two themes of our own, and the tones that Line-API widgets draw with."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

SERIES = 8
"""How many series have a color of their own; further ones start over."""

NIGHT = Theme(
    name="tracon-night",
    primary="#6aaee0",
    secondary="#8f87d6",
    accent="#6aaee0",
    foreground="#c8d3dd",
    background="#0f141a",
    surface="#131a21",
    panel="#1a232c",
    success="#7cc291",
    warning="#dcae62",
    error="#e0717a",
    dark=True,
    variables={
        "tone-dim": "#71808e",
        "tone-faint": "#3b4753",
        "series-0": "#6aaee0",
        "series-1": "#e29a58",
        "series-2": "#7cc291",
        "series-3": "#d184ad",
        "series-4": "#cfc064",
        "series-5": "#5bbdb3",
        "series-6": "#a497ee",
        "series-7": "#c98c7b",
        "border": "#2b3641",
        "border-blurred": "#2b3641",
        "footer-background": "#131a21",
        "footer-key-foreground": "#6aaee0",
        "footer-description-foreground": "#8f9ba7",
        "block-cursor-background": "#24435c",
        "block-cursor-foreground": "#eef4f9",
        "block-cursor-text-style": "none",
    },
)

DAY = Theme(
    name="tracon-day",
    primary="#1f6fa8",
    secondary="#5c53b0",
    accent="#1f6fa8",
    foreground="#26313b",
    background="#f6f7f8",
    surface="#ffffff",
    panel="#e9edf0",
    success="#2c7a45",
    warning="#96660a",
    error="#b3333e",
    dark=False,
    variables={
        "tone-dim": "#667380",
        "tone-faint": "#bcc5cd",
        "series-0": "#1f6fa8",
        "series-1": "#b5651d",
        "series-2": "#2c7a45",
        "series-3": "#a1467a",
        "series-4": "#80700f",
        "series-5": "#137a70",
        "series-6": "#5c53b0",
        "series-7": "#8c4a38",
        "border": "#c9d1d8",
        "border-blurred": "#c9d1d8",
    },
)


def make_tones(variables: Mapping[str, str]) -> dict[str, Style]:
    """Foreground styles by tone name, from a theme's variables; themes without tones fill in from their colors."""
    text = _choose_color(variables.get("foreground"), "#c8d3dd")
    back = _choose_color(variables.get("background"), "#0f141a")
    colors = {
        "": text,
        "dim": _choose_color(variables.get("tone-dim"), text.blend(back, 0.4)),
        "faint": _choose_color(variables.get("tone-faint"), text.blend(back, 0.7)),
        "good": _choose_color(variables.get("success"), "#7cc291"),
        "warn": _choose_color(variables.get("warning"), "#dcae62"),
        "bad": _choose_color(variables.get("error"), "#e0717a"),
        "live": _choose_color(variables.get("primary"), "#6aaee0"),
    }
    styles = {name: Style(color=color.rich_color) for name, color in colors.items()}
    styles["bold"] = Style(color=text.rich_color, bold=True)
    cursor = _choose_color(variables.get("block-cursor-background"), "#24435c")
    styles["cursor"] = Style(bgcolor=cursor.rich_color)
    for index in range(SERIES):
        color = _choose_color(variables.get(f"series-{index}"), NIGHT.variables[f"series-{index}"])
        styles[f"series-{index}"] = Style(color=color.rich_color)
    return styles


def _choose_color(value: str | None, fallback: str | Color) -> Color:
    try:
        return Color.parse(value if value else fallback)
    except ColorParseError:
        return Color.parse(fallback)
