"""Whether the artifacts of an earlier attempt at a cell are complete, so that it need not be measured again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from results.records.errors import SHORTAGE_REMEDIES
from results.records.layout import NO_FILE
from results.records.plan import CellPlan
from runners.campaign.experiment import CellOutcome
from runners.errors import RunnerError

log = logging.getLogger("tracon.campaign")

UNREAD_WAIT_S, UNREAD_STEP_S = 5.0, 0.5
"""A shortage may pass: the artifacts are read again for that long before the run is interrupted."""
NO_THREAD = "can't start new thread"
UNREADABLE = "make the file readable, or remove it to have the cell measured again"


class ArtifactsUnread(RunnerError):
    """Whether a cell's artifacts are complete cannot be read now: it is neither adopted nor measured again."""


async def adopt_if_complete(adopt: Callable[[CellPlan], CellOutcome | None], cell: CellPlan) -> CellOutcome | None:
    """The outcome of `adopt`; None where a file is missing or damaged: the cell is to be measured.

    Reads in a thread. The checksum of a decision log of a gigabyte takes seconds, in which the lease must be renewed.
    Raises ArtifactsUnread.
    """
    until_s = monotonic() + UNREAD_WAIT_S
    while True:
        try:
            return await _adopt_once(adopt, cell)
        except ArtifactsUnread as unread:
            if monotonic() >= until_s:
                raise
            log.warning("%s; read again", unread)
            await asyncio.sleep(UNREAD_STEP_S)


async def _adopt_once(adopt: Callable[[CellPlan], CellOutcome | None], cell: CellPlan) -> CellOutcome | None:
    try:
        return await asyncio.to_thread(adopt, cell)
    except NO_FILE:
        return None
    except (OSError, MemoryError) as error:
        raise _explain_error(cell, error) from error
    except Exception as error:
        if str(error) == NO_THREAD:
            raise _explain_error(cell, error) from error
        log.exception("cell %s: its artifacts cannot be used", cell.cell)
        return None


def _explain_error(cell: CellPlan, error: Exception) -> ArtifactsUnread:
    remedy = "raise the limits of memory and threads (`ulimit -a`)"
    if isinstance(error, OSError):
        remedy = SHORTAGE_REMEDIES.get(error.errno or 0, UNREADABLE)
    why = str(error) or type(error).__name__
    return ArtifactsUnread(
        f"whether the artifacts of cell {cell.cell} are complete cannot be read: {why}",
        remedy=f"{remedy}, then `tracon resume`",
    )
