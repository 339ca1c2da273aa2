"""Errors of this package: each names the thing, says what to do, and carries the exit code."""

from __future__ import annotations

from results.records.errors import Refusal


class LaunchError(Refusal):
    """Base of all errors of this package."""


class EngineMissing(LaunchError):
    """There is no usable engine environment."""


class InstallFailed(LaunchError):
    """An engine environment could not be built; no partial build is left."""


class PatchFailed(LaunchError):
    """The patches could not be applied to, or removed from, an engine environment."""


class HostObstacle(LaunchError):
    """What every further engine on this host would meet: it says nothing about the config, and a run cannot go on."""
