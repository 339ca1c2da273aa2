"""The router's estimate of each instance's prefix cache: block keys in LRU order.

A key identifies a block of tokens and its whole prefix, so a prompt's keys form a path, and equal keys mean an equal
prefix. Like the engine, the index holds full blocks only and never counts a prompt's last token as cached: the engine
must compute it to produce the next one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Protocol

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = array("Q").itemsize


class Index(Protocol):
    """The prefix cache of one instance: the router's estimate (`PrefixIndex`) or the engine's report (`EventIndex`)."""

    block_tokens: int

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest cached prefix of the path `keys`; a multiple of `block_tokens`."""

    def insert_keys(self, keys: Sequence[int]) -> None:
        """A prompt with these keys has been sent to the instance."""

    def clear(self) -> None:
        """The cache is lost: the engine was restarted."""


class _Run:
    """Blocks in a row that all paths through them share to the last: they are used together."""

    __slots__ = ("before", "keys", "start")

    def __init__(self, before: _Run | None, start: int, keys: list[int]) -> None:
        self.before = before
        """The run that its paths come from; None = they begin here."""
        self.start = start
        """Blocks of these paths before it."""
        self.keys = keys


class PrefixIndex:
    """An LRU index with the engine's block size and capacity; every prompt is inserted when it is sent (speculative).

    It misses blocks filled by decoding, the evictions that make room for them, and prompts that bypass the router.
    `capacity_blocks`: blocks of the instance's KV pool; None = no eviction.
    """

    def __init__(self, block_tokens: int, capacity_blocks: int | None = None) -> None:
        if block_tokens < 1 or (capacity_blocks is not None and capacity_blocks < 1):
            raise ValueError(f"block_tokens {block_tokens} and capacity_blocks {capacity_blocks} must be at least 1")
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_blocks
        self._used: dict[int, _Run] = {}
        """The run of each key held."""
        self._runs: OrderedDict[_Run, None] = OrderedDict()
        """Least recently used first, a path's last run before the others: a prompt is marked as used run by run, not by
        block."""
        self._listed = 0
        """Keys in all runs. Forged ones may be in several: these count too, so that they take no further memory."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._used)

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest cached prefix of the path `keys`; does not touch the LRU order."""
        return self._count_held(keys) * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        """Insert the path `keys` as most recently used; evict the least recently used keys, tails before heads."""
        capacity = self.capacity_blocks
        if capacity is not None and len(keys) > capacity:
            keys = keys[:capacity]
        held = self._count_held(keys)
        last = self._find_run_ending(keys[held - 1], held) if held else None
        if held < len(keys):
            last = self._add_run(last, held, list(keys[held:]))
        while last is not None:
            self._runs.move_to_end(last)
            last = last.before
        if capacity is not None:
            self._evict_blocks(capacity)

    def _count_held(self, keys: Sequence[int]) -> int:
        """Number of leading keys held. A binary search finds it, because tails are evicted before heads."""
        used = self._used
        if not keys or keys[0] not in used:
            return 0
        if keys[-1] in used:
            return len(keys)
        if keys[1] not in used:  # common: many instances hold only the first block that most prompts share
            return 1
        low, high = 2, len(keys) - 1
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in used:
                low = middle + 1
            else:
                high = middle
        return low

    def _find_run_ending(self, key: int, count: int) -> _Run:
        """The run that ends with `key`, block number `count` of its path. A run that goes on is split behind it."""
        run = self._used[key]
        length = count - run.start
        if not 0 < length < len(run.keys):  # it ends here, or forged keys name a run of another path
            return run
        head = self._add_run(run.before, run.start, run.keys[:length])
        run.before, run.start = head, count
        del run.keys[:length]
        self._listed -= length
        return head

    def _add_run(self, before: _Run | None, start: int, keys: list[int]) -> _Run:
        run = _Run(before, start, keys)
        used = self._used
        for key in keys:
            used[key] = run
        self._runs[run] = None
        self._listed += len(keys)
        return run

    def _evict_blocks(self, capacity: int) -> None:
        used, runs = self._used, self._runs
        while (surplus := self._listed - capacity) > 0:
            run = next(iter(runs))
            evicted = run.keys[-surplus:]
            del run.keys[-surplus:]
            self._listed -= len(evicted)
            for key in evicted:
                if used.get(key) is run:  # else forged: a later path has this key too
                    del used[key]
            if not run.keys:
                del runs[run]

    def clear(self) -> None:
        self._used.clear()
        self._runs.clear()
        self._listed = 0


def make_block_keys(token_ids: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """A 64-bit key per full block of the prompt, each chained to the previous one.

    Keys are the same in every process and on every host. Raises TypeError for ids that are not integers, OverflowError
    for ids below 0 or beyond 64 bits.
    """
    return make_byte_keys(pack_tokens(token_ids), TOKEN_BYTES * block_tokens)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """TOKEN_BYTES per id, as input of `make_byte_keys`. Raises as `make_block_keys`."""
    return array("Q", token_ids).tobytes()


def make_byte_keys(data: bytes, block_bytes: int) -> tuple[int, ...]:
    """As `make_block_keys` for a prompt in bytes (packed ids, or text): a key per full `block_bytes`.

    The hash is fast, not cryptographic: a client that forges two prompts with one key misroutes its own requests.
    """
    whole = len(data) // block_bytes * block_bytes
    blocks = _make_splitter(block_bytes)(data if whole == len(data) else memoryview(data)[:whole])
    parent = 0
    return tuple([parent := xxh3_64_intdigest(block, parent) for (block,) in blocks])


@cache
def _make_splitter(block_bytes: int) -> Callable[[bytes | memoryview], Iterator[tuple[bytes]]]:
    return Struct(f"{block_bytes}s").iter_unpack


def make_chained_key(parent: int | None, block: Sequence[int]) -> int:
    """The key of a block of token ids that follows the block with key `parent`; None = a prompt's first block."""
    return xxh3_64_intdigest(pack_tokens(block), parent or 0)


def count_cached_by_instance(indexes: Mapping[str, Index], keys: Sequence[int], input_tokens: int) -> dict[str, int]:
    """Cached tokens of a prompt of `input_tokens`, by instance: full blocks, and never the last token."""
    most = max(0, input_tokens - 1)
    cached = {}
    for name, index in indexes.items():
        tokens = index.count_matching(keys)
        if tokens > most:
            tokens = most // index.block_tokens * index.block_tokens
        cached[name] = tokens
    return cached
