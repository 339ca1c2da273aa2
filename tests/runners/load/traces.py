"""Small traces made by hand, and replays of them against the truth server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from results.records.load_specs import ReplaySpec
from results.records.trace_lines import MAIN, Turn
from results.records.turns import TurnRecord
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session, Trace, TraceFacts
from tests.servers.truth_server import Truth

FACTS = TraceFacts(source="by-hand.jsonl", block_tokens=8, tail_rule="floor", hash_scope="session")


def turn(number: int, arrival_s: float, *, after: tuple[int, ...] = (), **changes: Any) -> Turn:
    """Turn `number` of the main agent: a block of history per turn before it, and a tail of two tokens."""
    blocks = number + 1
    made = Turn(
        agent=MAIN,
        turn=number,
        arrival_s=arrival_s,
        think_s=None,
        input_tokens=blocks * FACTS.block_tokens + 2,
        output_tokens=3,
        hashes=tuple(range(1, blocks + 1)),
        after=after,
    )
    return msgspec.structs.replace(made, **changes)


def chain(name: str, count: int, *, start_s: float = 0.0, gap_s: float = 0.1, think_s: float | None = 0.02) -> Session:
    """A session of turns one after another."""
    turns = [
        turn(number, start_s + number * gap_s, after=(number - 1,), think_s=think_s) if number else turn(0, start_s)
        for number in range(count)
    ]
    return Session(name, tuple(turns))


def trace_of(*sessions: Session, **facts: Any) -> Trace:
    return Trace(replace(FACTS, **facts), sessions)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay, from both sides."""

    outcome: ReplayOutcome
    rows: tuple[TurnRecord, ...]
    """By index."""
    truth: dict[int, Truth]
    ticks: tuple[ReplayTick, ...]

    def row(self, session: str, place: int) -> TurnRecord:
        """The turn at a place of a session."""
        return [row for row in self.rows if row.session == session][place]


class Replay(Protocol):
    """Replays a trace with these changes of `replay_spec` on a truth server that serves so."""

    def __call__(
        self, trace: Trace, served: Mapping[str, float] = ..., *, cut_once_sent: int = ..., **changes: Any
    ) -> Replayed: ...


def replay_spec(url: str, trace: Trace, folder: Path, **changes: Any) -> ReplaySpec:
    """A replay of the trace, which is written into the folder."""
    path = folder / "trace.jsonl"
    write_trace(path, trace.facts, trace.sessions)
    spec = ReplaySpec(
        url=url,
        model="m",
        trace_path=str(path),
        requests_path=str(folder / "metrics.jsonl"),
        seed=7,
        block_tokens=8,
        max_duration_s=20.0,
        drain_s=10.0,
        realtime=False,
    )
    return replace(spec, **changes)


def read_turns(path: str | Path) -> tuple[TurnRecord, ...]:
    """The records of a replay, by index."""
    with Path(path).open("rb") as file:
        rows = [msgspec.json.decode(line, type=TurnRecord) for line in file]
    return tuple(sorted(rows, key=lambda row: row.index))


def prompts_of(replayed: Replayed) -> Sequence[list[int]]:
    return [replayed.truth[row.index].prompt for row in replayed.rows]
