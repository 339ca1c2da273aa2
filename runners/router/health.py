"""Who may be picked: a probe per instance and the outcomes of requests, put together by the breaker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from time import monotonic

from runners.router.breaker import Breaker, BreakerState
from runners.router.errand import ErrandFailed, fetch
from runners.router.link import Failure
from runners.router.spec import HealthRules
from runners.router.upstream import Pool
from runners.router.view import Cluster


class Health:
    """Keeps `cluster.set_available` true to what is known of each instance.

    `lost(instance, why, gone)` is called when probes stay unanswered, or (`gone`) when nothing listens there any more:
    what waits there will not be answered, and what a process held that is gone is lost. `found(instance)`: it answers
    again.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: Mapping[str, Pool],
        rules: HealthRules,
        lost: Callable[[str, str, bool], None],
        found: Callable[[str], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster = cluster
        self._pools = pools
        self._rules = rules
        self._lost = lost
        self._found = found
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._down: dict[str, bool] = {}
        """Instances in an outage, and whether nothing listens there."""

    def state(self, instance: str) -> BreakerState:
        return self._breakers[instance].state

    async def watch(self, instance: str) -> None:
        """Probe a new instance once, then from time to time. It may be picked once a probe found it well."""
        self._breakers[instance] = Breaker(self._rules)
        self._wake[instance] = asyncio.Event()
        why, _ = await self._ask(instance)
        if why:
            self._set(instance, Breaker(self._rules, BreakerState.OPEN, why=why))
            self._down[instance] = True
        else:
            self._cluster.set_available(instance, True)
        self._watching[instance] = asyncio.create_task(self._watch(instance))

    def forget(self, instance: str) -> None:
        """The instance was removed."""
        task = self._watching.pop(instance, None)
        if task is not None:
            task.cancel()
        self._breakers.pop(instance, None)
        self._wake.pop(instance, None)
        self._down.pop(instance, None)

    async def close(self) -> None:
        tasks = tuple(self._watching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # what requests say
    def dispatched(self, instance: str) -> None:
        self._step(instance, Breaker.dispatched)

    def succeeded(self, instance: str) -> None:
        self._step(instance, Breaker.succeeded)

    def let_go(self, instance: str) -> None:
        """A request ended there and says nothing about it: a 4xx, or its client left."""
        self._step(instance, Breaker.let_go)

    def failed(self, instance: str, failure: Failure) -> None:
        """A request failed there. A probe follows at once: if the process is gone, nobody else need find out.

        That the instance is full is no failure of it.
        """
        if failure.kind == "refused" and failure.status == 429:
            self.let_go(instance)
            return
        breaker = self._breakers.get(instance)
        if breaker is None or failure.kind == "own":
            return
        self._set(instance, breaker.failed(self._clock(), failure.text, dead=failure.dead))
        if failure.dead:
            self._out(instance, failure.text, gone=failure.gone)
        self._wake[instance].set()

    def doubt(self, instance: str) -> None:
        """Something other than a request failed there: ask at once how it is."""
        wake = self._wake.get(instance)
        if wake is not None:
            wake.set()

    def _step(self, instance: str, step: Callable[[Breaker], Breaker]) -> None:
        breaker = self._breakers.get(instance)
        if breaker is not None:
            self._set(instance, step(breaker))

    def _set(self, instance: str, breaker: Breaker) -> None:
        before = self._breakers[instance]
        if breaker is before:
            return
        self._breakers[instance] = breaker
        if breaker.passes != before.passes or (not breaker.passes and breaker.why != before.why):
            why = "its trial after a failure is under way" if breaker.trial else breaker.why
            self._cluster.set_available(instance, breaker.passes, why)

    def _out(self, instance: str, why: str, *, gone: bool) -> None:
        known = self._down.get(instance)
        if known is None or (gone and not known):
            self._down[instance] = gone
            self._lost(instance, why, gone)

    async def _watch(self, instance: str) -> None:
        wake = self._wake[instance]
        while True:
            is_open = self._breakers[instance].state is BreakerState.OPEN
            pause_s = self._rules.open_s if is_open else self._rules.probe_interval_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wake.wait()
            wake.clear()
            try:
                why, gone = await self._ask(instance)
                if why is not None:
                    self._probed(instance, why, gone=gone)
            except Exception:  # noqa: BLE001  (an instance that is not probed any more never comes back)
                sys.stderr.write(f"a probe of {instance} failed:\n{traceback.format_exc()}")

    def _probed(self, instance: str, why: str, *, gone: bool) -> None:
        breaker = self._breakers[instance].probed(self._clock(), why, refused=gone)
        self._set(instance, breaker)
        if not why and instance in self._down:
            del self._down[instance]
            self._found(instance)
        elif why and (gone or breaker.silent_probes >= self._rules.unhealthy_after):
            self._out(instance, why, gone=gone)

    async def _ask(self, instance: str) -> tuple[str | None, bool]:
        """Why it is not well (empty = it is; None = this process could not ask), and whether nothing listens there."""
        try:
            answer, _ = await fetch(self._pools[instance], b"/health", timeout_s=self._rules.probe_timeout_s)
        except ErrandFailed as error:
            if error.failure.kind == "own":
                return None, False
            return f"GET /health: {error.failure.text}", error.failure.gone
        return ("" if answer.status == 200 else f"GET /health: HTTP {answer.status}"), False
