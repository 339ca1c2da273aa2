"""The bodies of prefill and decode requests: the prompt, nothing that ends one early or moves the wrong tokens."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.router.facts import LONG_BYTES
from runners.router.transfer.move_rules import measure_held_prefix
from runners.router.transfer.request_bodies import (
    ANSWER_FIELDS,
    OWN,
    PARTS_LIMIT,
    PROMPT_LIMIT_BYTES,
    ClientRequest,
    Unfit,
    add_pull_params,
    make_handover_prefill_body,
    make_prefix_body,
    read_answer,
    read_request,
    require_movable_prefix,
    require_one_prefill,
    token_ids,
    tokenize_body,
)

PARAMS = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "x"}
ONE_TOKEN: dict[str, Any] = {"max_tokens": 1, "ignore_eos": True, "stream": False, "temperature": 0.0, OWN: PARAMS}
"""What every request that computes one token for a transfer has."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
sampling = st.dictionaries(
    st.sampled_from(sorted({*ANSWER_FIELDS, "top_p", "user", "model", "cache_salt"})), json_values
)
ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=40)


def encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """A body as the engine reads it."""
    fields: dict[str, Any] = json.loads(msgspec.json.encode(body))
    return fields


@given(ids, sampling, st.integers(0, 40), st.none() | st.integers(-3, 3))
def test_a_migrations_requests_are_the_prefix_and_one_token(
    prompt: list[int], fields: dict[str, Any], cut: int, priority: int | None
) -> None:
    asked = read_request(COMPLETIONS, encoded({**fields, "prompt": prompt}))
    assert asked.ids == tuple(prompt)
    request = sent(make_prefix_body(asked, prompt[:cut], PARAMS, priority))
    assert request["prompt"] == prompt[:cut]
    assert {name: request[name] for name in ONE_TOKEN} == ONE_TOKEN
    assert request.get("priority") == priority
    assert set(request) <= {*ONE_TOKEN, "prompt", "priority", "model", "cache_salt"}, "nothing else of the client's"
    assert all(request.get(name) == fields.get(name) for name in ("model", "cache_salt"))


@given(st.sampled_from([COMPLETIONS, CHAT]), sampling, json_values)
def test_a_handovers_prefill_request_has_the_same_prompt_and_cannot_end_before_its_one_token(
    path: str,
    fields: dict[str, Any],
    tools: Any,  # noqa: ANN401
) -> None:
    prompt: dict[str, Any] = (
        {"messages": MESSAGES, "tools": tools} if path == CHAT else {"prompt": "Once", "tools": tools}
    )
    request = sent(make_handover_prefill_body(read_request(path, encoded({**fields, **prompt})), PARAMS))
    expected = prompt | ONE_TOKEN
    assert {name: request[name] for name in expected} == expected
    ends = {"stop", "stop_token_ids", "min_tokens", "n", "best_of", "stream_options", "max_completion_tokens"}
    assert not set(request) & ends
    assert request.get("top_p") == fields.get("top_p")


@given(sampling, st.sampled_from([None, 2]), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_a_add_pull_paramsd_body_is_the_clients_with_the_parameters(
    fields: dict[str, Any], indent: int | None, padding: str, null: bool
) -> None:
    given_fields = {**({OWN: None} if null else {}), **fields, "prompt": [1, 2]}
    body = (padding + json.dumps(given_fields, indent=indent) + padding).encode()
    assert json.loads(add_pull_params(body, PARAMS)) == {**given_fields, OWN: PARAMS}
    assert add_pull_params(body, PARAMS).startswith(body.rstrip()[:-1].rstrip())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, b"no json"),
        (COMPLETIONS, b"[1]"),
        (COMPLETIONS, b"\xff"),
        (COMPLETIONS, encoded({"prompt": []})),
        (COMPLETIONS, encoded({"prompt": ["a", "b"]})),
        (COMPLETIONS, encoded({"prompt": [[1], [2]]})),
        (COMPLETIONS, encoded({"prompt": [1, 2.0]})),
        (COMPLETIONS, encoded({"prompt": [1], "prompt_embeds": "AA=="})),
        (COMPLETIONS, encoded({"messages": MESSAGES})),
        (CHAT, encoded({"prompt": "a"})),
        (CHAT, encoded({"messages": MESSAGES, OWN: {"do_remote_decode": True}})),
    ],
)
def test_what_has_no_single_prompt_or_moves_kv_itself_is_left_alone(path: str, body: bytes) -> None:
    with pytest.raises(Unfit):
        read_request(path, body)


