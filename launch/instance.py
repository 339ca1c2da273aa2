"""One launched engine: awaited until it serves, watched for its death, and ended so that nothing of it is left."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from launch.command import LaunchSpec
from launch.errors import LaunchError
from launch.gpu import wait_for_release
from launch.link import GuardLink, first_of
from launch.ports import PortTaken, holders
from launch.processes import ProcessIdentity, end_members, is_same, members

POLL_S = 0.1
REQUEST_TIMEOUT_S = 5.0
TAIL_BYTES = 65_536
ERROR_LINES = 8
"""Lines of the log that an error carries."""
STOP_SLACK_S = 15.0
"""Beyond the grace, how long the guard may take to end everything."""


class EngineDied(LaunchError):
    """An engine ended before it served, or while it was needed."""

    exit_code = 1


class CrashedAtStart(EngineDied):
    """The engine ended before it was ready."""


class ReadyTimeout(LaunchError):
    """The engine runs and does not serve."""

    exit_code = 1


class StillThere(LaunchError):
    """Processes of an engine survived KILL."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an engine ended."""

    exit_code: int | None
    """Of its main process, minus the signal's number; None where nobody was left to see it."""
    killed: int
    """Processes that needed KILL."""
    duration_s: float
    """From the request until verified gone, without the release wait."""
    release: str
    """What is known about the device's memory after the release wait."""


class Served(Protocol):
    """What the rest of the house needs of a server, whoever launched it."""

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
    async def wait_ready(self, timeout_s: float) -> float: ...
    def alive(self) -> bool: ...
    async def stop(self, grace_s: float, release_wait_s: float) -> StopReport | None: ...
    def tail(self, lines: int) -> str: ...
    def log(self) -> str: ...


class Instance:
    """An engine of ours; made by `LocalBackend.start`."""

    def __init__(self, spec: LaunchSpec, identity: ProcessIdentity, link: GuardLink, started_ns: int) -> None:
        self.spec = spec
        self.identity = identity
        self._link = link
        self._started_ns = started_ns
        self._log_from = {path: path.stat().st_size for path in dict.fromkeys((spec.stdout, spec.stderr))}
        self._stopped: asyncio.Task[StopReport] | None = None
        self._watch = asyncio.create_task(self._end_when_unguarded())

    @property
    def name(self) -> str:
        return self.spec.instance

    @property
    def url(self) -> str:
        return self.spec.url

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def ports(self) -> Mapping[str, int]:
        """Every port it was given, by purpose."""
        return self.spec.ports

    @property
    def exit_code(self) -> int | None:
        """Of the main process; None while it runs, or where it is unknown."""
        return self._link.exited.result() if self._link.exited.done() else None

    def alive(self) -> bool:
        """Whether the very process that was started still runs."""
        return not self._link.exited.done() and not self._link.gone.done() and is_same(self.identity)

    async def wait_ready(self, timeout_s: float) -> float:
        """Wait until it serves its model; seconds since the start.

        Raises CrashedAtStart or ReadyTimeout, both with the log's last lines; PortTaken where another process answers.
        """
        deadline = time.monotonic() + timeout_s
        async with http_client(self.url) as client:
            while (missing := await missing_from(client, self.model)) or not self.alive():
                if not self.alive():
                    raise await self._crash()
                if time.monotonic() > deadline:
                    raise self._timeout(timeout_s, missing)
                await first_of(POLL_S, self._link.exited, self._link.gone)
        await asyncio.to_thread(self._refuse_stranger)
        return (time.perf_counter_ns() - self._started_ns) / 1e9

    async def stop(self, grace_s: float, release_wait_s: float) -> StopReport:
        """TERM, KILL after `grace_s`, verify that all of it is gone, then the release wait.

        Asked again, it answers the same. Raises StillThere where a process survives KILL.
        """
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop(grace_s, release_wait_s))
        return await asyncio.shield(self._stopped)

    def hurry(self, grace_s: float = 0.0) -> None:
        """Shorten the grace of a stop that is under way."""
        self._link.stop(grace_s)

    def tail(self, lines: int) -> str:
        """The last lines this launch wrote: standard output, then standard error."""
        parts = (_last_lines(path, start, lines) for path, start in self._log_from.items())
        return "\n".join(part for part in parts if part)

    def log(self) -> str:
        """Everything this launch has written so far."""
        return "\n".join(_read_from(path, start) for path, start in self._log_from.items())

    async def _stop(self, grace_s: float, release_wait_s: float) -> StopReport:
        began = time.monotonic()
        self._link.stop(grace_s)
        await first_of(grace_s + STOP_SLACK_S, self._link.gone)
        guarded = self._link.gone.done() and self._link.gone.result() is not None
        self._link.close()
        left = await asyncio.to_thread(end_members, self.identity, 0.0)
        await self._watch
        if left:
            raise StillThere(
                f"processes {', '.join(map(str, left))} of {self.name} survive KILL",
                remedy="they hang in the kernel (a device or a network file system): free it, or restart the host",
            )
        duration_s = time.monotonic() - began
        gone = self._link.gone.result() if guarded else None
        release = await wait_for_release(self.spec.kind, release_wait_s)
        return StopReport(self.exit_code, 0 if gone is None else gone.killed, duration_s, release)

    async def _end_when_unguarded(self) -> None:
        """The second line: whatever a guard that was killed has left is ended from here."""
        if await asyncio.shield(self._link.gone) is None:
            await asyncio.to_thread(end_members, self.identity, 0.0)

    async def _crash(self) -> CrashedAtStart:
        await first_of(STOP_SLACK_S, self._link.gone)  # so that its children's last words are in the log
        seconds = (time.perf_counter_ns() - self._started_ns) / 1e9
        how = describe_exit(self.exit_code)
        tail = self.tail(ERROR_LINES)
        log = self.log()
        remedy = (
            diagnose(log, self.exit_code)
            or f"the whole log is {self.spec.stderr} and {self.spec.stdout.name} beside it"
        )
        what = f"{self.name} {how} {seconds:.1f} s after its start, before it was ready: {cause(log)}".rstrip(": ")
        return CrashedAtStart(f"{what}\n{tail}".rstrip(), remedy=remedy)

    def _timeout(self, timeout_s: float, missing: str) -> ReadyTimeout:
        tail = self.tail(ERROR_LINES)
        remedy = (
            diagnose(self.log(), None) or "raise launch.ready_timeout_s in the profile if the model is still loading"
        )
        return ReadyTimeout(f"{self.name} runs but after {timeout_s:.0f} s {missing}:\n{tail}", remedy=remedy)

    def _refuse_stranger(self) -> None:
        ours = set(members(self.identity))
        for holder in holders(self.spec.port):
            if holder.pid is not None and holder.pid not in ours:
                raise PortTaken(
                    f"port {self.spec.port} answers, but it is {holder}, not {self.name}",
                    remedy=f"end it (`kill {holder.pid}`), or use another port (launch.port_base in the profile)",
                )


