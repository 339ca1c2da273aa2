"""Faults to put into the small files, of each format twenty at least, each with the line and the rule that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.runners.trace import files
from tests.runners.trace.files import Row

Change = Callable[[list[Row]], None]


@dataclass(frozen=True)
class Mutation:
    """One fault."""

    name: str
    line: int
    """Where it must be found."""
    rule: str
    """What must be said of it."""
    change: Change


def put(line: int, *path: str | int, to: object) -> Change:
    """Set a value in the row of a line; `to` may be a function of the old one."""

    def change(rows: list[Row]) -> None:
        place: Any = rows[line - 1]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to(place[path[-1]]) if callable(to) else to

    return change


def drop(line: int, *path: str | int) -> Change:
    """Take a value out of the row of a line."""

    def change(rows: list[Row]) -> None:
        place: Any = rows[line - 1]
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


def row(line: int, value: Any) -> Change:  # noqa: ANN401 - any JSON value
    """Another row in the place of one."""

    def change(rows: list[Row]) -> None:
        rows[line - 1] = value

    return change


def all_of(*changes: Change) -> Change:
    def change(rows: list[Row]) -> None:
        for one in changes:
            one(rows)

    return change


def swapped(hashes: Sequence[int]) -> list[int]:
    return [hashes[1], hashes[0], *hashes[2:]]


def moved(by: float) -> Callable[[float], float]:
    return lambda value: value + by


LONG = next(
    line
    for line, one in enumerate(files.mooncake_rows(), 1)
    if line > 3 and len(one["hash_ids"]) > 3 and one["hash_ids"][0] == 0
)
"""A line of the Mooncake file whose prompt begins as the first one does."""

MOONCAKE = [
    Mutation("time is text", 5, "Expected `int`, got `str` - at `timestamp`", put(5, "timestamp", to="soon")),
    Mutation("time below 0", 5, "at `timestamp`", put(5, "timestamp", to=-1)),
    Mutation("time in parts of a ms", 5, "at `timestamp`", put(5, "timestamp", to=9000.25)),
    Mutation("time goes back", 5, "timestamp 1 is before the previous one", put(5, "timestamp", to=1)),
    Mutation("no time", 5, "missing required field `timestamp`", drop(5, "timestamp")),
    Mutation("an empty prompt", 5, "at `input_length`", put(5, "input_length", to=0)),
    Mutation("no input length", 5, "missing required field `input_length`", drop(5, "input_length")),
    Mutation("part of a token", 5, "at `input_length`", put(5, "input_length", to=700.5)),
    Mutation("a block longer", 5, "(one per block of 512 tokens, rounded up)", put(5, "input_length", to=moved(512))),
    Mutation("output below 0", 5, "at `output_length`", put(5, "output_length", to=-3)),
    Mutation("output is null", 5, "Expected `int`, got `null`", put(5, "output_length", to=None)),
    Mutation("a hash missing", 5, "hashes, not", put(5, "hash_ids", to=lambda ids: ids[:-1])),
    Mutation("a hash too many", 5, "hashes, not", put(5, "hash_ids", to=lambda ids: [*ids, 10**6])),
    Mutation("no hashes", 5, "missing required field `hash_ids`", drop(5, "hash_ids")),
    Mutation("a new hash out of turn", 5, "is new, but the next new one is", put(5, "hash_ids", -1, to=10**6)),
    Mutation("a hash twice", LONG, "hash ", put(LONG, "hash_ids", to=lambda ids: [ids[0], ids[0], *ids[2:]])),
    Mutation("hashes swapped", LONG, "hash ", put(LONG, "hash_ids", to=swapped)),
    Mutation("another's second hash first", LONG, "hash 1 follows nothing here", put(LONG, "hash_ids", 0, to=1)),
    Mutation("a hash is text", 5, "Expected `int`, got `str` - at `hash_ids[0]`", put(5, "hash_ids", 0, to="7")),
    Mutation("a hash below 0", 5, "at `hash_ids[0]`", put(5, "hash_ids", 0, to=-7)),
    Mutation("a hash beyond 63 bits", 5, "at `hash_ids[0]`", put(5, "hash_ids", 0, to=1 << 63)),
    Mutation("another tool's sessions", 5, "unknown field `session_id`", put(5, "session_id", to="a")),
    Mutation("another tool's text", 5, "unknown field `text_input`", put(5, "text_input", to="hello")),
    Mutation("a list", 5, "Expected `object`, got `array`", row(5, [1, 2])),
]

_BAILIAN_ROWS = files.bailian_rows()
_ROW_OF = {one["chat_id"]: line for line, one in enumerate(_BAILIAN_ROWS, 1)}
CHILD = _ROW_OF[202]
"""A line with a second turn."""

BAILIAN = [
    Mutation("a chat twice", CHILD, "chat_id 201 is already on line", put(CHILD, "chat_id", to=201)),
    Mutation("no chat", 4, "missing required field `chat_id`", drop(4, "chat_id")),
    Mutation("chat below 0", 4, "at `chat_id`", put(4, "chat_id", to=-4)),
    Mutation("its own parent", CHILD, "does not come after its parent", put(CHILD, "parent_chat_id", to=202)),
    Mutation("before its parent", CHILD, "does not come after its parent", put(CHILD, "timestamp", to=0.0)),
    Mutation("no parent", 4, "missing required field `parent_chat_id`", drop(4, "parent_chat_id")),
    Mutation("parent below -1", 4, "at `parent_chat_id`", put(4, "parent_chat_id", to=-2)),
    Mutation("no later than its parent", CHILD, "it is turn 1, but its parent on line", put(CHILD, "turn", to=1)),
    Mutation("turn 0", 4, "at `turn`", put(4, "turn", to=0)),
    Mutation("time is text", 4, "Expected `float`, got `str` - at `timestamp`", put(4, "timestamp", to="4.5")),
    Mutation("time below 0", 4, "at `timestamp`", put(4, "timestamp", to=-0.5)),
    Mutation("time without end", 4, "at `timestamp`", put(4, "timestamp", to=1e13)),
    Mutation("time is no number", 4, "malformed", put(4, "timestamp", to=float("nan"))),
    Mutation("no time", 4, "missing required field `timestamp`", drop(4, "timestamp")),
    Mutation("an empty prompt", 4, "at `input_length`", put(4, "input_length", to=0)),
    Mutation("a block longer", 4, "(one per block of 16 tokens, rounded up)", put(4, "input_length", to=moved(16))),
    Mutation("a hash missing", 4, "hashes, not", put(4, "hash_ids", to=lambda ids: ids[:-1])),
    Mutation("a hash too many", 4, "hashes, not", put(4, "hash_ids", to=lambda ids: [*ids, 5])),
    Mutation("part of a hash", 4, "at `hash_ids[0]`", put(4, "hash_ids", 0, to=1.5)),
    Mutation("a hash below 0", 4, "at `hash_ids[0]`", put(4, "hash_ids", 0, to=-1)),
    Mutation("output below 0", 4, "at `output_length`", put(4, "output_length", to=-1)),
    Mutation("no type", 4, "missing required field `type`", drop(4, "type")),
    Mutation("type is a number", 4, "at `type`", put(4, "type", to=3)),
    Mutation("an unknown field", 4, "unknown field `delay`", put(4, "delay", to=3)),
    Mutation("a number", 4, "Expected `object`, got `int`", row(4, 12)),
]


def loose(change: Change) -> Change:
    """Without the sums that the session states of itself, which most faults contradict too."""
    return all_of(drop(2, "totals"), change)


_AGENT = ("requests", 1)
"""The first sub-agent: it came back at 36.5 after 31 s; its requests are sent at 0 and 9."""

AGENTIC = [
    Mutation("no id", 2, "missing required field `id`", drop(2, "id")),
    Mutation("an empty id", 2, "id is empty", put(2, "id", to="")),
    Mutation("an id twice", 2, "session 'trace_0' is already in agentic.jsonl, line 1", put(2, "id", to="trace_0")),
    Mutation("blocks of 0", 2, "at `block_size`", put(2, "block_size", to=0)),
    Mutation("other blocks", 2, "block_size is 32, but 64 in the first", put(2, "block_size", to=32)),
    Mutation("an unknown scope", 2, "at `hash_id_scope`", put(2, "hash_id_scope", to="universe")),
    Mutation("another scope", 2, "hash_id_scope is 'global', unlike", put(2, "hash_id_scope", to="global")),
    Mutation("no requests", 2, "missing required field `requests`", drop(2, "requests")),
    Mutation("empty requests", 2, "requests is empty", put(2, "requests", to=[])),
    Mutation("an unknown type", 2, "at `requests[0].type`", put(2, "requests", 0, "type", to="x")),
    Mutation("no time", 2, "missing required field `t`", drop(2, "requests", 3, "t")),
    Mutation("time below 0", 2, "at `requests[0].t`", put(2, "requests", 0, "t", to=-1.0)),
    Mutation("time goes back", 2, "requests[3]: t is 20.0, before the previous", put(2, "requests", 3, "t", to=20.0)),
    Mutation("an empty prompt", 2, "at `requests[3].in`", put(2, "requests", 3, "in", to=0)),
    Mutation("a block longer", 2, "rounded down", loose(put(2, "requests", 3, "in", to=moved(64)))),
    Mutation(
        "a partial block's hash", 2, "rounded down", loose(put(2, "requests", 0, "hash_ids", to=[1, 2, 3, 4, 5, 6, 7]))
    ),
    Mutation("output below 0", 2, "at `requests[3].out`", put(2, "requests", 3, "out", to=-2)),
    Mutation("hashes swapped", 2, "requests[3]: hash 2 follows nothing", put(2, "requests", 3, "hash_ids", to=swapped)),
    Mutation(
        "a hash twice",
        2,
        "comes twice",
        put(2, "requests", 5, "hash_ids", to=lambda ids: [*ids[:-2], ids[-1], ids[-1]]),
    ),
    Mutation("a hash out of all", 2, "hash 99999 cannot be", put(2, "requests", 3, "hash_ids", -1, to=99_999)),
    Mutation("a hash below 0", 2, "hash_ids[0]", put(2, "requests", 3, "hash_ids", 0, to=-1)),
    Mutation("sums that differ", 2, "totals.parent_tokens.input is", put(2, "requests", 3, "in", to=moved(1))),
    Mutation("sums of sub-agents", 2, "totals.subagent_tokens.output", put(2, *_AGENT, "requests", 0, "out", to=999)),
    Mutation("agents that differ", 2, "totals.subagent_count is 4", put(2, "totals", "subagent_count", to=4)),
    Mutation("back before launched", 2, "requests[1]: it returned at", put(2, *_AGENT, "duration_ms", to=90_000)),
    Mutation("sent after it ended", 2, "but the sub-agent ended", put(2, *_AGENT, "requests", 1, "t", to=32.5)),
    Mutation("its time goes back", 2, "before the previous one", put(2, "requests", 2, "requests", 0, "t", to=30.5)),
    Mutation("its first request early", 2, "neither relative to its own", put(2, *_AGENT, "requests", 0, "t", to=2.5)),
    Mutation("a sub-agent without name", 2, "agent_id is empty", put(2, *_AGENT, "agent_id", to="")),
    Mutation("a think time below 0", 2, "think_time`", put(2, "requests", 3, "think_time", to=-1.0)),
    Mutation("an answer's time is text", 2, "api_time`", put(2, "requests", 3, "api_time", to="8 s")),
    Mutation("a text", 2, "Expected `object`, got `str`", row(2, "trace_1")),
]

_TURN = ("turns", 2)
"""The third turn of the second session, on line 3: own turn 1, after turns 0 and 1, at 3.5 s, four hashes."""

TRACON = [
    Mutation("another version", 1, "tracon_trace is 2", put(1, "tracon_trace", to=2)),
    Mutation("no facts", 1, "missing required field `facts`", drop(1, "facts")),
    Mutation("no block size", 1, "missing required field `block_tokens`", drop(1, "facts", "block_tokens")),
    Mutation("blocks of 0", 1, "at `facts.block_tokens`", put(1, "facts", "block_tokens", to=0)),
    Mutation("an unknown tail rule", 1, "at `facts.tail_rule`", put(1, "facts", "tail_rule", to="round")),
    Mutation("the other tail rule", 2, "rounded up", put(1, "facts", "tail_rule", to="ceil")),
    Mutation("an unknown scope", 1, "at `facts.hash_scope`", put(1, "facts", "hash_scope", to="file")),
    Mutation("an unknown fact", 1, "unknown field `unit`", put(1, "facts", "unit", to="ms")),
    Mutation("sessions denied", 2, "but has_sessions is false", put(1, "facts", "has_sessions", to=False)),
    Mutation("a session without name", 3, "a session has no name", put(3, "session", to="")),
    Mutation("a session twice", 3, "session session-0 comes twice", put(3, "session", to="session-0")),
    Mutation("a session without turns", 3, "session session-1 has no turns", put(3, "turns", to=[])),
    Mutation("the first one late", 2, "not at 0", put(2, "turns", 0, "arrival_s", to=0.5)),
    Mutation("a session early", 4, "before the previous session", put(4, "turns", 0, "arrival_s", to=0.5)),
    Mutation("a turn early", 3, "turns[2]: it arrives at 1.5 s, before", put(3, *_TURN, "arrival_s", to=1.5)),
    Mutation("a time below 0", 2, "it arrives at -1", put(2, "turns", 0, "arrival_s", to=-1)),
    Mutation("a think time below 0", 3, "its think time is -1", put(3, *_TURN, "think_s", to=-1)),
    Mutation("an empty prompt", 3, "a prompt has 0 tokens", put(3, *_TURN, "input_tokens", to=0)),
    Mutation("an answer below 0", 3, "an answer has -1 tokens", put(3, *_TURN, "output_tokens", to=-1)),
    Mutation("a block longer", 3, "rounded down", put(3, *_TURN, "input_tokens", to=moved(16))),
    Mutation("a hash too many", 3, "5 hashes, not 4", put(3, *_TURN, "hashes", to=lambda ids: [*ids, 9])),
    Mutation("a hash below 0", 3, "hashes[0]", put(3, *_TURN, "hashes", to=[-1])),
    Mutation("a turn skipped", 3, "it is turn 2 of agent ''", put(3, *_TURN, "turn", to=2)),
    Mutation("waits for itself", 3, "not only for turns ahead of it", put(3, *_TURN, "after", to=[0, 2])),
    Mutation("waits for before", 3, "not only for turns ahead of it", put(3, *_TURN, "after", to=[-1])),
    Mutation("waits twice", 3, "waits twice", put(3, *_TURN, "after", to=[0, 0])),
    Mutation("shares with a later one", 3, "no earlier turn has the hashes that", put(3, *_TURN, "shared", to=[2, 3])),
    Mutation("shares too much", 3, "no earlier turn has the hashes that", put(3, *_TURN, "shared", to=[0, 4])),
    Mutation("an unknown field", 3, "unknown field `delay`", put(3, *_TURN, "delay", to=1)),
    Mutation("a turn is text", 3, "Expected `object`, got `str`", put(3, *_TURN, to="turn")),
    Mutation("wrong counts", 5, "the counts are 4 sessions", put(5, "end", "sessions", to=4)),
    Mutation("session and end", 5, "a session or the end", put(5, "session", to="x")),
    Mutation("is not the last the end", 6, "is not the last", lambda rows: rows.append(rows[3])),
    Mutation("cut off", 4, "the file is cut off", lambda rows: rows.__delitem__(4)),
]

MUTATIONS: Mapping[str, Sequence[Mutation]] = {
    "mooncake": MOONCAKE,
    "bailian": BAILIAN,
    "agentic": AGENTIC,
    "tracon": TRACON,
}
