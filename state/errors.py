"""What the state room refuses: the message names the thing, the remedy says what to do about it."""

from __future__ import annotations


class StateError(Exception):
    """Base of every refusal of this package; `exit_code` is what a command ends with."""

    exit_code: int = 2

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class IllegalTransition(StateError):
    """An event contradicts what the run has become; nothing of its transaction was written."""


class StoreUnusable(StateError):
    """The state file is missing, damaged, of another schema, locked for too long, or cannot be written."""


class DiskFull(StoreUnusable):
    """The file system that holds the run has no room for the next event."""


class LeaseHeld(StateError):
    """Another process runs this run, or left a lease that the caller did not want to take over."""


class LeaseLost(StateError):
    """This process no longer holds the lease it acquired."""


class RequestRefused(StateError):
    """An operator request that names nothing in the plan, or that no process would answer."""


class RunNotFound(StateError):
    """A name fits no run of the workspace, or more than one."""
