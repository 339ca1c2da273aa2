"""The bodies of a transfer's requests to engines, derived from a client's body: pure.

A migration's prefill and decode requests carry token ids, a prefix of the client's prompt. A handover's prefill request
is the client's body without the fields that shape only the answer; its decode request is the client's body plus
`kv_transfer_params`. Mooncake moves all blocks that the target lacks, so both must have the same tokens.

No value is built that is only forwarded: a body of small lists takes a hundred times as long to build as to skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import simdjson

from results.records.errors import DAMAGED_JSON
from runners.router.facts import LONG_BYTES
from runners.router.response_facts import count_usage

TEXT_PARTS = frozenset({None, "text", "input_text", "output_text", "refusal", "thinking", "reasoning"})
"""Message parts that consist of tokens alone; an image's KV depends on more than its placeholder tokens."""
PARTS_LIMIT = 1 << 14
"""Messages and parts of a conversation whose prefix is moved: each is read, which delays every stream."""
PROMPT_LIMIT_BYTES = 8 << 20
"""A longer prompt is not moved: it has more than a million tokens, and reading it would delay every stream."""
PROMPT_FIELDS = ("model", "cache_salt")
"""Fields besides the prompt that decide which blocks of the prefix cache it hits."""
TOKENIZED_TEXT = ("model", "add_special_tokens", "prompt")
TOKENIZED_CHAT = (
    "model", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
)  # fmt: skip
ANSWER_FIELDS = (
    "stream", "stream_options", "stream_interval", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens",
    "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output", "logprobs", "top_logprobs",
    "logprob_token_ids", "echo", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logit_bias", "allowed_token_ids", "bad_words", "temperature", "seed",
    "thinking_token_budget", "repetition_detection", "return_token_ids", "return_tokens_as_token_ids",
)  # fmt: skip
"""Dropped from a prefill request: they shape the answer, may end it before its one token, or make it invalid."""
ONE_TOKEN: Mapping[str, Any] = {"max_tokens": 1, "ignore_eos": True, "temperature": 0.0, "stream": False}
OWN = "kv_transfer_params"
_NULL, _FALSE, _ONE = msgspec.Raw(b"null"), msgspec.Raw(b"false"), msgspec.Raw(b"1")


class _LongFields(msgspec.Struct):
    """The fields that may be long."""

    prompt: msgspec.Raw = _NULL
    messages: msgspec.Raw = _NULL
    tools: msgspec.Raw = _NULL


class _TokenPage(msgspec.Struct):
    tokens: tuple[int, ...] = ()


class _Choice(msgspec.Struct):
    finish_reason: str | None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None
    kv_transfer_params: Any = None


_read_long_fields = msgspec.json.Decoder(_LongFields).decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_ids = msgspec.json.Decoder(tuple[int, ...] | str).decode
_read_token_page = msgspec.json.Decoder(_TokenPage).decode
_read_completion = msgspec.json.Decoder(_Completion).decode


class Unfit(Exception):
    """A client's request cannot be turned into prefill and decode requests, or an answer is not as expected."""


class ClientRequest(NamedTuple):
    """A client's request, parsed."""

    fields: Mapping[str, msgspec.Raw]
    """As the client wrote them."""
    chat: bool
    ids: tuple[int, ...] | None
    """The prompt's token ids; None = the prompt is text."""

    def has_field(self, name: str) -> bool:
        """Whether the client gave it a value other than null."""
        return self.fields.get(name, _NULL) != _NULL

    def is_on(self, name: str) -> bool:
        return self.has_field(name) and self.fields[name] != _FALSE


def read_request(path: str, body: bytes) -> ClientRequest:
    """Parse a request body of `path`. Raises Unfit if none of its KV can be moved by any transport."""
    chat = path.partition("?")[0].endswith("/chat/completions")
    try:
        _require_few_fields(body)
        asked = ClientRequest(_read_fields(body), chat, None)
    except DAMAGED_JSON as error:
        raise Unfit("its body is no JSON object") from error
    if asked.has_field(OWN):
        raise Unfit(f"it carries {OWN} of its own")
    if chat:
        if not bytes(memoryview(asked.fields.get("messages", _NULL))[:1]) == b"[":
            raise Unfit("it has no messages")
        return asked
    if asked.has_field("prompt_embeds"):
        raise Unfit("its prompt is given as embeddings")
    return asked._replace(ids=_read_prompt(asked.fields.get("prompt", _NULL)))


def _require_few_fields(body: bytes) -> None:
    """Raise Unfit for a long body that has more than its prompt and its tools: each field would become an object."""
    if len(body) <= LONG_BYTES:
        return
    read = _read_long_fields(body)
    if len(body) - sum(len(memoryview(value)) for value in (read.prompt, read.messages, read.tools)) > LONG_BYTES:
        raise Unfit(f"it has more than {LONG_BYTES} bytes besides its prompt and its tools")


def _read_prompt(prompt: msgspec.Raw) -> tuple[int, ...] | None:
    """The token ids of a prompt; None = it is text. Raises Unfit unless it is one of both."""
    _require_readable(prompt)
    try:
        ids = _read_ids(prompt)
    except DAMAGED_JSON as error:
        raise Unfit("its body has no prompt, or more than one") from error
    if not ids:
        raise Unfit("its prompt is empty")
    return None if isinstance(ids, str) else ids


