"""One request and what came back: server-sent events to tokens and stamps.

A chunk carries a token when its token ids say so, else when the engine's running count rose, else when its text is not
empty; a chunk with only a role carries none. Stamps are those of the read that completed the event.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from results.measures.latency import TPOT, TTFT
from results.records.errors import DAMAGED_JSON
from results.records.schemas import RequestRecord, RequestStatus

EVENT_LIMIT_BYTES = 16 << 20
"""An event longer than this is garbage, not a chunk (a prompt's echoed ids are some 7 bytes each)."""
ERROR_BODY_LIMIT_BYTES = 8 << 10


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Listener(Protocol):
    """Follows a request: called once at its first token and once at its end."""

    def first_token(self, exchange: Exchange) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...


@dataclass(slots=True, eq=False)
class Exchange:
    """One request in flight, then its outcome. It ends exactly once: complete, failed or cut.

    One that is never sent is made with its `status`, and with the reason as its `error`.
    """

    index: int
    listener: Listener
    t_intended_ns: int
    """When it is due; 0 = that never came."""
    warmup: bool = False
    inflight_at_send: int = 0
    stamps: array[int] | None = None
    """Arrival of every chunk that carried a token; None = not recorded."""
    instance: str = ""
    """The instance that answered, by a header of the response; empty = it has none."""
    status: RequestStatus | None = None
    """None while in flight."""
    t_send_ns: int = 0
    """0 = not sent."""
    t_bytes_ns: int = 0
    """Last read that brought bytes of this response; 0 = none yet."""
    t_first_ns: int = 0
    t_last_ns: int = 0
    t_end_ns: int = 0
    chunks: int = 0
    tokens: int = 0
    """Counted from the chunks; a chunk without ids or a count is one."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    """Why it failed, as the engine or the connection reported it."""
    fault: bool = False
    """The stream is garbage: nothing further in it can be trusted."""
    done_marker: bool = False
    _partial: bytes = b""
    _error_body: bytes = b""
    _ids_seen: bool = False

    def feed(self, body: bytes, t_ns: int) -> None:
        """Body bytes of the response, stamped when they were read."""
        if self.http_status != 200:
            self._error_body = (self._error_body + body)[:ERROR_BODY_LIMIT_BYTES]
            return
        if self._partial or b"\r" in body or not body.endswith(b"\n\n"):
            body = self._take_whole_events(body)
        for event in body.split(b"\n\n"):
            if event:
                self._read_event(event, t_ns)

    def complete(self, t_ns: int) -> None:
        """End the request with its whole response: OK, or an error where the response is not as requested."""
        if self.http_status != 200:
            self.error = f"HTTP {self.http_status}: {_read_error_text(self._error_body)}"
        elif self.error is None and not self.done_marker:
            self.error = f"the stream ended without [DONE] {self._describe_received()}"
        elif self.error is None and not self.chunks:
            self.error = "the stream carried no token"
        elif self.error is None and self.finish_reason in ("abort", "error"):
            self.error = f"the engine ended it with finish_reason {self.finish_reason!r} {self._describe_received()}"
        self._set_end(RequestStatus.OK if self.error is None else RequestStatus.ERROR, t_ns)

    def fail(self, error: str, t_ns: int) -> None:
        """End the request as an error; what was received stays."""
        if self.error is None:
            self.error = f"{error} {self._describe_received()}" if self.t_bytes_ns else error
        self._set_end(RequestStatus.ERROR, t_ns)

    def cut(self, t_ns: int) -> None:
        """End the request as CUT: the load ended first."""
        self._set_end(RequestStatus.CUT, t_ns)

    @property
    def ttft_s(self) -> float | None:
        return TTFT.value(self.t_send_ns, self.t_first_ns or None)

    @property
    def counted_tokens(self) -> int | None:
        """By the engine's usage, else by the ids in the chunks; None where there is neither."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return self.tokens if self._ids_seen else None

    @property
    def tpot_s(self) -> float | None:
        return TPOT.value(self.t_first_ns or None, self.t_last_ns or None, self.counted_tokens)

    def sent_fields(self, input_tokens: int, output_tokens: int) -> dict[str, Any]:
        """The fields of its SentRequest; only after the end, or of a request that is never sent."""
        if self.status is None:
            raise RuntimeError(f"request {self.index} is still in flight")
        return {
            "index": self.index,
            "status": self.status,
            "t_send_ns": self.t_send_ns or None,
            "t_first_token_ns": self.t_first_ns or None,
            "t_last_token_ns": self.t_last_ns or None,
            "t_end_ns": self.t_end_ns or None,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.counted_tokens,
            "cached_tokens": self.cached_tokens,
            "chunks": self.chunks,
            "http_status": self.http_status,
            "finish_reason": self.finish_reason,
            "error": self.error,
        }

    def record(self, input_tokens: int, output_tokens: int) -> RequestRecord:
        """The row of the requests file; only after the end."""
        return RequestRecord(
            **self.sent_fields(input_tokens, output_tokens),
            warmup=self.warmup,
            t_intended_ns=self.t_intended_ns,
            inflight_at_send=self.inflight_at_send,
        )

    def _set_end(self, status: RequestStatus, t_ns: int) -> None:
        if self.status is not None:
            return
        self.status = status
        self.t_end_ns = t_ns
        self.listener.ended(self)

    def _describe_received(self) -> str:
        return f"(after {self.chunks} token chunks)"

    def _take_whole_events(self, body: bytes) -> bytes:
        """The complete events so far, with uniform line ends; an incomplete one waits for more bytes."""
        text = self._partial + body
        if b"\r" in text:
            held = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        cut = text.rfind(b"\n\n")
        cut = 0 if cut < 0 else cut + 2
        self._partial = text[cut:]
        if len(self._partial) > EVENT_LIMIT_BYTES:
            self._refuse_garbage(f"an event of more than {EVENT_LIMIT_BYTES} bytes", self._partial)
        return text[:cut]

    def _read_event(self, event: bytes, t_ns: int) -> None:
        if event.startswith(b"data: ") and b"\n" not in event:
            payload = event[6:]
        else:
            payload = b"\n".join(_list_data_lines(event))
            if not payload:
                return
        if payload == b"[DONE]":
            self.done_marker = True
            return
        try:
            chunk = _decode_chunk(payload)
        except DAMAGED_JSON as error:
            self._refuse_garbage(f"malformed chunk: {error}", payload)
            return
        if chunk.error is not None:
            reported = _read_error_text(bytes(payload))
            self.error = f"the engine reported an error in the stream: {reported} {self._describe_received()}"
            return
        self._count_tokens(chunk, t_ns)

    def _count_tokens(self, chunk: _Chunk, t_ns: int) -> None:
        tokens, usage = 0, chunk.usage
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            if choice.token_ids is not None:
                self._ids_seen = True
                tokens += len(choice.token_ids)
            elif usage is not None and usage.completion_tokens is not None:
                tokens += max(0, usage.completion_tokens - self.tokens)
            else:
                tokens += _has_text(choice)
        if usage is not None:
            self._store_usage(usage)
        if not tokens:
            return
        self.tokens += tokens
        self.chunks += 1
        self.t_last_ns = t_ns
        if self.stamps is not None:
            self.stamps.append(t_ns)
        if not self.t_first_ns:
            self.t_first_ns = t_ns
            self.listener.first_token(self)

    def _store_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _refuse_garbage(self, what: str, data: bytes) -> None:
        if self.error is None:
            self.error = f"{what}: {data[:80].decode('utf-8', 'backslashreplace')!r} {self._describe_received()}"
        self.fault = True


class PendingPrefill:
    """Prompt tokens of the requests in flight that have no first token yet; every client counts with this class."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0

    def add_sent(self, input_tokens: int) -> None:
        self.tokens += input_tokens

    def remove_started(self, input_tokens: int) -> None:
        """Subtract a request at its first token."""
        self.tokens -= input_tokens

    def remove_ended(self, exchange: Exchange, input_tokens: int) -> None:
        """Subtract a request that ended without a first token; any other is already subtracted."""
        if not exchange.t_first_ns:
            self.tokens -= input_tokens


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta is not None and (delta.content or delta.reasoning or delta.reasoning_content)))


def _list_data_lines(event: bytes) -> Iterator[bytes]:
    """The data of an event by the SSE rules: without comments, other fields and one leading space."""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            yield line[6:] if line.startswith(b"data: ") else line[5:]


def _read_error_text(body: bytes) -> str:
    """The message in an OpenAI- or FastAPI-shaped error body, else the start of the body."""
    try:
        body_json = msgspec.json.decode(body)
    except DAMAGED_JSON:
        body_json = None
    for key in ("error", "message", "detail"):
        if isinstance(body_json, dict) and key in body_json:
            body_json = body_json[key]
    text = body_json if isinstance(body_json, str) else body.decode("utf-8", "backslashreplace")
    return " ".join(text.split())[:300] or "(no body)"