def test_what_would_take_long_to_read_is_left_alone() -> None:
    fields = b"".join(b',"%d":1' % number for number in range(LONG_BYTES // 8))
    for path, body in (
        (COMPLETIONS, b'{"prompt":[%b1]}' % (b"1," * (PROMPT_LIMIT_BYTES // 2))),
        (COMPLETIONS, b'{"prompt":"%b"}' % (b"x" * PROMPT_LIMIT_BYTES)),
        (CHAT, b'{"messages":[{}]%b}' % fields),
    ):
        with pytest.raises(Unfit, match="more than"):
            read_request(path, body)
    assert read_request(CHAT, b'{"messages":["%b"]}' % fields.replace(b'"', b"'")).chat, "a long prompt is read"


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}],
)
def test_a_request_that_prefills_more_than_once_is_not_handed_over(fields: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        require_one_prefill(read_request(COMPLETIONS, encoded({"prompt": [1], **fields})))
    require_one_prefill(read_request(COMPLETIONS, encoded({"prompt": [1], "n": 1, "best_of": None, "echo": False})))


def test_a_prompt_with_an_image_or_cut_by_the_engine_is_not_moved() -> None:
    text = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, "plain"]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    require_movable_prefix(read_request(CHAT, encoded({"messages": [text, {"role": "assistant", "content": None}]})))
    long = {"role": "user", "content": "x" * PROMPT_LIMIT_BYTES}
    odd = {"role": "user", "content": [{"type": {"text": 1}}]}
    unfit: tuple[dict[str, Any], ...] = (
        {"messages": [text, image]}, {"messages": [text], "truncate_prompt_tokens": 5}, {"messages": [long]},
        {"messages": [odd]}, {"messages": [text] * (PARTS_LIMIT // 2)}, {"messages": [{}] * (PARTS_LIMIT + 1)},
        {"messages": [{"content": None, "logprob": 10**30}]},
    )  # fmt: skip
    for fields in unfit:
        with pytest.raises(Unfit):
            require_movable_prefix(read_request(CHAT, encoded(fields)))


def test_text_is_asked_for_with_all_that_makes_its_tokens() -> None:
    chat = {
        "model": "m", "messages": MESSAGES, "tools": [{"type": "function"}], "chat_template_kwargs": {"thinking": True},
        "temperature": 1, "stream": True,
    }  # fmt: skip
    wanted = {name: chat[name] for name in ("model", "messages", "tools", "chat_template_kwargs")}
    assert json.loads(tokenize_body(read_request(CHAT, encoded(chat)))) == wanted
    text = {"model": "m", "prompt": "Once", "add_special_tokens": False, "max_tokens": 3}
    assert json.loads(tokenize_body(read_request(COMPLETIONS, encoded(text)))) == {
        "model": "m", "prompt": "Once", "add_special_tokens": False,
    }  # fmt: skip
    assert token_ids(b'{"count": 2, "tokens": [5, 6]}') == (5, 6)
    for page in (b"", b"{}", b'{"tokens": []}', b'{"tokens": ["a"]}', b"[]"):
        with pytest.raises(Unfit):
            token_ids(page)


def use_fully(asked: ClientRequest) -> None:
    for require in (require_movable_prefix, require_one_prefill):
        with contextlib.suppress(Unfit):
            require(asked)
    tokenize_body(asked)
    msgspec.json.encode(make_handover_prefill_body(asked, PARAMS))


@pytest.mark.parametrize(
    "value",
    [b"[%b[]]" % (b"[]," * 340_000), b"[%b{}]" % (b'{"content":[[],{},{"a":[]}]},' * 34_000)],
    ids=["lists", "parts"],
)
@pytest.mark.parametrize("name", ["messages", "tools", "metadata"])
def test_no_value_is_built_that_is_only_forwarded(name: str, value: bytes) -> None:
    body = b'{"messages":[{}],"%b":%b}' % (name.encode(), value)
    assert len(body) < LONG_BYTES + 100, "the event loop reads it"
    tracemalloc.start()
    try:
        use_fully(read_request(CHAT, body))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 6 * len(body)


def test_of_an_answer_only_what_is_used_is_built() -> None:
    page = b'{"choices":[{"finish_reason":"length"}],"prompt_logprobs":[%b[]]}' % (b"[]," * 350_000)
    tracemalloc.start()
    try:
        assert read_answer(page).finish_reason == "length"
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < len(page)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 10_000), st.sampled_from([1, 16, 32, 128]))
def test_a_held_prefix_is_whole_blocks_within_the_prompt(
    reported: int, reported_of: int, tokens: int, block: int
) -> None:
    held = measure_held_prefix(min(reported, reported_of), reported_of, tokens, block)
    assert 0 <= held <= tokens
    assert held % block == 0
    if reported_of == tokens and reported <= reported_of:
        assert held == reported // block * block


def test_a_share_of_text_is_taken_for_the_same_share_of_its_tokens() -> None:
    assert measure_held_prefix(600, 1000, 800, 16) == 480


@pytest.mark.parametrize(
    ("page", "reported"),
    [
        ({"choices": [{"finish_reason": "length"}]}, ("length", None, None)),
        ({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}, ("stop", 3, None)),
        (
            {
                "choices": [{"finish_reason": "length"}],
                "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            },
            ("length", 3, 2),
        ),
        ({"choices": [{"finish_reason": "length"}], "usage": None}, ("length", None, None)),
    ],
)
def test_an_answer_says_how_it_ended_and_what_was_cached(page: dict[str, Any], reported: tuple[Any, ...]) -> None:
    request = read_answer(encoded(page))
    assert (request.finish_reason, request.prompt_tokens, request.cached_tokens) == reported


@pytest.mark.parametrize("page", [b"", b"{}", b'{"choices": []}', b'{"choices": 1}', b"[]", b"\xff"])
def test_what_is_no_answer_is_none(page: bytes) -> None:
    with pytest.raises(Unfit):
        read_answer(page)
