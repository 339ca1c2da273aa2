"""The command `session`: the turns of one session with instance, reason, cached tokens and moved KV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

import runners.cli.terminal as terminal
from runners.cli.options import JsonOption, WorkspaceOption
from runners.cli.policies import CellOption, RunOrLogArg, logs_of
from runners.errors import RunnerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from results.records.decisions import DecisionRecord, KvTransfer
    from runners.router.decision_log import LoggedPicks

_SERVED = "ok"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(session)


def session(
    run: RunOrLogArg,
    session: Annotated[str, typer.Argument(help="Session id, or a unique beginning of it.")],
    cell: CellOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Print where a session lived: every turn with its instance, the reason, the cached tokens and the moved KV.

    Example: `tracon session 20260131-1200 s-017 --cell ear/trial_0`

    A routing run replays the same sessions in every cell: without `--cell` the answer of each is printed. Where it is
    simulated, each trial may have sessions of its own: one name then stands for another session in another trial.
    """
    lives = _find_lives(logs_of(run, cell, workspace), session)
    if json:
        terminal.print_json([asdict(life) for life in lives])
        return
    for life in lives:
        terminal.out().print(life_table(life))


@dataclass(frozen=True, slots=True)
class SessionPick:
    """One pick of the session. None = not measured, or not known."""

    seq: int
    turn: int
    at_s: float
    """Since the first pick of the log."""
    request: str
    instance: str
    """Empty: it went nowhere, see `reason`."""
    reason: str
    owner: str
    """The instance that the session was bound to before it."""
    prefill: str
    """The instance that computed the prompt for it; empty = `instance` itself."""
    input_tokens: int
    indexed_tokens: int
    """Of these, what the router believed `instance` to hold."""
    cached_tokens: int | None
    """Prompt tokens that the engine reports it had cached."""
    first_byte_s: float | None
    status: str
    """Of the outcome; empty = the router ended first."""
    migrate_from: str
    migration: str
    """What came of it: `transferred`, `recomputed`, `unneeded`, `failed`; empty = none was asked for."""
    transfer: KvTransfer | None


@dataclass(frozen=True, slots=True)
class ServedTurns:
    """Turns in a row that one instance served."""

    instance: str
    first_turn: int
    last_turn: int
    from_s: float
    reason: str
    """Why it came: of its first turn there."""
    migration: str
    """What came of the migration that brought it; empty = it was just sent there."""


@dataclass(frozen=True, slots=True)
class Life:
    """A session in one cell."""

    cell: str
    session: str
    stays: tuple[ServedTurns, ...]
    turns: tuple[SessionPick, ...]


def build_life(records: Sequence[DecisionRecord], name: str, session: str) -> Life:
    """The session's picks in their order, and its stays: only a turn that was served there makes one."""
    start_ns = min((record.t_ns for record in records), default=0)
    turns = tuple(_describe_pick(record, start_ns) for record in records if record.request.session == session)
    stays: list[ServedTurns] = []
    for turn in (each for each in turns if each.status == _SERVED):
        if stays and stays[-1].instance == turn.instance:
            last = stays[-1]
            stays[-1] = ServedTurns(last.instance, last.first_turn, turn.turn, last.from_s, last.reason, last.migration)
        else:
            stays.append(ServedTurns(turn.instance, turn.turn, turn.turn, turn.at_s, turn.reason, turn.migration))
    return Life(name, session, tuple(stays), turns)


def _describe_pick(record: DecisionRecord, start_ns: int) -> SessionPick:
    request, decision, outcome = record.request, record.decision, record.outcome
    return SessionPick(
        seq=record.seq,
        turn=request.turn,
        at_s=(record.t_ns - start_ns) / 1e9,
        request=request.request,
        instance=decision.instance,
        reason=decision.reason,
        owner=request.owner,
        prefill=decision.prefill,
        input_tokens=request.input_tokens,
        indexed_tokens=request.cached_tokens.get(decision.instance, 0),
        cached_tokens=None if outcome is None else outcome.cached_tokens,
        first_byte_s=None if outcome is None else outcome.first_byte_s,
        status="" if outcome is None else outcome.status,
        migrate_from=decision.migrate_from,
        migration="" if outcome is None else outcome.migration,
        transfer=None if outcome is None else outcome.transfer,
    )


def _find_lives(logs: Sequence[LoggedPicks], wanted: str) -> list[Life]:
    lives = []
    for log in logs:
        names = _match_sessions({record.request.session for record in log.records}, wanted)
        if len(names) > 1:
            shown = ", ".join(sorted(names)[:4])
            raise RunnerError(f"{wanted!r} begins {len(names)} sessions of {log.name}", remedy=f"e.g. {shown}")
        lives += [build_life(log.records, log.name, name) for name in names]
    if not lives:
        known = sorted({record.request.session for log in logs for record in log.records if record.request.session})
        remedy = f"give a session id, e.g. {', '.join(known[:4])}" if known else "the logs hold no sessions"
        raise RunnerError(f"no pick of session {wanted!r} in {len(logs)} decision logs", remedy=remedy)
    return lives


def _match_sessions(sessions: Iterable[str], wanted: str) -> set[str]:
    names = {name for name in sessions if name and name.startswith(wanted)}
    return {wanted} if wanted in names else names


def life_table(life: Life) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    way = " -> ".join(f"{stay.instance} ({stay.migration})" if stay.migration else stay.instance for stay in life.stays)
    rows = begin_table(
        ">turn", ">at s", "instance", "decided by", ">prompt", ">cached", ">first byte ms", "what was moved"
    )
    for turn in life.turns:
        rows.add_row(*_format_turn(turn))
    head = Text.assemble((f"{life.cell}  session {life.session}", "bold"), f"  lived at {way or 'no instance'}")
    return Group(head, rows)


def _format_turn(turn: SessionPick) -> tuple[str, ...]:
    from runners.cli.tables import format_number

    place = turn.instance or "nowhere"
    return (
        f"{turn.turn}",
        f"{turn.at_s:.2f}",
        f"{turn.prefill} + {place}" if turn.prefill else place,
        turn.reason if turn.status in (_SERVED, "") else f"{turn.reason}; {turn.status}",
        f"{turn.input_tokens}",
        f"~{turn.indexed_tokens}" if turn.cached_tokens is None else f"{turn.cached_tokens}",
        format_number(None if turn.first_byte_s is None else turn.first_byte_s * 1e3),
        _describe_movement(turn),
    )


def _describe_movement(turn: SessionPick) -> str:
    """The KV movement of a turn in words."""
    if turn.transfer is None:
        return f"from {turn.migrate_from}: {turn.migration}" if turn.migration else ""
    kv = turn.transfer
    ends = f"{turn.migration or kv.purpose} {kv.source} -> {kv.target}"
    if kv.status != "transferred":
        status = "" if kv.status == turn.migration else f"{kv.status}, "
        return f"{ends}: {status}{kv.reason}"
    tokens = f"{kv.external_tokens} of {kv.prefix_tokens} tokens"
    if kv.external_tokens is None:
        tokens = f"{kv.prefix_tokens} tokens asked for, those that came were not counted"
    size = "" if kv.bytes is None else f", {kv.bytes / 1e6:.3g} MB"
    took = f" in {(kv.t_done_ns - kv.t_begin_ns) / 1e6:.3g} ms" if kv.t_done_ns > kv.t_begin_ns > 0 else ""
    return f"{ends}: {tokens}{size}{took}"
