"""What the runners refuse, with the remedy and the exit code the command line ends with."""

from __future__ import annotations

from enum import IntEnum

from results.records.errors import Refusal


class ExitCode(IntEnum):
    """How a command ends."""

    DONE = 0
    CELLS_FAILED = 1
    """Cells failed or were skipped."""
    BAD_INPUT = 2
    """Bad usage or input: a wrong key, a missing engine, a port that is taken."""
    INTERRUPTED = 3
    """Resumable: `tracon resume RUN` continues from here."""
    GATE_FAILED = 4
    """A pre-flight or acceptance gate failed."""


class RunnerError(Refusal):
    """Base of what runners refuse."""

    ended_by: str = ""
    """The signal that ended the process whose work this was; empty = none did."""


class CellSkipped(Exception):
    """The cell cannot or need not be measured; the message is the reason that the manifest keeps."""


class CellFailed(Exception):
    """The cell was tried and gave no measurement; the message is the reason."""
