"""Streams of chats, `/v1/messages` and `/v1/responses` as vLLM 0.32 sends them, event by event."""

from __future__ import annotations

import json
from typing import Any


def named(name: str, **fields: Any) -> bytes:
    """One event with its name."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields}, separators=(',', ':'))}\n\n".encode()


MESSAGE = {"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": "m"}
MESSAGE_START = named("message_start", message={**MESSAGE, "usage": {"output_tokens": 0, "input_tokens": 8}})
MESSAGES = (
    MESSAGE_START,
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *(
        named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        for text in ("a", '"usage":{"input_tokens":1}\n\nevent: error\ndata: {}', "b")
    ),
    named("content_block_stop", index=0),
    named(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"output_tokens": 3, "cache_read_input_tokens": 4, "input_tokens": 4},
    ),
    named("message_stop"),
)


def message_error(code: int) -> bytes:
    """The end of a stream whose chat stream beneath had an error event: pydantic's complaint, which quotes its end."""
    quoted = f"input_value={{'error': {{'message': 'En...m': None, 'code': {code}}}}}, input_type=dict]"
    message = f"2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, {quoted}"
    return named("error", error={"type": "internal_error", "message": message})


RESPONSE = {"id": "resp_1", "object": "response", "model": "m", "instructions": "be kind", "tools": []}
RESPONSE_USAGE = {
    "input_tokens": 8,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0, "input_tokens_per_turn": []},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 11,
}


def whole_response(status: str) -> dict[str, Any]:
    return {**RESPONSE, "output": [{"type": "message"}], "status": status, "usage": RESPONSE_USAGE, "user": None}


RESPONSE_PREAMBLE = tuple(
    named(name, response={**RESPONSE, "status": "in_progress", "usage": None}, sequence_number=number)
    for number, name in enumerate(("response.created", "response.in_progress"))
)
RESPONSE_OUTPUT = tuple(
    named("response.output_text.delta", delta=text, sequence_number=number) for number, text in enumerate("abc", 2)
)
RESPONSES = (
    *RESPONSE_PREAMBLE,
    *RESPONSE_OUTPUT,
    named("response.completed", response=whole_response("completed"), sequence_number=5),
)


def chat_event(delta: dict[str, Any], finish_reason: str | None = None, *, index: int = 0) -> bytes:
    """One chunk of a chat with one choice."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


def chat_role(index: int = 0) -> bytes:
    """What a choice of a chat begins with."""
    return chat_event({"role": "assistant", "content": ""}, index=index)


def usage_event(completion_tokens: int) -> bytes:
    """The event before [DONE] of completions and chats, where the client asks for usage."""
    usage = {"prompt_tokens": 8, "completion_tokens": completion_tokens}
    chunk = {"id": "cmpl-1", "model": "m", "choices": [], "usage": usage}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"
CHAT = (chat_role(), *(chat_event({"content": text}) for text in "ab"), chat_event({"content": ""}, "stop"), DONE)
