"""GET /health of every instance: at intervals, and at once after a failed request."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Mapping

from results.records.router_spec import HealthRules
from results.records.visible import visible
from runners.router.breaker import BreakerState
from runners.router.health import Health
from runners.router.instances.internal_request import InternalRequestFailed, fetch_answer
from runners.router.instances.upstream import Pool

HELD_UP_S = 1.0
"""A timeout that fires this late is this process's own delay: an answer may have arrived meanwhile."""


class Probes:
    """One task per instance; results go to `health`, which must be set before the first `add_instance`."""

    def __init__(self, pools: Mapping[str, Pool], rules: HealthRules) -> None:
        self.health: Health
        self._pools = pools
        self._rules = rules
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}

    async def add_instance(self, instance: str) -> None:
        """Probe a new instance once, then at intervals. It may be picked once a probe succeeds."""
        self._wake[instance] = asyncio.Event()
        why, _ = await self._ask_health(instance)
        self.health.add_instance(instance, why)
        self._tasks[instance] = asyncio.create_task(self._watch_instance(instance))

    def probe_now(self, instance: str) -> None:
        wake = self._wake.get(instance)
        if wake is not None:
            wake.set()

    def forget_instance(self, instance: str) -> None:
        task = self._tasks.pop(instance, None)
        if task is not None:
            task.cancel()
        self._wake.pop(instance, None)
        self.health.forget_instance(instance)

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_instance(self, instance: str) -> None:
        wake = self._wake[instance]
        while True:
            is_closed = self.health.find_state(instance) is BreakerState.CLOSED
            pause_s = self._rules.probe_interval_s if is_closed else self._rules.open_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wake.wait()
            wake.clear()
            try:
                why, gone = await self._ask_health(instance)
                if why is not None:
                    self.health.note_probe(instance, why, gone=gone)
            except Exception:  # noqa: BLE001  (an instance that is no longer probed never comes back)
                sys.stderr.write(visible(f"a probe of {instance} failed:\n{traceback.format_exc()}"))

    async def _ask_health(self, instance: str) -> tuple[str | None, bool]:
        """Why a probe failed (empty = it succeeded, None = this process could not ask), and whether no process listens.

        A host that stalls for seconds delays this process too: a probe that then times out is no evidence against the
        instance.
        """
        clock = asyncio.get_running_loop()
        due_s = clock.time() + self._rules.probe_timeout_s
        try:
            answer, _ = await fetch_answer(self._pools[instance], b"/health", timeout_s=self._rules.probe_timeout_s)
        except InternalRequestFailed as error:
            is_late = error.failure.kind == "timeout" and clock.time() > due_s + HELD_UP_S
            if error.failure.kind == "own" or is_late:
                return None, False
            return f"GET /health: {error.failure.text}", error.failure.gone
        return ("" if answer.status == 200 else f"GET /health: HTTP {answer.status}"), False
