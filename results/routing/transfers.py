"""KV transfers of a cell as rows, and of every policy over its trials. Pure functions of decision records."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from results.records.decisions import DecisionRecord, KvTransfer, transfer_s
from results.records.estimate import Estimate, unknown
from results.routing.measurements import Measurements, collect_trials, estimate_level_interval, make_trial_of_number
from results.statistics.estimates import Samples, convert_to_floats
from results.statistics.trials import Trial

COUNTED_SHARE = 0.9
"""Where the tokens of fewer transfers were counted, these do not represent all: chance or load selected them."""
NONE_MOVED = "no KV was moved"
NO_TOTAL = "the engines' totals are not known, or are of several purposes"


@dataclass(frozen=True, slots=True)
class Moved:
    """One KV transfer that was asked for."""

    session: str
    transfer: KvTransfer

    @property
    def transfer_s(self) -> float | None:
        """From the router's beginning to the KV at the target (handover: the target begins to answer)."""
        return transfer_s(self.transfer)

    @property
    def prefill_request_s(self) -> float | None:
        """Until the source's answer: what it had to compute, and its queue."""
        return _measure_span_s(self.transfer.t_source_sent_ns, self.transfer.t_source_done_ns)

    @property
    def decode_request_s(self) -> float | None:
        """From its sending to the KV at the target: the pull, the target's queue, and what it computed meanwhile."""
        done = self.transfer.status == "transferred"
        return _measure_span_s(self.transfer.t_target_sent_ns, self.transfer.t_done_ns) if done else None

    @property
    def wait_s(self) -> float | None:
        """The time outside both requests: transfers to one target run one at a time."""
        parts = self.transfer_s, self.prefill_request_s, self.decode_request_s
        return None if None in parts else (parts[0] or 0.0) - (parts[1] or 0.0) - (parts[2] or 0.0)

    @property
    def source_computed_tokens(self) -> int | None:
        """Tokens of the prefix that the source had lost and computed again for the transfer."""
        cached = self.transfer.source_cached_tokens
        return None if cached is None else max(self.transfer.prefix_tokens - cached, 0)


def _measure_span_s(begin_ns: int, end_ns: int) -> float | None:
    return (end_ns - begin_ns) / 1e9 if begin_ns and end_ns else None


Value = Callable[[Moved], float | None]

POINTS = {"transfer_p50_s": 0.50, "transfer_p90_s": 0.90, "transfer_p99_s": 0.99}
MEANS: Mapping[str, Value] = {
    "transfer_mean_s": lambda one: one.transfer_s,
    "wait_mean_s": lambda one: one.wait_s,
    "prefill_request_mean_s": lambda one: one.prefill_request_s,
    "decode_request_mean_s": lambda one: one.decode_request_s,
    "prefix_tokens_mean": lambda one: one.transfer.prefix_tokens,
    "external_tokens_mean": lambda one: one.transfer.external_tokens,
    "local_tokens_mean": lambda one: one.transfer.local_tokens,
    "computed_tokens_mean": lambda one: one.transfer.computed_tokens,
    "bytes_mean": lambda one: one.transfer.bytes,
}
RATIOS: Mapping[str, tuple[Value, Value]] = {
    "external_share": (lambda one: one.transfer.external_tokens, lambda one: one.transfer.prefix_tokens),
    "source_computed_share": (lambda one: one.source_computed_tokens, lambda one: one.transfer.prefix_tokens),
    "bandwidth_bytes_per_s": (lambda one: one.transfer.bytes, lambda one: one.decode_request_s),
}
SHARES = ("external_share", "source_computed_share")
"""Those of RATIOS that cannot be above 1."""
OF_COUNTED = (
    "external_tokens_mean", "local_tokens_mean", "computed_tokens_mean", "bytes_mean", "external_share",
    "bandwidth_bytes_per_s",
)  # fmt: skip
"""Values that are known only of transfers whose tokens were counted."""


@dataclass(frozen=True, slots=True)
class PolicyTransfers:
    """The KV transfers of one label and purpose, over the trials that count."""

    label: str
    purpose: str
    """`migration` or `handover`."""
    asked: int
    """Transfers that the router asked for."""
    statuses: Mapping[str, int]
    """Transfers by how they ended: `transferred`, `failed`, `refused`, `unneeded`."""
    reasons: Mapping[str, int]
    """Reasons why transfers were not made."""
    transports: tuple[str, ...]
    """E.g. `mooncake`."""
    counted: int
    """Transfers that were made and whose tokens are known."""
    uncounted: Mapping[str, int]
    """Why tokens of transfers are not known."""
    values: Mapping[str, Estimate]
    """MEANS, POINTS and RATIOS of the transferred ones (OF_COUNTED: of those counted, without an interval where they
    do not represent all); transfer_max_s; external_total_mean: the tokens that all engines count as transferred over a
    cell, per transfer."""


