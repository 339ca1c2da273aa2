"""A process of ours is started without a trace in the one that starts it."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from runners.child_process import ChildLine, ChildProcess, start_child


async def test_processes_started_at_once_leave_sigterm_as_it_was() -> None:
    """A run process that kept it blocked could not be ended, and every engine that it starts would inherit that."""

    async def start() -> ChildProcess[ChildLine[Any]]:
        return await start_child("json.tool", line_type=ChildLine[Any], end_grace_s=30.0)

    children = await asyncio.gather(start(), start(), start())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for child in children:
        await child.end()
    assert signal.SIGTERM not in blocked
