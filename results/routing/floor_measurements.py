"""Measures the load-floor bonus and its alternatives: every arm of kv_aware by its turns and its decision logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, starmap

import numpy as np

from results.records.estimate import Estimate
from results.routing import floor_facts
from results.routing.load_floor import (
    BACK_PRESSURE,
    BONUS,
    NO_FIX,
    TTFT_RATIO,
    FloorVariant,
    LoadFloor,
    QuarantinePair,
    TimeoutPair,
    find_basis,
    find_plain,
)
from results.routing.loads import group_labels
from results.routing.logs import LogFacts
from results.routing.measurements import (
    Measurements,
    collect_trials,
    estimate_count_interval,
    estimate_level_interval,
    estimate_mean_interval,
    estimate_ratio_interval,
    make_trial_of_number,
)
from results.routing.metrics import find_metric
from results.routing.transfers import Moved, withhold_interval
from results.statistics.estimates import convert_to_floats
from results.statistics.trials import Measured, Trial, combine

NO_LOG = "no decision log of a cell that counts can be read"
OF_TURNS = ("ttft_p90_s", "completed_share")
OF_LOGS = {
    "least_share": 1.0, "direct_rate": 1.0, "overlap_kept": math.inf, "overlap_chosen": 1.0, "lost_share": 1.0,
}  # fmt: skip
"""Numbers from decision logs, to the upper bound of each; overlap_kept has none, as an engine may find more cached
than the index knew of."""
NO_TRANSFER = "no KV was to be moved"


def fix_of(parameters: Mapping[str, object]) -> str:
    """Which fixes of the specification's tables these parameters of kv_aware switch on."""
    bonus = parameters.get(BONUS)
    discount = str(parameters.get("overlap_discount", "off"))
    fixes = [
        f"Q2.B K={bonus} ({_describe_bonus(parameters)})" if bonus else "",
        "Q2.A" if parameters.get("cold_bonus") else "",
        "Q2.C" if parameters.get("order") == "inflight_first" else "",
        f"Q2.D ({discount})" if discount != "off" else "",
        "Q2.E" if parameters.get("prewarm_tokens") else "",
        "Q2.F" if parameters.get("min_overlap_blocks") or parameters.get("min_overlap_share") else "",
        "without Q2.G" if parameters.get("migration_reject_threshold") == 0 else "",
        BACK_PRESSURE if parameters.get("backpressure_above") is not None else "",
    ]
    return " + ".join(fix for fix in fixes if fix) or NO_FIX


def _describe_bonus(parameters: Mapping[str, object]) -> str:
    """Its form, and its gate where that is the specification's own."""
    form = str(parameters.get("floor_form", "mean"))
    return f"{form}, per worker" if parameters.get("floor_gate") == "per_worker" else form


@dataclass(frozen=True, slots=True)
class _Label:
    """One label of kv_aware as it was run."""

    label: str
    fix: str
    parameters: Mapping[str, object]
    logs: Mapping[int, LogFacts]
    """By trial."""
    rules: floor_facts.Rules
    load: Mapping[str, object]
    measured: Mapping[str, Measured]
    """OF_LOGS."""

    @property
    def floors(self) -> dict[int, floor_facts.FloorFacts]:
        return {trial: log.floor for trial, log in self.logs.items() if log.floor is not None}

    @property
    def instances(self) -> int:
        """How many D there are."""
        return max(len(next((floor.placed for floor in self.floors.values()), ())), 1)

    @property
    def moved(self) -> list[Moved]:
        return [one for log in self.logs.values() for one in log.moved]

    @property
    def counted(self) -> tuple[int, int]:
        """Requests whose tokens in the D's own cache are known, and all that were served."""
        sessions = [session for floor in self.floors.values() for session in floor.sessions]
        return sum(one.counted for one in sessions), sum(one.requests for one in sessions)


