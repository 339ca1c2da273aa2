"""The owner's end of a guard: commands to it, what it reports, and its end."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.errors import LaunchError

GUARD = Path(__file__).resolve().with_name("guard.py")
START_TIMEOUT_S = 30.0


class GuardFailed(LaunchError):
    """The process that holds an engine could not do its work."""

    exit_code = 1


class GuardLink:
    """One guard. Its socket lives in this process only: when this process dies, the guard ends what it holds.

    A process that forks without exec while a link is open would keep the engine alive with it; none may.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self._reader, self._writer = reader, writer
        self.exited: asyncio.Future[int] = loop.create_future()
        """Exit code of the engine's main process, minus the signal's number where one ended it."""
        self.gone: asyncio.Future[bool] = loop.create_future()
        """Set when the guard has ended; False where it was killed, and may have left processes of its engine."""
        self.noted: asyncio.Future[int] = loop.create_future()
        """Segments of shared memory that the guard has noted; set by its answer to the first `note_memory`."""
        self._started: asyncio.Future[int] = loop.create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def over(cls, connection: socket.socket) -> GuardLink:
        """A link over this process's end of a guard's socket."""
        reader, writer = await asyncio.open_connection(sock=connection)
        return cls(reader, writer)

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path,
        stdout: Path,
        stderr: Path,
        own_folder: bool = True,
    ) -> int:
        """Have the guard fork the process; its pid. It runs nothing of `argv` before `go`.

        `own_folder`: its sockets and temporary files are put into the guard's folder, and removed with it.
        """
        files = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr), "own_folder": own_folder}
        self._send_message({"argv": list(argv), "env": dict(env), **files})
        await wait_for_first(START_TIMEOUT_S, self._started, self.gone)
        if not self._started.done():
            self.close()
            raise GuardFailed(f"no process for {argv[0]} appeared", remedy=f"see the end of {stderr}")
        return self._started.result()

    def go(self) -> None:
        """Start the forked process's program."""
        self._send_message({"go": True})

    def note_memory(self) -> None:
        """Have the guard note the engine's shared memory, which it removes at the end if the engine leaves it."""
        self._send_message({"note_memory": True})

    def stop(self, grace_s: float) -> None:
        """TERM now, KILL to everything left after `grace_s`; asked again, the shorter grace counts."""
        self._send_message({"stop": grace_s})

    def close(self) -> None:
        """Close the link: the guard ends what it holds as if this process had died."""
        self._writer.close()

    def _send_message(self, message: Mapping[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._note_message(json.loads(line))
        except (ConnectionError, ValueError):
            pass  # the guard was killed in the middle of a line: its end is what counts
        if not self.gone.done():
            self.gone.set_result(False)
        self._writer.close()

    def _note_message(self, message: Mapping[str, Any]) -> None:
        if "started" in message:
            self._started.set_result(int(message["started"]))
        elif "exited" in message and not self.exited.done():
            self.exited.set_result(int(message["exited"]))
        elif "noted" in message and not self.noted.done():
            self.noted.set_result(int(message["noted"]))
        elif "gone" in message and not self.gone.done():
            self.gone.set_result(True)


async def wait_for_first(timeout_s: float, *futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done, `timeout_s` at most; none is cancelled."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def spawn_guard(stderr: Path, pass_fds: Sequence[int] = ()) -> GuardLink:
    """A guard in a session of its own; what goes wrong in it is appended to `stderr`."""
    ours, theirs = socket.socketpair()
    try:
        with stderr.open("ab") as log:
            await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(GUARD), str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=log,
                pass_fds=(theirs.fileno(), *pass_fds), start_new_session=True,
            )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return await GuardLink.over(ours)
