"""A module of ours as a process of its own: its spec in a file, its JSON lines, its end. No child outlives its parent.

`ChildProcess` is the parent's end, `ParentPipe` and `watch_parent` the child's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from launch.death import name_code
from results.records.declaration import UnknownVersion, Upgrade, explain_unknown_field, upgrade_row
from results.records.errors import DAMAGED_JSON, SpecError
from runners.errors import RunnerError

STDIN, STDOUT = 0, 1
STDERR_LINES = 20
STDERR_GRACE_S = 2.0
"""After the end of the process, how long the rest of its standard error may take."""
LINE_LIMIT_BYTES = 1 << 20

Spec = TypeVar("Spec")
TickOf = TypeVar("TickOf")
LineOf = TypeVar("LineOf", bound="ChildLine[Any]")


class ChildFailure(msgspec.Struct, frozen=True):
    """Why a child process did not do its work."""

    message: str
    remedy: str
    exit_code: int

    @classmethod
    def of(cls, error: RunnerError) -> ChildFailure:
        return cls(str(error), error.remedy, int(error.exit_code))


class ChildLine(msgspec.Struct, Generic[TickOf], frozen=True, omit_defaults=True):
    """One line of a child's standard output. A kind of process adds its own; exactly one field is set."""

    tick: TickOf | None = None
    failure: ChildFailure | None = None


class ChildProcess(Generic[LineOf]):
    """A running `python -m MODULE`, made by `start_child`. It ends at the end of its standard input."""

    def __init__(self, process: Process, line_type: type[LineOf], end_grace_s: float) -> None:
        self._process = process
        self._decode = msgspec.json.Decoder(line_type).decode
        self._end_grace_s = end_grace_s
        self._stderr_tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def read_line(self) -> LineOf | None:
        """The next line; None where the process closed its standard output, perhaps in the middle of a line."""
        assert self._process.stdout is not None
        raw = await self._process.stdout.readline()
        return self._decode(raw) if raw.endswith(b"\n") else None

    async def follow_ticks(self, on_tick: Callable[[Any], None]) -> LineOf | None:
        """Ticks to the callback; returns the first line without one, None where the process ended before."""
        while (line := await self.read_line()) is not None and line.tick is not None:
            on_tick(line.tick)
        return line

    async def send_line(self, line: bytes) -> None:
        """Write a line to its standard input; nothing where it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def end(self) -> None:
        """Close its standard input and wait for its end; kill it where that takes too long, or when cancelled."""
        self.close_stdin()
        try:
            async with asyncio.timeout(self._end_grace_s):
                await self._process.wait()
        except (TimeoutError, asyncio.CancelledError) as why:
            self.kill()
            await self._process.wait()
            if isinstance(why, asyncio.CancelledError):
                raise
        finally:
            await asyncio.wait((self._reading_stderr,), timeout=STDERR_GRACE_S)
            self._reading_stderr.cancel()

    def make_error(self, line: LineOf | None, what: str, refusal: type[RunnerError]) -> RunnerError:
        """The failure that its last line reports; else `what`, with its exit code and the end of its stderr."""
        if line is not None and line.failure is not None:
            return refusal(line.failure.message, remedy=line.failure.remedy, exit_code=line.failure.exit_code)
        tail = "\n".join(self._stderr_tail) or "(it wrote nothing to stderr)"
        code = self._process.returncode
        ended_by = name_code(code) if code is not None and code < 0 else ""
        how = f"ended by {ended_by}" if ended_by else f"exit code {code}"
        remedy = "Run it again; if it ends so again, report it with this text."
        error = refusal(f"{what} ({how}): {tail}", remedy=remedy)
        error.ended_by = ended_by
        return error

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                raw = await self._process.stderr.readline()
            except ValueError:  # a part of a line of more than LINE_LIMIT_BYTES, which is dropped
                continue
            if not raw:
                return
            self._stderr_tail.append(raw.decode("utf-8", "backslashreplace").rstrip())


async def start_child(
    module: str, *arguments: str, line_type: type[LineOf], end_grace_s: float
) -> ChildProcess[LineOf]:
    """Start `python -m module`, in a session of its own. `end_grace_s`: how long `end` waits before it kills."""
    with _HELD_SIGTERM:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_LIMIT_BYTES,
            start_new_session=True,
        )
    return ChildProcess(process, line_type, end_grace_s)


class _HeldSigterm:
    """Blocks SIGTERM while processes start: one that arrives before they handle it must not kill them.

    Starts overlap, because each awaits: the last one to end unblocks the signal.
    """

    def __init__(self) -> None:
        self._starts = 0

    def __enter__(self) -> None:
        self._starts += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def __exit__(self, *_: object) -> None:
        self._starts -= 1
        if not self._starts:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


_HELD_SIGTERM = _HeldSigterm()


def write_spec(path: Path, spec: object, refusal: type[RunnerError]) -> Path:
    """The spec as JSON in a file; returns its path. Raises `refusal` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(spec))
    except OSError as error:
        remedy = "Free space on that disk or choose another workspace."
        raise refusal(f"cannot write {path}: {error.strerror}", remedy=remedy) from error
    return path