def http_client(url: str) -> httpx.AsyncClient:
    """A client for one server on this host: no proxy of the environment gets in between."""
    secure = url.startswith("https:")  # certificates take time to load and plain HTTP needs none
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=REQUEST_TIMEOUT_S, verify=secure)


async def missing_from(client: httpx.AsyncClient, model: str) -> str:
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


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "ended"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


_SYMPTOMS: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Errno 28", "the disk is full: free space, or name another folder with --workspace"),
    (r"No module named '?tracon_patches", "the patches are not in this engine: `tracon patch apply`"),
    (r"No module named '?([\w.]+)", "the engine environment lacks {0}: `tracon doctor` names what each config needs"),
    (r"((?:Mooncake|NIXL|LMCache) is not available|lib\S+: cannot open shared object file)",
     "{0}: `tracon doctor` names the package or system library that is missing"),
    (r"Address already in use", "another server holds a port: `ss -ltnp` shows which; use another launch.port_base"),
    (r"Free memory on device|CUDA out of memory|OutOfMemoryError",
     "the device's memory is taken: end who holds it (`nvidia-smi`), or lower engine.gpu_memory_utilization"),
    (r"larger than the available KV cache|KV cache is needed",
     "the KV cache is too small for engine.max_model_len: raise kv_cache_memory_bytes or lower max_model_len"),
)  # fmt: skip


def diagnose(log: str, exit_code: int | None) -> str:
    """The remedy for a symptom this log shows; empty where it shows none that is known."""
    for pattern, remedy in _SYMPTOMS:
        found = re.search(pattern, log)
        if found:
            return remedy.format(*found.groups())
    return "the kernel or an operator killed it: `dmesg` tells whether memory ran out" if exit_code == -9 else ""


_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:[A-Z]+ \S+ \S+ \[[^]]*\] ?)?")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b: \S.*")
_ECHO = "Engine core initialization failed"
"""The API server's own exception about the engine process's: true, and no cause."""


def cause(log: str) -> str:
    """The exception that ended an engine, from its log; empty where it shows none."""
    lines = (_PREFIX.sub("", line) for line in log.splitlines())
    raised = [line for line in lines if _RAISED.fullmatch(line) and _ECHO not in line]
    return raised[-1] if raised else ""


def end_leftover(pid: int, pgid: int, process_start: float, boot_id: str, grace_s: float = 1.0) -> bool:
    """End what a dead run process left of an engine, if that very process group is still there; whether there was any.

    Blocks for some seconds at most. Raises StillThere.
    """
    identity = ProcessIdentity(pid, pgid, process_start, boot_id)
    if not members(identity):
        return False
    left = end_members(identity, grace_s)
    if left:
        raise StillThere(f"processes {', '.join(map(str, left))} of an engine survive KILL", remedy="restart the host")
    return True


def _read_from(path: Path, start: int, at_most: int | None = None) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(start if at_most is None else max(start, size - at_most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_lines(path: Path, start: int, lines: int) -> str:
    return "\n".join(_read_from(path, start, TAIL_BYTES).splitlines()[-lines:])
