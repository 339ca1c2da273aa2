"""A process of ours is started without a trace in the one that starts it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from runners.child_process import LINE_LIMIT_BYTES, ChildLine, ChildProcess, start_child
from runners.errors import RunnerError


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


async def test_a_line_of_errors_beyond_its_limit_does_not_stop_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe would fill and its next write would wait for ever."""
    (tmp_path / "long_winded.py").write_text(
        f"import sys\nsys.stderr.write('x' * {4 * LINE_LIMIT_BYTES} + '\\nits last words\\n')\nsys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = await start_child("long_winded", line_type=ChildLine[Any], end_grace_s=20.0)
    assert await child.read_line() is None
    await child.end()
    error = child.make_error(None, "it ended", RunnerError)
    assert "(exit code 3): " in str(error)
    assert str(error).endswith("its last words")


async def test_a_line_that_a_killed_process_could_not_finish_is_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the signal would not be known, and its cell not be tried again."""
    (tmp_path / "cut_off.py").write_text(
        "import os, signal\nos.write(1, b'{\"tick\":')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = await start_child("cut_off", line_type=ChildLine[Any], end_grace_s=20.0)
    assert await child.read_line() is None
    await child.end()
    assert child.make_error(None, "it ended", RunnerError).ended_by == "SIGKILL"
