"""The numbers that need only the turn records of a replay: a cell of `routing`, or a standalone replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from results.measures.latency import METRICS, Mask
from results.measures.summary import estimate_mean_and_percentiles
from results.measures.turns import Turns, read_turns
from results.records.estimate import Estimate, unknown

UNREADABLE = "the turn records cannot be read"


def replay_numbers(records: Path) -> Mapping[str, Estimate]:
    """Latencies and cache shares of the turns in a `metrics.jsonl`; unknown, with the reason, where it is damaged."""
    turns, gaps = read_turns(records, 0)
    if turns is None:
        damaged = unknown(f"the turn records cannot be read: the file {gaps[-1].reason}")
        return estimate_latency_numbers(None) | dict.fromkeys(
            ("apc_usage", "apc_bound_any", "apc_bound_intra"), damaged
        )
    return (
        estimate_latency_numbers(turns) | {"apc_usage": apc_usage(turns, turns.completed)} | compute_apc_bounds(turns)
    )


def estimate_latency_numbers(turns: Turns | None) -> dict[str, Estimate]:
    """Mean, p50, p90 and p99 of every declared metric, with the interval inside the cell; None = unreadable."""
    numbers: dict[str, Estimate] = {}
    for series in METRICS:
        numbers |= estimate_mean_and_percentiles(series, None if turns is None else turns.series(series), UNREADABLE)
    return numbers


def apc_usage(turns: Turns, where: Mask) -> Estimate:
    """Cached over all prompt tokens by the responses' usage, over the turns of `where` whose usage states both."""
    stated = where & np.isfinite(turns.cached_tokens) & np.isfinite(turns.prompt_tokens)
    prompts = float(turns.prompt_tokens[stated].sum())
    if not prompts:
        return unknown("no response stated its cached tokens")
    return Estimate(float(turns.cached_tokens[stated].sum()) / prompts, n=int(stated.sum()))


def compute_apc_bounds(turns: Turns) -> dict[str, Estimate]:
    """`apc_bound_any` and `apc_bound_intra`: the trace's bounds over the completed turns."""
    done = turns.completed
    whole = float(turns.input_tokens[done].sum())
    reusable = {"any": turns.reusable_any_tokens, "intra": turns.reusable_intra_tokens}
    return {
        f"apc_bound_{kind}": Estimate(float(tokens[done].sum()) / whole, n=int(done.sum()))
        if whole
        else unknown("no turn was completed")
        for kind, tokens in reusable.items()
    }


def compute_apc_of_totals(prompt_tokens: float, cached_tokens: float) -> Estimate:
    """APC by engines' own counters: cached over all prompt tokens."""
    if prompt_tokens <= 0:
        return unknown("the engines counted no prompt token")
    return Estimate(cached_tokens / prompt_tokens)


def compute_apc_with_transfers(prompt_tokens: float, computed_tokens: float) -> Estimate:
    """APC where KV was moved: the share of the clients' prompt tokens that no engine computed."""
    if prompt_tokens <= 0:
        return unknown("the engines counted no prompt token but those of transfers")
    return Estimate(max(1 - computed_tokens / prompt_tokens, 0.0))
