"""A load cell against the truth server: what the client says beside what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec

from results.records.load_specs import LoadSpec
from results.records.schemas import RequestRecord, RequestStatus
from runners.load.messages import LoadOutcome, LoadTick
from tests.servers.truth_server import Truth

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

    def __call__(self, served: Mapping[str, float] = ..., **changes: Any) -> Measured: ...


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
    assert median(seconds(row.t_first_token_ns, row.t_send_ns) - truth.ttft_s for row, truth in pairs) < ttft_s
    assert median(seconds(row.t_last_token_ns, row.t_send_ns) - truth.e2e_s for row, truth in pairs) < ttft_s
    tpots_s = [seconds(row.t_last_token_ns, row.t_first_token_ns) / (truth.tokens - 1) for row, truth in pairs]
    assert median(abs(one - truth.tpot_s) for one, (_, truth) in zip(tpots_s, pairs, strict=True)) < tpot_s


def seconds(later_ns: int | None, earlier_ns: int | None) -> float:
    assert later_ns is not None
    assert earlier_ns is not None
    return (later_ns - earlier_ns) / 1e9
