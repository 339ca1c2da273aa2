"""Prompts from block hashes: token ids that share a prefix exactly as far as the hashes of a trace do.

The block behind a hash is a pure function of (seed, scope, hash), the same in every process and on every host: the
scope is empty where the trace's hashes are global, else the session. It begins with a name, the base-`span` digits of
a keyed permutation of the hash, so two hashes of a scope differ within the first `name_tokens(block_tokens, span)`
tokens of their blocks: always where a block has room for 64 bits (8 tokens of 256 ids, 4 of 150,000), and in a shorter
one wherever both hashes are below `span ** block_tokens`; larger ones are folded into that range at random. The rest
of a block is uniform, and so are the tokens behind the last hash, which belong to one turn alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from results.records.trace_lines import Turn
from results.traces.prefix_keys import Keys, mix_bits
from runners.load.prompts import SLICE_TOKENS, count_identity_tokens

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_ROUNDS = 4
_CACHED_PIECES = 4096
"""Serialized pieces in memory for the turns that share them, some 4 to 7 KB each."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How the hashes of a trace become token ids."""

    seed: int
    block_tokens: int
    """Tokens behind one hash of the trace."""
    hash_scope: str
    """`global` or `session`, as TraceFacts.hash_scope."""
    low: int
    high: int
    """Token ids are drawn from low <= id < high."""

    def key(self, session: str) -> int:
        """The key of the session's scope: blocks of two scopes differ."""
        return _derive_key(self.seed, "block", session if self.hash_scope == "session" else "")


def name_tokens(block_tokens: int, span: int) -> int:
    """Tokens at the beginning of a block that name its hash, for `span` token ids."""
    return min(block_tokens, count_identity_tokens(span))


def make_prompt_ids(shape: BlockShape, session: str, index: int, turn: Turn) -> NDArray[np.int64]:
    """The whole prompt, exactly `input_tokens` ids; arguments as of `make_prompt_pieces`."""
    pieces = make_prompt_pieces(shape, session, index, turn)
    return np.array([token for piece in pieces for token in _read_ids(piece)], dtype=np.int64)


def make_prompt_pieces(shape: BlockShape, session: str, index: int, turn: Turn) -> Iterator[bytes]:
    """The prompt of a turn as JSON numbers with commas between them; `index`: of the turn in its session.

    A piece has at most SLICE_TOKENS ids, or one block.
    """
    key, size, left = shape.key(session), shape.block_tokens, turn.input_tokens
    step = max(1, SLICE_TOKENS // size)
    for first in range(0, len(turn.hashes), step):
        if left <= 0:
            return
        hashes = turn.hashes[first : first + step]
        whole = len(hashes) * size
        if left >= whole:
            yield _make_shared_piece(key, hashes, size, shape.low, shape.high)
        else:  # a last block that is not full
            yield _join_ids(_draw_blocks(key, hashes, size, shape.low, shape.high).ravel()[:left])
        left -= whole
    yield from _draw_tail(shape, session, index, left)


def _draw_tail(shape: BlockShape, session: str, index: int, count: int) -> Iterator[bytes]:
    """The tokens behind the last hash: no other turn has them."""
    key = _derive_key(shape.seed, "tail", session, str(index))
    for first in range(0, count, SLICE_TOKENS):
        name = (first // SLICE_TOKENS,)
        yield _join_ids(_draw_blocks(key, name, min(SLICE_TOKENS, count - first), shape.low, shape.high).ravel())


@lru_cache(maxsize=_CACHED_PIECES)
def _make_shared_piece(key: int, hashes: tuple[int, ...], block_tokens: int, low: int, high: int) -> bytes:
    """Whole blocks, serialized. Turns of a session begin alike, so most pieces are needed many times."""
    return _join_ids(_draw_blocks(key, hashes, block_tokens, low, high).ravel())


def _join_ids(ids: NDArray[np.int64]) -> bytes:
    return msgspec.json.encode(ids.tolist())[1:-1]


def _read_ids(piece: bytes) -> list[int]:
    return msgspec.json.decode(b"[" + piece + b"]", type=list[int])


def _draw_blocks(key: int, hashes: tuple[int, ...], block_tokens: int, low: int, high: int) -> NDArray[np.int64]:
    """One row of `block_tokens` ids per hash."""
    span = high - low
    names = np.array(hashes, dtype=np.uint64)
    start = mix_bits(names ^ np.uint64(key))
    counters = start[:, None] + np.arange(1, block_tokens + 1, dtype=np.uint64) * _GOLDEN
    # Multiply-shift on the high half: as uniform as 32 bits allow, and the same in every version of NumPy.
    ids = ((mix_bits(counters) >> np.uint64(32)) * np.uint64(span) >> np.uint64(32)).astype(np.int64)
    named = name_tokens(block_tokens, span)
    value = _permute_values(names, key, min(span**named, 1 << 64))
    for column in range(named):
        ids[:, column] = (value % np.uint64(span)).astype(np.int64)
        value = value // np.uint64(span)
    return ids + low


def _permute_values(values: Keys, key: int, size: int) -> Keys:
    """A permutation of 0..size-1 chosen by the key: a Feistel network walked until it is back in range.

    The network permutes at most 4 x `size` numbers, so a walk takes fewer than four rounds on average, and it ends.
    """
    if size < 1 << 64:  # mixed, so that runs of neighbors do not meet other runs of them
        folded = mix_bits(values ^ np.uint64(key)) % np.uint64(size)
        values = np.where(values < np.uint64(size), values, folded)
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    walked = _walk_feistel(values, key, half)
    while (outside := walked > np.uint64(size - 1)).any():
        walked[outside] = _walk_feistel(walked[outside], key, half)
    return walked


def _walk_feistel(values: Keys, key: int, half: int) -> Keys:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for number in range(_ROUNDS):
        round_key = np.uint64((key + number * 0xD1B5_4A32_D192_ED03) & _MASK)
        left, right = right, left ^ (mix_bits(right ^ round_key) >> np.uint64(7) & mask)
    return left << shift | right


@lru_cache(maxsize=1024)
def _derive_key(seed: int, *parts: str) -> int:
    text = "\0".join((str(seed), *parts))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
