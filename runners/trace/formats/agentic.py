"""Recorded agentic sessions (kv-cache-tester, Weka): one JSON object per session, with sub-agents.

A file holds one object (in any layout) or one per line; usually an archive or a folder holds many files. `t` in seconds
since the session's start. `hash_ids`: one id per whole block, chained, local to the session and its sub-agents
unless `hash_id_scope` is `global`. A prompt includes its history. agentic_turns derives which turn waits for which.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from results.records.trace_lines import Count, Positive
from runners.trace.formats.agentic_turns import Entry, Fault, Placed, SubAgent, lay_out, order_turns
from runners.trace.formats.decode import decode_row
from runners.trace.session import (
    MAX_CHAINED_ID,
    START,
    Chain,
    Session,
    TraceFacts,
    count_shared_hashes,
    find_hash_count_fault,
)
from runners.trace.source import MAX_DOCUMENT_BYTES, Document, OnProgress, TraceError, open_documents, read_lines


class _Tokens(msgspec.Struct):
    input: Count
    output: Count


class _Totals(msgspec.Struct):
    parent_tokens: _Tokens
    subagent_tokens: _Tokens
    combined_tokens: _Tokens
    subagent_count: Count


class _Recorded(msgspec.Struct):
    id: str
    block_size: Positive
    requests: list[Entry]
    hash_id_scope: Literal["local", "global"] = "local"
    totals: _Totals | None = None


_ReadSession = tuple[str, int, _Recorded]


def open_agentic(path: Path, on_progress: OnProgress | None = None) -> tuple[TraceFacts, Iterator[Session]]:
    """The facts, and sessions in the order of their files. All arrive at 0: their start is not recorded.

    Holds one session at a time. The facts are those of the first session; a session that differs raises TraceError.
    """
    rows = _read_sessions(path, on_progress)
    first = next(rows, None)
    if first is None:
        raise TraceError(path.name, 1, "the file has no sessions")
    facts = TraceFacts(
        format="agentic",
        source=path.name,
        block_tokens=first[2].block_size,
        tail_rule="floor",
        hash_scope="global" if first[2].hash_id_scope == "global" else "session",
    )
    return facts, _convert_sessions(facts, itertools.chain((first,), rows))


def _read_sessions(path: Path, on_progress: OnProgress | None) -> Iterator[_ReadSession]:
    decoder = msgspec.json.Decoder(_Recorded)
    with closing(open_documents(path, on_progress)) as opened:
        for document in opened:
            for line, text in _split_objects(document):
                yield document.name, line, decode_row(decoder, text, document.name, line)


def _split_objects(document: Document) -> Iterator[tuple[int, bytes]]:
    """(first line, text) of each object: one per line, or the whole document where the first line is no object."""
    lines = read_lines(document)
    head = next(lines, None)
    if head is None:
        return
    if _ends_object(head[1]):
        yield head
        yield from lines
    else:
        yield head[0], _join_lines(document, head, lines)


def _join_lines(document: Document, head: tuple[int, bytes], lines: Iterator[tuple[int, bytes]]) -> bytes:
    """The whole document from its first line on. Raises TraceError for one that would fill the memory."""
    text = bytearray(head[1])
    for number, line in lines:
        text += line
        if len(text) > MAX_DOCUMENT_BYTES:
            rule = f"the object that begins on line {head[0]} is longer than {MAX_DOCUMENT_BYTES >> 20} MiB"
            raise TraceError(document.name, number, rule)
    return bytes(text)


def _ends_object(text: bytes) -> bool:
    """Whether a line can be an object by itself: it ends like one. Decoding would parse it twice."""
    return text.rstrip().endswith(b"}")


def _convert_sessions(facts: TraceFacts, rows: Iterator[_ReadSession]) -> Iterator[Session]:
    seen: dict[str, str] = {}
    shared = Chain() if facts.hash_scope == "global" else None
    for file, line, recorded in rows:
        where = seen.setdefault(recorded.id, f"{file}, line {line}")
        fault = _find_facts_fault(facts, recorded) or _find_totals_fault(recorded)
        if where != f"{file}, line {line}":
            fault = f"session {recorded.id!r} is already in {where}"
        if fault:
            raise TraceError(file, line, fault)
        try:
            yield _convert_session(facts, recorded, shared or Chain())
        except Fault as error:
            raise TraceError(file, line, str(error)) from error


def _find_facts_fault(facts: TraceFacts, recorded: _Recorded) -> str:
    if recorded.block_size != facts.block_tokens:
        return f"block_size is {recorded.block_size}, but {facts.block_tokens} in the first session"
    if (recorded.hash_id_scope == "global") != (facts.hash_scope == "global"):
        return f"hash_id_scope is {recorded.hash_id_scope!r}, unlike in the first session"
    if not recorded.id:
        return "id is empty"
    return "" if recorded.requests else "requests is empty"


def _find_totals_fault(recorded: _Recorded) -> str:
    """Compare the totals stated in the file with the sums over its requests."""
    totals = recorded.totals
    if totals is None:
        return ""
    own = [entry for entry in recorded.requests if not isinstance(entry, SubAgent)]
    agents = [entry for entry in recorded.requests if isinstance(entry, SubAgent)]
    theirs = [request for agent in agents for request in agent.requests]
    stated = {
        "parent_tokens.input": (totals.parent_tokens.input, sum(request.input for request in own)),
        "parent_tokens.output": (totals.parent_tokens.output, sum(request.output for request in own)),
        "subagent_tokens.input": (totals.subagent_tokens.input, sum(request.input for request in theirs)),
        "subagent_tokens.output": (totals.subagent_tokens.output, sum(request.output for request in theirs)),
        "combined_tokens.input": (totals.combined_tokens.input, sum(request.input for request in own + theirs)),
        "combined_tokens.output": (totals.combined_tokens.output, sum(request.output for request in own + theirs)),
        "subagent_count": (totals.subagent_count, len(agents)),
    }
    wrong = [
        f"totals.{name} is {total}, but the sum is {actual}"
        for name, (total, actual) in stated.items()
        if total != actual
    ]
    return wrong[0] if wrong else ""


def _convert_session(facts: TraceFacts, recorded: _Recorded, chain: Chain) -> Session:
    """Raises Fault."""
    placed = lay_out(recorded.requests)
    last_id = sum(len(one.request.hash_ids) for one in placed) if facts.hash_scope == "session" else MAX_CHAINED_ID - 1
    ahead: dict[str, Placed] = {}
    hashes: list[tuple[int, ...]] = []
    latest: dict[str, tuple[int, ...]] = {}
    for one in placed:
        fault = find_hash_count_fault(facts, one.request.input, len(one.request.hash_ids))
        # Most of a prompt repeats the one before it: check only the rest, and store the common beginning once.
        known = (
            count_shared_hashes(ahead[one.agent].request.hash_ids, one.request.hash_ids) if one.agent in ahead else 0
        )
        fault = fault or _hash_fault(one.request.hash_ids, known, last_id, chain)
        if fault:
            raise Fault(f"{one.name}: {fault}")
        latest[one.agent] = latest.get(one.agent, ())[:known] + tuple(one.request.hash_ids[known:])
        ahead[one.agent] = one
        hashes.append(latest[one.agent])
    return Session(recorded.id, order_turns(placed, hashes))


def _hash_fault(ids: list[int], known: int, last_id: int, chain: Chain) -> str:
    """The fault in a prompt's ids after the first `known`."""
    new = np.array(ids[known:], dtype=np.int64)
    if new.size and new.max() > last_id:
        return f"hash {new.max()} cannot be: ids are numbered from 1, and there are {last_id}"
    return chain.find_fault(new, ids[known - 1] if known else START)
