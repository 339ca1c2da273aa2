"""Migrations and transfers of every policy over its trials (specs/ear.md 5.6), with intervals, and why there are none.

From three trials on an interval holds what varies between trials; with fewer it resamples sessions (by_session).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from results.routing.by_session import once, over_trials, quantile, ratio
from results.routing.logs import LogFacts
from results.routing.measure import Measurements, interval, level_interval
from results.routing.migrations import CostRow, Migrations, accuracy, costs, thrash_rate
from results.routing.transfers import Moved, partly
from results.statistics.estimates import Estimate, Samples, unknown
from results.statistics.trials import Measured, Trial

OF_COUNTED = (
    "external_tokens_mean", "local_tokens_mean", "computed_tokens_mean", "bytes_mean", "external_share",
    "bandwidth_bytes_per_s",
)  # fmt: skip
"""What is known only of transfers whose tokens were counted."""
POOLED = ("accuracy", "accuracy_next", "thrash_rate")
"""Rates of the trials' cases together."""
NONE_MOVED = "no KV was moved"
NO_TOTAL = "the engines' totals are not known, or are of several purposes"
SHARES = ("external_share", "source_computed_share")
"""Those of RATIOS that cannot be above 1."""
POINTS = {"transfer_p50_s": 0.50, "transfer_p90_s": 0.90, "transfer_p99_s": 0.99}
MEANS: Mapping[str, Callable[[Moved], float | None]] = {
    "transfer_mean_s": lambda one: one.transfer_s,
    "wait_mean_s": lambda one: one.wait_s,
    "source_leg_mean_s": lambda one: one.source_leg_s,
    "target_leg_mean_s": lambda one: one.target_leg_s,
    "prefix_tokens_mean": lambda one: one.transfer.prefix_tokens,
    "external_tokens_mean": lambda one: one.transfer.external_tokens,
    "local_tokens_mean": lambda one: one.transfer.local_tokens,
    "computed_tokens_mean": lambda one: one.transfer.computed_tokens,
    "bytes_mean": lambda one: one.transfer.bytes,
}
RATIOS: Mapping[str, tuple[Callable[[Moved], float | None], Callable[[Moved], float | None]]] = {
    "external_share": (lambda one: one.transfer.external_tokens, lambda one: one.transfer.prefix_tokens),
    "source_computed_share": (lambda one: one.source_computed_tokens, lambda one: one.transfer.prefix_tokens),
    "bandwidth_bytes_per_s": (lambda one: one.transfer.bytes, lambda one: one.target_leg_s),
}


@dataclass(frozen=True, slots=True)
class PolicyMigrations:
    """The migrations of one label, over the trials that count."""

    label: str
    trials: int
    requests: int
    asked: int
    outcomes: Mapping[str, int]
    refused: Mapping[str, int]
    """Picks for a session of a hot instance that did not migrate, by the gate that failed."""
    values: Mapping[str, Estimate]
    """trigger_rate, accuracy, accuracy_next, thrash_rate (shares; all but the first of the migrations or sessions of
    all trials, n of them, with exact binomial intervals); waited_transferred_s, waited_recomputed_s: from the pick to
    the first byte of migrations that went so."""
    costs: tuple[CostRow, ...]
    """Of all trials together."""
    thrashed: tuple[str, ...]
    """Sessions that migrated again within their cooldown."""
    why_none: str
    """Why there is no migration; empty where there is one."""


@dataclass(frozen=True, slots=True)
class PolicyTransfers:
    """The KV movements of one label and purpose, over the trials that count."""

    label: str
    purpose: str
    """`migration` or `handover`."""
    asked: int
    statuses: Mapping[str, int]
    reasons: Mapping[str, int]
    """Of those that were not transferred."""
    transports: tuple[str, ...]
    counted: int
    """Of the transferred ones, those whose tokens are known."""
    uncounted: Mapping[str, int]
    """Why tokens of transfers are not known."""
    values: Mapping[str, Estimate]
    """MEANS, POINTS and RATIOS of the transferred ones (OF_COUNTED: of those counted, without an interval where they
    cannot stand for all); transfer_max_s; external_total_mean: what all engines say came by transfer over a cell, for
    each of them."""


def policy_migrations(
    label: str, facts: Mapping[int, LogFacts], parameters: Mapping[str, object], measurements: Measurements
) -> PolicyMigrations:
    """Of one label; `facts` by trial."""
    found = {trial: one.migrations for trial, one in facts.items()}
    events = [event for one in found.values() for event in one.events]
    return PolicyMigrations(
        label=label,
        trials=len(found),
        requests=sum(sum(one.requests.values()) for one in found.values()),
        asked=sum(one.asked for one in found.values()),
        outcomes=_summed(one.outcomes for one in found.values()),
        refused=_summed(one.refused for one in found.values()),
        values=_rates(found, measurements),
        costs=costs(events),
        thrashed=tuple(
            dict.fromkeys(session for one in found.values() for session, again in one.thrashed.items() if again)
        ),
        why_none="" if events else _why_none(found, parameters),
    )


def policy_transfers(
    label: str, facts: Mapping[int, LogFacts], measurements: Measurements
) -> tuple[PolicyTransfers, ...]:
    """Of one label: a row per purpose that it has."""
    rows = {trial: one.moved for trial, one in facts.items()}
    purposes = sorted({one.transfer.purpose for own in rows.values() for one in own})
    totals = {trial: one.external_total_tokens for trial, one in facts.items()} if len(purposes) == 1 else {}
    return tuple(
        _transfers(
            label,
            purpose,
            {trial: [one for one in own if one.transfer.purpose == purpose] for trial, own in rows.items()},
            totals,
            measurements,
        )
        for purpose in purposes
    )


