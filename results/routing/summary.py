"""The numbers of one cell: what `metrics.summary.json` and `breakdown.json` hold, and what the analysis reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import UNSET

from results.measures.amplification import compute_amplification_ratio
from results.measures.replay_numbers import (
    UNREADABLE,
    apc_usage,
    compute_apc_bounds,
    compute_apc_of_totals,
    compute_apc_with_transfers,
    estimate_latency_numbers,
)
from results.measures.turns import Turns, measure_session_times
from results.records.decisions import DecisionRecord
from results.records.declaration import pick_fields
from results.records.estimate import Estimate, unknown
from results.records.routing_cells import InstanceNumbers, PickCounts, RoutingBreakdown, RoutingNumbers
from results.records.schemas import RequestStatus
from results.records.turns import EngineSample, PolicyTrial, RoutedEngine, RoutingCell
from results.routing.metrics import WORKER_POINT, compute_value_over_instances
from results.routing.read import LoadedCell, count_picks, hides_transfers, keep_own_cache, read_number_or_none
from results.statistics.estimates import percentiles


@dataclass(frozen=True, slots=True)
class RoutedSummary(PolicyTrial):
    """One cell. `docs/analysis.md` defines every value."""

    attempt: int
    counts: Mapping[str, int | None]
    """Turns: turns, completed, failed, dropped, cut; sessions, sessions_done; picks, retried, migrations."""
    values: Mapping[str, Estimate]
    """By name with its unit, e.g. `ttft_p90_s`, `apc`, `amplification`."""
    instances: tuple[InstanceNumbers, ...]
    """In the router's order."""
    reasons: Mapping[str, int]
    """Picks by reason."""
    degraded: str
    """Why the client could not keep its schedule; empty when it could."""
    gpu_utilisation: float | None
    """0..1, mean; None where `gpu_reason` says why."""
    gpu_reason: str
    """Why the utilisation is not known."""
    git_commit: str | None
    """Commit of the Tracon that measured it; None = not known."""
    t_start_unix_s: float
    """Start of the replay, by the wall clock."""
    duration_s: float
    """Duration of the replay."""
    path: str
    """The cell record's file, below the run's folder."""

    def estimate(self, name: str) -> Estimate:
        """The value called `name`; one that no cell has is unknown, not an error."""
        return self.values.get(name, unknown("not measured in this cell"))


def summarize_cell(
    turns: Turns | None,
    decisions: Sequence[DecisionRecord] | None,
    cell: RoutingCell,
    samples: Sequence[EngineSample] = (),
) -> tuple[RoutingNumbers, RoutingBreakdown]:
    """`metrics.summary.json`, without its KV movements, and `breakdown.json` of a cell that has just ended.

    `decisions`: None = the cell has no decision log.
    """
    picks = None if decisions is None else count_picks(decisions)
    summary = summarize_loaded_cell(LoadedCell(cell, keep_own_cache(turns, picks, cell), picks, tuple(samples), ""))
    simulated = cell.simulated or UNSET
    numbers = RoutingNumbers(
        simulated=simulated,
        cell=summary.cell,
        label=summary.label,
        policy=summary.policy,
        parameters=summary.parameters,
        trial=summary.trial,
        counts=summary.counts,
        values=summary.values,
        degraded=summary.degraded,
    )
    return numbers, RoutingBreakdown(simulated=simulated, cell=summary.cell, instances=summary.instances, picks=picks)


def summarize_loaded_cell(cell: LoadedCell) -> RoutedSummary:
    """All numbers of a loaded cell; what is missing is null with a reason."""
    record, turns, picks = cell.record, cell.turns, cell.picks
    instances = tuple(_collect_instance_numbers(engine, turns, picks, cell.samples) for engine in record.engines)
    return RoutedSummary(
        **pick_fields(record, PolicyTrial),
        attempt=record.attempt,
        counts=_count_turns(turns, picks, record),
        values={
            **estimate_latency_numbers(turns),
            **_measure_caching(turns, picks, record),
            **_measure_workers(instances),
            **_measure_coupling(turns, record),
        },
        instances=instances,
        reasons={} if picks is None else picks.reasons,
        degraded=cell.degraded,
        gpu_utilisation=record.gpu_utilisation,
        gpu_reason=record.gpu_reason,
        git_commit=record.git_commit,
        t_start_unix_s=record.t_start_unix_s,
        duration_s=(record.t_end_ns - record.t_start_ns) / 1e9,
        path=cell.path,
    )


