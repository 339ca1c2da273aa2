"""The options of a load, its ticks and its outcome: the wire between the load process and its parent.

All three travel as JSON; times ending in `_ns` are `time.perf_counter_ns()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from results.records.live import LiveLatency
from runners.child_process import ChildLine
from runners.errors import RunnerError
from runners.load.fidelity import Fidelity, FidelityLimits
from runners.target import has_user

ARRIVALS = ("constant", "poisson")
EVIDENCE = ("token_ids", "usage")
SEED_LIMIT = 1 << 64
CELL_INDEX_LIMIT = 1 << 32

TickOf = TypeVar("TickOf")
OutcomeOf = TypeVar("OutcomeOf")


class LoadError(RunnerError):
    """The load could not be run at all (an impossible spec, no server, no room to write); nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options that an open-loop cell and a replay share."""

    url: str
    """Base URL of the engine or the router; requests go to `<url>/v1/completions`."""
    model: str
    """Its name in requests."""
    requests_path: str
    """Where the record of every request goes (JSONL); an existing file is replaced."""
    seed: int = 0
    """Seed of the prompts' token ids, and of an open loop's schedule."""
    vocab_low: int = 0
    vocab_high: int = 256
    """Prompt token ids are drawn from vocab_low <= id < vocab_high."""
    max_duration_s: float
    """The hard stop: send nothing after this many seconds."""
    drain_s: float = 30.0
    """How long requests in flight at the stop may take to finish; what is still open then is CUT."""
    request_timeout_s: float = 600.0
    """From the send to the end of the response."""
    stall_timeout_s: float
    """Between two pieces of a response, once it has begun."""
    max_failures_in_a_row: int = 50
    """This many failures with no completion between them end the load; 0 = never."""
    token_evidence: str = "token_ids"
    """What proves a token: `token_ids` (return_token_ids; the engine echoes the prompt's ids once, in the first chunk)
    or `usage` (continuous_usage_stats; a count in every chunk, nothing echoed)."""
    spare_connections: int = 4
    """Open connections beyond those in use, so that a send seldom has to connect."""
    realtime: bool = True
    """Run the load process under SCHED_RR: it needs little CPU time, but at once, and would otherwise stamp late on a
    busy machine. Where that is not permitted, the load runs without."""
    lateness_p99_s: float = 0.010
    """Fidelity: above it the cell is degraded."""
    achieved_ratio: float = 0.98
    """Fidelity: requests sent or dropped in time per request that came due; below it the cell is degraded."""
    client_cpu_share: float = 0.90
    """Fidelity: CPU seconds of the client per second; above it the cell is degraded."""

    @property
    def limits(self) -> FidelityLimits:
        return FidelityLimits(self.lateness_p99_s, self.achieved_ratio, self.client_cpu_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec(LoadOptions):
    """One open-loop cell: fixed before it starts, and the same for every config that is compared.

    Schedule and prompts are pure functions of `seed` and `cell_index`. Two cells on one living engine need different
    `cell_index` (a repeated attempt too), or the second one hits the prefix cache of the first.
    """

    rate_per_s: float
    input_tokens: int
    output_tokens: int
    arrival: str = "constant"
    """`constant` or `poisson`."""
    cell_index: int = 0
    """Below 2**32; tells the cells of a run apart."""
    warmup_s: float = 10.0
    min_duration_s: float = 60.0
    """Minimum duration of the measured window, which begins when the warm-up ends."""
    min_completed: int = 200
    """Requests that were due inside the window and were completed."""
    max_duration_s: float = 600.0
    """Maximum duration of the measured window: the hard stop."""
    inflight_cap: int = 256
    """An arrival at which this many requests are in flight is dropped."""
    stall_timeout_s: float = 60.0
    """Between two pieces of a response, once it has begun."""
    chunks_path: str = ""
    """Where the stamps of every token chunk go (JSONL: index, t_ns); empty = not written."""

    def __post_init__(self) -> None:
        refuse_problems("load", (*common_problems(self), *_list_problems(self)))

    @property
    def horizon_s(self) -> float:
        """From the first send to the hard stop."""
        return self.warmup_s + self.max_duration_s

    @property
    def expected_window_s(self) -> float:
        """Length of the measured window of an engine that keeps up."""
        return min(max(self.min_duration_s, self.min_completed / self.rate_per_s), self.max_duration_s)


def is_url(text: str) -> bool:
    """Whether it is an http(s) URL with a host."""
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


Rule = tuple[bool, str, str]
"""Whether it holds, what is wrong where it does not, and what to give."""


def refuse_problems(kind: str, rules: Iterable[Rule]) -> None:
    """Raise LoadError for the first rule that does not hold."""
    for holds, problem, remedy in rules:
        if not holds:
            raise LoadError(f"{kind} spec: {problem}", remedy=f"Give {remedy}.")


def common_problems(spec: LoadOptions) -> tuple[Rule, ...]:
    """The rules for the options of every load."""
    evidence = ", ".join(EVIDENCE)
    return (
        (not has_user(spec.url), "url contains a user or a password", "the URL without them, http://HOST:PORT"),
        (is_url(spec.url), f"url {spec.url!r} is no http(s) URL", "http://127.0.0.1:8000"),
        (spec.token_evidence in EVIDENCE, f"token_evidence is {spec.token_evidence!r}", f"one of {evidence}"),
        (0 <= spec.seed < SEED_LIMIT, f"seed is {spec.seed}", "0 <= seed < 2**64"),
        (
            0 <= spec.vocab_low <= spec.vocab_high - 2,
            f"tokens {spec.vocab_low}..{spec.vocab_high}",
            "at least two token ids, none below 0",
        ),
        (spec.drain_s >= 0, f"drain_s is {spec.drain_s}", "0 or more"),
        (spec.max_duration_s > 0, f"max_duration_s is {spec.max_duration_s}", "above 0"),
        (spec.request_timeout_s > 0 and spec.stall_timeout_s > 0, "a timeout is not above 0", "seconds above 0"),
    )


def _list_problems(spec: LoadSpec) -> tuple[Rule, ...]:
    return (
        (spec.rate_per_s > 0, f"rate_per_s is {spec.rate_per_s}", "a rate above 0"),
        (spec.input_tokens >= 1, f"input_tokens is {spec.input_tokens}", "at least 1"),
        (spec.output_tokens >= 1, f"output_tokens is {spec.output_tokens}", "at least 1"),
        (spec.arrival in ARRIVALS, f"arrival is {spec.arrival!r}", f"one of {', '.join(ARRIVALS)}"),
        (0 <= spec.cell_index < CELL_INDEX_LIMIT, f"cell_index is {spec.cell_index}", "0 <= cell_index < 2**32"),
        (spec.warmup_s >= 0, f"warmup_s is {spec.warmup_s}", "0 or more"),
        (
            spec.min_duration_s <= spec.max_duration_s,
            f"min_duration_s {spec.min_duration_s} is above max_duration_s {spec.max_duration_s}",
            "a hard stop after the minimum duration",
        ),
        (spec.inflight_cap >= 1, f"inflight_cap is {spec.inflight_cap}", "at least 1"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(LiveLatency):
    """One second of a running load. Counts are since it began; latencies cover the last LIVE_WINDOW_S seconds."""

    t_ns: int
    elapsed_s: float
    phase: str
    """`warmup`, `measure` or `drain` of a cell; `replay` or `drain` of a replay."""
    fraction: float
    """0..1 of the expected work."""
    sent: int
    completed: int
    failed: int
    inflight: int
    pending_prefill_tokens: int
    """Prompt tokens of requests sent whose first token has not come back, cached ones included."""
    lateness_p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTick(Tick):
    """One second of a running cell."""

    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOutcome:
    """How a load ended."""

    t_start_ns: int
    """Intended time of the first arrival, or start of the first session."""
    t_end_ns: int
    """When the last request had finished or was cut."""
    t_start_unix_s: float
    stop_reason: str
    """`complete`, `hard_stop` (max_duration_s), `cancelled` (cut from outside) or `failing` (max_failures_in_a_row)."""
    sent: int
    completed: int
    failed: int
    cut: int
    """In flight, or of a replay still to come, when it ended."""
    retried: int
    """Requests sent again on a fresh connection because the pooled one was closed."""
    wrong_length: int
    """Completions whose prompt or output length, as the engine counted it, was not the requested one."""
    late_bodies: int
    """Bodies that were not ready at their time and were built when they were sent."""
    realtime: bool
    """Whether the kernel granted SCHED_RR."""
    fidelity: Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome(TrafficOutcome):
    """How a cell ended."""

    t_window_start_ns: int
    t_window_end_ns: int
    """When sending stopped: at the scheduled time of the first arrival that was not sent."""
    dropped: int
    completed_in_window: int
    """Completions that ended inside the window, warm-up requests included: effective throughput's numerator."""

    @property
    def window_s(self) -> float:
        return (self.t_window_end_ns - self.t_window_start_ns) / 1e9


class LoadLine(ChildLine[TickOf], Generic[TickOf, OutcomeOf], frozen=True, omit_defaults=True):
    """One line of the load process's standard output: exactly one field is set."""

    outcome: OutcomeOf | None = None
