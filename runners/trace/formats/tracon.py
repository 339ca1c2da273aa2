"""The project's own trace file: JSON lines, a header, a session a line, and a last line with their counts.

    {"tracon_trace": 1, "origin": "mooncake conversation_trace.jsonl", "facts": {"block_tokens": 512, ...}}
    {"session": "7", "turns": [{"arrival_s": 0.0, "input_tokens": 1030, "output_tokens": 12, "hashes": [4, 9]}, ...]}
    {"end": {"sessions": 1, "requests": 2}}

`results.records.trace_lines` declares its lines. A turn has no field at its default. `shared: [index, n]` prepends the
first n hashes of an earlier turn of the session to `hashes`, so that the file does not repeat the history of a prompt.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from results.records.layout import open_atomically
from results.records.trace_lines import (
    TRACE_VERSION,
    LineCounts,
    PackedTurn,
    StatedFacts,
    TraceHeader,
    TraceLine,
    Turn,
)
from runners.trace.formats.decode import decode_row
from runners.trace.session import MAX_SESSION_HASHES, Session, TraceFacts, count_shared_hashes, find_session_fault
from runners.trace.source import OnProgress, TraceError, read_one_file


@dataclass(frozen=True, slots=True)
class Written:
    """The sums over a written file."""

    sessions: int
    requests: int
    input_tokens: int
    output_tokens: int
    span_s: float
    """From the first recorded send to the last."""


def open_tracon(path: Path, on_progress: OnProgress | None = None) -> tuple[TraceFacts, Iterator[Session]]:
    """The facts as stated in the file, and its sessions; holds one at a time."""
    lines = read_one_file(path, "a trace", on_progress)
    head = next(lines, None)
    if head is None:
        raise TraceError(path.name, 1, "the file has no header")
    file, line, text = head
    header = decode_row(msgspec.json.Decoder(TraceHeader), text, file, line)
    if header.tracon_trace != TRACE_VERSION:
        raise TraceError(file, line, f"tracon_trace is {header.tracon_trace}; this Tracon reads {TRACE_VERSION}")
    facts = TraceFacts(source=path.name, **msgspec.structs.asdict(header.facts))
    return facts, _read_sessions(facts, file, line, lines)


def write_trace(path: Path | str, facts: TraceFacts, sessions: Iterable[Session]) -> Written:
    """Write the project's own format, packed where the name ends in .gz or .xz; `path` appears once it is complete.

    Streams the sessions. Raises OSError, and TraceError with the line of a session that violates a rule or the order.
    """
    path = Path(path)
    encode = msgspec.json.Encoder().encode
    stated = StatedFacts(**{name: getattr(facts, name) for name in StatedFacts.__struct_fields__})
    order = _Order(facts)
    with open_atomically(path) as raw, _open_packer(path.suffix, raw) as out:
        out.write(encode(TraceHeader(TRACE_VERSION, f"{facts.format} {facts.source}", stated)) + b"\n")
        for line, session in enumerate(sessions, start=2):
            if fault := order.find_fault(session):
                raise TraceError(path.name, line, fault)
            out.write(encode(TraceLine(session.session, _pack_turns(session.turns))) + b"\n")
        written = order.written
        out.write(encode(TraceLine(end=LineCounts(written.sessions, written.requests))) + b"\n")
    return written


class _Order:
    """Checks the rules between sessions, and sums them up."""

    def __init__(self, facts: TraceFacts) -> None:
        self._facts = facts
        self._names: set[str] = set()
        self.written = Written(0, 0, 0, 0, 0.0)
        self._arrival_s = 0.0

    def find_fault(self, session: Session) -> str:
        """The fault of the next session; "" = no fault, and the session is counted."""
        fault = find_session_fault(self._facts, session) or self._find_place_fault(session)
        if not fault:
            self._names.add(session.session)
            self._arrival_s = session.arrival_s
            sums = self.written
            self.written = Written(
                sessions=sums.sessions + 1,
                requests=sums.requests + len(session.turns),
                input_tokens=sums.input_tokens + sum(turn.input_tokens for turn in session.turns),
                output_tokens=sums.output_tokens + sum(turn.output_tokens for turn in session.turns),
                span_s=max(sums.span_s, session.turns[-1].arrival_s),
            )
        return fault

    def _find_place_fault(self, session: Session) -> str:
        if session.session in self._names:
            return f"session {session.session} comes twice"
        if not self._names and session.arrival_s != 0:
            return f"the first session arrives at {session.arrival_s} s, not at 0"
        if session.arrival_s < self._arrival_s:
            return (
                f"session {session.session} arrives at {session.arrival_s} s, before the previous session "
                f"({self._arrival_s} s)"
            )
        if not self._facts.has_sessions and len(session.turns) > 1:
            return f"session {session.session} has {len(session.turns)} turns, but has_sessions is false"
        return ""


def _read_sessions(
    facts: TraceFacts, file: str, line: int, lines: Iterator[tuple[str, int, bytes]]
) -> Iterator[Session]:
    decoder = msgspec.json.Decoder(TraceLine)
    order = _Order(facts)
    ended = False
    for _, line, text in lines:
        row = decode_row(decoder, text, file, line)
        fault = "the line with the counts is not the last" if ended else ""
        if row.end is not None:
            ended = True
            fault = fault or _find_end_fault(row, row.end, order.written)
        else:
            session, damage = _unpack_session(row)
            fault = fault or damage or order.find_fault(session)
        if fault:
            raise TraceError(file, line, fault)
        if row.end is None:
            yield session
    if not ended:
        raise TraceError(file, line, "the line with the counts is missing: the file is cut off")


def _find_end_fault(row: TraceLine, stated: LineCounts, counted: Written) -> str:
    if row.session or row.turns:
        return "a line must be a session or the end, not both"
    if (stated.sessions, stated.requests) == (counted.sessions, counted.requests):
        return ""
    return (
        f"the counts are {stated.sessions} sessions and {stated.requests} requests, but the file has "
        f"{counted.sessions} and {counted.requests}"
    )


def _unpack_session(row: TraceLine) -> tuple[Session, str]:
    """The session and its first fault (`find_session_fault`); turns beyond MAX_SESSION_HASHES are left out."""
    turns: list[Turn] = []
    fault = ""
    unpacked = 0
    for index, turn in enumerate(row.turns):
        hashes = turn.hashes
        if turn.shared is not None:
            base, count = turn.shared
            if base >= index or count > len(turns[base].hashes):
                where = f"session {row.session}, turns[{index}]"
                fault = fault or f"{where}: no earlier turn has the hashes that it shares: {turn.shared}"
            else:
                hashes = turns[base].hashes[:count] + hashes
        unpacked += len(hashes)
        fields = msgspec.structs.asdict(turn) | {"hashes": hashes}
        del fields["shared"]
        turns.append(Turn(**fields))
        if unpacked > MAX_SESSION_HASHES:
            break
    return Session(row.session, tuple(turns)), fault


def _pack_turns(turns: tuple[Turn, ...]) -> list[PackedTurn]:
    packed = []
    latest: dict[str, int] = {}
    for index, turn in enumerate(turns):
        candidates = {0, latest.get(turn.agent, 0), *turn.after} if index else set()
        shared = max(((count_shared_hashes(turns[at].hashes, turn.hashes), -at) for at in candidates), default=(0, 0))
        latest[turn.agent] = index
        fields = msgspec.structs.asdict(turn) | {"hashes": turn.hashes[shared[0] :]}
        packed.append(PackedTurn(**fields, shared=(-shared[1], shared[0]) if shared[0] else None))
    return packed


def _open_packer(suffix: str, raw: BinaryIO) -> AbstractContextManager[BinaryIO]:
    if suffix == ".gz":  # without a time stamp: the same trace gives the same bytes
        return cast(AbstractContextManager[BinaryIO], gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
    if suffix == ".xz":
        return cast(AbstractContextManager[BinaryIO], lzma.LZMAFile(raw, "wb", preset=1))
    return nullcontext(raw)
