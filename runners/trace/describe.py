"""Streams a trace into its description: reads every session once, in the order of arrival, and does not keep it.

Memory: 24 bytes per request and 24 per session for lengths; one session; and for reuse between sessions 11 to 15 bytes
per distinct block and 8 per block of a later turn of a session in progress, at most `memory_bytes`. Beyond that it
follows a sample of the blocks. Hashes that are local to a session need no memory for reuse between sessions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from results.traces.cross_session_reuse import MEMORY_BYTES, CrossSessionReuse
from results.traces.description import BYTES_PER_TOKEN, KV_POOL_BYTES, SHARED_FROM, Skew, TraceDescription
from results.traces.reuse_bounds import NO_SESSIONS, TokenCounts, bound_reuse
from results.traces.statistics import measure_kv_footprint, measure_skew, measure_spreads
from runners.errors import RunnerError
from runners.trace.session import Session, TraceFacts
from runners.trace.session_prefixes import session_prefixes

_PER_SESSION = ("turns", "session_input_tokens", "session_span_s")


class DescribeError(RunnerError):
    """The trace has no requests or is out of order, or a parameter is out of range."""


def describe_trace(
    facts: TraceFacts,
    sessions: Iterable[Session],
    *,
    kv_pool_bytes: float = KV_POOL_BYTES,
    bytes_per_token: float = BYTES_PER_TOKEN,
    shared_from: int = SHARED_FROM,
    memory_bytes: int = MEMORY_BYTES,
) -> TraceDescription:
    """Describe a trace.

    `kv_pool_bytes`: of one instance. `shared_from`: sessions from which a block is a shared prefix. `memory_bytes`: for
    block keys (results.traces.cross_session_reuse). Raises DescribeError where the sessions are not in the order of
    arrival, where there is none, and where a parameter is out of range.
    """
    _require_at_least("the KV pool", kv_pool_bytes, 1)
    _require_at_least("KV bytes per token", bytes_per_token, 1)
    _require_at_least("the number of sessions that makes a prefix shared", shared_from, 2)
    lengths, reuse = _Lengths(), _ReuseInOrder(facts, shared_from, memory_bytes)
    for session in sessions:
        lengths.add(session)
        reuse.add(session)
    if lengths.requests == 0:
        raise DescribeError(f"{facts.source} has no requests", remedy="choose a trace with requests")
    counted = reuse.count_tokens(lengths.sum_series("input_tokens"))
    return _build_description(facts, lengths, counted, shared_from, (kv_pool_bytes, bytes_per_token))


def _require_at_least(name: str, value: float, least: float) -> None:
    if not least <= value < float("inf"):
        raise DescribeError(f"{name} cannot be {value:g}", remedy=f"set it to {least:g} or more")


class _Lengths:
    """The lengths and times of every request and session, 8 bytes each."""

    def __init__(self) -> None:
        names = ("input_tokens", "output_tokens", "turns", "session_input_tokens")
        self._counts = {name: array("q") for name in names}
        self._times = {name: array("d") for name in ("session_span_s", "think_s")}
        self.agents = 0
        self._begin_s = float("inf")
        self._end_s = float("-inf")

    @property
    def requests(self) -> int:
        return len(self._counts["input_tokens"])

    @property
    def sessions(self) -> int:
        return len(self._counts["turns"])

    @property
    def span_s(self) -> float:
        return self._end_s - self._begin_s

    def sum_series(self, name: str) -> int:
        return int(self.collect_series()[name].sum())

    def collect_series(self) -> dict[str, npt.NDArray[Any]]:
        """Every series by name, without a copy."""
        return {
            **{name: np.frombuffer(values, dtype=np.int64) for name, values in self._counts.items()},
            **{name: np.frombuffer(values, dtype=np.float64) for name, values in self._times.items()},
        }

    def add(self, session: Session) -> None:
        turns, counts, times = session.turns, self._counts, self._times
        counts["input_tokens"].extend([turn.input_tokens for turn in turns])
        counts["output_tokens"].extend([turn.output_tokens for turn in turns])
        counts["turns"].append(len(turns))
        counts["session_input_tokens"].append(sum(turn.input_tokens for turn in turns))
        times["think_s"].extend([turn.think_s for turn in turns if turn.think_s is not None])
        last_s = max(turn.arrival_s for turn in turns)
        times["session_span_s"].append(last_s - session.arrival_s)
        self._begin_s = min(self._begin_s, session.arrival_s)
        self._end_s = max(self._end_s, last_s)
        self.agents += len({turn.agent for turn in turns})


class _ReuseInOrder:
    """Counts reuse in the order of arrival over all sessions."""

    def __init__(self, facts: TraceFacts, shared_from: int, memory_bytes: int) -> None:
        self._facts = facts
        self._across: CrossSessionReuse | None = None
        if facts.hash_scope == "global":
            self._across = CrossSessionReuse(shared_from=shared_from, memory_bytes=memory_bytes)
        self._latest_s = float("-inf")
        self._intra_tokens = 0
        self._local_blocks = 0
        self._has_hashes = False
        self._needs_hashes = False

    def add(self, session: Session) -> None:
        begin_s = session.arrival_s
        if begin_s < self._latest_s:
            raise DescribeError(
                f"session {session.session} of {self._facts.source} begins at {begin_s:g} s, before the one ahead",
                remedy="sort the sessions by arrival",
            )
        self._latest_s = begin_s
        own = session_prefixes(session, self._facts.block_tokens)
        self._intra_tokens += own.intra_tokens
        self._local_blocks += own.blocks
        self._has_hashes |= any(turn.hashes for turn in session.turns)
        self._needs_hashes |= any(turn.input_tokens >= self._facts.block_tokens for turn in session.turns)
        if self._across is not None:
            self._across.take_up(begin_s)
            for index, use in own.first_uses:
                self._across.add(session.turns[index].arrival_s, use)

    def count_tokens(self, input_tokens: int) -> TokenCounts:
        """The counts; call it once, after the last session."""
        return TokenCounts(
            input_tokens=input_tokens,
            intra_tokens=self._intra_tokens,
            across=self._across.finish() if self._across is not None else None,
            has_sessions=self._facts.has_sessions,
            has_hashes=self._has_hashes or not self._needs_hashes,
            local_blocks=self._local_blocks,
        )


def _build_description(
    facts: TraceFacts, lengths: _Lengths, counted: TokenCounts, shared_from: int, kv: tuple[float, float]
) -> TraceDescription:
    series = lengths.collect_series()
    inputs, outputs = series["input_tokens"], series["output_tokens"]
    output_tokens = lengths.sum_series("output_tokens")
    reasons: dict[str, str] = {}
    skewed = Skew((), ())
    if facts.has_sessions:
        skewed = measure_skew(series["session_input_tokens"])
    else:
        series = {name: values for name, values in series.items() if name not in _PER_SESSION}
        reasons = dict.fromkeys(("skew", *(f"lengths.{name}" for name in _PER_SESSION)), NO_SESSIONS)
    if not series["think_s"].size:
        reasons["lengths.think_s"] = "the source records no think times"
    if not output_tokens:
        reasons["input_output_ratio"] = "there are no output tokens"
    reuse_bounds = bound_reuse(counted, shared_from)
    return TraceDescription(
        facts=asdict(facts),
        requests=lengths.requests,
        sessions=lengths.sessions,
        agents=lengths.agents,
        span_s=lengths.span_s,
        input_tokens=counted.input_tokens,
        output_tokens=output_tokens,
        input_output_ratio=counted.input_tokens / output_tokens if output_tokens else None,
        apc_bound_any=reuse_bounds.apc_bound_any,
        apc_bound_intra=reuse_bounds.apc_bound_intra,
        reuse=reuse_bounds.reuse,
        skew=skewed,
        lengths=measure_spreads(series),
        kv=measure_kv_footprint(inputs + outputs, *kv),
        reasons=reasons | dict(reuse_bounds.reasons),
    )
