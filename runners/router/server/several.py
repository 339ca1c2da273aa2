"""Several router processes on one port: the kernel gives each connection to one of them (SO_REUSEPORT).

They share their sessions through Redis. Each process has its own loads, prefix indexes and breakers;
docs/router-cost.md has the resulting error. Each also listens on its own port, with its metrics and the operator's
pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from urllib.parse import urlsplit

from results.records.migrations import TickMigration
from results.records.router_spec import RouterSpec
from results.records.visible import visible
from runners.router.messages import LATEST, RouterError, RouterOutcome, RouterReady, RouterTick, TickInstance
from runners.router.server.process import RouterProcess

TICK_S = 1.0
RESTART_S = 0.5
"""Delay between the death of a process and its restart."""


class Processes:
    """Several router processes with the interface of a `Server`. One that dies is restarted; its requests are cut."""

    def __init__(self, spec: RouterSpec, on_tick: Callable[[RouterTick], None]) -> None:
        self._spec = spec
        self._on_tick = on_tick
        self._t_start_ns = perf_counter_ns()
        self._folder = TemporaryDirectory(prefix="tracon-router-")
        self._port: socket.socket | None = None
        self._running: dict[int, RouterProcess] = {}
        self._own_ports = dict.fromkeys(range(1, spec.processes + 1), 0)
        """Own port by process number; 0 = any free one, for its first start."""
        self._ticks: dict[int, RouterTick] = {}
        self._migrations: list[TickMigration] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._died = 0

    async def start(self) -> RouterReady:
        """Hold the port and start every process. Raises RouterError if one does not start."""
        loop = asyncio.get_running_loop()
        self._port = hold_port(self._spec.host, self._spec.port)
        ready: list[asyncio.Future[RouterReady]] = [loop.create_future() for _ in self._own_ports]
        self._tasks = [
            loop.create_task(self._keep_process(number, first))
            for number, first in zip(self._own_ports, ready, strict=True)
        ]
        try:
            all_ready = await asyncio.gather(*ready)
        except RouterError:
            await self.end(0.0)
            raise
        self._tasks.append(loop.create_task(self._keep_time()))
        pages = tuple(page for process in all_ready for page in process.pages)
        return replace(all_ready[0], pid=os.getpid(), pages=pages)

    async def end(self, drain_s: float | None = None) -> RouterOutcome:
        """Accept no new requests, let those in flight finish for at most `drain_s` (default: the spec's), and stop."""
        self._closing = True
        ended = await asyncio.gather(
            *(process.end(drain_s) for process in tuple(self._running.values())), return_exceptions=True
        )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._port is not None:
            self._port.close()
        self._folder.cleanup()
        outcomes = [outcome for outcome in ended if isinstance(outcome, RouterOutcome)]
        self._died += len(ended) - len(outcomes)
        self._tick_once()
        return self._merge_outcomes(outcomes)

    def hurry(self) -> None:
        """End the drain that `end` waits for."""
        for process in self._running.values():
            process.hurry()

    async def _keep_process(self, number: int, ready: asyncio.Future[RouterReady]) -> None:
        while not self._closing:
            why = ""
            try:
                spec_path = Path(self._folder.name) / f"router-{number}.spec"
                on_tick = partial(self._note_tick, number)
                async with RouterProcess(self._make_spec(number), spec_path, on_tick) as process:
                    self._running[number] = process
                    self._own_ports[number] = urlsplit(process.ready.pages[0]).port or 0
                    if not ready.done():
                        ready.set_result(process.ready)
                    why = await process.explain_end()
            except (RouterError, OSError) as error:  # OSError: this host can start no process now
                if not ready.done():
                    ready.set_exception(_explain_start(error))
                    return
                why = str(error)
            finally:
                self._running.pop(number, None)
            if not self._closing:
                self._ticks.pop(number, None)
                self._died += 1
                sys.stderr.write(visible(f"router process {number} is started again: {why}\n"))
                await asyncio.sleep(RESTART_S)

    def _make_spec(self, number: int) -> RouterSpec:
        assert self._port is not None
        return replace(
            self._spec,
            processes=1,
            port=self._port.getsockname()[1],
            own_port=self._own_ports[number],
            decisions_path=_number_path(self._spec.decisions_path, number),
            events_path=_number_path(self._spec.events_path, number),
        )

    def _note_tick(self, number: int, tick: RouterTick) -> None:
        self._ticks[number] = tick
        self._migrations += tick.migrations

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._ticks:
                self._tick_once()

    def _tick_once(self) -> None:
        migrations, self._migrations = tuple(self._migrations), []
        with contextlib.suppress(BrokenPipeError):
            ticks = tuple(self._ticks.values())
            if ticks:
                self._on_tick(replace(merge_ticks(ticks), t_ns=perf_counter_ns(), migrations=migrations))

    def _merge_outcomes(self, outcomes: Sequence[RouterOutcome]) -> RouterOutcome:
        decisions: Counter[str] = Counter()
        for outcome in outcomes:
            decisions.update(outcome.decisions)
        return RouterOutcome(
            t_start_ns=self._t_start_ns,
            t_end_ns=perf_counter_ns(),
            policy=outcomes[0].policy if outcomes else self._spec.policy,
            index=self._spec.index,
            requests=sum(outcome.requests for outcome in outcomes),
            picks=sum(outcome.picks for outcome in outcomes),
            retries=sum(outcome.retries for outcome in outcomes),
            errors=sum(outcome.errors for outcome in outcomes),
            aborted=sum(outcome.aborted for outcome in outcomes),
            cut=sum(outcome.cut for outcome in outcomes),
            decisions=decisions,
            decide_us_p50=_find_largest(outcome.decide_us_p50 for outcome in outcomes),
            decide_us_p99=_find_largest(outcome.decide_us_p99 for outcome in outcomes),
            records_lost=sum(outcome.records_lost for outcome in outcomes),
            events_lost=sum(outcome.events_lost for outcome in outcomes),
            log_error=next((outcome.log_error for outcome in outcomes if outcome.log_error), ""),
            died=self._died,
        )


def _explain_start(error: RouterError | OSError) -> RouterError:
    if isinstance(error, RouterError):
        return error
    remedy = "Free memory, processes or descriptors on this host, or raise their limits (`ulimit -a`)."
    return RouterError(f"a router process cannot be started: {error.strerror or error}", remedy=remedy)


def _number_path(path: str, number: int) -> str:
    """The file of one process, beside the spec's; empty if the spec names none."""
    whole = Path(path)
    return str(whole.with_suffix(f".{number}{whole.suffix}")) if path else ""


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that is bound and never listens: it reserves the port while a process is restarted.

    Raises RouterError if the port is in use, also by another router with several processes.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if port:
            with socket.socket(family, kind, protocol) as probe:  # without SO_REUSEPORT it binds only a free port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        held = socket.socket(family, kind, protocol)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        remedy = "Give another --port (0 = any free one), or end what listens there."
        raise RouterError(f"cannot listen on {host}:{port}: {error.strerror}", remedy=remedy) from error
    return held


def merge_ticks(ticks: Sequence[RouterTick]) -> RouterTick:
    """One tick for all processes (at least one): sums of their own counts, maxima of shared ones."""
    decisions: Counter[str] = Counter()
    for tick in ticks:
        decisions.update(tick.decisions)
    names = dict.fromkeys(row.instance for tick in ticks for row in tick.instances)
    latest = sorted((pick for tick in ticks for pick in tick.latest), key=lambda pick: pick.t_ns)
    return replace(
        ticks[0],
        t_ns=max(tick.t_ns for tick in ticks),
        instances=tuple(_merge_rows(name, ticks) for name in names),
        sessions=max(tick.sessions for tick in ticks),
        decisions=decisions,
        latest=tuple(latest[-LATEST:]),
        retries=sum(tick.retries for tick in ticks),
        errors=sum(tick.errors for tick in ticks),
        migrations=tuple(line for tick in ticks for line in tick.migrations),
    )


def _merge_rows(name: str, ticks: Sequence[RouterTick]) -> TickInstance:
    rows = [row for tick in ticks for row in tick.instances if row.instance == name]
    away = [row.why for row in rows if not row.available]
    part = f"by {len(away)} of {len(rows)} processes: " if len(away) < len(rows) else ""
    return TickInstance(
        instance=name,
        available=not away,
        why=f"{part}{away[0]}" if away else "",
        num_requests=sum(row.num_requests for row in rows),
        pending_prefill_tokens=sum(row.pending_prefill_tokens for row in rows),
        ongoing_tokens=sum(row.ongoing_tokens for row in rows),
        sessions=max(row.sessions for row in rows),
        picks=sum(row.picks for row in rows),
    )


def _find_largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
