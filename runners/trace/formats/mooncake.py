"""Mooncake's FAST'25 traces: one request a line, no sessions.

`timestamp` in ms since the trace began, `input_length`, `output_length`, `hash_ids`: one id per block of 512 tokens, a
partial last block included; equal ids in the whole file mean equal prefixes, and new ids are numbered as they come.
Fields that other tools add (`session_id`, `delay`, `text_input`) change what a line means, so they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from runners.trace.errors import TraceError
from runners.trace.formats.decode import Count, HashId, Positive, decode
from runners.trace.rules import Chain, hash_count_fault
from runners.trace.session import MAIN, Session, TraceFacts, Turn
from runners.trace.source import OnProgress, documents, numbered_lines

BLOCK_TOKENS = 512
TIME_UNIT_S = 0.001


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Count
    input_length: Positive
    output_length: Count
    hash_ids: list[HashId]


def open_mooncake(path: Path, on_progress: OnProgress | None = None) -> tuple[TraceFacts, Iterator[Session]]:
    """The facts, and each request as a session of one turn, in the file's order. Held: 4 bytes per different block."""
    facts = TraceFacts(
        format="mooncake",
        source=path.name,
        time_unit_s=TIME_UNIT_S,
        block_tokens=BLOCK_TOKENS,
        tail_rule="ceil",
        hash_scope="global",
        hashes_chained=True,
        context_mode="self_contained",
        has_sessions=False,
    )
    return facts, _sessions(path, facts, on_progress)


def _sessions(path: Path, facts: TraceFacts, on_progress: OnProgress | None) -> Iterator[Session]:
    numbering, begin, latest = _Numbering(), None, 0
    for place, (file, line, row) in enumerate(_rows(path, on_progress)):
        fault = hash_count_fault(facts, row.input_length, len(row.hash_ids)) or numbering.fault(row.hash_ids)
        if row.timestamp < latest:
            fault = fault or f"timestamp {row.timestamp} lies before the one ahead of it, {latest}"
        if fault:
            raise TraceError(file, line, fault)
        latest = row.timestamp
        begin = latest if begin is None else begin
        turn = Turn(
            agent=MAIN,
            turn=0,
            arrival_s=(latest - begin) * TIME_UNIT_S,
            think_s=None,
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            hashes=tuple(row.hash_ids),
        )
        yield Session(str(place), (turn,))
    if begin is None:
        raise TraceError(path.name, 1, "there is no request in it")


def _rows(path: Path, on_progress: OnProgress | None) -> Iterator[tuple[str, int, _Row]]:
    decoder = msgspec.json.Decoder(_Row)
    with closing(documents(path, on_progress)) as found:
        for count, document in enumerate(found):
            if count:
                raise TraceError(document.name, 1, "a Mooncake trace is one file, and this is the second")
            for line, text in numbered_lines(document):
                yield document.name, line, decode(decoder, text, document.name, line)


class _Numbering:
    """Ids as Mooncake gives them: numbered by first appearance, each always after the same one."""

    def __init__(self) -> None:
        self._next = 0
        self._chain = Chain()

    def fault(self, hash_ids: list[int]) -> str:
        """What about a prompt's ids contradicts that."""
        ids = np.array(hash_ids, dtype=np.int64)
        new = ids[ids >= self._next]
        gap = np.flatnonzero(new != np.arange(self._next, self._next + new.size))
        if gap.size:
            place = int(gap[0])
            return f"hash {int(new[place])} is new, but the next new one is {self._next + place}"
        self._next += new.size
        return self._chain.fault(ids)