def _rates(found: Mapping[int, Migrations], measurements: Measurements) -> dict[str, Estimate]:
    def over(rows: Callable[[Migrations], tuple[Sequence[str], Samples, Samples]], why: str) -> Measured:
        return over_trials({trial: ratio(*rows(one), measurements) for trial, one in found.items()}, why)

    def waited(outcome: str) -> Estimate:
        return interval(over(lambda one: _waited(one, outcome), f"no migration was {outcome}"))

    first = next(iter(found.values()), None)
    why = {name: "no log" if first is None else getattr(first, name).reason or "" for name in POOLED}
    events = [event for one in found.values() for event in one.events]
    return {
        "trigger_rate": level_interval(over(_triggered, "no requests"), most=1.0),
        "accuracy": accuracy((event.stayed_cool for event in events), why["accuracy"]),
        "accuracy_next": accuracy((event.next_cool for event in events), why["accuracy_next"]),
        "thrash_rate": thrash_rate(
            (again for one in found.values() for again in one.thrashed.values()), why["thrash_rate"]
        ),
        **{f"waited_{outcome}_s": waited(outcome) for outcome in ("transferred", "recomputed")},
    }


def _triggered(one: Migrations) -> tuple[Sequence[str], Samples, Samples]:
    asked = Counter(dict((event.request, event.session) for event in one.events).values())
    names = list(one.requests)
    return names, _floats(asked[name] for name in names), _floats(one.requests.values())


def _waited(one: Migrations, outcome: str) -> tuple[Sequence[str], Samples, Samples]:
    own = [event for event in one.events if event.outcome == outcome and event.waited_s is not None]
    return [event.session for event in own], _floats(event.waited_s for event in own), np.ones(len(own))


def _transfers(
    label: str,
    purpose: str,
    rows: Mapping[int, Sequence[Moved]],
    totals: Mapping[int, float | None],
    measurements: Measurements,
) -> PolicyTransfers:
    every = [one for own in rows.values() for one in own]
    done = {trial: [one for one in own if one.transfer.status == "transferred"] for trial, own in rows.items()}

    def over(compute: Callable[[Sequence[Moved]], Trial | None], most: float = math.inf) -> Estimate:
        return level_interval(over_trials({trial: compute(own) for trial, own in done.items()}, NONE_MOVED), most)

    def one_ratio(
        top: Callable[[Moved], float | None], bottom: Callable[[Moved], float | None], most: float = math.inf
    ) -> Estimate:
        return over(lambda own: ratio(_sessions(own), _column(own, top), _column(own, bottom), measurements), most)

    times = [took for own in done.values() for one in own if (took := one.transfer_s) is not None]
    values = {name: one_ratio(value, lambda _one: 1.0) for name, value in MEANS.items()}
    values |= {name: one_ratio(*terms, 1.0 if name in SHARES else math.inf) for name, terms in RATIOS.items()}
    values |= {name: over(partial(_percentile, p=p, measurements=measurements)) for name, p in POINTS.items()}
    lost = [one.transfer for one in every if one.transfer.status != "transferred"]
    whole = [one.transfer for own in done.values() for one in own]
    uncounted = [one for one in whole if one.external_tokens is None]
    counted = len(whole) - len(uncounted)
    values |= {name: partly(values[name], counted, len(whole)) for name in OF_COUNTED}
    per_transfer = {
        trial: once(total / len(own)) for trial, own in done.items() if own and (total := totals.get(trial)) is not None
    }
    values["external_total_mean"] = level_interval(over_trials(per_transfer, NO_TOTAL))
    return PolicyTransfers(
        label=label,
        purpose=purpose,
        asked=len(every),
        statuses=dict(sorted(Counter(one.transfer.status for one in every).items())),
        reasons=dict(Counter(_plain(one.reason) for one in lost).most_common()),
        transports=tuple(sorted({one.transfer.transport for one in every if one.transfer.transport})),
        counted=counted,
        uncounted=dict(Counter(_plain(one.counted_reason) for one in uncounted).most_common()),
        values=values | {"transfer_max_s": Estimate(max(times), n=len(times)) if times else unknown(NONE_MOVED)},
    )


def _percentile(own: Sequence[Moved], *, p: float, measurements: Measurements) -> Trial | None:
    return quantile(_sessions(own), _column(own, lambda one: one.transfer_s), p, measurements)


def _why_none(found: Mapping[int, Migrations], parameters: Mapping[str, object]) -> str:
    if "hot_tokens" not in parameters:
        return "the policy does not migrate"
    if parameters.get("migration") is False:
        return "migration is switched off"
    if not found:
        return "no decision log of a cell that counts can be read"
    refused = _summed(one.refused for one in found.values())
    if not refused:
        return f"no session's instance had more than {parameters['hot_tokens']} prompt tokens pending (T_hot) at a pick"
    return f"every time that a session's instance was hot it stayed: {counts_text(refused)}"


def _plain(reason: str) -> str:
    """A reason without its numbers, so that equal ones can be counted."""
    return re.sub(r"\d[\d.]*", "N", reason) or "no reason was given"


def counts_text(counts: Mapping[str, int]) -> str:
    """`a 3, b 1`, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def _sessions(own: Sequence[Moved]) -> list[str]:
    return [one.session for one in own]


def _column(own: Sequence[Moved], value: Callable[[Moved], float | None]) -> Samples:
    return _floats(value(one) for one in own)


def _floats(values: Iterable[float | None]) -> Samples:
    return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
