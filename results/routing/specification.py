"""The rows of the specification's own tables (specs/ear.md 5.2 to 5.5).

Policies are known by their names and parameters, never by a label. A row that was not run stays, with no numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

EAR = "ear"
FULL, AFFINITY_ONLY, MIGRATION_ONLY = "EAR", "EAR (affinity only)", "EAR (migration only)"
BASELINES: Mapping[str, str] = {
    "load-balance": "round_robin",
    "LMetric": "lmetric",
    "kvcache+load": "kv_linear",
    "sticky": "sticky",
    "static PD-disagg": "static_pd",
}
"""Rows of table 5.2 to the policies that they are."""


@dataclass(frozen=True, slots=True)
class SpecifiedRow:
    """A row of a table of the specification."""

    name: str
    """As the specification names it."""
    label: str
    """What was measured for it; empty = nothing was, or several settings of which none is the row's own."""
    others: tuple[str, ...] = ()
    """Further settings of the same policy in this run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid of figure 9."""

    hot_tokens: float
    """Pending prompt tokens above which an instance is hot."""
    cooldown_s: float
    """How long a migrated session stays."""
    label: str
    """What was measured for it."""


def name_ear_part(policy: str, parameters: Mapping[str, object]) -> str:
    """FULL, AFFINITY_ONLY or MIGRATION_ONLY; empty for anything else."""
    if policy != EAR:
        return ""
    affinity, migration = (parameters.get(name, True) is True for name in ("affinity", "migration"))
    parts = {(True, True): FULL, (True, False): AFFINITY_ONLY, (False, True): MIGRATION_ONLY}
    return parts.get((affinity, migration), "")


def make_end_to_end_rows(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]], even: Collection[str] = ()
) -> tuple[SpecifiedRow, ...]:
    """Table 5.2; `policies` (label to policy) in the order of tables. `even`: labels with as many instances to prefill
    as to decode, which is the specification's static PD-disaggregation."""
    rows = []
    for name, policy in BASELINES.items():
        labels = [label for label, own in policies.items() if own == policy]
        specified = [label for label in labels if label in even]
        rows.append(_make_specified_row(name, labels, specified if len(specified) == 1 else []))
    return (*rows, make_ablation_rows(policies, parameters)[-1])


def make_ablation_rows(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]
) -> tuple[SpecifiedRow, ...]:
    """Table 5.3. Of several full settings, the one with the thresholds of the ablated ones, else none."""
    parts: dict[str, list[str]] = {AFFINITY_ONLY: [], MIGRATION_ONLY: [], FULL: []}
    for label, policy in policies.items():
        parts.get(name_ear_part(policy, parameters.get(label, {})), []).append(label)
    ablated = [_read_thresholds(parameters[label]) for name in (MIGRATION_ONLY, AFFINITY_ONLY) for label in parts[name]]
    whole = [label for label in parts[FULL] if _read_thresholds(parameters[label]) in ablated[:1]]
    return (
        _make_specified_row(AFFINITY_ONLY, parts[AFFINITY_ONLY]),
        _make_specified_row(MIGRATION_ONLY, parts[MIGRATION_ONLY]),
        _make_specified_row(FULL, parts[FULL], whole),
    )


def _make_specified_row(name: str, labels: Sequence[str], specified: Sequence[str] = ()) -> SpecifiedRow:
    """`specified`: settings that are the specification's own. Without any, none of several settings is: no numbers."""
    if not specified and len(labels) != 1:
        return SpecifiedRow(name, "", tuple(labels))
    label = specified[0] if specified else labels[0]
    return SpecifiedRow(name, label, tuple(other for other in labels if other != label))


def _read_thresholds(parameters: Mapping[str, object]) -> tuple[object, object]:
    return parameters.get("hot_tokens"), parameters.get("cooldown_s")


def list_threshold_settings(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]
) -> tuple[Setting, ...]:
    """The settings of the whole EAR that differ in T_hot and T_cool alone; empty where fewer than two were run."""
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for label, policy in policies.items():
        own = parameters.get(label, {})
        hot, cool = _read_thresholds(own)
        if name_ear_part(policy, own) == FULL and isinstance(hot, int | float) and isinstance(cool, int | float):
            rest = tuple(sorted((k, repr(v)) for k, v in own.items() if k not in ("hot_tokens", "cooldown_s")))
            groups.setdefault(rest, []).append(Setting(float(hot), float(cool), label))
    most = max(groups.values(), key=len, default=[])
    return tuple(sorted(most, key=lambda one: (one.hot_tokens, one.cooldown_s))) if len(most) > 1 else ()
