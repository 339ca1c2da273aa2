"""What the router reads of bodies: enough to route by, whatever they look like."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from runners.router.facts import read_facts
from runners.router.prefix_index import block_keys

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=4)
)


def facts_of(body: object, *, chat: bool = False, block_tokens: int = 4) -> tuple[str, tuple[int, ...], int, int]:
    facts = read_facts(json.dumps(body).encode(), block_tokens, chat=chat)
    return facts.session, facts.keys, facts.input_tokens, facts.max_tokens


def test_token_ids_are_counted_and_keyed_exactly() -> None:
    ids = list(range(100, 111))
    session, keys, count, longest = facts_of({"prompt": ids, "max_tokens": 7, "user": "u"})
    assert (session, count, longest) == ("u", 11, 7)
    assert keys == block_keys(ids, 4)
    assert len(keys) == 2


def test_text_counts_four_bytes_as_a_token() -> None:
    assert facts_of({"prompt": "a" * 33})[2] == 9
    assert facts_of({"prompt": ""})[2] == 0


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    turns = [{"role": "user", "content": "x" * 50}, {"role": "assistant", "content": "y" * 50}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    short = facts_of({"messages": turns[:1], "tools": tools}, chat=True)[1]
    long = facts_of({"messages": turns, "tools": tools}, chat=True)[1]
    assert len(long) > len(short) > 0
    assert long[: len(short)] == short
    other = facts_of({"messages": turns, "tools": []}, chat=True)[1]
    assert other[0] != long[0]


def test_several_prompts_are_counted_together() -> None:
    assert facts_of({"prompt": [[1, 2, 3, 4], [5, 6]]})[1:3] == (block_keys([1, 2, 3, 4], 4), 6)
    assert facts_of({"prompt": ["abcd", "efgh"]})[2] >= 2


def test_what_the_api_says_holds_where_a_length_is_not_given() -> None:
    assert facts_of({"prompt": [1]})[3] == 16
    assert facts_of({"messages": []}, chat=True)[3] == 0
    assert facts_of({"messages": [], "max_completion_tokens": 5, "max_tokens": 9}, chat=True)[3] == 5


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_no_body_is_refused_here(body: bytes, chat: bool) -> None:
    facts = read_facts(body, 4, chat=chat)
    assert facts.input_tokens >= 0
    assert facts.max_tokens >= 0


@given(JSON, JSON, JSON, JSON, st.booleans())
def test_no_field_is_refused_here(prompt: object, session: object, user: object, tokens: object, chat: bool) -> None:
    body = {"prompt": prompt, "messages": prompt, "session_id": session, "user": user, "max_tokens": tokens}
    facts = read_facts(json.dumps(body).encode(), 4, chat=chat)
    assert len(facts.session) <= 256
    assert facts.max_tokens >= 0