def _count_turns(turns: Turns | None, picks: PickCounts | None, record: RoutingCell) -> dict[str, int | None]:
    counts: dict[str, int | None] = dict.fromkeys(("turns", "completed", "failed", "dropped", "cut", "sessions"))
    if turns is not None:
        counts |= {
            "turns": int(turns.index.size),
            "completed": turns.count(RequestStatus.OK),
            "failed": turns.count(RequestStatus.ERROR),
            "dropped": turns.count(RequestStatus.DROPPED),
            "cut": turns.count(RequestStatus.CUT),
            "sessions": len(set(turns.session)),
        }
    done = record.replay.get("sessions_done")
    counts["sessions_done"] = done if isinstance(done, int) else None
    counts["picks"] = None if picks is None else picks.picks
    counts["retried"] = None if picks is None else picks.statuses.get("retried", 0)
    counts["migrations"] = None if picks is None else picks.migrations
    return counts


def _measure_caching(turns: Turns | None, picks: PickCounts | None, record: RoutingCell) -> dict[str, Estimate]:
    """APC by the engines' counters and by the responses, the bounds of the completed turns, and APC over its bound."""
    why = unknown(UNREADABLE)
    apc, hidden = compute_engines_apc(record.engines), hides_transfers(picks, record)
    if picks is not None and picks.transfer_prompt_tokens:
        apc = compute_moved_apc(record.engines, picks)
    elif hidden:
        apc = unknown("KV was moved, and no decision log tells the requests of transfers from those of clients")
    if turns is None:
        return {"apc": apc, **dict.fromkeys(("apc_usage", "apc_bound_any", "apc_bound_intra", "apc_of_bound"), why)}
    bounds = compute_apc_bounds(turns)
    bound = bounds["apc_bound_any"].value
    return {
        "apc": apc,
        "apc_usage": unknown("a decode instance reports the prompt that it was handed as cached")
        if hidden or (picks is not None and picks.handovers)
        else apc_usage(turns, turns.completed),
        **bounds,
        "apc_of_bound": Estimate(apc.value / bound)
        if apc.value is not None and bound
        else unknown(apc.reason or "the trace shares no prefix"),
    }


def compute_engines_apc(engines: Sequence[RoutedEngine]) -> Estimate:
    """Cached over all prompt tokens by the engines' own counters; unknown where one engine's could not be read."""
    unread = [engine.instance for engine in engines if engine.prompt_tokens is None or engine.cached_tokens is None]
    if unread or not engines:
        named = ", ".join(unread) or "any instance"
        return unknown(f"the counters of {named} were not read")
    prompts = sum(engine.prompt_tokens or 0.0 for engine in engines)
    return compute_apc_of_totals(prompts, sum(engine.cached_tokens or 0.0 for engine in engines))


def compute_moved_apc(engines: Sequence[RoutedEngine], picks: PickCounts) -> Estimate:
    """APC where KV was moved: the share of the clients' prompt tokens that no instance computed.

    The requests of a transfer are prompts of their own to an engine, so they are taken out of what the engines counted.
    """
    computed = [engine.prompt_tokens_by_source.get("local_compute") for engine in engines]
    counted = [engine.prompt_tokens for engine in engines]
    if None in computed or None in counted:
        return unknown("KV was moved, and an engine's prompt tokens by source were not read")
    prompts = sum(tokens or 0.0 for tokens in counted) - picks.transfer_prompt_tokens
    return compute_apc_with_transfers(prompts, sum(tokens or 0.0 for tokens in computed))


def _collect_instance_numbers(
    engine: RoutedEngine, turns: Turns | None, picks: PickCounts | None, samples: Sequence[EngineSample]
) -> InstanceNumbers:
    reasons = {} if picks is None else picks.by_instance.get(engine.instance, {})
    own = {
        "apc": compute_engines_apc((engine,)),
        **_summarize_samples([row for row in samples if row.instance == engine.instance]),
    }
    if turns is None:
        values = dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "apc_usage"), unknown(UNREADABLE))
        return InstanceNumbers(engine.instance, engine.role, None, None, None, {**values, **own}, reasons)
    here = np.asarray(turns.instance == engine.instance, dtype=np.bool_)
    p50, p90 = percentiles(turns.ttft_s[here], (0.5, WORKER_POINT))
    return InstanceNumbers(
        instance=engine.instance,
        role=engine.role,
        turns=int((here & turns.completed).sum()),
        failed=int((here & (turns.status == RequestStatus.ERROR.value)).sum()),
        sessions=len(set(turns.session[here])),
        values={"ttft_p50_s": p50, "ttft_p90_s": p90, "apc_usage": apc_usage(turns, here), **own},
        reasons=reasons,
    )


