"""Base of every refusal, with its remedy and the exit code of the command; the refusals of `results`."""

from __future__ import annotations

import errno
from collections.abc import Mapping

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


class SpecError(ResultsError):
    """The spec of a router or a load that cannot be: an option out of its limits, or two that contradict each other."""


class ArtifactError(ResultsError):
    """An artifact that is missing, damaged, or of a version this Tracon does not know."""


DAMAGED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for JSON that is cut or wrong, has bytes that are no UTF-8, or is nested too deeply."""

SHORTAGE_REMEDIES: Mapping[int, str] = {
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise the limit of open files of this host (`sysctl fs.file-max`)",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on that disk"),
    errno.ENOMEM: "free memory, or raise its limit (`ulimit -v`)",
}
"""What to do where the host or this process has no more of something, by the errno of the OSError."""
