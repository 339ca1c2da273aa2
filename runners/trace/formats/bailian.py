"""Bailian's traces (qwen-bailian-usagetraces-anon): one request a line, sessions linked by `parent_chat_id`.

`timestamp` in seconds, `input_length`, `output_length`, `hash_ids`: one id per block of 16 tokens, a partial last block
included. Equal ids in the whole file mean equal blocks. A follow-up's prompt includes its history. The source does not
state whether ids are chained: the reader infers it from the file and sets it in the facts.

The reader passes over a file twice: first it checks every line and groups lines to sessions, then it reads session by
session. In between, the text is in an unnamed temporary file, which ends with the reader.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from results.records.trace_lines import MAIN, Count, HashId, Positive, Turn
from runners.trace.formats.decode import Seconds, decode_row
from runners.trace.session import Chain, Session, TraceFacts, find_hash_count_fault
from runners.trace.source import OnProgress, TraceError, read_one_file

BLOCK_TOKENS = 16
ROOT = -1
MAX_COPY_BYTES = 8 << 30
"""Size of the temporary file; a trace with more text is rejected, so that a packed one does not fill the disk."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    chat_id: Count
    parent_chat_id: Annotated[int, msgspec.Meta(ge=ROOT)]
    timestamp: Seconds
    input_length: Positive
    output_length: Count
    type: str
    turn: Positive
    hash_ids: list[HashId]


_DECODER = msgspec.json.Decoder(_Row)


def open_bailian(path: Path, on_progress: OnProgress | None = None) -> tuple[TraceFacts, Iterator[Session]]:
    """The facts, and sessions in the order of arrival. Checks the whole file before it returns.

    A request whose parent is not in the file begins its own session. Two follow-ups of one request both wait for it.
    Memory: about 250 bytes per request, and one session.
    """
    watch = on_progress or (lambda share: None)
    index = _Index(path.name)
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the iterator, or here
    try:
        index.read_file(path, copy, lambda share: watch(share / 2))
        groups = index.group_sessions()
    except BaseException:
        copy.close()
        raise
    return index.build_facts(), _read_sessions(index, groups, copy, lambda share: watch(0.5 + share / 2))


def _read_sessions(
    index: _Index, groups: Iterator[NDArray[np.int64]], copy: BinaryIO, watch: OnProgress
) -> Iterator[Session]:
    done = 0
    with copy:
        for rows in groups:
            yield index.read_session(rows, copy)
            done += len(rows)
            watch(done / len(index))


class _Index:
    """The position, arrival and parent of every line."""

    def __init__(self, source: str) -> None:
        self._file = self._source = source
        self._chain = Chain()
        self._chained = True
        self._row_of: dict[int, int] = {}
        self._offsets, self._lines = array("q"), array("q")
        self._chats, self._parents = array("q"), array("q")
        self._turns, self._times = array("q"), array("d")
        self._parent_rows: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._begin_s = 0.0

    def __len__(self) -> int:
        return len(self._chats)

    def build_facts(self) -> TraceFacts:
        """Call it after `read_file`."""
        return _build_facts(self._source, self._chained)

    def read_file(self, path: Path, copy: BinaryIO, watch: OnProgress) -> None:
        """Check every line by itself, and write the text of all to `copy`."""
        facts = _build_facts(self._source, chained=True)
        offset = 0
        for file, line, text in read_one_file(path, "a Bailian trace", watch):
            self._file = file
            row = decode_row(_DECODER, text, file, line)
            self._add_row(row, line, offset, find_hash_count_fault(facts, row.input_length, len(row.hash_ids)))
            offset += copy.write(text)
            if offset > MAX_COPY_BYTES:
                raise TraceError(file, line, f"the trace has more than {MAX_COPY_BYTES >> 30} GiB of text")
        if not len(self):
            raise TraceError(self._file, 1, "the file has no requests")

    def _add_row(self, row: _Row, line: int, offset: int, fault: str) -> None:
        other = self._row_of.setdefault(row.chat_id, len(self))
        if other != len(self):
            fault = fault or f"chat_id {row.chat_id} is already on line {self._lines[other]}"
        if fault:
            raise TraceError(self._file, line, fault)
        if self._chained:
            self._chained = not self._chain.find_fault(np.array(row.hash_ids, dtype=np.int64))
        self._offsets.append(offset)
        self._lines.append(line)
        self._chats.append(row.chat_id)
        self._parents.append(row.parent_chat_id)
        self._turns.append(row.turn)
        self._times.append(row.timestamp)

    def group_sessions(self) -> Iterator[NDArray[np.int64]]:
        """The rows of each session, all by arrival. Raises TraceError for a parent that arrives too late."""
        times = np.frombuffer(self._times, dtype=np.float64)
        order = np.argsort(times, kind="stable")
        ranks = np.empty_like(order)
        ranks[order] = np.arange(order.size)
        self._begin_s = float(times[order[0]])
        self._parent_rows = np.array([self._row_of.get(parent, ROOT) for parent in self._parents], dtype=np.int64)
        self._row_of, self._chain = {}, Chain()  # both are large, and no longer needed
        roots = np.arange(order.size)
        for row in order.tolist():
            parent = int(self._parent_rows[row])
            if parent != ROOT:
                self._check_parent(row, parent, ranks)
                roots[row] = roots[parent]
        grouped = np.lexsort((ranks, ranks[roots]))
        ends = np.append(np.flatnonzero(np.diff(roots[grouped])) + 1, grouped.size).tolist()
        return (grouped[begin:end] for begin, end in pairwise([0, *ends]))

    def _check_parent(self, row: int, parent: int, ranks: NDArray[np.int64]) -> None:
        here, there = self._lines[row], self._lines[parent]
        if ranks[parent] >= ranks[row]:
            raise TraceError(
                self._file, here, f"chat {self._chats[row]} does not come after its parent, which is on line {there}"
            )
        if self._turns[row] <= self._turns[parent]:
            rule = f"it is turn {self._turns[row]}, but its parent on line {there} is turn {self._turns[parent]}"
            raise TraceError(self._file, here, rule)

    def read_session(self, rows: NDArray[np.int64], copy: BinaryIO) -> Session:
        indexes = {row: index for index, row in enumerate(rows.tolist())}
        turns = []
        for row, index in indexes.items():
            copy.seek(self._offsets[row])
            read = _DECODER.decode(copy.readline())
            parent = int(self._parent_rows[row])
            turns.append(
                Turn(
                    agent=MAIN,
                    turn=index,
                    arrival_s=read.timestamp - self._begin_s,
                    think_s=None,
                    input_tokens=read.input_length,
                    output_tokens=read.output_length,
                    hashes=tuple(read.hash_ids),
                    after=() if parent == ROOT else (indexes[parent],),
                )
            )
        return Session(str(self._chats[int(rows[0])]), tuple(turns))


def _build_facts(source: str, chained: bool) -> TraceFacts:
    return TraceFacts(
        format="bailian",
        source=source,
        block_tokens=BLOCK_TOKENS,
        tail_rule="ceil",
        hash_scope="global",
        hashes_chained=chained,
    )