def _summarize_samples(rows: Sequence[EngineSample]) -> dict[str, Estimate]:
    """`rows`: the 1 Hz samples of one instance."""
    usage = [row.kv_usage for row in rows if row.kv_usage is not None]
    waiting = [row.waiting for row in rows if row.waiting is not None]
    none = unknown("no sample of this instance states it")
    return {
        "kv_usage_max": Estimate(max(usage), n=len(usage)) if usage else none,
        "waiting_p90": Estimate(float(np.quantile(waiting, 0.9)), n=len(waiting)) if waiting else none,
    }


def _measure_workers(instances: Sequence[InstanceNumbers]) -> dict[str, Estimate]:
    """The per-instance TTFT p90 as (median, max) over the instances that served: never as a ratio (specs/ear, 3.3)."""
    served = [p90 for one in instances if (p90 := one.values["ttft_p90_s"]).value is not None]
    if not served:
        why = unknown("no turn says which instance served it")
        return {"worker_ttft_p90_median_s": why, "worker_ttft_p90_max_s": why}
    n = min(p90.n for p90 in served)
    idle = len(instances) - len(served)
    reason = f"{idle} of {len(instances)} instances served no turn" if idle else None
    return {
        f"worker_ttft_p90_{point}_s": Estimate(compute_value_over_instances(point, served), n=n, reason=reason)
        for point in ("median", "max")
    }


def _measure_coupling(turns: Turns | None, record: RoutingCell) -> dict[str, Estimate]:
    """The replay's duration against its trace, and the sessions in the system meanwhile."""
    wall, span = (read_number_or_none(record.replay.get(name)) for name in ("wall_clock_s", "trace_span_s"))
    stated = {"wall_clock_s": wall, "trace_span_s": span}
    values = {name: unknown("not stated") if value is None else Estimate(value) for name, value in stated.items()}
    values["amplification"] = read_amplification(record.replay)
    if turns is None:
        lacking = (*_INFLIGHT, "concurrency", "completed_share", "turns_per_s")
        return values | dict.fromkeys(lacking, unknown(UNREADABLE))
    times = measure_session_times(turns)
    completed = turns.count(RequestStatus.OK)
    total = int(turns.index.size)
    observed = float(np.nanmax(turns.end_s) - np.nanmin(turns.send_s)) if times.session else 0.0
    values["concurrency"] = (
        Estimate(float(times.residence_s.sum()) / observed, n=len(times.session))
        if observed > 0
        else unknown("no session was served")
    )
    values |= _count_inflight(turns)
    values["completed_share"] = Estimate(completed / total, n=total) if total else unknown("the trace has no turn")
    values["turns_per_s"] = Estimate(completed / wall, n=completed) if wall else unknown("no wall clock is stated")
    return values


MOST_LOST = 0.05
"""The share of its turns that a replay may lose and still have an amplification: without their work it ends sooner.
The specification states no number."""
_LOST = ("failed", "never_sent")
"""Turns of a replay that ended by itself which were not completed; `never_sent`: their session had ended."""
_INFLIGHT = ("inflight_sessions_mean", "inflight_sessions_p10", "inflight_sessions_p90")


def _count_inflight(turns: Turns) -> dict[str, Estimate]:
    """Sessions in the system at the sends of the turns."""
    seen = turns.inflight_sessions[np.isfinite(turns.inflight_sessions)]
    if not seen.size:
        return dict.fromkeys(_INFLIGHT, unknown("no turn was sent"))
    values = (seen.mean(), *np.quantile(seen, (0.1, 0.9)))
    return {name: Estimate(float(value), n=int(seen.size)) for name, value in zip(_INFLIGHT, values, strict=True)}


def read_amplification(replay: Mapping[str, Any]) -> Estimate:
    """Wall clock over trace span; unknown where the replay was cut before its last turn had ended, or lost turns."""
    cut, completed, *lost = (read_number_or_none(replay.get(name)) or 0.0 for name in ("cut", "completed", *_LOST))
    if cut:
        return unknown(f"the replay was cut with {cut:g} turns in flight or still to come")
    turns = completed + sum(lost)
    if sum(lost) > MOST_LOST * turns:
        lost_work = "the replay had less work than its trace"
        return unknown(f"{sum(lost):g} of {turns:g} turns failed or were dropped: {lost_work}")
    wall, span = (read_number_or_none(replay.get(name)) for name in ("wall_clock_s", "trace_span_s"))
    if wall is None or span is None:
        return unknown("the replay states no wall clock or no trace span")
    ratio = compute_amplification_ratio(wall, span)
    return unknown("the trace spans no time") if ratio is None else Estimate(ratio)
