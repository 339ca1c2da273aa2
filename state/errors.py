"""Errors of this package: the message names the thing, the remedy says what to do."""

from __future__ import annotations

from results.records.errors import Refusal


class StateError(Refusal):
    """Base of every refusal of this package."""


class IllegalTransition(StateError):
    """An event contradicts the run's present state; nothing of its transaction was written."""


class StoreUnusable(StateError):
    """The state file is missing, damaged, of another schema, locked for too long, or cannot be written."""


class DiskFull(StoreUnusable):
    """The file system that holds the run has no room for the next event."""


class LeaseHeld(StateError):
    """Another process runs this run."""


class LeaseLost(StateError):
    """This process no longer holds the lease it acquired."""


class RequestRefused(StateError):
    """An operator request that names nothing in the plan, or that no process would answer."""


class RunNotFound(StateError):
    """A name fits no run of the workspace, or more than one."""
