"""The numbers of one replay, from its turn records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from results.routing.record import TurnRecord
from results.routing.turns import SERIES, Turns, turn_table, turns_of
from results.statistics import Estimate, mean, percentiles, unknown
from results.summary import POINTS, percentile_name


def replay_numbers(records: Path) -> Mapping[str, Estimate]:
    """Mean, p50, p90 and p99 of TTFT, TPOT and E2E (s) over the turns that came back, and APC as their usage says.

    `apc_usage` is cached over all prompt tokens of the turns that say both; `apc_bound_any` and `apc_bound_intra` are
    the trace's bounds over the completed turns. Raises OSError and msgspec.DecodeError for a damaged file.
    """
    turns = turns_of(turn_table(tuple(_records(records))), 0)
    found: dict[str, Estimate] = {}
    for series in SERIES:
        samples = turns.series(series)
        found[percentile_name(series, "mean")] = mean(samples)
        for point, estimate in zip(POINTS, percentiles(samples, tuple(POINTS.values())), strict=True):
            found[percentile_name(series, point)] = estimate
    return found | _caching(turns)


def _caching(turns: Turns) -> dict[str, Estimate]:
    done = turns.completed
    said = done & (turns.cached_tokens >= 0) & (turns.prompt_tokens > 0)  # false where either is missing
    usage = _share(float(turns.cached_tokens[said].sum()), float(turns.prompt_tokens[said].sum()), int(said.sum()))
    whole = float(turns.input_tokens[done].sum())
    return {
        "apc_usage": usage if usage.value is not None else unknown("no response stated its cached tokens"),
        "apc_bound_any": _share(float(turns.reusable_any_tokens[done].sum()), whole, int(done.sum())),
        "apc_bound_intra": _share(float(turns.reusable_intra_tokens[done].sum()), whole, int(done.sum())),
    }


def _share(part: float, whole: float, n: int) -> Estimate:
    return Estimate(part / whole, n=n) if whole else unknown("no turn was completed")


def _records(path: Path) -> Iterator[TurnRecord]:
    decode = msgspec.json.Decoder(TurnRecord).decode
    with path.open("rb") as file:
        for line in file:
            yield decode(line)
