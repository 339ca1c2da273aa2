"""What the router reads of a request: session, length, prefix.

Bodies are read, never changed. A prompt of token ids is taken as it is. Text cannot be tokenised here: four bytes of it
count as one token, of `prompt`, or of what a conversation begins with (`tools`, `system`, `instructions`) and its
`messages` or `input` as they stand in the body, so that a longer conversation of the same client begins with the
shorter one. A body that is no JSON object, or whose prompt is none of these, counts by its bytes; the instance is the
one to refuse it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import simdjson

from runners.router.prefix_index import TOKEN_BYTES, byte_keys

BYTES_PER_TOKEN = 4
COMPLETIONS_MAX_TOKENS = 16
"""The API's default for a completion without `max_tokens`."""
SESSION_LIMIT = 256
HASHED_TOKENS = 1 << 18
"""Of a longer prompt only the beginning is known to the prefix index: hashing holds up every other request."""
LONG_BYTES = 1 << 20
"""A longer body takes milliseconds: a thread reads it."""
PROMPTS_LIMIT = 4096
"""More inputs of one request are hashed as text: reading each costs a microsecond that every stream waits for."""
MAX_TOKENS_LIMIT = 1 << 31
"""A `max_tokens` beyond it counts as not given: no counter is made for such numbers."""
SHORT_BYTES = 16 << 10
"""A parser keeps the memory of its longest document: only those of prompts up to this size are used again."""
_NUMBERS = (b"[[", *(b"[%d" % digit for digit in range(10)))
"""Token ids, of one input or several (embeddings)."""


class _Body(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    previous_response_id: Any = None
    session_id: Any = None
    user: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None


_read_body = msgspec.json.Decoder(_Body).decode
_read_many = msgspec.json.Decoder(list[msgspec.Raw]).decode
_spare_parsers: list[simdjson.Parser] = []
"""In no thread's use: a parser reads no second document while the first exists."""


class Facts(msgspec.Struct, frozen=True):
    """What one request body contains."""

    session: str
    """From the body; empty = it names none."""
    keys: tuple[int, ...]
    """Of the prompt's full blocks, for the prefix index."""
    input_tokens: int
    max_tokens: int
    """0 = not given, and the API has no default."""
    previous: str = ""
    """Id of the stored response that it continues; empty = none."""


class ClientMessage(msgspec.Struct, frozen=True):
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
        text = b"".join((read.tools, read.system, read.instructions, conversation[:-1]))
        if len(text) == len(conversation) - 1 and text.startswith(_NUMBERS):
            keys, count = _read_prompt(conversation, block_tokens)
        elif text:
            keys, count = _read_text(text, block_tokens)
        else:  # neither a conversation nor an input: it only has a length
            keys, count = (), -(-len(body) // BYTES_PER_TOKEN)
    else:
        keys, count = _read_prompt(bytes(read.prompt), block_tokens)
    default = 0 if chat else COMPLETIONS_MAX_TOKENS
    limit = read.max_completion_tokens
    if limit is None:
        limit = read.max_tokens if read.max_output_tokens is None else read.max_output_tokens
    session = "" if read.session_id is None else session_name(read.session_id)
    if not session and read.user is not None:
        session = session_name(read.user)
    return Facts(
        session,
        keys,
        count,
        limit if isinstance(limit, int) and 0 <= limit <= MAX_TOKENS_LIMIT else default,
        read.previous_response_id if isinstance(read.previous_response_id, str) else "",
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
    packed = _pack_ids(prompt)
    if packed is not None:
        return _key_ids(packed, block_tokens), len(packed) // TOKEN_BYTES
    if prompt.startswith(b"["):
        return _read_prompts(prompt, block_tokens)
    return _read_text(prompt[1:-1], block_tokens)


def _read_prompts(prompt: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    """Several prompts in one request: the first one's prefix, the length of all."""
    try:
        many = _read_many(prompt)
    except (msgspec.DecodeError, RecursionError):
        many = []
    packed = [_pack_ids(bytes(ids)) for ids in many] if len(many) <= PROMPTS_LIMIT else []
    whole = [ids for ids in packed if ids is not None]
    if not whole or len(whole) < len(packed):
        return _read_text(prompt[1:-1], block_tokens)
    return _key_ids(whole[0], block_tokens), sum(map(len, whole)) // TOKEN_BYTES


def _pack_ids(prompt: bytes) -> bytes | None:
    """A JSON array of token ids, TOKEN_BYTES each; None = it is something else."""
    if not prompt.startswith(b"[") or prompt.find(b"[", 1) > 0:  # the parser would join inner arrays
        return None
    short = len(prompt) <= SHORT_BYTES
    try:
        parser = _spare_parsers.pop() if short else simdjson.Parser()
    except IndexError:
        parser = simdjson.Parser()
    try:
        packed = _pack_array(parser.parse(prompt))
    except (ValueError, TypeError, RuntimeError):  # the last of a number beyond 64 bits
        return None
    if short:
        _spare_parsers.append(parser)
    return packed


def _pack_array(array: object) -> bytes:
    assert isinstance(array, simdjson.Array)
    return bytes(array.as_buffer(of_type="u"))


def _key_ids(packed: bytes, block_tokens: int) -> tuple[int, ...]:
    return byte_keys(packed[: TOKEN_BYTES * HASHED_TOKENS], TOKEN_BYTES * block_tokens)


def _read_text(text: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    hashed = text[: BYTES_PER_TOKEN * HASHED_TOKENS] if len(text) > BYTES_PER_TOKEN * HASHED_TOKENS else text
    return byte_keys(hashed, BYTES_PER_TOKEN * block_tokens), -(-len(text) // BYTES_PER_TOKEN)
