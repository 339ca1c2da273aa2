"""One row of `tracon doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, MISSING = "ok", "warn", "missing"


@dataclass(frozen=True, slots=True)
class Row:
    """One checked property of this machine."""

    what: str
    state: str
    """`ok`, `warn` (works, with a restriction) or `missing` (something cannot run)."""
    detail: str
    remedy: str = ""
