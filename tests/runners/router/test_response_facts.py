"""What the router reads of responses: ends, errors, token counts and requests for a pause, of every API of vLLM."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runners.router.response_facts import (
    Usage,
    is_aborted,
    is_done,
    is_empty,
    is_preamble,
    pause_s,
    read_error_event,
    read_usage,
)
from tests.servers.api_streams import (
    CHAT,
    DONE,
    MESSAGES,
    RESPONSE_OUTPUT,
    RESPONSE_PREAMBLE,
    RESPONSE_USAGE,
    RESPONSES,
    chat_event,
    chat_role,
    message_error,
    named,
    whole_response,
)


def chunked(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


def test_token_counts_are_found_at_the_end_of_a_stream() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    chunk = b"data: " + json.dumps({"choices": [], "usage": usage}, separators=(",", ":")).encode() + b"\n\n"
    counts = read_usage(b'data: {"usage":null}\n\n' + chunk + b"data: [DONE]\n\n")
    assert counts == Usage(8, 4, 3)
    spaced = read_usage(b"data: " + json.dumps({"usage": usage}).encode())
    assert spaced == counts
    assert read_usage(b'data: {"usage":null}\n\ndata: [DONE]\n\n') == Usage()


@pytest.mark.parametrize("events", [MESSAGES, RESPONSES], ids=["messages", "responses"])
def test_token_counts_of_every_api_are_the_same(events: tuple[bytes, ...]) -> None:
    assert read_usage(chunked(*events[-3:])) == Usage(8, 4, 3)


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ({"content": [], "usage": {"input_tokens": 4, "output_tokens": 3, "cache_read_input_tokens": 4}}, (8, 4, 3)),
        ({"usage": {"input_tokens": 4, "output_tokens": 3, "cache_creation_input_tokens": 2}}, (6, None, 3)),
        ({"usage": {"input_tokens": 8, "output_tokens": 3}}, (8, None, 3)),
        ({"output": [], "usage": RESPONSE_USAGE, "user": None}, (8, 4, 3)),
        ({"usage": {"prompt_tokens": True, "completion_tokens": -1}}, (None, None, None)),
        ({"usage": {"prompt_tokens": 1 << 80, "completion_tokens": 1.5}}, (None, None, None)),
        ({"usage": {"output_tokens": 3}}, (None, None, 3)),
        ({"usage": [1]}, (None, None, None)),
    ],
)
def test_token_counts_of_a_whole_body(body: object, counts: tuple[int | None, ...]) -> None:
    assert read_usage(json.dumps(body).encode()) == counts


@given(st.binary(max_size=120))
@example(b'"usage":' + b"[" * 100_000 + b'"prompt_tokens"')
def test_token_counts_are_never_made_up(tail: bytes) -> None:
    counts = read_usage(tail)
    assert counts == Usage() or b'_tokens"' in tail


@pytest.mark.parametrize(
    "event", [*MESSAGES[-1:], *RESPONSES[-1:], b"data: [DONE]\n\n", named("response.incomplete", response={})]
)
def test_each_api_has_a_last_event(event: bytes) -> None:
    assert is_done(chunked(event))


@pytest.mark.parametrize("events", [MESSAGES, RESPONSES], ids=["messages", "responses"])
def test_before_its_last_event_no_stream_has_ended(events: tuple[bytes, ...]) -> None:
    assert not any(is_done(chunked(event)) for event in events[:-1])
    assert read_error_event(chunked(*events)) is None


def test_text_that_quotes_an_end_or_an_error_is_neither() -> None:
    quoted = b'e0\r\ndata: {"choices":[{"text":"\\ndata: [DONE]\\ndata: {\\"error\\": {}}"}]}\n\n\r\n'
    assert not is_done(quoted)
    assert read_error_event(quoted) is None


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'data: {"error": {"message": "m", "code": 503}}\n\n', ("m", 503)),
        (b'data: {"error":{"message":"m"}}\n\ndata: [DONE]\n\n', ("m", 500)),
        (b'data: {"error":{"message":"m","code":"context_length_exceeded"}}\n\n', ("m", 400)),
        (b'data: {"error":{"message":"m","type":"BadRequestError","code":null}}\n\n', ("m", 400)),
        (named("error", error={"type": "overloaded_error", "message": "m"}), ("m", 500)),
        (named("error", error={"type": "invalid_request_error", "message": "m"}), ("m", 400)),
        (named("error", error={"type": "request_too_large", "message": "m"}), ("m", 413)),
        (named("error", code="server_error", message="m", param=None), ("m", 500)),
        (named("error", code="invalid_prompt", message="m", param=None), ("m", 400)),
        (named("response.failed", response={"error": {"code": "server_error", "message": "m"}}), ("m", 500)),
        (named("response.failed", response={"error": {"code": "image_too_large", "message": "m"}}), ("m", 400)),
        (named("response.failed", response={"error": None}), ("", 500)),
        (named("response.incomplete", response=whole_response("incomplete")), None),
        (b"event: error\ndata: no json\n\n", None),
        (b"event: error\ndata: " + b"[" * 100_000 + b"\n\n", None),
    ],
)
def test_an_error_event_has_a_message_and_a_code(event: bytes, error: tuple[str, int] | None) -> None:
    assert read_error_event(chunked(event)) == error


@pytest.mark.parametrize("code", [400, 500])
def test_of_an_error_that_vllm_wraps_the_code_within_counts(code: int) -> None:
    error = read_error_event(chunked(message_error(code)))
    assert error is not None
    assert error[1] == code


def test_the_first_events_of_a_response_are_no_output() -> None:
    assert is_preamble(chunked(*RESPONSE_PREAMBLE))
    assert is_preamble(chunked(RESPONSE_PREAMBLE[0]))
    assert not is_preamble(chunked(*RESPONSE_PREAMBLE, RESPONSE_OUTPUT[0]))
    assert not is_preamble(b'data: {"type": "response.created"}\n\n')
    assert is_preamble(b'data: {"type": "response.created"}\n\n', follows=True)
    assert not is_preamble(RESPONSE_OUTPUT[0], follows=True)


def test_an_instance_may_ask_for_a_pause() -> None:
    assert pause_s({b"x-recommended-pause-ms": b"250"}, refusal=False) == 0.25
    assert pause_s({b"retry-after": b"3"}, refusal=True) == 3.0
    assert pause_s({b"retry-after": b"3"}, refusal=False) == 0.0
    assert pause_s({b"x-recommended-pause-ms": b"-5"}, refusal=True) == 0.0
    assert pause_s({b"x-recommended-pause-ms": b"9" * 5000}, refusal=True) == 0.0


def test_a_stream_without_a_choice_is_empty_until_one_comes() -> None:
    usage = b'data: {"choices":[],"usage":{"completion_tokens":0}}\n\n'
    token = b'data: {"choices":[{"text":"\\"choices\\":[] data: [DONE]"}]}\n\n'
    assert is_empty(usage)
    assert is_empty(b"4f\r\n" + usage + b"\r\n")
    assert is_empty(usage + b"data: [DONE]\n\n")
    assert is_empty(b"data: [DONE]\n\n")
    assert not is_empty(token)
    assert not is_empty(usage + token)
    assert not is_empty(b"")


def test_a_chat_is_empty_until_more_than_its_role_comes() -> None:
    assert is_empty(chunked(chat_role()))
    assert is_empty(chunked(chat_role(0), chat_role(1), DONE))
    assert is_empty(b'data: {"choices": [{"delta": {"role": "assistant", "content": null, "tool_calls": []}}]}\n\n')
    assert not is_empty(chunked(*CHAT))
    assert not is_empty(chat_event({"content": ""}), follows=True), "a token may have no text"
    assert not is_empty(chat_event({"content": ""}, "stop"), follows=True)
    assert not is_empty(chat_event({"role": "assistant", "content": ""}, "stop"))
    assert not is_empty(chat_event({"role": "assistant", "content": "a"}))
    assert not is_empty(b'data: {"choices":[{"delta":{"role":"assistant"}},{"delta":{"content":"a"}}]}\n\n')


def test_a_piece_that_begins_within_an_event_is_not_empty() -> None:
    token = chat_event({"content": "a"})
    for cut in (2, token.index(b"choices"), token.index(b"content")):
        assert not is_empty(chunked(token[cut:], DONE), follows=True)
    assert is_empty(b"0\r\n\r\n", follows=True)


def test_an_answer_names_its_abort_and_no_text_can() -> None:
    assert is_aborted(chat_event({"content": ""}, "abort"))
    assert is_aborted(json.dumps({"choices": [{"text": "a", "finish_reason": "abort"}]}).encode())
    assert not is_aborted(chat_event({"content": '"finish_reason":"abort"'}, "stop"))
    assert not is_aborted(chat_event({"content": "abort"}, "stop"))
