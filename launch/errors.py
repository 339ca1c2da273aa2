"""What goes wrong around engines: every error names the thing, says what to do, and carries the exit code."""

from __future__ import annotations


class LaunchError(Exception):
    """Base of all errors of this package: the message names the thing, `remedy` says what to do."""

    exit_code: int = 2

    def __init__(self, message: str, *, remedy: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code


class EngineMissing(LaunchError):
    """There is no usable engine environment."""


class InstallFailed(LaunchError):
    """An engine environment could not be built; nothing half-built is left in its place."""


class PatchFailed(LaunchError):
    """The patches could not be applied to, or removed from, an engine environment."""
