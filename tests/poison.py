"""Text that a terminal would obey, put wherever a journal or a log has text from outside."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

POISON = "\x1b]52;c;aGk=\x07\x9b31m\u202ex\x7f\x00"
"""Writes the clipboard (OSC 52), sets a color by C1, turns the reading direction, and deletes."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""None of these may reach a terminal from outside."""
TEXTS = frozenset(("reason", "text", "degraded", "error", "session", "request", "frame", "subject", "why", "url"))
"""Fields of events with text that is not a name within the run."""

T = TypeVar("T")


def poison(value: T) -> T:
    """The same event with POISON at the end of every text."""
    return cast(T, _poison(value, inside=False))


def _poison(value: Any, *, inside: bool) -> Any:  # noqa: ANN401  (any field of any event)
    if isinstance(value, str):
        return value + POISON if inside else value
    if isinstance(value, tuple):
        return tuple(_poison(each, inside=inside) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _poison(getattr(value, field.name), inside=field.name in TEXTS)
            for field in fields(value)
            if field.init
        }
        return replace(value, **changed)
    return value
