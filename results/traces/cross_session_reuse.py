"""Counts the input tokens of a trace that another session used first, in bounded memory.

The caller counts the reuse within each session. For every turn it passes the blocks that are new to the session
(`FirstUse`). A block that is already known here was first used by another session, and every use by this session is
reuse of another session's block. The sums need one key per block, and three numbers for each block that more than one
session uses.

When this exceeds `memory_bytes`, all blocks known to be common are still followed, and one in two, four, ... of the
others, selected by their keys. The sums over the sample are scaled up (Horvitz and Thompson, 1952) and have a standard
error. The reuse within sessions stays exact.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from results.traces.prefix_keys import Flags, Keys, KeySet, Sample

Counts = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

MEMORY_BYTES = 640 << 20
"""Room for 45 to 60 million blocks."""
LEAST_MEMORY_BYTES = 1 << 20
NO_BRANCHES: Counts = np.empty((0, 2), dtype=np.int64)
_BATCH_BYTES = 1 << 22
"""Size of a batch of lookups: large enough that numpy's cost per call is negligible."""
_MERGE_KEYS = 1 << 18
_FEWEST_FOLLOWED = 1 << 20
"""The smallest sample: one block in this many."""
_COMMON_SHARE = 4
"""Blocks that are always followed take at most the memory divided by this."""
_SHARED_BLOCK_BYTES = 96
"""Per shared block: its four numbers, three times during a merge."""
_USE_BYTES = 512
"""Bytes of a `FirstUse` in the queue, without its keys."""


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The blocks that one turn uses first in its session: always the last blocks of its prompt."""

    keys: Keys
    """Prefix keys of the followed blocks, in order."""
    positions: Positions
    """The index of each key's block among these blocks."""
    blocks: int
    block_tokens: int
    last_tokens: int
    """Tokens in the last block, which may be partial."""
    branches: Counts
    """Later turns of the session that reuse some of these blocks: rows (number of blocks from the start, number of
    turns)."""

    @property
    def nbytes(self) -> int:
        """Bytes in the queue."""
        return _USE_BYTES + self.branches.nbytes + (12 if self.positions.size < self.blocks else 8) * self.keys.size

    def thin_to(self, sample: Sample) -> FirstUse:
        """Follow only the blocks of the sample."""
        followed = sample.contains(self.keys)
        return replace(self, keys=self.keys[followed], positions=self.positions[followed])

    def count_tokens(self, positions: Positions) -> Counts:
        """Tokens in each block at `positions`."""
        tokens = np.full(positions.size, self.block_tokens, dtype=np.int64)
        tokens[positions == self.blocks - 1] = self.last_tokens
        return tokens

    def count_uses(self, positions: Positions) -> Counts:
        """Turns of the session that use each block at `positions`, this turn included."""
        if not self.branches.size:
            return np.ones(positions.size, dtype=np.int64)
        ends, turns = self.branches[:, 0], self.branches[:, 1]
        order = np.argsort(ends)
        from_there_on = np.concatenate((np.cumsum(turns[order][::-1])[::-1], [0]))
        later: Counts = from_there_on[np.searchsorted(ends[order], positions, side="right")]
        return later + 1


def make_first_use(keys: Keys, block_tokens: int, last_tokens: int, branches: Counts = NO_BRANCHES) -> FirstUse:
    """Follow every block. Holds `keys` without a copy."""
    return FirstUse(
        keys, _make_positions(1 << keys.size.bit_length())[: keys.size], keys.size, block_tokens, last_tokens, branches
    )


@lru_cache(maxsize=32)
def _make_positions(count: int) -> Positions:
    positions = np.arange(count, dtype=np.int32)
    positions.setflags(write=False)
    return positions


@dataclass(frozen=True, slots=True)
class Sum:
    """Tokens, with the standard error from sampling; 0 = exact."""

    tokens: float
    error: float


