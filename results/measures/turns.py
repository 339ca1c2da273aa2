"""The replayed turns of one cell as columns, and session times derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from results.measures.latency import Mask, compute_metric_values
from results.records.declaration import list_record_fields
from results.records.frames import TURN_SCHEMA, Gap, name_artifact, read_table
from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from results.statistics.estimates import Ranks, Samples

Words = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Turns:
    """A cell's turns in the order of their index. Floats are NaN where nothing was measured.

    In addition to the columns below it has an attribute for every declared metric (`ttft_s`) and for every number of a
    TurnRecord that is no stamp (`input_tokens`, `cached_tokens`, `inflight_sessions`).
    """

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
    numbers: Mapping[str, Samples]
    """By name."""

    def __getattr__(self, name: str) -> Samples:
        if name.startswith("__") or name == "numbers" or name not in self.numbers:
            raise AttributeError(name)
        return self.numbers[name]

    def series(self, name: str) -> Samples:
        """The column of a declared metric or of a number of the record. Raises KeyError."""
        return self.numbers[name]

    def without(self, name: str) -> Turns:
        """The same turns with NaN in this column."""
        return replace(self, numbers={**self.numbers, name: np.full(self.index.size, np.nan)})

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
    """By the trace: its first turn's due time, less the wait for the limit on sessions in flight."""
    begin_s: Samples
    """First send."""
    busy_s: Samples
    """Time with at least one turn in flight; overlapping turns of sub-agents count once."""
    idle_s: Samples
    """The rest: think time, tool calls."""

    @property
    def residence_s(self) -> Samples:
        return self.busy_s + self.idle_s


def read_turns(path: Path, t_start_ns: int, checksum: str | None = None) -> tuple[Turns | None, tuple[Gap, ...]]:
    """The turns of a `metrics.jsonl`, or None, and what is missing or damaged; `checksum`: as its cell recorded it."""
    loaded = read_table(path, TURN_SCHEMA, checksum)
    if isinstance(loaded, Gap):
        return None, (loaded,)
    table, gaps = loaded
    turns = convert_to_turns(table, t_start_ns)
    twice = int(turns.index.size - np.unique(turns.index).size)
    if twice:
        return None, (*gaps, Gap(name_artifact(path), f"is damaged: {twice} turns are there twice"))
    return turns, gaps


def convert_to_turns(table: pa.Table, t_start_ns: int) -> Turns:
    """The columns of a `metrics.jsonl` table (TURN_SCHEMA); `t_start_ns`: the cell's start."""
    ordered = table.sort_by("index")
    counted = (one.name for one in list_record_fields(TurnRecord) if one.unit and not one.name.endswith("_ns"))
    return Turns(
        index=ordered["index"].to_numpy(),
        session=_convert_to_words(ordered["session"]),
        status=_convert_to_words(ordered["status"]),
        instance=_convert_to_words(pc.fill_null(ordered["instance"], "")),
        due_s=_compute_seconds_between(ordered["t_due_ns"], t_start_ns),
        send_s=_compute_seconds_between(ordered["t_send_ns"], t_start_ns),
        first_s=_compute_seconds_between(ordered["t_first_token_ns"], t_start_ns),
        end_s=_compute_seconds_between(ordered["t_end_ns"], t_start_ns),
        numbers={**{name: _convert_to_floats(ordered[name]) for name in counted}, **compute_metric_values(ordered)},
    )


def _compute_seconds_between(until: pa.ChunkedArray, since: int) -> Samples:
    """Between two moments (ns); subtracted as integers, because a float does not hold them."""
    return _convert_to_floats(pc.subtract(until, since)) / 1e9


def _convert_to_floats(column: pa.ChunkedArray) -> Samples:
    """NaN for null."""
    values: Samples = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def _convert_to_words(column: pa.ChunkedArray) -> Words:
    """Texts; None for null."""
    return np.array(column.to_pylist(), dtype=object)


def measure_session_times(turns: Turns) -> SessionTimes:
    """Times of the sessions with at least one turn that was sent and ended."""
    known = np.isfinite(turns.send_s) & np.isfinite(turns.end_s)
    spans: dict[str, list[tuple[float, float]]] = {}
    for session, send, end in zip(turns.session[known], turns.send_s[known], turns.end_s[known], strict=True):
        spans.setdefault(str(session), []).append((float(send), float(end)))
    rows = sorted((min(own)[0], session, own) for session, own in spans.items())
    busy = np.array([measure_covered_time(own) for _, _, own in rows], dtype=np.float64)
    stay = np.array([max(end for _, end in own) - begin for begin, _, own in rows], dtype=np.float64)
    begins = np.array([begin for begin, _, _ in rows], dtype=np.float64)
    due = _find_first_arrivals(turns)
    arrivals = np.array([min(due.get(session, begin), begin) for begin, session, _ in rows], dtype=np.float64)
    return SessionTimes(tuple(session for _, session, _ in rows), arrivals, begins, busy, stay - busy)


def count_in_flight_over_time(begin_s: Samples, end_s: Samples) -> tuple[Samples, Samples]:
    """How many of the intervals cover each stretch of time: counts, and the stretches' lengths (s)."""
    known = np.isfinite(begin_s) & np.isfinite(end_s) & (end_s > begin_s)
    moments = np.concatenate((begin_s[known], end_s[known]))
    steps = np.concatenate((np.ones(int(known.sum())), -np.ones(int(known.sum()))))
    order = np.argsort(moments, kind="stable")
    return np.cumsum(steps[order])[:-1], np.diff(moments[order])


def _find_first_arrivals(turns: Turns) -> dict[str, float]:
    """By session, its earliest due time without the wait for the limit on sessions in flight."""
    first: dict[str, float] = {}
    for session, due in zip(turns.session, turns.due_s - turns.session_delay_s, strict=True):
        if np.isfinite(due):
            first[str(session)] = min(float(due), first.get(str(session), np.inf))
    return first


def measure_covered_time(spans: Iterable[tuple[float, float]]) -> float:
    """Time in at least one of these spans (begin, end)."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
