"""What each instance's prefix cache holds, as far as a router can know: block keys in the order of their last use.

A key stands for a block of tokens and for all before it, so a prompt's keys are a path and equal keys mean an equal
prefix. Like the engine, the index knows full blocks only, and counts a prompt's last token as never cached: it has to
be computed to give the next one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from struct import Struct
from typing import Protocol

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = array("Q").itemsize


class Index(Protocol):
    """What one instance holds: the router's own estimate (`PrefixIndex`) or the engine's report (`EventIndex`)."""

    block_tokens: int

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of the path `keys` that it holds; a multiple of `block_tokens`."""

    def insert_keys(self, keys: Sequence[int]) -> None:
        """A prompt with these keys has been sent there."""

    def clear(self) -> None:
        """The cache is gone: the engine was restarted."""


class PrefixIndex:
    """An LRU index with the engine's block size and capacity, fed with every prompt as it is sent (speculative).

    What it cannot know: blocks that the engine's decoding fills, evictions to make room for them, and prompts
    that reach the engine by another way. `capacity_blocks`: how many blocks its KV pool has; None = no eviction.
    """

    def __init__(self, block_tokens: int, capacity_blocks: int | None = None) -> None:
        if block_tokens < 1 or (capacity_blocks is not None and capacity_blocks < 1):
            raise ValueError(f"block_tokens {block_tokens} and capacity_blocks {capacity_blocks} must be at least 1")
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_blocks
        self._used: OrderedDict[int, None] = OrderedDict()
        """Keys, the one unused for longest first. A path's tail always comes before its head."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._used)

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of the path `keys` that it holds; changes nothing."""
        return self._count_held(keys) * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        """Hold the path `keys` as used just now; what has been unused for longest makes room, tails before heads."""
        used, capacity = self._used, self.capacity_blocks
        if capacity is not None and len(keys) > capacity:
            keys = keys[:capacity]
        held = self._count_held(keys)
        for key in reversed(keys[held:]):
            used[key] = None
        with suppress(KeyError):  # of forged keys, which are held here and there along a path
            deque(map(used.move_to_end, reversed(keys[:held])), maxlen=0)
        if capacity is not None:
            for _ in range(len(used) - capacity):
                used.popitem(last=False)

    def _count_held(self, keys: Sequence[int]) -> int:
        """How many keys from the first on. A block's use touches all before it later: along a path, presence never
        returns."""
        used = self._used
        if not keys or keys[0] not in used:
            return 0
        if keys[-1] in used:
            return len(keys)
        if keys[1] not in used:  # many instances hold the one block with which most prompts begin
            return 1
        low, high = 2, len(keys) - 1
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in used:
                low = middle + 1
            else:
                high = middle
        return low

    def clear(self) -> None:
        self._used.clear()


def block_keys(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """A 64-bit key per full block of the prompt, each chained to those before it.

    The same in every process and on every host. Raises TypeError for ids that are not integers, OverflowError for ids
    below 0 or beyond 64 bits.
    """
    return byte_keys(pack_tokens(token_ids), TOKEN_BYTES * block_tokens)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """TOKEN_BYTES for each id, as `byte_keys` takes them. Raises as `block_keys`."""
    return array("Q", token_ids).tobytes()


def byte_keys(data: bytes, block_bytes: int) -> tuple[int, ...]:
    """The same for a prompt as bytes (packed ids, or a text): a key per full `block_bytes`.

    The hash is quick, not cryptographic: who forges two prompts with one key misroutes their own requests.
    """
    whole = len(data) // block_bytes * block_bytes
    blocks = _splitter(block_bytes)(data if whole == len(data) else memoryview(data)[:whole])
    parent = 0
    return tuple([parent := xxh3_64_intdigest(block, parent) for (block,) in blocks])


@cache
def _splitter(block_bytes: int) -> Callable[[bytes | memoryview], Iterator[tuple[bytes]]]:
    return Struct(f"{block_bytes}s").iter_unpack


def chain_key(parent: int | None, block: Sequence[int]) -> int:
    """The key of one block of token ids below the block with key `parent`; None = it is a prompt's first."""
    return xxh3_64_intdigest(pack_tokens(block), parent or 0)


def cached_by_instance(indexes: Mapping[str, Index], keys: Sequence[int], input_tokens: int) -> dict[str, int]:
    """How much of a prompt of `input_tokens` each instance need not compute: full blocks, and never its last token."""
    most = max(0, input_tokens - 1)
    cached = {}
    for name, index in indexes.items():
        tokens = index.count_matching(keys)
        if tokens > most:
            tokens = most // index.block_tokens * index.block_tokens
        cached[name] = tokens
    return cached
