"""The facts that the router reads from a response: a requested pause, the end, an error event, token counts.

Bodies are never changed. Streams of completions and chats end with `data: [DONE]`, streams of messages and responses
with a named event. Generated text has its line feeds escaped, so it cannot imitate an event's line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

NAMED_EVENTS = (b"/v1/messages", b"/v1/responses")
"""Prefixes of the paths whose streams name each event in an `event:` line."""
ERROR_LIMIT = 500
COUNT_LIMIT = 1 << 53
"""Larger counts are ignored: not every JSON reader can represent them."""
PAUSE_DIGITS = 12
_DONE = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed|cancelled))\s*$)",
    re.MULTILINE,
)
_ERROR = re.compile(rb'^data: ?(\{\s*"error"\s*:.*\})\s*$', re.MULTILINE)
_NAMED_ERROR = re.compile(rb"^event: ?(?:error|response\.failed)\r?\ndata: ?(.*)$", re.MULTILINE)
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)
FIRST_EVENT_BYTES = 2048
"""An event without a choice is shorter, and in an event with a chat's role the role comes early."""
_ROLE_ALONE = re.compile(
    rb'"delta"\s*:\s*\{\s*"role"\s*:\s*"\w{1,32}"(?:\s*,\s*"\w{1,32}"\s*:\s*(?:""|null|\[\]))*\s*\}'
)
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_EVENT = re.compile(rb"^event: ?(\S+)", re.MULTILINE)
_BEFORE_OUTPUT = frozenset((b"response.created", b"response.queued", b"response.in_progress"))
_QUOTED_CODE = re.compile(r"'code': (\d{3})\}")
_CODES = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "NotImplementedError": 501,
}
"""Errors that the request itself caused, by name, with their HTTP codes."""
_raw_decode = json.JSONDecoder().raw_decode


class Usage(NamedTuple):
    """Token counts of a response; None = not reported."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


def pause_s(headers: Mapping[bytes, bytes], *, refusal: bool) -> float:
    """The pause an instance asks for: `x-recommended-pause-ms`, or the `retry-after` of a refusal; 0 = neither."""
    pause = headers.get(b"x-recommended-pause-ms", b"")
    if pause.isdigit() and len(pause) <= PAUSE_DIGITS:
        return int(pause) / 1e3
    after = headers.get(b"retry-after", b"") if refusal else b""
    return float(after) if after.isdigit() and len(after) <= PAUSE_DIGITS else 0.0


def is_preamble(stream: bytes, *, follows: bool = False) -> bool:
    """Whether a stream of `/v1/responses` has only the events that vLLM sends before it computes anything.

    `follows`: such events came before these bytes, which may have none.
    """
    names = _EVENT.findall(stream)
    return (follows or bool(names)) and _BEFORE_OUTPUT.issuperset(names)


def is_empty(stream: bytes, *, follows: bool = False) -> bool:
    """Whether a stream of completions or a chat has only events without a choice, roles, or [DONE]: no token has come.

    vLLM ends a request so that it aborts before the first token, as it does at its shutdown: a chat sends its roles
    before. `follows`: such events came before these bytes, which may have none, as the last chunk of a response.
    """
    begin = stream[:FIRST_EVENT_BYTES]
    if not follows and b'"choices":[]' not in begin and b"[DONE]" not in begin and b'"delta"' not in begin:
        return False  # nearly every completion: its first event has a token, and may echo a long prompt
    events = _DATA.findall(stream)
    if not (follows or events) or not all(map(_is_event_empty, events)):
        return False
    return b'"' not in _DATA.sub(b"", stream)  # else it begins within an event, which may have a token


def _is_event_empty(event: bytes) -> bool:
    return event.startswith(b"[DONE]") or b'"choices":[]' in event or has_role_alone(event)


def has_role_alone(event: bytes) -> bool:
    """Whether every choice of a chat's event has its role and nothing else, no finish reason either."""
    roles = len(_ROLE_ALONE.findall(event))
    return 0 < roles == event.count(b'"delta"') and _FINISHED.search(event) is None


def is_aborted(piece: bytes) -> bool:
    """Whether a choice in these bytes of an answer, streamed or not, was ended by the instance before it was whole."""
    return b'"abort"' in piece and _ABORTED.search(piece) is not None


def is_done(tail: bytes) -> bool:
    """Whether `tail` contains the final event of its stream."""
    return _DONE.search(tail) is not None


def read_error_event(tail: bytes) -> tuple[str, int] | None:
    """Message and HTTP code of an error event at the end of a stream (500 if unknown); None = no error event."""
    if b"error" not in tail and b"response.failed" not in tail:
        return None
    line = _NAMED_ERROR.search(tail) or _ERROR.search(tail)
    if line is None:
        return None
    try:
        event = msgspec.json.decode(line[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = _find_error(event)
    return None if error is None else (str(error.get("message") or "")[:ERROR_LIMIT], _read_code(error))


def _find_error(event: object) -> dict[str, Any] | None:
    """The error in an event, or in its response, or the event itself (`error` of `/v1/responses`)."""
    if not isinstance(event, dict):
        return None
    response = event.get("response")
    holder = response if isinstance(response, dict) else event
    error = holder.get("error")
    if isinstance(error, dict):
        return error
    return event if event.get("type") in ("error", "response.failed") else None


def _read_code(error: dict[str, Any]) -> int:
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    for name in (code, error.get("type")):
        if isinstance(name, str):
            if name in _CODES:
                return _CODES[name]
            if name.startswith("invalid_") or "image" in name:
                return 400
    # vLLM's /v1/messages quotes an error of the underlying chat request in the message of its own error.
    quoted = _QUOTED_CODE.search(str(error.get("message")))
    return int(quoted[1]) if quoted else 500


def read_usage(text: bytes) -> Usage:
    """The token counts at the end of a response, from its last bytes."""
    start = text.rfind(b'"usage":')
    if start < 0 or b'_tokens"' not in text[start:]:
        return Usage()
    try:
        usage, _ = _raw_decode(text[start + 8 :].decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return Usage()
    return count_usage(usage)


def count_usage(usage: object) -> Usage:
    """The token counts in a response's `usage`, of any API; none if it is not an object."""
    if not isinstance(usage, dict):
        return Usage()
    if "prompt_tokens" in usage:
        cached = _read_cached(usage.get("prompt_tokens_details"))
        return Usage(_read_count(usage["prompt_tokens"]), cached, _read_count(usage.get("completion_tokens")))
    if "input_tokens_details" in usage:
        cached = _read_cached(usage["input_tokens_details"])
        return Usage(_read_count(usage.get("input_tokens")), cached, _read_count(usage.get("output_tokens")))
    return _read_message_usage(usage)


def _read_message_usage(usage: dict[str, Any]) -> Usage:
    """The counts of `/v1/messages`, whose `input_tokens` excludes tokens read from the cache or written to it."""
    cached = _read_count(usage.get("cache_read_input_tokens"))
    fresh = _read_count(usage.get("input_tokens"))
    written = _read_count(usage.get("cache_creation_input_tokens"))
    prompt = None if fresh is None else fresh + (cached or 0) + (written or 0)
    return Usage(prompt, cached, _read_count(usage.get("output_tokens")))


def _read_cached(details: object) -> int | None:
    return _read_count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _read_count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < COUNT_LIMIT
    return value if is_count else None  # type: ignore[return-value]
