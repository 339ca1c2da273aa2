"""One launched engine: awaited until it serves, watched for its death, and ended so that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import httpx

from launch import oom
from launch.command import LaunchSpec
from launch.death import (
    LAST_LINES,
    Stall,
    describe_end,
    describe_why,
    diagnose,
    explain_death,
    find_child_ends,
    find_stalls_in,
    read_death,
)
from launch.death import TAIL_BYTES as DEATH_BYTES
from launch.errors import LaunchError
from launch.gpu_memory import Holder, measure_held, wait_for_release
from launch.guard import SHORTAGES
from launch.guard_link import GuardLink, wait_for_first
from launch.ports import PortTaken, find_holders
from launch.processes import ProcessesUnseen, end_members, members, wait_to_see
from results.records.events import EngineDeath
from state.process_identity import ProcessIdentity, is_alive, is_verifiable

POLL_S = 0.1
REQUEST_TIMEOUT_S = 5.0
TAIL_BYTES = 65_536
EXIT_WAIT_S = 1.0
"""How long the main process of an engine that died may take to end too, so that its last lines are in the log."""
HOLD_CALLS = 10
"""Calls of `read_stalls` that leave a process out while it is held up: its length is known when it runs again."""
STOP_SLACK_S = 15.0
"""Beyond the grace, how long the guard may take to end everything."""


class EngineDied(LaunchError):
    """An engine ended before it served, or while it was needed."""

    exit_code = 1
    death: EngineDeath | None = None


class CrashedAtStart(EngineDied):
    """The engine ended before it was ready."""


class ReadyTimeout(LaunchError):
    """The engine runs but does not serve."""

    exit_code = 1


class StillThere(LaunchError):
    """Processes of an engine survived KILL."""

    exit_code = 1


class Served(Protocol):
    """What pre-flight needs of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def ports(self) -> Mapping[str, int]: ...
    async def explain_death(self) -> str: ...
    def log(self) -> str: ...


