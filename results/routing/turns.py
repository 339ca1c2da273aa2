"""The replayed turns of one cell as columns, and what follows from them without any statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from results.records import RequestStatus
from results.routing.record import TurnRecord
from results.statistics import Ranks, Samples

TURN_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("request", pa.string(), nullable=False),
        pa.field("session", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("turn", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        ("t_due_ns", pa.int64()),
        ("t_send_ns", pa.int64()),
        ("t_first_token_ns", pa.int64()),
        ("t_last_token_ns", pa.int64()),
        ("t_end_ns", pa.int64()),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        pa.field("reusable_any_tokens", pa.int64(), nullable=False),
        pa.field("reusable_intra_tokens", pa.int64(), nullable=False),
        ("chunks", pa.int64()),
        ("inflight_sessions", pa.int64()),
        ("instance", pa.string()),
        ("http_status", pa.int64()),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
        ("session_delay_s", pa.float64()),
    ]
)
"""Columns of `metrics.jsonl`: every field of a TurnRecord."""

SERIES = ("ttft_s", "tpot_s", "e2e_s")
"""Latencies of a turn. E2E is the turn's service time W_turn: TTFT + decoding (specs/ear section 5.4)."""

_COUNTS = (
    "input_tokens", "output_tokens", "prompt_tokens", "cached_tokens", "reusable_any_tokens", "reusable_intra_tokens",
    "inflight_sessions",
)  # fmt: skip

Words = npt.NDArray[np.object_]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Turns:
    """A cell's turns in the order of their index. Floats are NaN where nothing was measured."""

    index: Ranks
    session: Words
    status: Words
    instance: Words
    """Empty = it did not come through a router, or never came back."""
    due_s: Samples
    """Since the cell's start."""
    send_s: Samples
    """NaN = never sent."""
    first_s: Samples
    end_s: Samples
    ttft_s: Samples
    """Of turns that completed, or were cut after their first token."""
    tpot_s: Samples
    """Of completed turns with more than one token."""
    e2e_s: Samples
    """Of completed turns."""
    input_tokens: Samples
    output_tokens: Samples
    prompt_tokens: Samples
    """As the engine counted, of completed turns."""
    cached_tokens: Samples
    reusable_any_tokens: Samples
    reusable_intra_tokens: Samples
    inflight_sessions: Samples

    def series(self, name: str) -> Samples:
        """One of SERIES."""
        found: Samples = getattr(self, name)
        return found

    @property
    def completed(self) -> Mask:
        return np.asarray(self.status == RequestStatus.OK.value, dtype=np.bool_)

    def count(self, status: RequestStatus) -> int:
        return int((self.status == status.value).sum())


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """When the sessions of a cell were in the system, one row each, in the order of their first send (seconds)."""

    session: tuple[str, ...]
    arrival_s: Samples
    """When its first turn was due: before its first send where sessions wait to be let in."""
    begin_s: Samples
    """First send."""
    busy_s: Samples
    """Time with at least one turn in flight: turns of sub-agents that overlap count once."""
    idle_s: Samples
    """Time between: think time, tool calls."""

    @property
    def residence_s(self) -> Samples:
        return self.busy_s + self.idle_s


def turns_of(table: pa.Table, t_start_ns: int) -> Turns:
    """The columns of a `metrics.jsonl` table (TURN_SCHEMA); `t_start_ns`: the cell's start."""
    ordered = table.sort_by("index")
    status = _words(ordered["status"])
    whole = status == RequestStatus.OK.value
    begun = whole | (status == RequestStatus.CUT.value)
    send, first, last = (ordered[f"t_{moment}_ns"] for moment in ("send", "first_token", "last_token"))
    gaps = _floats(ordered["completion_tokens"]) - 1
    decode_s = _seconds(last, first)
    tpot_s = np.divide(decode_s, gaps, out=np.full(gaps.size, np.nan), where=gaps > 0)
    return Turns(
        index=ordered["index"].to_numpy(),
        session=_words(ordered["session"]),
        status=status,
        instance=_words(pc.fill_null(ordered["instance"], "")),
        due_s=_seconds(ordered["t_due_ns"], t_start_ns),
        send_s=_seconds(send, t_start_ns),
        first_s=_seconds(first, t_start_ns),
        end_s=_seconds(ordered["t_end_ns"], t_start_ns),
        ttft_s=np.where(begun, _seconds(first, send), np.nan),
        tpot_s=np.where(whole, tpot_s, np.nan),
        e2e_s=np.where(whole, _seconds(last, send), np.nan),
        **{name: _floats(ordered[name]) for name in _COUNTS},
    )


def turn_table(records: Sequence[TurnRecord]) -> pa.Table:
    """The table that reading these records back from `metrics.jsonl` gives."""
    return pa.Table.from_pylist([msgspec.to_builtins(record) for record in records], schema=TURN_SCHEMA)


def session_times(turns: Turns) -> SessionTimes:
    """Of the sessions with at least one turn that was sent and ended."""
    known = np.isfinite(turns.send_s) & np.isfinite(turns.end_s)
    spans: dict[str, list[tuple[float, float]]] = {}
    for session, send, end in zip(turns.session[known], turns.send_s[known], turns.end_s[known], strict=True):
        spans.setdefault(str(session), []).append((float(send), float(end)))
    rows = sorted((min(found)[0], session, found) for session, found in spans.items())
    busy = np.array([_union_s(found) for _, _, found in rows], dtype=np.float64)
    stay = np.array([max(end for _, end in found) - begin for begin, _, found in rows], dtype=np.float64)
    begins = np.array([begin for begin, _, _ in rows], dtype=np.float64)
    due = _first_due(turns)
    arrivals = np.array([min(due.get(session, begin), begin) for begin, session, _ in rows], dtype=np.float64)
    return SessionTimes(tuple(session for _, session, _ in rows), arrivals, begins, busy, stay - busy)


def in_flight_over_time(begin_s: Samples, end_s: Samples) -> tuple[Samples, Samples]:
    """How many of the intervals cover each stretch of time: counts, and the stretches' lengths (s)."""
    known = np.isfinite(begin_s) & np.isfinite(end_s) & (end_s > begin_s)
    moments = np.concatenate((begin_s[known], end_s[known]))
    steps = np.concatenate((np.ones(int(known.sum())), -np.ones(int(known.sum()))))
    order = np.argsort(moments, kind="stable")
    return np.cumsum(steps[order])[:-1], np.diff(moments[order])


def _first_due(turns: Turns) -> dict[str, float]:
    found: dict[str, float] = {}
    for session, due in zip(turns.session, turns.due_s, strict=True):
        if np.isfinite(due):
            found[str(session)] = min(float(due), found.get(str(session), np.inf))
    return found


def _union_s(spans: Sequence[tuple[float, float]]) -> float:
    total, until = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return float(total)


def _seconds(until: pa.ChunkedArray, since: pa.ChunkedArray | int) -> Samples:
    """Between two moments (ns); subtracted as integers, which a float could not hold."""
    return _floats(pc.subtract(until, since)) / 1e9


def _floats(column: pa.ChunkedArray) -> Samples:
    found: Samples = column.cast(pa.float64(), safe=False).to_numpy()
    return found


def _words(column: pa.ChunkedArray) -> Words:
    return np.array(column.to_pylist(), dtype=object)
