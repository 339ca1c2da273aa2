"""What the router reads of a request: session, length, prefix.

Bodies are read, never changed. A prompt of token ids is taken as it is. Text cannot be tokenised here: four bytes of it
count as one token, of `prompt`, or of `tools` and `messages` as they stand in the body, so that a longer conversation
of the same client begins with the shorter one. A body that is no JSON object, or whose prompt is none of these, counts
by its bytes; the instance is the one to refuse it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from runners.router.prefix_index import block_keys, byte_keys

BYTES_PER_TOKEN = 4
COMPLETIONS_MAX_TOKENS = 16
"""The API's default for a completion without `max_tokens`."""
SESSION_LIMIT = 256
HASHED_TOKENS = 1 << 18
"""Of a longer prompt only the beginning is known to the prefix index: hashing holds up every other request."""


class _Body(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    session_id: Any = None
    user: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None


_read_body = msgspec.json.Decoder(_Body).decode
_read_ids = msgspec.json.Decoder(list[int]).decode
_read_many = msgspec.json.Decoder(list[list[int]]).decode


class Facts(NamedTuple):
    """What one request body contains."""

    session: str
    """From the body; empty = it names none."""
    keys: tuple[int, ...]
    """Of the prompt's full blocks, for the prefix index."""
    input_tokens: int
    max_tokens: int
    """0 = not given, and the API has no default."""


class ClientMessage(NamedTuple):
    """A client's request as bytes; a simulator's is empty."""

    path: bytes
    """With its query."""
    headers: bytes
    """The header lines that go on to an instance."""
    body: bytes


def read_facts(body: bytes, block_tokens: int, *, chat: bool) -> Facts:
    """The facts of a request body; never raises. `chat`: everything but a completion, also `input` for `messages`."""
    try:
        read = _read_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Facts("", (), -(-len(body) // BYTES_PER_TOKEN), 0)
    if chat:
        conversation = bytes(read.messages) or bytes(read.input)
        text = bytes(read.tools) + conversation[:-1]
        if text:
            keys, count = _read_text(text, block_tokens)
        else:  # neither a conversation nor an input: it only has a length
            keys, count = (), -(-len(body) // BYTES_PER_TOKEN)
    else:
        keys, count = _read_prompt(bytes(read.prompt), block_tokens)
    default = 0 if chat else COMPLETIONS_MAX_TOKENS
    limits = (read.max_completion_tokens, read.max_output_tokens, read.max_tokens)
    limit = next((value for value in limits if value is not None), None)
    return Facts(
        session_name(read.session_id) or session_name(read.user),
        keys,
        count,
        limit if isinstance(limit, int) and limit >= 0 else default,
    )


def session_name(value: object) -> str:
    """A session id as it is stored: text or a number, at most SESSION_LIMIT characters; empty for anything else."""
    if isinstance(value, bytes):
        value = _decode_header(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return value.strip()[:SESSION_LIMIT] if isinstance(value, str) else ""


def _decode_header(value: bytes) -> str:
    """UTF-8, as the body's session ids are, or else what HTTP says: latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _read_prompt(prompt: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    if not prompt.startswith(b"["):
        return _read_text(prompt[1:-1], block_tokens)
    try:
        ids = _read_ids(prompt)
    except msgspec.DecodeError:
        return _read_prompts(prompt, block_tokens)
    return _key_ids(ids, block_tokens), len(ids)


def _read_prompts(prompt: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    """Several prompts in one request: the first one's prefix, the length of all."""
    try:
        many = _read_many(prompt)
    except msgspec.DecodeError:
        return _read_text(prompt[1:-1], block_tokens)
    return _key_ids(many[0] if many else [], block_tokens), sum(len(ids) for ids in many)


def _key_ids(ids: list[int], block_tokens: int) -> tuple[int, ...]:
    try:
        return block_keys(ids[:HASHED_TOKENS] if len(ids) > HASHED_TOKENS else ids, block_tokens)
    except OverflowError:  # no token id is that large: the instance will refuse it
        return ()


def _read_text(text: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    hashed = text[: BYTES_PER_TOKEN * HASHED_TOKENS] if len(text) > BYTES_PER_TOKEN * HASHED_TOKENS else text
    return byte_keys(hashed, BYTES_PER_TOKEN * block_tokens), -(-len(text) // BYTES_PER_TOKEN)