def list_moved(records: Iterable[DecisionRecord]) -> tuple[Moved, ...]:
    """Every transfer in the log, in its order."""
    return tuple(
        Moved(record.request.session, record.outcome.transfer)
        for record in records
        if record.outcome is not None and record.outcome.transfer is not None
    )


def summarize_transfers(
    label: str,
    moved: Mapping[int, Sequence[Moved]],
    totals: Mapping[int, float | None],
    measurements: Measurements,
) -> tuple[PolicyTransfers, ...]:
    """A row per purpose. By trial: `moved`, and `totals`, the tokens that all engines count as transferred."""
    purposes = sorted({one.transfer.purpose for own in moved.values() for one in own})
    rows = []
    for purpose in purposes:
        own = {trial: [row for row in every if row.transfer.purpose == purpose] for trial, every in moved.items()}
        rows.append(_summarize_purpose(label, purpose, own, totals if len(purposes) == 1 else {}, measurements))
    return tuple(rows)


def _summarize_purpose(
    label: str,
    purpose: str,
    moved: Mapping[int, Sequence[Moved]],
    totals: Mapping[int, float | None],
    measurements: Measurements,
) -> PolicyTransfers:
    asked = [one for own in moved.values() for one in own]
    done = {trial: [one for one in own if one.transfer.status == "transferred"] for trial, own in moved.items()}
    transferred = [one for own in done.values() for one in own]
    uncounted = [one.transfer for one in transferred if one.transfer.external_tokens is None]
    counted = len(transferred) - len(uncounted)
    per_transfer = {
        trial: make_trial_of_number(total / len(own))
        for trial, own in done.items()
        if own and (total := totals.get(trial)) is not None
    }
    times = [took for one in transferred if (took := one.transfer_s) is not None]
    values = _measure_transfers(label, done, measurements)
    values |= {name: withhold_interval(values[name], counted, len(transferred)) for name in OF_COUNTED}
    values["external_total_mean"] = estimate_level_interval(
        measurements.withhold(collect_trials(per_transfer, NO_TOTAL), label)
    )
    values["transfer_max_s"] = Estimate(max(times), n=len(times)) if times else unknown(NONE_MOVED)
    return PolicyTransfers(
        label=label,
        purpose=purpose,
        asked=len(asked),
        statuses=dict(sorted(Counter(one.transfer.status for one in asked).items())),
        reasons=_count_reasons(one.transfer.reason for one in asked if one.transfer.status != "transferred"),
        transports=tuple(sorted({one.transfer.transport for one in asked if one.transfer.transport})),
        counted=counted,
        uncounted=_count_reasons(one.counted_reason for one in uncounted),
        values=values,
    )


def _measure_transfers(
    label: str, done: Mapping[int, Sequence[Moved]], measurements: Measurements
) -> dict[str, Estimate]:
    sessions = {trial: [one.session for one in own] for trial, own in done.items()}

    def over(compute: Callable[[int], Trial | None], most: float = math.inf) -> Estimate:
        computed = collect_trials({trial: compute(trial) for trial in done}, NONE_MOVED)
        return estimate_level_interval(measurements.withhold(computed, label), most)

    def column(trial: int, value: Value) -> Samples:
        return convert_to_floats(value(one) for one in done[trial])

    def mean(value: Value) -> Estimate:
        return over(lambda trial: measurements.measure_mean_of_rows(sessions[trial], column(trial, value)))

    def ratio(top: Value, bottom: Value, most: float) -> Estimate:
        return over(
            lambda trial: measurements.measure_ratio_of_rows(
                sessions[trial], column(trial, top), column(trial, bottom)
            ),
            most,
        )

    def quantile(p: float) -> Estimate:
        return over(
            lambda trial: measurements.measure_quantile_of_rows(
                sessions[trial], column(trial, MEANS["transfer_mean_s"]), p
            )
        )

    return {
        **{name: mean(value) for name, value in MEANS.items()},
        **{name: ratio(*terms, 1.0 if name in SHARES else math.inf) for name, terms in RATIOS.items()},
        **{name: quantile(p) for name, p in POINTS.items()},
    }


def _count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Without their numbers, so that equal ones can be counted; the most frequent first."""
    plain = (re.sub(r"\d[\d.]*", "N", reason) or "no reason was given" for reason in reasons)
    return dict(Counter(plain).most_common())


def is_enough(counted: int, whole: int) -> bool:
    """Whether those that were counted represent all."""
    return not whole or counted >= COUNTED_SHARE * whole


def withhold_interval(estimate: Estimate, counted: int, whole: int) -> Estimate:
    """Drop the interval of a number over those that were counted, where these do not represent all."""
    if estimate.value is None or is_enough(counted, whole):
        return estimate
    return replace(estimate, low=None, high=None, reason=f"only {counted} of {whole} were counted", basis=None)
