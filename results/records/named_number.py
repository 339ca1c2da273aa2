"""A number under its field name, as people read it: the unit is the name's ending."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

NOT_MEASURED = "–"
"""Shown where a value is null; the reason is in the console's help, the cell's detail or the feed."""
_ENDINGS = (
    ("_req_per_s", 1, " req/s"),
    ("_tok_per_s", 1, " tok/s"),
    ("_req_s", 1, " req/s"),
    ("_tok_s", 1, " tok/s"),
    ("_per_s", 1, " /s"),
    ("_fraction", 100, " %"),
    ("_percent", 1, " %"),
    ("_tokens", 1, " tok"),
    ("_us", 1e-3, " ms"),
    ("_ms", 1, " ms"),
    ("_ns", 1e-6, " ms"),
    ("_s", 1e3, " ms"),
)
_ABBREVIATIONS = frozenset({"ttft", "tpot", "itl", "e2e", "apc", "kv", "gpu"})


def digits(value: float | None) -> str:
    """At most two decimals, in a width that columns can rely on: `0.04`, `1.66`, `14.2`, `142`, `1420`."""
    if value is None:
        return NOT_MEASURED
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def _show_number(value: float) -> str:
    """As `digits`, but with three significant digits below 0.1 too: `0.0412`."""
    size = abs(value)
    return f"{value:.{2 - math.floor(math.log10(size))}f}" if 0 < size < 0.1 else digits(value)


def name_value(key: str, value: object) -> tuple[str, str]:
    """A named value as label and text: `ttft_p90_s` -> (`TTFT p90`, `142 ms`)."""
    if isinstance(value, bool):
        return _format_label(key), "yes" if value else "no"
    ending, factor, unit = _find_unit(key)
    if value is None:
        return _format_label(key.removesuffix(ending)), NOT_MEASURED
    if not isinstance(value, int | float):
        return _format_label(key), _format_plain(value)
    if isinstance(value, int) and not ending:
        return _format_label(key), f"{value}"
    return _format_label(key.removesuffix(ending)), f"{_show_number(value * factor)}{unit}"


def list_numbers(values: Mapping[str, object]) -> Iterator[str]:
    """Each number with its label, and with its bounds where they are beside it: `TTFT p90 8.82 ms [8.53, 9.31]`.

    Bounds are the fields with `_low` and `_high` before the unit. What is no number is left out.
    """
    for key, value in values.items():
        ending, factor, _ = _find_unit(key)
        stem = key.removesuffix(ending)
        if isinstance(value, bool) or not isinstance(value, int | float) or stem.endswith(("_low", "_high")):
            continue
        low, high = values.get(f"{stem}_low{ending}"), values.get(f"{stem}_high{ending}")
        bounds = ""
        if isinstance(low, int | float) and isinstance(high, int | float):
            bounds = f" [{_show_number(low * factor)}, {_show_number(high * factor)}]"
        yield f"{' '.join(name_value(key, value))}{bounds}"


def _find_unit(key: str) -> tuple[str, float, str]:
    return next((each for each in _ENDINGS if key.endswith(each[0])), ("", 1, ""))


def _format_label(stem: str) -> str:
    return " ".join(part.upper() if part in _ABBREVIATIONS else part for part in stem.split("_"))


def _format_plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
