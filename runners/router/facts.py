"""The facts that the router reads from a request body: session, length, prefix.

Bodies are never changed. A prompt of token ids is used as it is. Text is not tokenized: four bytes count as one token.
For a conversation the text is its `tools`, `system` and `instructions`, then its `messages` or `input`, byte for byte
as in the body: a longer conversation of the same client then begins with the shorter one. A body that is not a JSON
object, or has none of these, counts by its bytes; the instance refuses it.
"""

from __future__ import annotations

import re

import msgspec
import simdjson
from xxhash import xxh3_128_hexdigest

from runners.router.prefix_index import TOKEN_BYTES, make_byte_keys

BYTES_PER_TOKEN = 4
COMPLETIONS_MAX_TOKENS = 16
"""The API's default for a completion without `max_tokens`."""
SESSION_LIMIT = 256
HASHED_TOKENS = 1 << 18
"""Tokens of a prompt that enter the prefix index; the rest is not hashed, because hashing delays all other requests."""
LONG_BYTES = 1 << 20
"""A thread reads longer bodies. Reading this one takes milliseconds, about as long as a thread holds the interpreter
(`sys.getswitchinterval`, 5 ms): below, a thread would spare the streams little and delay every request."""
PROMPTS_LIMIT = 4096
"""A request with more prompts is hashed as text: reading each prompt delays every stream by a microsecond."""
MAX_TOKENS_LIMIT = 1 << 31
"""A larger `max_tokens` counts as absent, so that it does not distort the counters."""
REUSED_BYTES = 256 << 10
"""A parser keeps the memory of its longest document, 15 times its bytes. One is kept, for prompts up to this size: a
new parser takes fresh pages from the system."""
CUT_BYTES = range(4 << 10, LONG_BYTES // 2)
"""Bodies of this length with a prompt of token ids are read without these: two readers would go through each id. Other
prompts may look like ids at first and are then read twice, so a longer body would delay other requests too long."""
_PROMPT = b'"prompt"'
_BEFORE_IDS = re.compile(rb"\s*:\s*(?=\[\s*\d)")
"""What is between `_PROMPT` and the token ids of one prompt."""
_CUT = b'"cut"'
"""In the place of the ids. A body that has this text too is read as a whole."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NUMBERS = (b"[[", *(b"[%d" % digit for digit in range(10)))
"""The beginning of token ids, of one input or of several (embeddings)."""
_SEVERAL = re.compile(rb"\[\s*\[")
"""The beginning of several prompts of token ids."""
_ABSENT = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    prompt: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    previous_response_id: msgspec.Raw = _ABSENT
    session_id: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT


_read_body = msgspec.json.Decoder(_Body).decode
_read_any = msgspec.json.Decoder().decode
_read_many = msgspec.json.Decoder(list[msgspec.Raw]).decode
_cut_value = msgspec.Raw(_CUT)
_spare_parsers: list[simdjson.Parser] = []
"""A parser that is not in use; threads that read at the same time make their own."""


class Facts(msgspec.Struct, frozen=True):
    """The facts of one request body."""

    session: str
    """Empty = the body names none."""
    keys: tuple[int, ...]
    """Keys of the prompt's full blocks in the prefix index."""
    input_tokens: int
    max_tokens: int
    """0 = absent, and the API has no default."""
    previous: str = ""
    """Id of the stored response that it continues; empty = none."""


class ClientMessage(msgspec.Struct, frozen=True):
    """A client's request as bytes; empty in a simulation."""

    path: bytes
    """With its query."""
    headers: bytes
    """The header lines to forward to an instance."""
    body: bytes


def read_facts(body: bytes, block_tokens: int, *, chat: bool) -> Facts:
    """The facts of a request body; never raises. `chat`: any API except completions; it reads `messages` or `input`."""
    cut = _read_around_ids(body) if len(body) in CUT_BYTES and not chat else None
    try:
        read, ids = cut or (_read_body(body), None)
    except _UNREADABLE:
        return Facts("", (), -(-len(body) // BYTES_PER_TOKEN), 0)
    if ids is not None:
        keys, count = _make_id_keys(ids, block_tokens), len(ids) // TOKEN_BYTES
    elif chat:
        conversation = bytes(read.messages) or bytes(read.input)
        text = b"".join((read.tools, read.system, read.instructions, conversation[:-1]))
        if len(text) == len(conversation) - 1 and text.startswith(_NUMBERS):
            keys, count = _read_prompt(conversation, block_tokens)
        elif text:
            keys, count = _read_text(text, block_tokens)
        else:  # neither a conversation nor an input: only its length counts
            keys, count = (), -(-len(body) // BYTES_PER_TOKEN)
    else:
        keys, count = _read_prompt(bytes(read.prompt), block_tokens)
    default = 0 if chat else COMPLETIONS_MAX_TOKENS
    limit = _read_value(read.max_completion_tokens)
    if limit is None:
        limit = _read_value(read.max_output_tokens)
    if limit is None:
        limit = _read_value(read.max_tokens)
    previous = _read_value(read.previous_response_id)
    return Facts(
        read_session_name(_read_value(read.session_id)) or read_session_name(_read_value(read.user)),
        keys,
        count,
        limit if isinstance(limit, int) and 0 <= limit <= MAX_TOKENS_LIMIT else default,
        previous if isinstance(previous, str) else "",
    )


def _read_around_ids(body: bytes) -> tuple[_Body, bytes] | None:
    """The body without the token ids of its prompt, and these packed; None = it has to be read as a whole.

    What follows the first `"prompt"` may be another object's: it is the prompt if the reader finds `_CUT`, put in its
    place, as the prompt.
    """
    name = body.find(_PROMPT)
    between = _BEFORE_IDS.match(body, name + len(_PROMPT)) if name >= 0 else None
    end = body.find(b"]", between.end()) + 1 if between is not None else 0
    if between is None or not end:
        return None
    rest = body[: between.end()] + _CUT + body[end:]
    if rest.count(_CUT) > 1:
        return None
    try:
        read = _read_body(rest)
    except _UNREADABLE:
        return None
    ids = _pack_ids(body[between.end() : end]) if read.prompt == _cut_value else None
    return None if ids is None else (read, ids)


def _read_value(raw: msgspec.Raw) -> object:
    """A text, a number or a truth value; None for any other: a list of lists would take far longer than token ids."""
    if raw is _ABSENT:  # most fields of most bodies
        return None
    value = bytes(raw)
    if value[0] in b"[{":
        return None
    try:
        return _read_any(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_session_name(value: object) -> str:
    """The session id in a text or a number, of at most SESSION_LIMIT characters; empty for any other value.

    A longer one is cut and ends in a hash of the whole: ids that only begin alike are different sessions.
    """
    if isinstance(value, bytes):
        value = _decode_header(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    name = value.strip() if isinstance(value, str) else ""
    if len(name) <= SESSION_LIMIT:
        return name
    end = f"~{xxh3_128_hexdigest(name.encode('utf-8', 'surrogatepass'))}"
    return name[: SESSION_LIMIT - len(end)] + end


def _decode_header(value: bytes) -> str:
    """UTF-8, as in the body's session ids, else latin-1, as HTTP specifies."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _read_prompt(prompt: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    packed = _pack_ids(prompt)
    if packed is not None:
        return _make_id_keys(packed, block_tokens), len(packed) // TOKEN_BYTES
    if prompt.startswith(b"["):
        return _read_prompts(prompt, block_tokens)
    return _read_text(prompt[1:-1], block_tokens)


def _read_prompts(prompt: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    """Several prompts in one request: the keys of the first, the length of all."""
    is_read = prompt.count(b"[") <= PROMPTS_LIMIT + 1 and _SEVERAL.match(prompt)
    try:
        many = _read_many(prompt) if is_read else []
    except (msgspec.DecodeError, RecursionError):
        many = []
    packed = [_pack_ids(bytes(ids)) for ids in many]
    whole = [ids for ids in packed if ids is not None]
    if not whole or len(whole) < len(packed):
        return _read_text(prompt[1:-1], block_tokens)
    return _make_id_keys(whole[0], block_tokens), sum(map(len, whole)) // TOKEN_BYTES


def _pack_ids(prompt: bytes) -> bytes | None:
    """A JSON array of token ids, packed to TOKEN_BYTES each; None = not such an array."""
    if not prompt.startswith(b"[") or prompt.find(b"[", 1) > 0:  # the parser would join inner arrays
        return None
    reusable = len(prompt) <= REUSED_BYTES
    try:
        parser = _spare_parsers.pop() if reusable else simdjson.Parser()
    except IndexError:
        parser = simdjson.Parser()
    try:
        packed = _pack_array(parser.parse(prompt))
    except (ValueError, TypeError, RuntimeError):  # RuntimeError: a number beyond 64 bits
        return None
    if reusable and not _spare_parsers:
        _spare_parsers.append(parser)
    return packed


def _pack_array(array: object) -> bytes:
    assert isinstance(array, simdjson.Array)
    return bytes(array.as_buffer(of_type="u"))


def _make_id_keys(packed: bytes, block_tokens: int) -> tuple[int, ...]:
    return make_byte_keys(packed[: TOKEN_BYTES * HASHED_TOKENS], TOKEN_BYTES * block_tokens)


def _read_text(text: bytes, block_tokens: int) -> tuple[tuple[int, ...], int]:
    hashed = text[: BYTES_PER_TOKEN * HASHED_TOKENS] if len(text) > BYTES_PER_TOKEN * HASHED_TOKENS else text
    return make_byte_keys(hashed, BYTES_PER_TOKEN * block_tokens), -(-len(text) // BYTES_PER_TOKEN)
