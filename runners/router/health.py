"""Which instances may be picked: the outcomes of requests and of probes, combined by a breaker for each instance."""

from __future__ import annotations

from collections.abc import Callable

from results.records.router_spec import HealthRules
from runners.router.breaker import Breaker, BreakerState
from runners.router.cluster import Cluster
from runners.router.driver import Driver
from runners.router.failure import Failure


class Health:
    """Sets the availability of each instance in the cluster.

    `on_lost(instance, why, gone)` is called when probes stay unanswered, or when no process listens any more (`gone`):
    its waiting requests will not be answered, and a process that is gone has lost its cache. `on_recovered(instance)`
    is called when it answers again. `probe_now(instance)` probes it at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        rules: HealthRules,
        driver: Driver,
        on_lost: Callable[[str, str, bool], None],
        on_recovered: Callable[[str], None],
        probe_now: Callable[[str], None],
    ) -> None:
        self.probe_now = probe_now
        self._cluster = cluster
        self._rules = rules
        self._driver = driver
        self._on_lost = on_lost
        self._on_recovered = on_recovered
        self._breakers: dict[str, Breaker] = {}
        self._down: dict[str, bool] = {}
        """Instances in an outage; True = no process listens there."""
        self._t_opened_s: dict[str, float] = {}
        """When the breaker of an instance opened last."""

    def find_state(self, instance: str) -> BreakerState:
        """Open for an instance whose first probe has not ended."""
        breaker = self._breakers.get(instance)
        return BreakerState.OPEN if breaker is None else breaker.state

    def add_instance(self, instance: str, why: str | None) -> None:
        """Add an instance after its first probe; `why` as in `note_probe`, None = the router could not ask it."""
        self._breakers[instance] = Breaker(self._rules)
        if why:
            self._set_breaker(instance, Breaker(self._rules, BreakerState.OPEN, why=why))
            self._down[instance] = True
        else:
            self._cluster.set_available(instance, True)

    def forget_instance(self, instance: str) -> None:
        self._breakers.pop(instance, None)
        self._down.pop(instance, None)
        self._t_opened_s.pop(instance, None)

    def is_on_trial(self, instance: str) -> bool:
        """Whether its next response decides if it may be picked again."""
        return self.find_state(instance) is BreakerState.HALF_OPEN

    def note_dispatch(self, instance: str) -> None:
        self._step_breaker(instance, Breaker.note_dispatch)

    def note_success(self, instance: str) -> None:
        self._step_breaker(instance, Breaker.note_success)

    def note_whole(self, instance: str) -> None:
        """A response completed."""
        self._step_breaker(instance, Breaker.note_whole)

    def release_trial(self, instance: str) -> None:
        """A request ended without evidence: a 4xx, or the client left."""
        self._step_breaker(instance, Breaker.release_trial)

    def note_failure(self, instance: str, failure: Failure, *, begun: bool = False) -> None:
        """A request failed; `begun`: after the first byte of its response.

        A probe follows at once, so that one request is enough to detect a dead process. Two are no failure of the
        instance: a 429, because it is full, and a want of this machine (`own`).
        """
        if failure.kind == "own" or (failure.kind == "refused" and failure.status == 429):
            self.release_trial(instance)
            return
        breaker = self._breakers.get(instance)
        if breaker is None:
            return
        now_s = self._driver.now_s()
        self._set_breaker(instance, breaker.note_failure(now_s, failure.text, dead=failure.dead, begun=begun))
        if failure.dead:
            self._report_lost(instance, failure.text, gone=failure.gone)
        self.probe_now(instance)

    def note_late_failure(self, instance: str, failure: Failure, t_dispatch_s: float) -> None:
        """A request that was sent to the instance at `t_dispatch_s` failed there, as is known only now.

        Ignored where its breaker has opened since: the fault is known, and the instance may have recovered.
        """
        if t_dispatch_s > self._t_opened_s.get(instance, -1.0):
            self.note_failure(instance, failure)

    def note_probe(self, instance: str, why: str, *, gone: bool) -> None:
        """A probe has ended; `why` it failed, empty = it succeeded. `gone`: no process listens there."""
        breaker = self._breakers[instance].note_probe(self._driver.now_s(), why, refused=gone)
        self._set_breaker(instance, breaker)
        if not why and instance in self._down:
            del self._down[instance]
            self._on_recovered(instance)
        elif why and (gone or breaker.silent_probes >= self._rules.unhealthy_after):
            self._report_lost(instance, why, gone=gone)

    def _step_breaker(self, instance: str, step: Callable[[Breaker], Breaker]) -> None:
        breaker = self._breakers.get(instance)
        if breaker is None:
            return
        stepped = step(breaker)
        if stepped is not breaker:  # it rarely changes
            self._set_breaker(instance, stepped)

    def _set_breaker(self, instance: str, breaker: Breaker) -> None:
        before = self._breakers[instance]
        if breaker is before:
            return
        self._breakers[instance] = breaker
        if breaker.state is BreakerState.OPEN and before.state is not BreakerState.OPEN:
            self._t_opened_s[instance] = self._driver.now_s()
        if breaker.lets_pass != before.lets_pass or (not breaker.lets_pass and breaker.why != before.why):
            why = "its trial after a failure is under way" if breaker.trials else breaker.why
            self._cluster.set_available(instance, breaker.lets_pass, why)

    def _report_lost(self, instance: str, why: str, *, gone: bool) -> None:
        known = self._down.get(instance)
        if known is None or (gone and not known):
            self._down[instance] = gone
            self._on_lost(instance, why, gone)
