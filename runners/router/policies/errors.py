"""What cannot be used as a policy."""

from __future__ import annotations

from runners.errors import RunnerError


class PolicyError(RunnerError):
    """A policy or one of its parameters is not known, or a user's policy file cannot be used."""