def _require_readable(prompt: msgspec.Raw) -> None:
    if len(memoryview(prompt)) > PROMPT_LIMIT_BYTES:
        raise Unfit(f"its prompt has more than {PROMPT_LIMIT_BYTES} bytes")


def read_movable_request(path: str, body: bytes) -> ClientRequest:
    """`read_request` of a request whose prefix can be moved. Raises Unfit."""
    asked = read_request(path, body)
    require_movable_prefix(asked)
    return asked


def require_movable_prefix(asked: ClientRequest) -> None:
    """Raise Unfit unless a prefix of the prompt is token ids and nothing else."""
    if asked.has_field("truncate_prompt_tokens"):
        raise Unfit("its prompt is truncated by the engine")
    if asked.chat:
        _require_readable(asked.fields["messages"])
        try:
            _require_text(bytes(asked.fields["messages"]))
        except (ValueError, RuntimeError) as error:  # RuntimeError: a number beyond 64 bits
            raise Unfit("its messages cannot be read") from error


def _require_text(messages: bytes) -> None:
    """Raise Unfit unless all parts of the messages are text. ValueError or RuntimeError if they cannot be read."""
    parser = simdjson.Parser()
    parsed = parser.parse(messages)
    assert isinstance(parsed, simdjson.Array)
    count = len(parsed)
    for message in parsed if count <= PARTS_LIMIT else ():
        content = message.get("content") if isinstance(message, simdjson.Object) else None
        parts = content if isinstance(content, simdjson.Array) else ()
        count += len(parts)
        if count > PARTS_LIMIT:
            break
        if any(isinstance(part, simdjson.Object) and part.get("type") not in TEXT_PARTS for part in parts):
            raise Unfit("its messages hold more than text")
    if count > PARTS_LIMIT:
        raise Unfit(f"it has more than {PARTS_LIMIT} messages and parts")


def require_one_prefill(asked: ClientRequest) -> None:
    """Raise Unfit unless exactly one prefill, which may use cached KV, serves the whole request."""
    several = any(asked.has_field(name) and asked.fields[name] != _ONE for name in ("n", "best_of"))
    if several or asked.is_on("use_beam_search"):
        raise Unfit("it asks for several answers to one prompt")
    if asked.has_field("prompt_logprobs") or (asked.is_on("echo") and asked.has_field("logprobs")):
        raise Unfit("it asks for log probabilities of the prompt: nothing cached can be used")


def tokenize_body(asked: ClientRequest) -> bytes:
    names = TOKENIZED_CHAT if asked.chat else TOKENIZED_TEXT
    return msgspec.json.encode({name: asked.fields[name] for name in names if asked.has_field(name)})


def token_ids(page: bytes) -> tuple[int, ...]:
    """The tokens in an answer of /tokenize. Raises Unfit."""
    try:
        tokens = _read_token_page(page).tokens
    except DAMAGED_JSON as error:
        raise Unfit("/tokenize answers no JSON object with tokens") from error
    if not tokens:
        raise Unfit("/tokenize gives no tokens")
    return tokens


def make_prefix_body(
    asked: ClientRequest, prefix: Sequence[int], params: Mapping[str, Any], priority: int | None
) -> dict[str, Any]:
    """A migration's request: the prefix alone, one output token."""
    body: dict[str, Any] = {name: asked.fields[name] for name in PROMPT_FIELDS if asked.has_field(name)}
    body |= {"prompt": prefix, **ONE_TOKEN, OWN: dict(params)}
    return body if priority is None else {**body, "priority": priority}


def make_handover_prefill_body(asked: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    """A handover's prefill request: the client's prompt, one output token."""
    fields = {name: value for name, value in asked.fields.items() if name not in ANSWER_FIELDS}
    return {**fields, **ONE_TOKEN, OWN: dict(params)}


def make_release_body(params: Mapping[str, Any]) -> dict[str, Any]:
    """A decode request with an empty prompt: every engine refuses it, which frees the source's blocks."""
    return {"prompt": [], **ONE_TOKEN, OWN: dict(params)}


def add_pull_params(body: bytes, params: Mapping[str, Any]) -> bytes:
    """The client's body with `kv_transfer_params` appended as its last field, every other byte unchanged.

    `body`: a JSON object with at least one field. As the last field it overrides a null that the client sent.
    """
    end = body.rindex(b"}")
    return b'%b,"%b":%b%b' % (body[:end], OWN.encode(), msgspec.json.encode(params), body[end:])


class StepAnswer(NamedTuple):
    """An engine's answer to a prefill or decode request; None = not reported."""

    params: Any
    """Its `kv_transfer_params`."""
    finish_reason: str
    prompt_tokens: int | None
    cached_tokens: int | None


def read_answer(page: bytes) -> StepAnswer:
    """Parse an answer. Raises Unfit if it is not a completion."""
    try:
        completion = _read_completion(page)
        reason = completion.choices[0].finish_reason
    except (*DAMAGED_JSON, IndexError) as error:
        raise Unfit("its answer is no completion") from error
    usage = count_usage(completion.usage)
    return StepAnswer(completion.kv_transfer_params, str(reason), usage.prompt_tokens, usage.cached_tokens)