def measure_load_floor(
    policies: Mapping[str, str],
    facts: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> LoadFloor | None:
    """`policies`: label to the policy's name. None where no kv_aware cell has any fix."""
    names = [
        label for label, policy in policies.items() if policy == floor_facts.KV_AWARE and measurements.cells(label)
    ]
    labels = [_read_label(name, facts.get(name, {}), measurements) for name in names]
    if all(one.fix == NO_FIX for one in labels):
        return None
    groups = group_labels({one.label: one.load for one in labels})
    by_load = [[one for one in labels if one.label in own] for _, own in groups]
    reference = next((plain for own in by_load if (plain := find_plain(own)) is not None), None)
    pairs = [two for own in by_load for two in combinations(own, 2)]
    return LoadFloor(
        reference="" if reference is None else reference.label,
        variants=tuple(variant for own in by_load for variant in _measure_variants(own, measurements)),
        transport=floor_facts.collect_transport_facts([log.moved for logs in facts.values() for log in logs.values()]),
        timeouts=tuple(starmap(_make_timeout_pair, _select_pairs_by_rule(pairs, "timeout_s"))),
        sessions=measurements.sessions,
        trials=measurements.trials,
        quarantines=tuple(
            starmap(_make_quarantine_pair, _select_pairs_by_rule(pairs, "failures_to_quarantine", "quarantine"))
        ),
        no_logs="" if any(facts.get(name) for name in names) else NO_LOG,
    )


def _measure_variants(labels: Sequence[_Label], measurements: Measurements) -> Iterator[FloorVariant]:
    """All labels of one load, the reference first."""
    reference = find_plain(labels)
    for own in sorted(labels, key=lambda one: one is not reference):
        alike = [one for one in labels if one is not own and find_basis(one) == find_basis(own)]
        others = alike if own.parameters.get(BONUS) else []
        differences = dict[str, Estimate]()
        if reference is not None and reference is not own:
            differences = _measure_differences(own, reference, measurements)
        yield _measure_variant(
            own,
            measurements,
            differences=differences,
            against={one.label: _measure_differences(own, one, measurements) for one in others},
        )


def _read_label(label: str, facts: Mapping[int, LogFacts], measurements: Measurements) -> _Label:
    cell = next(iter(measurements.cells(label).values()))
    logs = {trial: log for trial, log in facts.items() if log.floor}
    rules = next((log.floor.rules for log in logs.values() if log.floor), floor_facts.Rules(None, None, ""))
    measured = {name: measurements.withhold(one, label) for name, one in _measure_logs(logs, measurements).items()}
    return _Label(label, fix_of(cell.parameters), cell.parameters, logs, rules, measurements.load(label), measured)


def _select_pairs_by_rule(
    pairs: Sequence[tuple[_Label, _Label]], rule: str, *beside: str
) -> Iterator[tuple[_Label, _Label]]:
    """Those that differ in this field of Rules alone (and in those `beside` it), the lower value first."""
    for one, other in pairs:
        if one.instances != other.instances:
            continue
        own, others = getattr(one.rules, rule), getattr(other.rules, rule)
        if None in (own, others) or own == others or one.rules.moves_kv is False or one.parameters != other.parameters:
            continue
        if one.rules == replace(other.rules, **{name: getattr(one.rules, name) for name in (rule, *beside)}):
            yield (one, other) if own < others else (other, one)


def _make_timeout_pair(short: _Label, long: _Label) -> TimeoutPair:
    short_s, long_s = (one.rules.timeout_s or 0.0 for one in (short, long))
    return TimeoutPair(
        short=short.label,
        long=long.label,
        short_s=short_s,
        long_s=long_s,
        short_decode_requests=floor_facts.summarize_decode_requests(short.moved),
        long_decode_requests=floor_facts.summarize_decode_requests(long.moved),
        over_short=sum(seconds > short_s for seconds in floor_facts.list_decode_times(long.moved)),
        lost_share=_subtract_lost(long, short),
    )


def _make_quarantine_pair(fewer: _Label, more: _Label) -> QuarantinePair:
    lost_share = _subtract_lost(more, fewer)
    return QuarantinePair(fewer.label, more.label, fewer.rules.quarantine, more.rules.quarantine, lost_share)


def _subtract_lost(first: _Label, second: _Label) -> Estimate:
    """The first's share of lost transfers less the second's."""
    return estimate_mean_interval(combine(np.subtract, first.measured["lost_share"], second.measured["lost_share"]))


def _measure_variant(
    own: _Label,
    measurements: Measurements,
    *,
    differences: Mapping[str, Estimate],
    against: Mapping[str, Mapping[str, Estimate]],
) -> FloorVariant:
    cells, floors = measurements.cells(own.label), own.floors
    names = next((tuple(floor.placed) for floor in floors.values()), ())
    turns, completed = (sum(cell.counts.get(name) or 0 for cell in cells.values()) for name in ("turns", "completed"))
    counted, served = own.counted
    values = {name: estimate_level_interval(own.measured[name], most=OF_LOGS[name]) for name in OF_LOGS}
    values["least_share"] = estimate_count_interval(own.measured["least_share"])
    values["overlap_kept"] = withhold_interval(values["overlap_kept"], counted, served)
    values |= {name: estimate_level_interval(measurements.get(own.label, find_metric(name))) for name in OF_TURNS}
    return FloorVariant(
        label=own.label,
        fix=own.fix,
        parameters=own.parameters,
        instances=own.instances,
        shares={
            name: estimate_count_interval(measurements.withhold(_measure_share_of_sessions(floors, name), own.label))
            for name in names
        },
        values=values,
        differences=differences,
        against=against,
        rules=own.rules,
        served=served,
        counted=counted,
        turns=turns,
        failed_turns=turns - completed,
        transfers=len(own.moved),
        lost_transfers=sum(floor_facts.is_lost(one.transfer) for one in own.moved),
        decode_requests=floor_facts.summarize_decode_requests(own.moved),
        rejects=sum(floor.rejects for floor in floors.values()),
        reject_moves=sum(floor.reject_moves for floor in floors.values()),
        held=sum(floor.held for floor in floors.values()),
        load=own.load,
    )


def _measure_share_of_sessions(floors: Mapping[int, floor_facts.FloorFacts], instance: str) -> Measured:
    shares = {trial: _compute_placed_share(floor, floor.placed.get(instance, 0)) for trial, floor in floors.items()}
    return collect_trials(shares, NO_LOG)


def _compute_placed_share(floor: floor_facts.FloorFacts, sessions: int) -> Trial | None:
    """Share of the sessions whose first request was served, which are its `n`; None where none was."""
    total = sum(floor.placed.values())
    return make_trial_of_number(sessions / total, total) if total else None


def _measure_logs(logs: Mapping[int, LogFacts], measurements: Measurements) -> dict[str, Measured]:
    floors = {trial: log.floor for trial, log in logs.items() if log.floor is not None}
    least = {
        trial: _compute_placed_share(floor, min(floor.placed.values(), default=0)) for trial, floor in floors.items()
    }
    lost = {trial: _measure_lost_share(log.moved, measurements) for trial, log in logs.items()}

    def measure_sessions(top: str, bottom: str) -> Measured:
        return collect_trials(
            {trial: _measure_ratio_of_sessions(floor, top, bottom, measurements) for trial, floor in floors.items()},
            NO_LOG,
        )

    return {
        "least_share": collect_trials(least, NO_LOG),
        "direct_rate": measure_sessions("direct", "requests"),
        "overlap_kept": measure_sessions("served_tokens", "counted_best_tokens"),
        "overlap_chosen": measure_sessions("chosen_tokens", "best_tokens"),
        "lost_share": collect_trials(lost, NO_TRANSFER if logs else NO_LOG),
    }


def _measure_lost_share(moved: Sequence[Moved], measurements: Measurements) -> Trial | None:
    lost = convert_to_floats(floor_facts.is_lost(one.transfer) for one in moved)
    return measurements.measure_mean_of_rows([one.session for one in moved], lost)


def _measure_ratio_of_sessions(
    floor: floor_facts.FloorFacts, top: str, bottom: str, measurements: Measurements
) -> Trial | None:
    above, below = (convert_to_floats(getattr(session, name) for session in floor.sessions) for name in (top, bottom))
    return measurements.measure_ratio_of_rows([session.session for session in floor.sessions], above, below)


def _measure_differences(first: _Label, second: _Label, measurements: Measurements) -> dict[str, Estimate]:
    differences = {
        name: estimate_mean_interval(combine(np.subtract, first.measured[name], second.measured[name]))
        for name in OF_LOGS
    }
    for label in (first, second):
        differences["overlap_kept"] = withhold_interval(differences["overlap_kept"], *label.counted)
    labels = first.label, second.label
    differences |= {
        name: estimate_mean_interval(measurements.difference(*labels, find_metric(name))) for name in OF_TURNS
    }
    return differences | {
        TTFT_RATIO: estimate_ratio_interval(measurements.log_ratio(*labels, find_metric("ttft_p90_s")))
    }