class Instance:
    """An engine that `LocalBackend.start` launched. `engines`: all of its backend, those that start later too."""

    def __init__(
        self,
        spec: LaunchSpec,
        identity: ProcessIdentity,
        link: GuardLink,
        started_ns: int,
        engines: Sequence[Holder] = (),
    ) -> None:
        self.spec = spec
        self.identity = identity
        self.name, self.url, self.model, self.pid = spec.instance, spec.url, spec.model, identity.pid
        self.ports = spec.ports
        self._link = link
        self._started_ns = started_ns
        self.held_mib: Mapping[str, int] = {}
        """Memory of its GPUs when it was ready, by UUID; empty = not known, or none."""
        self._engines = engines
        self._log_from = {path: path.stat().st_size for path in dict.fromkeys((spec.stdout, spec.stderr))}
        self._stalls_from = self._log_from[spec.stderr]
        self._ends_from = self._stalls_from
        self._lost = False
        self._hold_calls = self._holds_returned = 0
        self._oom_kills = oom.count_oom_kills()
        self._death: EngineDeath | None = None
        self._stopped: asyncio.Task[str] | None = None
        self._watch = asyncio.create_task(self._end_when_unguarded())

    @property
    def exit_code(self) -> int | None:
        """The main process's exit code, minus the signal's number; None while it runs, or where it is unknown."""
        return self._link.exited.result() if self._link.exited.done() else None

    def alive(self) -> bool:
        """Whether the very process that was started still runs.

        One that cannot be looked at, for want of descriptors or memory, counts as running: its guard reports its end.
        """
        if self._link.exited.done() or self._link.gone.done():
            return False
        try:
            return is_alive(self.identity)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            return True

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until it serves its model.

        Raises CrashedAtStart or ReadyTimeout, both with the log's last lines; PortTaken where another process answers.
        """
        deadline = time.monotonic() + timeout_s
        async with make_http_client(self.url) as client:
            while (missing := await find_what_is_missing(client, self.model)) or not self.alive():
                if not self.alive():
                    raise await self._explain_crash()
                if time.monotonic() > deadline:
                    raise self._make_timeout(timeout_s, missing)
                await wait_for_first(POLL_S, self._link.exited, self._link.gone)
        await asyncio.to_thread(self._refuse_other_server)
        self._link.note_memory()
        others = [engine for engine in self._engines if engine is not self]
        self.held_mib = await measure_held(self.spec.devices, others)

    async def stop(self, grace_s: float, release_wait_s: float) -> str:
        """TERM, KILL after `grace_s`, verify that all of it is gone, then wait for the memory of its GPUs.

        Returns what is known of that memory; a further call returns the same, or tries again after a failure. Raises
        StillThere where a process survives KILL, and ProcessesUnseen where descriptors or memory are short for long.
        """
        if self._stopped is None or _has_failed(self._stopped):
            self._stopped = asyncio.create_task(self._stop(grace_s, release_wait_s))
        return await asyncio.shield(self._stopped)

    async def find_death(self) -> EngineDeath | None:
        """How it ended; None while it lives, and where it was stopped before its death was asked for.

        An engine whose engine process has ended is dead, even while its API server still answers. May wait for some
        seconds, until what the dying processes write is in the log.
        """
        if self._death is None and self._stopped is None:
            if not self.alive():
                await wait_for_first(STOP_SLACK_S, self._link.gone)
            elif self._has_lost_engine():
                await wait_for_first(EXIT_WAIT_S, self._link.gone)
            else:
                return None
            self._death = await asyncio.to_thread(self._read_death)
        return self._death

    async def explain_death(self) -> str:
        """How it ended and the last lines of its log, in words; empty while it lives."""
        death = await self.find_death()
        return "" if death is None else explain_death(death)

    def read_stalls(self, *, last: bool = False) -> tuple[Stall, ...]:
        """The stalls in its log that no earlier call has returned. To be called once a second.

        A process that is still held up is left to later calls: its stacks and its length follow. After HOLD_CALLS
        calls, and in the `last` one, it is returned without its length.
        """
        data = _read_whole_lines(self.spec.stderr, self._stalls_from)
        stalls, holds = find_stalls_in(data.decode("utf-8", "replace"), self._holds_returned)
        if holds > self._holds_returned and self._hold_calls < HOLD_CALLS and not last:
            self._hold_calls += 1
            return ()
        self._hold_calls, self._holds_returned = 0, holds
        self._stalls_from += len(data)
        return stalls

    def tail(self, lines: int) -> str:
        """The last lines this launch wrote: standard output, then standard error."""
        parts = (_read_from(path, start, TAIL_BYTES).splitlines()[-lines:] for path, start in self._log_from.items())
        return "\n".join(line for part in parts for line in part)

    def log(self) -> str:
        """Everything this launch has written so far."""
        return "\n".join(_read_from(path, start) for path, start in self._log_from.items())

    async def _stop(self, grace_s: float, release_wait_s: float) -> str:
        self._link.stop(grace_s)
        await wait_for_first(grace_s + STOP_SLACK_S, self._link.gone)
        self._link.close()
        left = await asyncio.to_thread(end_members, self.identity, 0.0)
        await self._watch
        if left:
            raise StillThere(
                f"processes {', '.join(map(str, left))} of {self.name} survive KILL",
                remedy="they hang in the kernel (a device or a network file system): free it, or restart the host",
            )
        return await wait_for_release(self.spec.devices, release_wait_s, self._engines)

    async def _end_when_unguarded(self) -> None:
        """End from here what a guard that was killed has left."""
        if not await asyncio.shield(self._link.gone):
            with contextlib.suppress(ProcessesUnseen):  # `stop` looks again
                await asyncio.to_thread(end_members, self.identity, 0.0)

    async def _explain_crash(self) -> CrashedAtStart:
        await wait_for_first(STOP_SLACK_S, self._link.gone)  # so that its children's last lines are in the log
        seconds = (time.perf_counter_ns() - self._started_ns) / 1e9
        death = await self.find_death()
        if death is None:  # it was stopped in the meantime
            death = await asyncio.to_thread(self._read_death)
        remedy = (
            diagnose(self.log(), death.ended_by)
            or f"the whole log is {self.spec.stderr} and {self.spec.stdout.name} beside it"
        )
        what = f"{self.name} {describe_end(death)} {seconds:.1f} s after its start, before it was ready"
        lines = [": ".join(part for part in (what, describe_why(death)) if part), *death.last_lines]
        error = CrashedAtStart("\n".join(lines), remedy=remedy)
        error.death = death
        return error

    def _has_lost_engine(self) -> bool:
        """Whether the log names the end of a process that serves; each call reads what was written since the last."""
        data = _read_whole_lines(self.spec.stderr, self._ends_from)
        self._ends_from += len(data)
        ends = find_child_ends(data.decode("utf-8", "replace"))
        self._lost = self._lost or any(end.is_engine and end.ended_by != "SIGTERM" for end in ends)
        return self._lost

    def _read_death(self) -> EngineDeath:
        lines = [line for line in self.tail(LAST_LINES).splitlines() if line.strip()]
        recent = "\n".join(_read_from(path, start, DEATH_BYTES) for path, start in self._log_from.items())
        death = read_death(self.exit_code, recent, lines)
        if death.ended_by != "SIGKILL":
            return death
        pid = death.pid if death.process else self.pid
        return replace(death, kernel=oom.explain_kill(pid, self._started_ns / 1e9, self._oom_kills))

    def _make_timeout(self, timeout_s: float, missing: str) -> ReadyTimeout:
        tail = self.tail(LAST_LINES)
        remedy = diagnose(self.log()) or "raise launch.ready_timeout_s in the profile if the model is still loading"
        return ReadyTimeout(f"{self.name} runs but after {timeout_s:.0f} s {missing}:\n{tail}", remedy=remedy)

    def _refuse_other_server(self) -> None:
        own_pids = set(members(self.identity))
        for holder in find_holders(self.spec.port):
            if holder.pid is not None and holder.pid not in own_pids:
                raise PortTaken(
                    f"port {self.spec.port} answers, but it is {holder}, not {self.name}",
                    remedy=f"end it (`kill {holder.pid}`), or use another port (launch.port_base in the profile)",
                )


def make_http_client(url: str) -> httpx.AsyncClient:
    """A client for one server on this host, without the environment's proxy."""
    secure = url.startswith("https:")  # certificates take time to load and plain HTTP needs none
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=REQUEST_TIMEOUT_S, verify=secure)


