"""What each instance's prefix cache holds, as far as a router can know: block keys in the order of their last use.

A key stands for a block of tokens and for all before it, so a prompt's keys are a path and equal keys mean an equal
prefix. Like the engine, the index knows full blocks only, and counts a prompt's last token as never cached: it has to
be computed to give the next one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

KEY_BYTES = 8
TOKEN_BYTES = array("I").itemsize


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
        self._used: dict[int, None] = {}
        """Keys, the one unused for longest first. A path's tail always comes before its head."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._used)

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of the path `keys` that it holds; changes nothing."""
        low, high = 0, len(keys)
        while low < high:  # a block's use touches all before it later: along a path, presence never returns
            middle = (low + high) // 2
            if keys[middle] in self._used:
                low = middle + 1
            else:
                high = middle
        return low * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        """Hold the path `keys` as used just now; what has been unused for longest makes room, tails before heads."""
        used = self._used
        if self.capacity_blocks is not None:
            keys = keys[: self.capacity_blocks]
        for key in reversed(keys):
            used.pop(key, None)
            used[key] = None
        if self.capacity_blocks is not None:
            while len(used) > self.capacity_blocks:
                del used[next(iter(used))]

    def clear(self) -> None:
        self._used.clear()


def block_keys(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """A 64-bit key per full block of the prompt, each chained to those before it.

    The same in every process and on every host. Raises TypeError for ids that are not integers, OverflowError for ids
    below 0 or beyond 32 bits.
    """
    return byte_keys(array("I", token_ids).tobytes(), TOKEN_BYTES * block_tokens)


def byte_keys(data: bytes, block_bytes: int) -> tuple[int, ...]:
    """The same for a prompt known as bytes only (a text): a key per full `block_bytes`."""
    keys = []
    parent = b""
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        parent = blake2b(parent + data[start : start + block_bytes], digest_size=KEY_BYTES).digest()
        keys.append(int.from_bytes(parent, "little"))
    return tuple(keys)


def chain_key(parent: int | None, block: Sequence[int]) -> int:
    """The key of one block of token ids below the block with key `parent`; None = it is a prompt's first."""
    above = b"" if parent is None else parent.to_bytes(KEY_BYTES, "little")
    return int.from_bytes(blake2b(above + array("I", block).tobytes(), digest_size=KEY_BYTES).digest(), "little")


def cached_tokens(index: Index, keys: Sequence[int], input_tokens: int) -> int:
    """How much of a prompt of `input_tokens` the instance need not compute: full blocks, and never its last token."""
    return min(index.count_matching(keys), max(0, input_tokens - 1) // index.block_tokens * index.block_tokens)
