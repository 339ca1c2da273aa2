"""`tracon session`: the turns of one session with instance, reason, cached tokens and moved KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

import runners.cli.terminal as terminal
from runners.cli.options import ROUTING_PANEL, JsonOption, WorkspaceOption
from runners.cli.policies import CellOption, RunOrLogArg, collect_logs, match_logs

if TYPE_CHECKING:
    from rich.console import RenderableType

    from results.records.decisions import Decision, DecisionRecord, RoutedOutcome

_SERVED = "ok"


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=ROUTING_PANEL)(session)


def session(
    run: RunOrLogArg,
    session: Annotated[str, typer.Argument(help="Session id, or a unique beginning of it.")],
    cell: CellOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Print the instances that served a session: every turn with the reason, the cached tokens and the moved KV.

    Example: `tracon session 20260131-1200 s-017 --cell ear/trial_0`

    A routing run replays the same sessions in every cell; without `--cell` it prints the session of each. In a
    simulated run each trial may have its own sessions: the same id is then a different session in each trial.
    """
    matches = match_logs(collect_logs(run, cell, workspace), session, "session", lambda record: record.request.session)
    lives = [build_life(log.records, log.name, name) for log, name in matches]
    if json:
        terminal.print_json([life.to_json() for life in lives])
        return
    for life in lives:
        terminal.out().print(make_life_table(life))


@dataclass(frozen=True, slots=True)
class ServedTurns:
    """Consecutive turns that one instance served."""

    instance: str
    first_turn: int
    last_turn: int
    from_s: float
    reason: str
    """Reason code of the first of these turns."""
    migration: str
    """Result of the migration that moved the session there; empty = no migration."""


@dataclass(frozen=True, slots=True)
class Life:
    """A session in one cell."""

    cell: str
    session: str
    begin_ns: int
    """Time of the log's first pick, of any session."""
    stays: tuple[ServedTurns, ...]
    picks: tuple[DecisionRecord, ...]

    def to_json(self) -> dict[str, object]:
        """`turns` has one entry per pick; `at_s` counts from the log's first pick."""
        turns = [_describe_pick(pick, self.begin_ns) for pick in self.picks]
        return {"cell": self.cell, "session": self.session, "stays": self.stays, "turns": turns}


def build_life(records: Sequence[DecisionRecord], name: str, session: str) -> Life:
    """The session's picks in order, and its stays; only served turns count as a stay."""
    begin_ns = min((record.t_ns for record in records), default=0)
    picks = tuple(record for record in records if record.request.session == session)
    stays: list[ServedTurns] = []
    for pick in picks:
        instance, turn, outcome = pick.decision.instance, pick.request.turn, _find_outcome(pick)
        if outcome.status != _SERVED:
            continue
        if stays and stays[-1].instance == instance:
            stays[-1] = replace(stays[-1], last_turn=turn)
        else:
            at_s = (pick.t_ns - begin_ns) / 1e9
            stays.append(ServedTurns(instance, turn, turn, at_s, pick.decision.reason, outcome.migration))
    return Life(name, session, begin_ns, tuple(stays), picks)


def _describe_pick(pick: DecisionRecord, begin_ns: int) -> dict[str, object]:
    """`indexed_tokens`: cached tokens of the prompt by the router's index. None = not measured or unknown."""
    request, decision, outcome = pick.request, pick.decision, _find_outcome(pick)
    return {
        "seq": pick.seq,
        "turn": request.turn,
        "at_s": (pick.t_ns - begin_ns) / 1e9,
        "request": request.request,
        "instance": decision.instance,
        "reason": decision.reason,
        "owner": request.owner,
        "prefill": decision.prefill,
        "input_tokens": request.input_tokens,
        "indexed_tokens": request.cached_tokens.get(decision.instance, 0),
        "cached_tokens": outcome.cached_tokens,
        "first_byte_s": outcome.first_byte_s,
        "status": outcome.status,
        "migrate_from": decision.migrate_from,
        "migration": outcome.migration,
        "transfer": outcome.transfer,
    }


def _find_outcome(pick: DecisionRecord) -> RoutedOutcome:
    """The pick's outcome; an empty status if the router ended first."""
    from results.records.decisions import RoutedOutcome

    return pick.outcome or RoutedOutcome(status="")


def make_life_table(life: Life) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    way = " -> ".join(f"{stay.instance} ({stay.migration})" if stay.migration else stay.instance for stay in life.stays)
    rows = begin_table(
        ">turn", ">at s", "instance", "decided by", ">prompt", ">cached", ">first byte ms", "what was moved"
    )
    for pick in life.picks:
        rows.add_row(*_format_pick(pick, life.begin_ns))
    head = Text.assemble((f"{life.cell}  session {life.session}", "bold"), f"  lived at {way or 'no instance'}")
    return Group(head, rows)


def _format_pick(pick: DecisionRecord, begin_ns: int) -> tuple[str, ...]:
    from runners.cli.tables import format_number

    request, decision, outcome = pick.request, pick.decision, _find_outcome(pick)
    served_by = decision.instance or "nowhere"
    indexed_tokens = request.cached_tokens.get(decision.instance, 0)
    return (
        f"{request.turn}",
        f"{(pick.t_ns - begin_ns) / 1e9:.2f}",
        f"{decision.prefill} + {served_by}" if decision.prefill else served_by,
        decision.reason if outcome.status in (_SERVED, "") else f"{decision.reason}; {outcome.status}",
        f"{request.input_tokens}",
        f"~{indexed_tokens}" if outcome.cached_tokens is None else f"{outcome.cached_tokens}",
        format_number(None if outcome.first_byte_s is None else outcome.first_byte_s * 1e3),
        _describe_movement(decision, outcome),
    )


def _describe_movement(decision: Decision, outcome: RoutedOutcome) -> str:
    """The KV movement of a pick in words."""
    migration, kv = outcome.migration, outcome.transfer
    if kv is None:
        return f"from {decision.migrate_from}: {migration}" if migration else ""
    ends = f"{migration or kv.purpose} {kv.source} -> {kv.target}"
    if kv.status != "transferred":
        status = "" if kv.status == migration else f"{kv.status}, "
        return f"{ends}: {status}{kv.reason}"
    tokens = f"{kv.external_tokens} of {kv.prefix_tokens} tokens"
    if kv.external_tokens is None:
        tokens = f"{kv.prefix_tokens} tokens asked for, those that came were not counted"
    size = "" if kv.bytes is None else f", {kv.bytes / 1e6:.3g} MB"
    took = f" in {(kv.t_done_ns - kv.t_begin_ns) / 1e6:.3g} ms" if kv.t_done_ns > kv.t_begin_ns > 0 else ""
    return f"{ends}: {tokens}{size}{took}"
