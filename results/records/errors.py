"""Base of every refusal, with its remedy and the exit code of the command; the refusals of `results`."""

from __future__ import annotations

import msgspec


class Refusal(Exception):
    """The message names the problem, the remedy says what to do about it."""

    exit_code: int = 2

    def __init__(self, message: str, *, remedy: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code


class ResultsError(Refusal):
    """Base of the refusals of `results`."""


class RingError(ResultsError):
    """A step ring that cannot be read."""


class ArtifactError(ResultsError):
    """An artifact that is missing, damaged, or of a version this Tracon does not know."""


DAMAGED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for JSON that is cut or wrong, has bytes that are no UTF-8, or is nested too deeply."""
