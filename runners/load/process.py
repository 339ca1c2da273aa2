"""The load in a process of its own: started, followed, cut and never left behind.

Its own process, because the campaign's work would otherwise fall into the stamps.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from results.records.layout import spec_beside
from runners.load.replay_spec import ReplayOutcome, ReplaySpec, ReplayTick
from runners.load.spec import LoadError, LoadLine, LoadOutcome, LoadSpec, LoadTick, to_json

CUT_GRACE_S = 15.0
"""From the cut to the outcome: the records of what was in flight are still written."""
END_GRACE_S = 2.0
STDERR_LINES = 20

Tick = TypeVar("Tick")
Outcome = TypeVar("Outcome")


async def run_load(
    spec: LoadSpec, on_tick: Callable[[LoadTick], None], *, cut: asyncio.Event | None = None
) -> LoadOutcome:
    """Run a cell in a load process and return how it ended; the spec is kept beside its records.

    Setting `cut` ends the cell now, with an outcome (`cancelled`). Cancelling this coroutine ends the process at once,
    without one. Raises LoadError where nothing was measured.
    """
    return await _run(spec, LoadLine[LoadTick, LoadOutcome], on_tick, cut or asyncio.Event())


async def run_replay(
    spec: ReplaySpec, on_tick: Callable[[ReplayTick], None], *, cut: asyncio.Event | None = None
) -> ReplayOutcome:
    """The same for a replay."""
    return await _run(spec, LoadLine[ReplayTick, ReplayOutcome], on_tick, cut or asyncio.Event(), "replay")


async def _run(
    spec: LoadSpec | ReplaySpec,
    line_type: type[LoadLine[Tick, Outcome]],
    on_tick: Callable[[Tick], None],
    cut: asyncio.Event,
    *mode: str,
) -> Outcome:
    command = (sys.executable, "-m", "runners.load", *mode, str(_write_spec(spec)))
    with _sigterm_held():
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    last_words: deque[str] = deque(maxlen=STDERR_LINES)
    listening = asyncio.create_task(_keep_last(process, last_words))
    cutting = asyncio.create_task(_cut_on(process, cut))
    try:
        line = await _read(process, line_type, on_tick)
    finally:
        cutting.cancel()
        await _end(process)
        await asyncio.wait((cutting, listening), timeout=END_GRACE_S)
        listening.cancel()
    if line is not None and line.outcome is not None:
        return line.outcome
    if line is not None and line.failure is not None:
        raise LoadError(line.failure.message, remedy=line.failure.remedy, exit_code=line.failure.exit_code)
    tail = "\n".join(last_words) or "(it wrote nothing to stderr)"
    raise LoadError(
        f"the load process ended with code {process.returncode} and no outcome: {tail}",
        remedy="Run the cell again; if it ends so again, report it with this text.",
    )


def _write_spec(spec: LoadSpec | ReplaySpec) -> Path:
    path = spec_beside(Path(spec.requests_path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json(spec))
    except OSError as error:
        remedy = "Free space on that disk or choose another workspace."
        raise LoadError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error
    return path


async def _read(
    process: Process, line_type: type[LoadLine[Tick, Outcome]], on_tick: Callable[[Tick], None]
) -> LoadLine[Tick, Outcome] | None:
    """Follow the ticks to the last line; None where there is none."""
    assert process.stdout is not None
    decode = msgspec.json.Decoder(line_type).decode
    async for raw in process.stdout:
        line = decode(raw)
        if line.tick is None:
            return line
        on_tick(line.tick)
    return None


@contextlib.contextmanager
def _sigterm_held() -> Iterator[None]:
    """A process started in here takes a SIGTERM only when it is ready to: a cut that comes early must not kill it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _keep_last(process: Process, lines: deque[str]) -> None:
    assert process.stderr is not None
    async for raw in process.stderr:
        lines.append(raw.decode("utf-8", "backslashreplace").rstrip())


async def _cut_on(process: Process, cut: asyncio.Event) -> None:
    await cut.wait()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        await asyncio.sleep(CUT_GRACE_S)
        process.kill()


async def _end(process: Process) -> None:
    """See the process gone: it ends by itself at the end of its stdin, and is killed where it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_GRACE_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError) as why:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(why, asyncio.CancelledError):
            raise
