"""What the router reads of bodies: enough to route by, whatever they look like."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runners.router import facts
from runners.router.facts import read_facts, read_session_name
from runners.router.prefix_index import make_block_keys

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=4)
)


def facts_of(body: object, *, chat: bool = False, block_tokens: int = 4) -> tuple[str, tuple[int, ...], int, int]:
    read = read_facts(json.dumps(body).encode(), block_tokens, chat=chat)
    return read.session, read.keys, read.input_tokens, read.max_tokens


def test_token_ids_are_counted_and_keyed_exactly() -> None:
    ids = list(range(100, 111))
    session, keys, count, longest = facts_of({"prompt": ids, "max_tokens": 7, "user": "u"})
    assert (session, count, longest) == ("u", 11, 7)
    assert keys == make_block_keys(ids, 4)
    assert len(keys) == 2


def test_the_token_ids_of_a_long_body_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    read_body = facts._read_body

    def note_length(body: bytes) -> facts._Body:
        lengths.append(len(body))
        return read_body(body)

    monkeypatch.setattr(facts, "_read_body", note_length)
    ids = list(range(4000))
    assert facts_of({"user": "u", "prompt": ids, "max_tokens": 7}) == ("u", make_block_keys(ids, 4), 4000, 7)
    assert max(lengths) < 100, "the reader of the other fields does not see them"


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
    assert facts_of({"prompt": [[1, 2, 3, 4], [5, 6]]})[1:3] == (make_block_keys([1, 2, 3, 4], 4), 6)
    assert facts_of({"prompt": ["abcd", "efgh"]})[2] >= 2


def test_a_prompt_is_read_the_same_after_one_that_cannot_be_read() -> None:
    ids = list(range(40))
    expected = facts_of({"prompt": ids})
    for other in ([1, -1], [1, 1.5], [1 << 70], ["a"], [], "text", list(range(20_000))):
        facts_of({"prompt": other})
        assert facts_of({"prompt": ids}) == expected


def test_threads_read_prompts_at_the_same_time() -> None:
    prompts = [list(range(count, 2 * count)) for count in range(20, 60)]
    bodies = [json.dumps({"prompt": prompt}).encode() for prompt in prompts]
    expected = [(make_block_keys(prompt, 4), len(prompt)) for prompt in prompts]

    barrier = Barrier(4)

    def read_all(_: int) -> list[tuple[tuple[int, ...], int]]:
        barrier.wait()
        reads = [read_facts(body, 4, chat=False) for body in bodies * 100]
        return [(read.keys, read.input_tokens) for read in reads]

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(read == expected * 100 for read in threads.map(read_all, range(4)))
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_completion_tokens": 1, "max_output_tokens": 2, "max_tokens": 3}, 1),
        ({"max_output_tokens": 2, "max_tokens": 3}, 2),
        ({"max_completion_tokens": None, "max_output_tokens": None, "max_tokens": 3}, 3),
        ({"max_completion_tokens": 0, "max_tokens": 3}, 0),
        ({}, 16),
    ],
)
def test_the_first_limit_that_is_stated_counts(limits: dict[str, int | None], expected: int) -> None:
    assert facts_of({"prompt": [1], **limits})[3] == expected


@pytest.mark.parametrize("ids", [[1, -1], [1, 1.5], [1, "a"], [1, 1 << 64], [1, None], [1, [2]]])
def test_what_is_no_list_of_token_ids_counts_by_its_bytes(ids: list[object]) -> None:
    assert facts_of({"prompt": ids})[2] == -(-(len(json.dumps(ids)) - 2) // 4)


def test_what_a_conversation_begins_with_counts() -> None:
    messages = [{"role": "user", "content": "x" * 40}]
    rules = "y" * 400
    bare = facts_of({"messages": messages}, chat=True)
    with_system = facts_of({"messages": messages, "system": rules}, chat=True)
    assert with_system[2] >= bare[2] + 100
    other = facts_of({"messages": messages, "system": "z" * 400}, chat=True)
    assert other[1][0] != with_system[1][0]
    items = [{"type": "message", "role": "user", "content": "x" * 40}]
    short = facts_of({"input": items, "instructions": rules}, chat=True)
    long = facts_of({"input": items * 2, "instructions": rules}, chat=True)
    assert long[1][: len(short[1])] == short[1]
    assert short[2] > 110


def test_token_ids_to_embed_are_counted_exactly() -> None:
    assert facts_of({"input": [5, 6, 7, 8, 9]}, chat=True)[1:3] == (make_block_keys([5, 6, 7, 8], 4), 5)
    assert facts_of({"input": [[1, 2], [3, 4, 5]]}, chat=True)[2] == 5


def test_the_response_that_a_request_continues_is_read() -> None:
    body = {"input": "more", "previous_response_id": "resp_1"}
    assert read_facts(json.dumps(body).encode(), 4, chat=True).previous == "resp_1"
    assert read_facts(b'{"input": "more", "previous_response_id": null}', 4, chat=True).previous == ""


def test_what_the_api_says_holds_where_a_length_is_not_given() -> None:
    assert facts_of({"prompt": [1]})[3] == 16
    assert facts_of({"messages": []}, chat=True)[3] == 0
    assert facts_of({"messages": [], "max_completion_tokens": 5, "max_tokens": 9}, chat=True)[3] == 5


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_no_body_is_refused_here(body: bytes, chat: bool) -> None:
    read = read_facts(body, 4, chat=chat)
    assert read.input_tokens >= 0
    assert read.max_tokens >= 0


@given(JSON, JSON, JSON, JSON, st.booleans())
@example([-(2**63) - 1], None, None, None, False)
def test_no_field_is_refused_here(prompt: object, session: object, user: object, tokens: object, chat: bool) -> None:
    body = {"prompt": prompt, "messages": prompt, "session_id": session, "user": user, "max_tokens": tokens}
    read = read_facts(json.dumps(body).encode(), 4, chat=chat)
    assert len(read.session) <= 256
    assert read.max_tokens >= 0


def test_long_session_ids_that_begin_alike_are_different_sessions() -> None:
    ids = ["x" * 255, "x" * 256, *(f"{'x' * 300}{number}" for number in range(3))]
    names = [read_session_name(one) for one in ids]
    assert len(set(names)) == len(ids)
    assert names[:2] == ids[:2]
    assert {len(name) for name in names[1:]} == {256}
    assert [read_session_name(one.encode()) for one in ids] == names, "in the header as in the body"
