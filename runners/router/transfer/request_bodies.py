"""The bodies of a transfer's requests to engines, derived from a client's body: pure.

A migration's prefill and decode requests carry token ids, a prefix of the client's prompt. A handover's prefill request
is the client's body without the fields that shape only the answer; its decode request is the client's body plus
`kv_transfer_params`. Mooncake moves all blocks that the target lacks, so both must have the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from results.records.errors import DAMAGED_JSON
from runners.router.response_facts import count_usage

TEXT_PARTS = frozenset({None, "text", "input_text", "output_text", "refusal", "thinking", "reasoning"})
"""Message parts that consist of tokens alone; an image's KV depends on more than its placeholder tokens."""
PROMPT_FIELDS = ("model", "cache_salt")
"""Fields besides the prompt that decide which blocks of the prefix cache it hits."""
TOKENIZED_TEXT = ("model", "add_special_tokens")
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
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_ids = msgspec.json.Decoder(tuple[int, ...] | str).decode


class Unfit(Exception):
    """A client's request cannot be turned into prefill and decode requests, or an answer is not as expected."""


class ClientRequest(NamedTuple):
    """A client's request, parsed."""

    fields: Mapping[str, Any]
    chat: bool
    ids: tuple[int, ...] | None
    """The prompt's token ids; None = the prompt is text."""


def read_request(path: str, body: bytes) -> ClientRequest:
    """Parse a request body of `path`. Raises Unfit if none of its KV can be moved by any transport."""
    chat = path.partition("?")[0].endswith("/chat/completions")
    try:
        raw = _read_fields(body)
        ids = None if chat else _read_ids(raw.pop("prompt", b""))
        fields = {name: msgspec.json.decode(value) for name, value in raw.items()}
    except DAMAGED_JSON as error:
        raise Unfit("its body is no JSON object, or has no prompt, or more than one") from error
    if fields.get(OWN) is not None:
        raise Unfit(f"it carries {OWN} of its own")
    if chat:
        if not isinstance(fields.get("messages"), list):
            raise Unfit("it has no messages")
        return ClientRequest(fields, True, None)
    if fields.get("prompt_embeds"):
        raise Unfit("its prompt is given as embeddings")
    if not ids:
        raise Unfit("its prompt is empty")
    return ClientRequest({**fields, "prompt": ids}, False, None if isinstance(ids, str) else ids)


def require_movable_prefix(asked: ClientRequest) -> None:
    """Raise Unfit unless a prefix of the prompt is token ids and nothing else."""
    if asked.fields.get("truncate_prompt_tokens") is not None:
        raise Unfit("its prompt is truncated by the engine")
    if asked.chat and any(map(_has_media, asked.fields["messages"])):
        raise Unfit("its messages hold more than text")


def require_one_prefill(asked: ClientRequest) -> None:
    """Raise Unfit unless exactly one prefill, which may use cached KV, serves the whole request."""
    fields = asked.fields
    several = any(fields.get(name) not in (None, 1) for name in ("n", "best_of"))
    if several or fields.get("use_beam_search"):
        raise Unfit("it asks for several answers to one prompt")
    if fields.get("prompt_logprobs") is not None or (fields.get("echo") and fields.get("logprobs") is not None):
        raise Unfit("it asks for log probabilities of the prompt: nothing cached can be used")


def tokenize_body(asked: ClientRequest) -> bytes:
    names = TOKENIZED_CHAT if asked.chat else TOKENIZED_TEXT
    wanted = {name: asked.fields[name] for name in names if asked.fields.get(name) is not None}
    return msgspec.json.encode(wanted if asked.chat else {**wanted, "prompt": asked.fields["prompt"]})


def token_ids(page: bytes) -> tuple[int, ...]:
    """The tokens in an answer of /tokenize. Raises Unfit."""
    try:
        tokens = msgspec.json.decode(page, type=dict[str, Any]).get("tokens")
    except DAMAGED_JSON as error:
        raise Unfit("/tokenize answers no JSON object") from error
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise Unfit("/tokenize gives no tokens")
    return tuple(tokens)


def prefix_body(
    asked: ClientRequest, prefix: Sequence[int], params: Mapping[str, Any], priority: int | None
) -> dict[str, Any]:
    """A migration's request: the prefix alone, one output token."""
    body = {name: asked.fields[name] for name in PROMPT_FIELDS if asked.fields.get(name) is not None}
    body |= {"prompt": list(prefix), **ONE_TOKEN, OWN: dict(params)}
    return body if priority is None else {**body, "priority": priority}


def handover_prefill_body(asked: ClientRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    """A handover's prefill request: the client's prompt, one output token."""
    fields = {name: value for name, value in asked.fields.items() if name not in ANSWER_FIELDS}
    return {**fields, **ONE_TOKEN, OWN: dict(params)}


def release_body(params: Mapping[str, Any]) -> dict[str, Any]:
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

    body: Mapping[str, Any]
    finish_reason: str
    prompt_tokens: int | None
    cached_tokens: int | None


def read_answer(page: bytes) -> StepAnswer:
    """Parse an answer. Raises Unfit if it is not a completion."""
    try:
        body = msgspec.json.decode(page, type=dict[str, Any])
        reason = body["choices"][0]["finish_reason"]
    except (*DAMAGED_JSON, LookupError, TypeError) as error:
        raise Unfit("its answer is no completion") from error
    usage = count_usage(body.get("usage"))
    return StepAnswer(body, str(reason), usage.prompt_tokens, usage.cached_tokens)


def _has_media(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") not in TEXT_PARTS for part in parts)