@dataclass(frozen=True, slots=True)
class CrossReuse:
    """The reuse of blocks that another session used first."""

    first: Sum
    """Counted once per session and block: reuse that only another session's blocks can give."""
    cross: Sum
    """Counted at every use: blocks of fewer than `shared_from` sessions."""
    shared: Sum
    """Counted at every use: blocks of at least `shared_from` sessions."""
    blocks: float
    """Distinct blocks."""
    one_in: int
    """One in this many of the blocks not known to be common was followed; 1 = every number is exact."""


class CrossSessionReuse:
    """Processes first uses in the order of their arrival.

    `shared_from`: see CrossReuse. Raises ValueError where `memory_bytes` is less than LEAST_MEMORY_BYTES.
    """

    def __init__(self, *, shared_from: int, memory_bytes: int = MEMORY_BYTES) -> None:
        if memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"{memory_bytes} bytes are too few for block keys; the minimum is {LEAST_MEMORY_BYTES}")
        self._shared_from = shared_from
        self._memory_bytes = memory_bytes
        self._known = KeySet()
        self._shared = _SharedBlocks()
        self._sample = Sample()
        self._queue: list[tuple[float, int, FirstUse]] = []
        """A heap by arrival, then order of adding."""
        self._queued_bytes = 0
        self._added = 0
        self._batch: list[FirstUse] = []
        self._batch_bytes = 0
        self._full_batch_bytes = min(_BATCH_BYTES, memory_bytes // 8)

    @property
    def nbytes(self) -> int:
        """Bytes held, which the memory limit bounds."""
        return self._known.nbytes + self._shared.nbytes + self._queued_bytes

    def add(self, arrival_s: float, use: FirstUse) -> None:
        """Add one turn, not earlier than the last `take_up`. Of equal arrivals the first added is the earlier."""
        if self._sample.one_in > 1:
            use = use.thin_to(self._sample)
        if not use.keys.size:
            return
        self._added += 1
        self._queued_bytes += use.nbytes
        heapq.heappush(self._queue, (arrival_s, self._added, use))
        while self._exceeds_memory(0):
            self._halve_sample()

    def take_up(self, until_s: float) -> None:
        """Process all turns that arrive until then."""
        while self._queue and self._queue[0][0] <= until_s:
            use = heapq.heappop(self._queue)[2]
            self._queued_bytes -= use.nbytes
            self._batch.append(use)
            self._batch_bytes += use.nbytes
            if self._batch_bytes >= self._full_batch_bytes:
                self._look_up()

    def finish(self) -> CrossReuse:
        """The sums over all turns."""
        self.take_up(math.inf)
        self._look_up()
        self._shared.merge()
        shared, one_in = self._shared, self._sample.one_in
        popular, common = shared.sessions >= self._shared_from, self._sample.always_has(shared.keys)
        followed_always = self._sample.always.size
        return CrossReuse(
            first=_estimate_total(shared.first_tokens, common, one_in),
            cross=_estimate_total(shared.all_tokens[~popular], common[~popular], one_in),
            shared=_estimate_total(shared.all_tokens[popular], common[popular], one_in),
            blocks=float(followed_always + (len(self._known) - followed_always) * one_in),
            one_in=one_in,
        )

    def _look_up(self) -> None:
        if not self._batch:
            return
        keys = np.concatenate([use.keys for use in self._batch])
        followed = np.flatnonzero(self._sample.contains(keys))
        while self._exceeds_memory(followed.size):
            self._halve_sample()
            followed = np.flatnonzero(self._sample.contains(keys))
        seen = followed[self._known.add(keys[followed])]
        self._count_reuse(keys, seen)
        self._batch, self._batch_bytes = [], 0

    def _count_reuse(self, keys: Keys, seen: Counts) -> None:
        """Count the blocks at the positions `seen` of the batch, which another session used first."""
        starts = np.cumsum([0, *(use.keys.size for use in self._batch)])
        ends = np.searchsorted(seen, starts)
        once: list[Counts] = []
        in_all: list[Counts] = []
        for number in np.flatnonzero(np.diff(ends)).tolist():
            use, mine = self._batch[number], seen[ends[number] : ends[number + 1]]
            positions = use.positions[mine - starts[number]]
            once.append(use.count_tokens(positions))
            in_all.append(once[-1] * use.count_uses(positions))
        if once:
            self._shared.add(keys[seen], np.concatenate(once), np.concatenate(in_all))

    def _exceeds_memory(self, more_keys: int) -> bool:
        """Whether `more_keys` keys would exceed the memory."""
        left = self._memory_bytes - self._known.count_bytes_with(more_keys) - self._queued_bytes
        if self._shared.nbytes > left:
            self._shared.merge()
        return self._shared.nbytes > left and self._sample.one_in < _FEWEST_FOLLOWED

    def _halve_sample(self) -> None:
        always = self._sample.always
        if self._sample.one_in == 1:  # only while every count is exact
            always = self._shared.list_most_used(self._memory_bytes // (_COMMON_SHARE * _SHARED_BLOCK_BYTES))
        self._sample = Sample(2 * self._sample.one_in, always)
        self._known.thin(self._sample)
        self._shared.thin(self._sample)
        thinned = [(arrival_s, number, use.thin_to(self._sample)) for arrival_s, number, use in self._queue]
        self._queue = [waiting for waiting in thinned if waiting[2].keys.size]
        heapq.heapify(self._queue)
        self._queued_bytes = sum(use.nbytes for _, _, use in self._queue)


class _SharedBlocks:
    """Blocks that several sessions use: the number of sessions, and the reused tokens."""

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, dtype=np.uint64)
        self.sessions: Counts = np.empty(0, dtype=np.int64)
        self.first_tokens: Counts = np.empty(0, dtype=np.int64)
        self.all_tokens: Counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Keys, Counts, Counts]] = []
        self._waiting_keys = 0

    @property
    def nbytes(self) -> int:
        """Bytes during a merge."""
        return _SHARED_BLOCK_BYTES * (self.keys.size + self._waiting_keys)

    def add(self, keys: Keys, first_tokens: Counts, all_tokens: Counts) -> None:
        """Count one more session for each of `keys`."""
        self._waiting.append((keys, first_tokens, all_tokens))
        self._waiting_keys += keys.size
        if self._waiting_keys > max(_MERGE_KEYS, self.keys.size // 4):
            self.merge()

    def merge(self) -> None:
        """Merge the waiting rows. This adds the first session of a block, which only made it known."""
        if not self._waiting:
            return
        keys, first_tokens, all_tokens = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        self._waiting, self._waiting_keys = [], 0
        sessions = np.ones(keys.size, dtype=np.int64)
        self.sessions -= 1
        merged = np.concatenate((self.keys, keys))
        order = np.argsort(merged, kind="stable")
        merged = merged[order]
        begins = np.flatnonzero(np.concatenate(([True], merged[1:] != merged[:-1])))
        self.keys = merged[begins]
        self.sessions = np.add.reduceat(np.concatenate((self.sessions, sessions))[order], begins) + 1
        self.first_tokens = np.add.reduceat(np.concatenate((self.first_tokens, first_tokens))[order], begins)
        self.all_tokens = np.add.reduceat(np.concatenate((self.all_tokens, all_tokens))[order], begins)

    def list_most_used(self, most: int) -> Keys:
        """The up to `most` blocks with the most reuse, sorted by key."""
        self.merge()
        return np.sort(self.keys[np.argsort(-self.all_tokens, kind="stable")[:most]])

    def thin(self, sample: Sample) -> None:
        """Remove every block outside the sample."""
        self.merge()
        followed = sample.contains(self.keys)
        self.keys, self.sessions = self.keys[followed], self.sessions[followed]
        self.first_tokens, self.all_tokens = self.first_tokens[followed], self.all_tokens[followed]


def _estimate_total(tokens: Counts, common: Flags, one_in: int) -> Sum:
    """The total over all blocks: exact for the common ones, estimated from the sample for the others.

    Variance: the sum of (1 - p) / p^2 x^2 over the sample, with p = 1 / one_in.
    """
    drawn = tokens[~common].astype(np.float64)
    variance = (1 - 1 / one_in) * one_in**2 * float(np.sum(drawn**2))
    return Sum(float(tokens[common].sum()) + float(drawn.sum()) * one_in, math.sqrt(variance))
