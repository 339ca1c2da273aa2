"""Under which conditions two runs were made: each kind that differs, with what it means for their numbers.

`results.report.differences` lists every single difference; here they are summed up by kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results.records.percent import format_percent
from results.records.run_folder import RunFacts
from results.report.differences import PLAN, Difference, Origin
from results.statistics.judgement import list_some

OTHER_SPEED = 0.05
"""Hosts whose fixed piece of work differs by less are of one speed: the halves of one run differ by up to 2.4 %."""
UNKNOWN = "not stated"
_ENGINE, _TRACON, _VERSIONS = "engine.", "tracon", "engine.versions."
"""How keys of the plan begin that are no settings: the engine's environment and Tracon, and versions in the former."""
_OF_HOST = ("host", "gpu")
"""Sections of the environment capture."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One kind of difference between two runs."""

    what: str
    first: str
    second: str
    meaning: str


def list_conditions(
    first: RunFacts, second: RunFacts, made: Origin, made_second: Origin, differences: Sequence[Difference]
) -> tuple[Condition, ...]:
    """The kinds that differ, those that weigh most first."""
    return (
        *_compare_engines(first, second),
        *_compare_settings(differences),
        *_compare_hosts(first, second, differences),
        *_compare_speeds(made.work_us, made_second.work_us),
        *_compare_versions(first, second),
        *_compare_tracon(made, made_second),
        *_compare_launches(differences),
    )


def _compare_engines(first: RunFacts, second: RunFacts) -> Iterator[Condition]:
    if first.simulated == second.simulated:
        return
    meaning = "Each side's times are those of its engine model: a difference may be the models' alone."
    if not (first.simulated and second.simulated):
        meaning = "One side's times are an engine model's, no engine's: a difference may be the model's error."
    yield Condition("engines", _name_engine(first), _name_engine(second), meaning)


def _name_engine(run: RunFacts) -> str:
    return f"model: {run.simulated}" if run.simulated else "real"


def _compare_settings(differences: Sequence[Difference]) -> Iterator[Condition]:
    own = [one for one in differences if one.where == PLAN and not one.what.startswith((_ENGINE, _TRACON))]
    if not own:
        return
    meaning = (
        f"The runs were not asked to do the same: {list_some([one.what for one in own])} (see What differed). A "
        "difference may be the settings' alone."
    )
    yield Condition("settings", *_show_values(own), meaning)


def _show_values(differences: Sequence[Difference]) -> tuple[str, str]:
    """The first two, of each side."""
    shown = differences[:2]
    return (
        "; ".join(f"{one.what} {_cut_text(one.first)}" for one in shown),
        "; ".join(f"{one.what} {_cut_text(one.second)}" for one in shown),
    )


def _cut_text(text: str | None) -> str:
    shown = "(absent)" if text is None else text
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _compare_hosts(first: RunFacts, second: RunFacts, differences: Sequence[Difference]) -> Iterator[Condition]:
    own = [one.what for one in differences if one.where.startswith(_OF_HOST)]
    if first.host == second.host and not own:
        return
    named = f" Differ: {list_some(own)}." if own else ""
    yield Condition(
        "host",
        first.host or UNKNOWN,
        second.host or UNKNOWN,
        f"Times differ by what the hosts are.{named} Ratios and differences inside a run, such as taxes, depend on it "
        "less than times do.",
    )


def _compare_speeds(first_us: float | None, second_us: float | None) -> Iterator[Condition]:
    if not first_us or not second_us or abs(second_us / first_us - 1) < OTHER_SPEED:
        return
    change = f"{format_percent(abs(second_us / first_us - 1))} {'longer' if second_us > first_us else 'shorter'}"
    yield Condition(
        "speed",
        f"{first_us:.0f} us",
        f"{second_us:.0f} us",
        f"A fixed piece of work took a core {change} in the second (median): another clock, or another tenant on the "
        "core. Times on these cores move with it, whatever is measured.",
    )


def _compare_versions(first: RunFacts, second: RunFacts) -> Iterator[Condition]:
    names = [
        name for name in dict.fromkeys((*first.versions, *second.versions))
        if first.versions.get(name) != second.versions.get(name)
    ]  # fmt: skip
    if not names:
        return
    meaning = "Other engines or connectors: if nothing else differs, a difference is that of these versions."
    yield Condition("versions", _name_versions(first, names), _name_versions(second, names), meaning)


def _name_versions(run: RunFacts, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {run.versions.get(name, UNKNOWN)}" for name in names)


def _compare_tracon(first: Origin, second: Origin) -> Iterator[Condition]:
    measured, other = first.plan.get("tracon", UNKNOWN), second.plan.get("tracon", UNKNOWN)
    if measured != other:
        meaning = "Another Tracon measured: load generator, router or probe may have changed."
        yield Condition("Tracon", measured, other, meaning)
    if first.code != second.code:
        meaning = (
            "Other code computed the numbers: the definition of one may have changed. Analyze or export both with one "
            "version."
        )
        yield Condition("analysis", first.code[:8] or UNKNOWN, second.code[:8] or UNKNOWN, meaning)


def _compare_launches(differences: Sequence[Difference]) -> Iterator[Condition]:
    own = [one for one in differences if _is_of_launch(one)]
    if not own:
        return
    names = list_some([f"{one.where}/{one.what}" for one in own])
    meaning = f"Engines had {len(own)} other options, variables or packages: {names} (see What differed)."
    yield Condition("launches", *_show_values(own), meaning)


def _is_of_launch(one: Difference) -> bool:
    if one.where == PLAN:
        return one.what.startswith(_ENGINE) and not one.what.startswith(_VERSIONS)
    return not one.where.startswith(_OF_HOST)
