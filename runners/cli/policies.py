"""Commands about policies: list them, explain a pick, compare recorded picks with another policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

import runners.cli.terminal as terminal
from runners.cli.folders import workspace_of
from runners.cli.options import ROUTING_PANEL, JsonOption, WorkspaceOption, read_pairs
from runners.errors import RunnerError

if TYPE_CHECKING:
    from results.records.decisions import DecisionRecord
    from runners.router.decision_log import LoggedPicks

RunOrLogArg = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id, a unique beginning of it, its folder, or a decisions.jsonl.")
]
CellOption = Annotated[
    str, typer.Option("--cell", help="Only cells whose folder contains this, e.g. `unified` or `lmetric/trial_2`.")
]


def add_to(app: typer.Typer) -> None:
    for command in (policies, why, whatif):
        app.command(rich_help_panel=ROUTING_PANEL)(command)


def policies(
    policy: Annotated[
        str | None, typer.Argument(metavar="POLICY", help="Show only this policy, by name or path of a Python file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the routing policies with their parameters and where each rule comes from.

    Examples: `tracon policies`, `tracon policies unified`, `tracon policies ./mine.py`

    A file is executed to list its policies; docs/policies.md explains how to write one.
    """
    from runners.cli.policy_tables import make_policies_table, policy_tables
    from runners.router.policies import describe_policies, describe_policy, find_policy_class

    if policy is not None:
        info = describe_policy(find_policy_class(policy))
        if json:
            terminal.print_json(info)
        else:
            terminal.out().print(policy_tables(info))
    elif json:
        terminal.print_json(describe_policies())
    else:
        terminal.out().print(make_policies_table(describe_policies()))


def why(
    run: RunOrLogArg,
    request: Annotated[str, typer.Argument(help="Request id or a unique beginning of it, or `#N`: pick number N.")],
    cell: CellOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Explain why a request was sent to its instance, and why not to each of the others.

    Example: `tracon why 20260131-1200 r000017 --cell unified/trial_1`

    A routing run sends the same requests in every cell; without `--cell` it explains the request in each.
    """
    from runners.router.why import explain_picks

    matches = match_logs(collect_logs(run, cell, workspace), request, "request", lambda record: record.request.request)
    picks_by_log = [(log, [one for one in log.records if one.request.request == name]) for log, name in matches]
    if json:
        terminal.print_json(
            [{"cell": log.name, "text": explain_picks(picks), "picks": picks} for log, picks in picks_by_log]
        )
        return
    screen = terminal.out()
    for log, picks in picks_by_log:
        screen.print(log.name, style="bold", markup=False)
        for line in explain_picks(picks):
            screen.print(line, markup=False, soft_wrap=True)
        screen.print()


def whatif(
    run: RunOrLogArg,
    policy: Annotated[str, typer.Option("--policy", "-P", help="Pick by this policy: a name or a Python file.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a parameter of the policy (repeatable)."),
    ] = None,
    owners: Annotated[
        str,
        typer.Option(
            help="Attribute a session to its `recorded` owner, or to the instance that `served` its previous turn "
            "(for logs of policies that bind no sessions)."
        ),
    ] = "recorded",
    cell: CellOption = "",
    show: Annotated[int, typer.Option("--show", min=0, help="Print this many of the picks that differ.")] = 10,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Repeat every recorded pick with another policy and print the picks that differ.

    Example: `tracon whatif 20260131-1200 --cell lmetric --policy unified --set overload_factor=1.3`

    Each pick is made on its recorded view: this compares decisions, it does not predict latencies. `--json` has every
    pick that differs.
    """
    from runners.cli.policy_tables import make_whatif_json, make_whatif_tables
    from runners.router.policies import make_policy
    from runners.router.whatif import Owners, repeat_picks

    if owners not in get_args(Owners):
        raise RunnerError(f"--owners is {owners!r}", remedy="give `recorded` or `served`")
    other = make_policy(policy, read_pairs(setting, "--set", "KEY=VALUE"))
    results = [
        (log, repeat_picks(log.records, other, cast(Owners, owners))) for log in collect_logs(run, cell, workspace)
    ]
    if json:
        terminal.print_json([make_whatif_json(log, result) for log, result in results])
    else:
        terminal.out().print(make_whatif_tables(results, show))


def collect_logs(run: str, cell: str, workspace: Path | None) -> tuple[LoggedPicks, ...]:
    """The logs of RUN; prints their gaps, and whether the run was simulated, on stderr."""
    from results.records.layout import RunLayout
    from results.records.run_folder import run_facts
    from runners.router.decision_log import read_logs

    path = Path(run)
    named = path.is_file() or RunLayout(path).results.is_dir()
    source = path if named else workspace_of(workspace).find(run)
    logs = read_logs(source, cell)
    simulated = run_facts(source)[0].simulated if source.is_dir() else ""
    if simulated or any(record.simulated is True for log in logs for record in log.records[:1]):
        text = f"SIMULATED, nothing was measured: engines are {f'the model {simulated}' if simulated else 'a model'}"
        terminal.err().print(text, style="yellow", markup=False, soft_wrap=True)
    for log in logs:
        for gap in log.gaps:
            terminal.err().print(f"gap: {gap.artifact} {gap.reason}", style="yellow", markup=False, soft_wrap=True)
    return logs


def match_logs(
    logs: Sequence[LoggedPicks], wanted: str, kind: str, name_of: Callable[[DecisionRecord], str]
) -> list[tuple[LoggedPicks, str]]:
    """The logs with the `kind` (request or session) that `wanted` identifies, each with its whole name there.

    `wanted`: a unique beginning of its name, or `#N` for that of pick number N. Raises RunnerError where several names
    of a log begin so, and where no log has one.
    """
    matches: list[tuple[LoggedPicks, str]] = []
    known: set[str] = set()
    for log in logs:
        own = {name for record in log.records if (name := name_of(record))}
        numbered = {name_of(record) for record in log.records if f"#{record.seq}" == wanted}
        names = own & (numbered or {wanted}) or {name for name in own if name.startswith(wanted)}
        if len(names) > 1:
            shown = ", ".join(sorted(names)[:4])
            raise RunnerError(f"{wanted!r} begins {len(names)} {kind}s of {log.name}", remedy=f"e.g. {shown}")
        matches += [(log, name) for name in names]
        known |= own
    if not matches:
        remedy = f"give a {kind} id, e.g. {', '.join(sorted(known)[:4])}" if known else f"the logs hold no {kind}s"
        raise RunnerError(f"no pick of {kind} {wanted!r} in {len(logs)} decision logs", remedy=remedy)
    return matches
