from __future__ import annotations

import asyncio
from time import perf_counter_ns

import pytest

from runners.load import pacer as module
from runners.load.pacer import Pacer


@pytest.mark.parametrize("kernel_timer", [True, False])
def test_it_wakes_after_its_time_and_never_before(kernel_timer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel_timer:
        monkeypatch.setattr(module, "_open_timerfd", lambda: None)
    late_ns: list[int] = []

    async def run() -> None:
        ended = asyncio.Event()
        due_ns = perf_counter_ns() + 5_000_000

        def fired() -> None:
            nonlocal due_ns
            late_ns.append(perf_counter_ns() - due_ns)
            if len(late_ns) == 20:
                ended.set()
                return
            due_ns += 3_000_000
            pacer.arm(due_ns)

        pacer = Pacer(fired)
        pacer.arm(due_ns)
        await asyncio.wait_for(ended.wait(), 30)
        pacer.close()

    asyncio.run(run())
    assert len(late_ns) == 20
    assert min(late_ns) >= 0


def test_a_time_that_has_passed_wakes_at_once_and_arming_anew_replaces() -> None:
    async def run() -> int:
        fired = asyncio.Event()
        pacer = Pacer(fired.set)
        pacer.arm(perf_counter_ns() + 3_600_000_000_000)
        pacer.arm(0)
        begun = perf_counter_ns()
        await asyncio.wait_for(fired.wait(), 30)
        pacer.close()
        return perf_counter_ns() - begun

    assert asyncio.run(run()) < 10e9