async def find_what_is_missing(client: httpx.AsyncClient, model: str) -> str:
    """What a server still lacks before it is ready to serve `model`; empty when nothing."""
    try:
        health = await client.get("/health")
        if health.status_code != 200:
            return f"/health answers {health.status_code}"
        models = await client.get("/v1/models")
        if models.status_code != 200:
            return f"/v1/models answers {models.status_code}"
        served = [entry["id"] for entry in models.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return f"the server does not answer ({type(error).__name__})"
    return "" if model in served else f"/v1/models lists {', '.join(served) or 'nothing'}, not {model}"


def end_leftover(identity: ProcessIdentity, grace_s: float = 1.0) -> bool:
    """End what a dead run process left of an engine; returns whether it is certain that nothing of it is left.

    Blocks for some seconds, and for longer while descriptors or memory are short. Raises StillThere, and where the
    shortage lasts ProcessesUnseen.
    """
    if not wait_to_see(lambda: is_verifiable(identity), identity.pid):
        return False
    left = end_members(identity, grace_s)
    if left:
        raise StillThere(f"processes {', '.join(map(str, left))} of an engine survive KILL", remedy="restart the host")
    return True


def _has_failed(task: asyncio.Task[str]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _read_from(path: Path, start: int, at_most: int | None = None) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(start if at_most is None else max(start, size - at_most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _read_whole_lines(path: Path, start: int) -> bytes:
    """The whole lines from there on, DEATH_BYTES at most; a longer line comes in parts."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(DEATH_BYTES)
    except OSError:
        return b""
    end = data.rfind(b"\n") + 1
    return data[:end] if end or len(data) < DEATH_BYTES else data
