"""Known sleeps between the steps of a transfer come back in t2 to t8, through the hooks on both transports.

With a clock that only the sleeps move they come back exactly, on any machine; with the real one within a millisecond,
where this thread had its core: else the run is invalid and says so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches import engine_transfers, mooncake_transfers, nixl_transfers

from .conftest import PutModules
from .fake_transfers import (
    KVCacheBlocks,
    Pull,
    Socket,
    Telemetry,
    decode_request,
    metadata,
    nixl_metadata,
    prefill_request,
)
from .fake_transfers import wanted as wants
from .test_transfer_probe import Engine, mooncake, nixl
from .transfer_file import Line

MS = 1_000_000
WITHIN_MS = 1.0
PREFILL, READY, ASK, BUILD, WRITE, SIGNAL, PROMOTE = 11, 7, 13, 5, 17, 3, 9
"""Milliseconds slept before the end of each step."""


@dataclass
class SleptClock:
    """Stands still but for its sleeps."""

    t_ns: int = 3_000_000_000_000_123

    def now(self) -> int:
        return self.t_ns

    def sleep(self, ms: float) -> None:
        self.t_ns += round(ms * MS)


class RealClock:
    """The host's, and how long this thread waited for a core outside of its sleeps."""

    def __init__(self) -> None:
        self._slept_ns = 0
        self._began_ns = _read_run_delay_ns()

    @property
    def waited_ms(self) -> float:
        return (_read_run_delay_ns() - self._began_ns - self._slept_ns) / MS

    def now(self) -> int:
        return time.perf_counter_ns()

    def sleep(self, ms: float) -> None:
        """No longer than that: the last part is waited out awake."""
        end_ns, before_ns = time.perf_counter_ns() + round(ms * MS), _read_run_delay_ns()
        time.sleep(max(0.0, ms - 2.0) / 1e3)
        self._slept_ns += _read_run_delay_ns() - before_ns
        while time.perf_counter_ns() < end_ns:
            pass


def _read_run_delay_ns() -> int:
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    except OSError:
        pytest.skip("this kernel does not count how long a thread waits for a core")


Clock = SleptClock | RealClock


@pytest.fixture(
    params=[pytest.param(SleptClock, id="slept"), pytest.param(RealClock, id="real", marks=pytest.mark.timing)]
)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made: Clock = request.param()
    for module in (engine_transfers, mooncake_transfers, nixl_transfers):
        monkeypatch.setattr(module, "now", made.now)
    return made


def prefill(engine: Engine, clock: Clock, transfer: str | None) -> None:
    """t2, then t3."""
    request = prefill_request("p-1", transfer)
    engine.schedule(request)
    clock.sleep(PREFILL)
    engine.scheduler.connector.request_finished_all_groups(request, ([1, 2, 3],))
    clock.sleep(READY)


def promote(engine: Engine, clock: Clock, request: Any) -> None:  # noqa: ANN401 - a stand-in
    """t8."""
    clock.sleep(PROMOTE)
    engine.scheduler._update_waiting_for_remote_kv(request)


def check(clock: Clock, lines: list[Line], expected_ms: dict[tuple[str, str], float]) -> None:
    """The time between two stamps is what was slept between them."""
    if isinstance(clock, RealClock) and clock.waited_ms > WITHIN_MS / 2:
        pytest.skip(f"the run is invalid: this thread waited {clock.waited_ms:.1f} ms for a core")
    at = {line["event"]: line["t_ns"] for line in lines}
    (write,) = (line for line in lines if line["event"] == "write")
    at |= {"t5": write["t5_ns"], "t6": write["t6_ns"]}
    actual = {(begin, end): (at[end] - at[begin]) / MS for begin, end in expected_ms}
    assert actual == pytest.approx(expected_ms, abs=WITHIN_MS)


def test_sleeps_in_a_transfer_of_mooncake_come_back(tmp_path: Path, put_modules: PutModules, clock: Clock) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    pull, decode = Pull("d-1", "t-1", [[4, 5, 6]]), decode_request("d-1", transfer_id="t-1")
    worker.on_write = partial(clock.sleep, WRITE)
    built = worker._build_transfer_params

    async def slow_build(*args: object) -> object:
        result = await built(*args)
        clock.sleep(BUILD)
        return result

    prefill(engine, clock, "t-1")
    asyncio.run(worker.record_send_reqs(metadata({"p-1": ("t-1", [[1, 2, 3]])})))
    engine.scheduler.connector.update_state_after_alloc(decode, KVCacheBlocks([[4, 5, 6]]), 384)
    clock.sleep(ASK)
    worker._build_transfer_params = slow_build
    asyncio.run(worker.send_kv_to_decode(b"d", Socket(), wants(pull)))
    clock.sleep(SIGNAL)
    worker.process_pulling_result(SimpleNamespace(ok_reqs=["d-1"], err_reqs=None), {"d-1": pull})
    promote(engine, clock, decode)
    check(
        clock,
        engine.lines(9),
        {
            ("scheduled", "prefill_done"): PREFILL,
            ("prefill_done", "send_ready"): READY,
            ("send_ready", "metadata_received"): ASK,
            ("metadata_received", "t5"): BUILD,
            ("t5", "t6"): WRITE,
            ("t6", "received"): SIGNAL,
            ("received", "promoted"): PROMOTE,
        },
    )


@pytest.mark.parametrize("telemetry", [True, False], ids=["telemetry", "poll"])
def test_sleeps_in_a_read_of_nixl_come_back(
    tmp_path: Path, put_modules: PutModules, clock: Clock, telemetry: bool
) -> None:
    """Without NIXL's own duration the read ends when the worker sees it: the signal is in the transfer then."""
    engine, worker = nixl(put_modules, tmp_path)
    worker.nixl_wrapper.telemetry = Telemetry(xferDuration=WRITE * 1000) if telemetry else None
    decode = decode_request("d-1")
    prefill(engine, clock, None)
    worker.start_load_kv(nixl_metadata({}, send=["p-1"]))
    clock.sleep(ASK)
    engine.scheduler.connector.update_state_after_alloc(decode, KVCacheBlocks([[4, 5, 6]]), 384)
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[4, 5, 6]])}))
    clock.sleep(WRITE + SIGNAL)
    worker.get_transfer_results()
    promote(engine, clock, decode)
    check(
        clock,
        engine.lines(9),
        {
            ("scheduled", "prefill_done"): PREFILL,
            ("prefill_done", "send_ready"): READY,
            ("send_ready", "pull_sent"): ASK,
            ("pull_sent", "t5"): 0,
            ("t5", "t6"): WRITE if telemetry else WRITE + SIGNAL,
            ("t6", "received"): SIGNAL if telemetry else 0,
            ("received", "promoted"): PROMOTE,
        },
    )
