"""Runs a load cell against the truth server and puts what the client says beside what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec
import uvloop

from results.records.schemas import RequestRecord, RequestStatus
from runners.load.openloop import run_cell
from runners.load.spec import LoadOutcome, LoadSpec, LoadTick
from tests.servers.truth_server import Truth, TruthServer

RATE_PER_S = 40.0
INPUT_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell, from both sides."""

    outcome: LoadOutcome
    rows: tuple[RequestRecord, ...]
    """By index."""
    truth: dict[int, Truth]
    ticks: tuple[LoadTick, ...]

    @property
    def ok(self) -> tuple[RequestRecord, ...]:
        return tuple(row for row in self.rows if row.status is RequestStatus.OK)

    def pairs(self) -> Iterator[tuple[RequestRecord, Truth]]:
        """Completed requests with their truth."""
        return ((row, self.truth[row.index]) for row in self.ok)

    def errors(self) -> set[str]:
        return {row.error or "" for row in self.rows if row.status is RequestStatus.ERROR}


class Measure(Protocol):
    """Measures a cell of `short_spec` with these changes on a truth server that serves so."""

    def __call__(self, served: Mapping[str, float] = ..., *, cut_once_sent: bool = ..., **changes: Any) -> Measured: ...


def short_spec(url: str, path: Path, **changes: Any) -> LoadSpec:
    """A cell of about a second: 40 requests per second, 12 output tokens."""
    spec = LoadSpec(
        url=url,
        model="m",
        rate_per_s=RATE_PER_S,
        input_tokens=INPUT_TOKENS,
        output_tokens=12,
        requests_path=str(path / "requests.jsonl"),
        warmup_s=0.2,
        min_duration_s=0.6,
        min_completed=10,
        max_duration_s=10.0,
        drain_s=10.0,
        realtime=False,
        seed=11,
    )
    return replace(spec, **changes)


def read_rows(path: str | Path) -> tuple[RequestRecord, ...]:
    """The records of a requests file, by index."""
    with Path(path).open("rb") as file:
        rows = [msgspec.json.decode(line, type=RequestRecord) for line in file]
    return tuple(sorted(rows, key=lambda row: row.index))


def measure_on(server: TruthServer, spec: LoadSpec, *, cut_once_sent: bool = False) -> Measured:
    """Run the cell in this process on uvloop, as the load process does; cut it at the first tick that has sent any."""
    ticks: list[LoadTick] = []

    async def run() -> LoadOutcome:
        cut = asyncio.Event()

        def on_tick(tick: LoadTick) -> None:
            ticks.append(tick)
            if cut_once_sent and tick.sent:
                cut.set()

        async with asyncio.timeout(60):
            return await run_cell(spec, on_tick, cut)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run())
    return Measured(outcome, read_rows(spec.requests_path), server.take(), tuple(ticks))


def assert_golden(measured: Measured, *, ttft_s: float = 0.010, tpot_s: float = 0.001) -> None:
    """The client's numbers are the server's.

    What must hold for every request on any machine is order on the common clock: nothing is stamped as received before
    it was written, nor as sent after it was received. How close the stamps lie is a matter of medians.
    """
    pairs = list(measured.pairs())
    assert pairs
    for row, truth in pairs:
        assert row.t_send_ns is not None
        assert row.t_first_token_ns is not None
        assert row.t_last_token_ns is not None
        assert row.t_intended_ns <= row.t_send_ns <= truth.t_recv_ns
        assert truth.t_writes_ns[0] <= row.t_first_token_ns
        assert truth.t_writes_ns[-1] <= row.t_last_token_ns
        assert row.completion_tokens == truth.tokens
    assert median(_ttft_s(row) - truth.ttft_s for row, truth in pairs) < ttft_s
    assert median(_e2e_s(row) - truth.e2e_s for row, truth in pairs) < ttft_s
    assert median(abs(_tpot_s(row) - truth.tpot_s) for row, truth in pairs) < tpot_s


def _ttft_s(row: RequestRecord) -> float:
    assert row.t_first_token_ns is not None
    assert row.t_send_ns is not None
    return (row.t_first_token_ns - row.t_send_ns) / 1e9


def _e2e_s(row: RequestRecord) -> float:
    assert row.t_last_token_ns is not None
    assert row.t_send_ns is not None
    return (row.t_last_token_ns - row.t_send_ns) / 1e9


def _tpot_s(row: RequestRecord) -> float:
    assert row.t_last_token_ns is not None
    assert row.t_first_token_ns is not None
    assert row.completion_tokens is not None
    return (row.t_last_token_ns - row.t_first_token_ns) / 1e9 / (row.completion_tokens - 1)
