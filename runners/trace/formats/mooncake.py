"""Mooncake's FAST'25 traces: one request a line, no sessions.

`timestamp` in ms since the start of the trace, `input_length`, `output_length`, `hash_ids`: one id per block of 512
tokens, a partial last block included. Equal ids in the whole file mean equal prefixes; new ids are numbered in order of
appearance. Fields of other tools (`session_id`, `delay`, `text_input`) change the meaning of a line and are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from results.records.trace_lines import MAIN, Count, HashId, Positive, Turn
from runners.trace.formats.decode import decode_row
from runners.trace.session import Chain, Session, TraceFacts, find_hash_count_fault
from runners.trace.source import OnProgress, TraceError, read_one_file

BLOCK_TOKENS = 512
TIME_UNIT_S = 0.001


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Count
    input_length: Positive
    output_length: Count
    hash_ids: list[HashId]


def open_mooncake(path: Path, on_progress: OnProgress | None = None) -> tuple[TraceFacts, Iterator[Session]]:
    """The facts, and each request as a session of one turn, in the file's order. Memory: 4 bytes per distinct block."""
    facts = TraceFacts(
        format="mooncake",
        source=path.name,
        time_unit_s=TIME_UNIT_S,
        block_tokens=BLOCK_TOKENS,
        tail_rule="ceil",
        hash_scope="global",
        has_sessions=False,
    )
    return facts, _read_sessions(path, facts, on_progress)


def _read_sessions(path: Path, facts: TraceFacts, on_progress: OnProgress | None) -> Iterator[Session]:
    numbering, begin, latest = _Numbering(), None, 0
    decoder = msgspec.json.Decoder(_Row)
    for index, (file, line, text) in enumerate(read_one_file(path, "a Mooncake trace", on_progress)):
        row = decode_row(decoder, text, file, line)
        fault = find_hash_count_fault(facts, row.input_length, len(row.hash_ids)) or numbering.find_fault(row.hash_ids)
        if row.timestamp < latest:
            fault = fault or f"timestamp {row.timestamp} is before the previous one, {latest}"
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
        yield Session(str(index), (turn,))
    if begin is None:
        raise TraceError(path.name, 1, "the file has no requests")


class _Numbering:
    """Checks Mooncake's ids: numbered by first appearance, each always after the same id."""

    def __init__(self) -> None:
        self._next = 0
        self._chain = Chain()

    def find_fault(self, hash_ids: list[int]) -> str:
        ids = np.array(hash_ids, dtype=np.int64)
        new = ids[ids >= self._next]
        gap = np.flatnonzero(new != np.arange(self._next, self._next + new.size))
        if gap.size:
            index = int(gap[0])
            return f"hash {int(new[index])} is new, but the next new one is {self._next + index}"
        self._next += new.size
        return self._chain.find_fault(ids)
