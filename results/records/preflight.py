"""`preflight_status.json`: a PreflightRecord per config, by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """One question to an instance and its answer."""

    number: int
    """From 1, in the order they were asked."""
    name: str
    """What was asked."""
    passed: bool
    """The answer is as it must be."""
    detail: str
    """The answer."""
    duration_s: float
    """From question to answer."""


@dataclass(frozen=True, slots=True)
class PreflightRecord:
    """Whether a config may be measured here."""

    decision: Literal["include", "SKIP"]
    """`SKIP`: its cells are skipped."""
    reason: str
    """The first check that failed, or why the engine did not start; empty = included."""
    checks: tuple[PreflightCheck, ...] = ()
    """Empty where the engine did not start."""