def read_spec(
    path: Path,
    kind: type[Spec],
    what: str,
    refusal: type[RunnerError],
    version: int,
    upgrades: Mapping[int, Upgrade] | None = None,
) -> Spec:
    """The spec in a JSON file; `what` is its name. Raises `refusal` naming the file and the field that is wrong.

    A spec that states no version is of the first. A field that it does not have is wrong: ignored, a misspelled limit
    would have its default.
    """
    try:
        row = upgrade_row(path.read_bytes(), version, upgrades, unstated=1)
        spec = msgspec.convert(row, kind)
        unknown = explain_unknown_field(row, msgspec.to_builtins(spec) | {"version": version})
    except OSError as error:
        raise refusal(f"{what} {path}: {error.strerror}", remedy=f"Give the path of a {what} (JSON).") from error
    except SpecError as error:
        raise refusal(str(error), remedy=error.remedy) from error
    except (UnknownVersion, *DAMAGED_JSON) as error:
        raise refusal(f"{what} {path}: {error}", remedy=f"Correct that field of the {what}.") from error
    if unknown:
        raise refusal(f"{what} {path}: {unknown}", remedy=f"Correct that field of the {what}.")
    return spec


def end_on_signals(stop: Callable[[], None]) -> None:
    """In the child: SIGTERM and SIGINT call `stop`; so does a SIGTERM that was blocked until now."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    accept_sigterm()


def accept_sigterm() -> None:
    """In the child: handle SIGTERM from now on, also one that came while it started; `start_child` has it blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def watch_parent(on_end: Callable[[], None]) -> None:
    """In the child: call `on_end` when standard input, a pipe from the parent, ends; never where it is not a pipe."""
    kind = os.fstat(STDIN).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(STDIN, 4096):
            loop.remove_reader(STDIN)
            on_end()

    loop.add_reader(STDIN, read)


class ParentPipe:
    """Standard output of the child. A parent that stops reading loses ticks; the child does not wait for it."""

    def __init__(self) -> None:
        self._rest = b""
        """The rest of a line of which a full pipe took only the beginning."""

    def write_line(self, line: ChildLine[Any]) -> None:
        """Write a line; a tick is dropped where the pipe is full, every line where the parent is gone."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            if line.tick is None:
                _write_all(self._rest + data)
                self._rest = b""
            else:
                self._try_write(data)
        except BrokenPipeError:  # the parent is gone; `watch_parent` handles that
            self._rest = b""

    def _try_write(self, data: bytes) -> None:
        os.set_blocking(STDOUT, False)
        try:
            waiting = self._rest or data
            self._rest = waiting[os.write(STDOUT, waiting) :]
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(STDOUT, True)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(STDOUT, data) :]
