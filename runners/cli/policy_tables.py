"""The output of the commands about policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runners.cli.tables import begin_table, format_number
from runners.router.decision_log import LoggedPicks
from runners.router.policies import ParameterInfo, PolicyInfo
from runners.router.whatif import WhatIf

NOWHERE = "(nowhere)"
MET_COLUMNS = (
    (">new tok", "new_tokens", 0),
    (">pending tok", "pending_prefill_tokens", 0),
    (">requests", "num_requests", 2),
)
"""Heading, field of what the picks met on the instances, digits after the point."""


def make_policies_table(infos: Sequence[PolicyInfo]) -> Table:
    """Every policy with its rule in a sentence, its parameters by name, and its source."""
    rows = begin_table("policy", "what it does", "parameters", "source")
    for info in infos:
        named = ", ".join(f"{parameter.name}={_format_default(parameter)}" for parameter in info.parameters)
        rows.add_row(info.name, info.summary, named or "none", info.source)
    return rows


def policy_tables(info: PolicyInfo) -> RenderableType:
    rows = begin_table("parameter", "type", ">default", "what")
    for parameter in info.parameters:
        rows.add_row(parameter.name, parameter.kind, _format_default(parameter), parameter.text)
    head = Text.assemble((info.name, "bold"), f": {info.summary}\nsource: {info.source}\n")
    return Group(head, rows) if info.parameters else Group(head, Text("no parameters"))


def make_whatif_json(log: LoggedPicks, result: WhatIf) -> dict[str, Any]:
    """One log's comparison as data, its gaps included."""
    return {
        "cell": log.name,
        "gaps": [asdict(gap) for gap in log.gaps],
        "agreement": result.agreement,
        **asdict(result),
    }


def make_whatif_tables(results: Sequence[tuple[LoggedPicks, WhatIf]], show: int) -> RenderableType:
    """Agreement per cell, where picks differ by reason and by instance, and the first that do."""
    _, first = results[0]
    parameters = ", ".join(f"{name}={_format_value(value)}" for name, value in first.parameters.items())
    title = Text.assemble("what if ", (first.policy, "bold"), f" ({parameters})" if parameters else "", " had decided")
    parts: list[RenderableType] = [
        title,
        _make_cells_table(results),
        _make_reasons_table(results),
        _make_shares_table(results),
    ]
    if show and any(one.differences for _, one in results):
        parts.append(_make_differences_table(results, show))
    migrations = [sum(one.migrations[index] for _, one in results) for index in (0, 1)]
    if any(migrations):
        parts.append(
            Text(
                f"{migrations[1]} picks would have been migrations, {migrations[0]} were. How long ago a session "
                "migrated is as recorded: a log without migrations starts no cooldown.",
                style="yellow",
            )
        )
    unowned = sum(result.unowned_turns for _, result in results)
    if unowned:
        parts.append(
            Text(
                f"{unowned} picks are later turns whose session has no recorded owner (a policy that binds nothing "
                "records none): `--owners served` takes the instance that served the turn before.",
                style="yellow",
            )
        )
    parts.append(Text(first.limits, style="bright_black"))
    return Group(*parts)


def _make_cells_table(results: Sequence[tuple[LoggedPicks, WhatIf]]) -> Table:
    met = [heading for first, *_ in MET_COLUMNS for heading in (first, ">instead")]
    rows = begin_table("cell", "recorded policy", ">picks", ">same %", *met)
    for log, one in results:
        values = (
            format_number(getattr(mean, field), digits=digits)
            for _, field, digits in MET_COLUMNS
            for mean in (one.recorded_met, one.instead_met)
        )
        policies = ", ".join(one.recorded_policies) or "–"
        rows.add_row(log.name, policies, str(one.picks), format_number(one.agreement, 100), *values)
    return rows


def _make_reasons_table(results: Sequence[tuple[LoggedPicks, WhatIf]]) -> Table:
    """Summed over the cells of one recorded policy."""
    picks: Counter[tuple[str, str, str]] = Counter()
    differ: Counter[tuple[str, str, str]] = Counter()
    for _, one in results:
        for pair in one.reasons:
            key = ", ".join(one.recorded_policies), pair.recorded_reason, pair.instead_reason
            picks[key] += pair.picks
            differ[key] += pair.differ
    rows = begin_table(
        "recorded policy", "recorded reason", "reason instead", ">picks", ">elsewhere", title="by reason"
    )
    for key, count in picks.most_common():
        rows.add_row(*key, str(count), str(differ[key]))
    return rows


def _make_shares_table(results: Sequence[tuple[LoggedPicks, WhatIf]]) -> Table:
    recorded: Counter[str] = Counter()
    instead: Counter[str] = Counter()
    for _, one in results:
        for name, (was, then) in one.shares.items():
            recorded[name] += was
            instead[name] += then
    rows = begin_table("instance", ">picks recorded", ">picks instead", title="by instance")
    for name in sorted({*recorded, *instead}):
        rows.add_row(name or NOWHERE, str(recorded[name]), str(instead[name]))
    return rows


def _make_differences_table(results: Sequence[tuple[LoggedPicks, WhatIf]], show: int) -> Table:
    total = sum(len(one.differences) for _, one in results)
    rows = begin_table(
        "cell",
        ">pick",
        "request",
        "recorded",
        "instead",
        "why not as recorded",
        title=f"the first of {total} that differ",
    )
    for log, one in results:
        for other in one.differences[: max(0, show - rows.row_count)]:
            rows.add_row(
                log.name,
                str(other.seq),
                other.request,
                f"{other.recorded or NOWHERE} ({other.recorded_reason})",
                f"{other.instead or NOWHERE} ({other.instead_reason})",
                other.why_not_recorded,
            )
    return rows


def _format_default(parameter: ParameterInfo) -> str:
    return "(required)" if parameter.required else _format_value(parameter.default)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
