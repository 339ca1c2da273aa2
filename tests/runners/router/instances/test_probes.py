"""A probe without an answer says something of its instance only where the router itself could run."""

from __future__ import annotations

import asyncio
import time

import pytest

from results.records.router_spec import HealthRules
from runners.router.breaker import BreakerState
from runners.router.failure import Failure
from runners.router.instances import probes
from runners.router.instances.internal_request import InternalRequestFailed
from runners.router.instances.probes import Probes

RULES = HealthRules(probe_interval_s=0.01, probe_timeout_s=0.01, open_s=0.01)


class Noted:
    """What the probes report."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def find_state(self, instance: str) -> BreakerState:
        return BreakerState.CLOSED

    def add_instance(self, instance: str, why: str | None) -> None:
        """Nothing depends on the first one here."""

    def forget_instance(self, instance: str) -> None:
        """There is one instance."""

    def note_probe(self, instance: str, why: str, *, gone: bool) -> None:
        self.reasons.append(why)


@pytest.mark.parametrize(("held_up_s", "counts"), [(0.0, True), (0.2, False)])
async def test_a_probe_that_timed_out_while_the_router_stood_still_is_no_failure(
    held_up_s: float, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, enough = 0, asyncio.Event()

    async def have_no_answer(*_: object, timeout_s: float, **__: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 4:
            enough.set()
        await asyncio.sleep(timeout_s)
        time.sleep(held_up_s)  # noqa: ASYNC251  (the whole process: no other task can run either)
        raise InternalRequestFailed(Failure("timeout", "no answer"))

    monkeypatch.setattr(probes, "fetch_answer", have_no_answer)
    monkeypatch.setattr(probes, "HELD_UP_S", 0.1)
    noted, watched = Noted(), Probes({"a": None}, RULES)  # type: ignore[dict-item]
    watched.health = noted  # type: ignore[assignment]
    await watched.add_instance("a")
    async with asyncio.timeout(30.0):
        await enough.wait()
    await watched.close()
    assert bool(noted.reasons) is counts
