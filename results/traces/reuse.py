"""How much of a trace's input was seen before by another session, in bounded memory.

A caller that knows each session's own reuse hands over, for every turn, the blocks that its session had not used until
then (`FirstUse`). When its time comes, a block that is known here already was first used by another session, and every
use the session makes of it is reuse of another session's block. Summing up needs one key per block, and three numbers
for the few blocks that more than one session uses.

When all that outgrows `memory_bytes`, the blocks that several sessions are known to use by then are still followed; of
all others one in two, four, ..., chosen by its key, and what those sum up to is scaled up by that (Horvitz and
Thompson, 1952) and has a standard error. What a session reuses of its own stays exact.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from results.traces.keys import Flags, Keys, KeySet, Sample

Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

MEMORY_BYTES = 640 << 20
"""Room for 45 to 60 million blocks."""
LEAST_MEMORY_BYTES = 1 << 20
NO_BRANCHES: Counts = np.empty((0, 2), dtype=np.int64)
_BATCH_BYTES = 1 << 22
"""First uses that are looked up together: numpy's cost per call vanishes, and the work takes a few times as much."""
_MERGE_KEYS = 1 << 18
_FEWEST_FOLLOWED = 1 << 20
"""One block in so many, at the least."""
_COMMON_SHARE = 4
"""Blocks that are always followed may take one part in so many of the memory."""
_TALLY_BYTES = 96
"""Per block in the tally: its four numbers, three times while they are merged."""
_USE_BYTES = 512
"""What a `FirstUse` takes in the queue, beside its keys."""


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The blocks that one turn is the first of its session to use: always the last ones of its prompt."""

    keys: Keys
    """Prefix keys of those that are followed, in order."""
    places: Places
    """Of each key: which of these blocks it is."""
    blocks: int
    block_tokens: int
    last_tokens: int
    """Tokens in the last block, which may be partial."""
    branches: Counts = field(default_factory=lambda: NO_BRANCHES)
    """Later turns of the session that use some of these blocks again: a row (how many of them from the start, by how
    many turns) for each way they do."""

    @property
    def nbytes(self) -> int:
        """What it takes in the queue."""
        return _USE_BYTES + self.branches.nbytes + (12 if self.places.size < self.blocks else 8) * self.keys.size

    def thinned(self, sample: Sample) -> FirstUse:
        """The same with only the blocks of the sample followed."""
        kept = sample.has(self.keys)
        return replace(self, keys=self.keys[kept], places=self.places[kept])

    def tokens(self, places: Places) -> Counts:
        """Tokens in the blocks at `places`."""
        found = np.full(places.size, self.block_tokens, dtype=np.int64)
        found[places == self.blocks - 1] = self.last_tokens
        return found

    def uses(self, places: Places) -> Counts:
        """How many turns of the session use the blocks at `places`, this one included."""
        if not self.branches.size:
            return np.ones(places.size, dtype=np.int64)
        ends, turns = self.branches[:, 0], self.branches[:, 1]
        order = np.argsort(ends)
        from_there_on = np.concatenate((np.cumsum(turns[order][::-1])[::-1], [0]))
        later: Counts = from_there_on[np.searchsorted(ends[order], places, side="right")]
        return later + 1


def first_use(keys: Keys, block_tokens: int, last_tokens: int, branches: Counts = NO_BRANCHES) -> FirstUse:
    """With every block followed; it keeps `keys` without a copy."""
    return FirstUse(
        keys, _all_places(1 << keys.size.bit_length())[: keys.size], keys.size, block_tokens, last_tokens, branches
    )


@lru_cache(maxsize=32)
def _all_places(count: int) -> Places:
    places = np.arange(count, dtype=np.int32)
    places.setflags(write=False)
    return places


@dataclass(frozen=True, slots=True)
class Sum:
    """Tokens, with the standard error that following only a sample of the blocks leaves; exact where that is 0."""

    tokens: float
    error: float


@dataclass(frozen=True, slots=True)
class CrossReuse:
    """What sessions reused of blocks that another session was the first to use."""

    first: Sum
    """Counted once per session and block: what only another session's blocks could have given."""
    cross: Sum
    """Counted at every use, blocks of fewer than `shared_from` sessions."""
    shared: Sum
    """Counted at every use, blocks of `shared_from` sessions or more."""
    blocks: float
    """Different blocks."""
    one_in: int
    """One block in so many was followed, of those not known to be common; 1 = all, and every number is exact."""


class CrossSessionReuse:
    """Fed with first uses; they are taken up in the order of their arrival.

    `shared_from`: see CrossReuse. Raises ValueError where `memory_bytes` is less than LEAST_MEMORY_BYTES.
    """

    def __init__(self, *, shared_from: int, memory_bytes: int = MEMORY_BYTES) -> None:
        if memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"{memory_bytes} bytes are too few for block keys: give {LEAST_MEMORY_BYTES} or more")
        self._shared_from = shared_from
        self._memory_bytes = memory_bytes
        self._known = KeySet()
        self._tally = _Tally()
        self._sample = Sample()
        self._queue: list[tuple[float, int, FirstUse]] = []
        """A heap by arrival and order of coming in."""
        self._queued_bytes = 0
        self._came = 0
        self._batch: list[FirstUse] = []
        self._batch_bytes = 0
        self._full_batch_bytes = min(_BATCH_BYTES, memory_bytes // 8)

    @property
    def nbytes(self) -> int:
        """What it holds; the memory limit is for this."""
        return self._known.nbytes + self._tally.nbytes + self._queued_bytes

    def add(self, arrival_s: float, use: FirstUse) -> None:
        """One turn's first uses, not earlier than what was taken up. Of what arrives together the first to come counts
        as the earlier."""
        if self._sample.one_in > 1:
            use = use.thinned(self._sample)
        if not use.keys.size:
            return
        self._came += 1
        self._queued_bytes += use.nbytes
        heapq.heappush(self._queue, (arrival_s, self._came, use))
        while self._over(0):
            self._thin()

    def take_up(self, until_s: float) -> None:
        """Everything that arrived until then."""
        while self._queue and self._queue[0][0] <= until_s:
            use = heapq.heappop(self._queue)[2]
            self._queued_bytes -= use.nbytes
            self._batch.append(use)
            self._batch_bytes += use.nbytes
            if self._batch_bytes >= self._full_batch_bytes:
                self._look_up()

    def finish(self) -> CrossReuse:
        """The sums over all that came in."""
        self.take_up(math.inf)
        self._look_up()
        self._tally.merge()
        tally, one_in = self._tally, self._sample.one_in
        popular, common = tally.sessions >= self._shared_from, self._sample.always_has(tally.keys)
        followed_always = self._sample.always.size
        return CrossReuse(
            first=_estimate(tally.first_tokens, common, one_in),
            cross=_estimate(tally.all_tokens[~popular], common[~popular], one_in),
            shared=_estimate(tally.all_tokens[popular], common[popular], one_in),
            blocks=float(followed_always + (len(self._known) - followed_always) * one_in),
            one_in=one_in,
        )

    def _look_up(self) -> None:
        if not self._batch:
            return
        keys = np.concatenate([use.keys for use in self._batch])
        followed = np.flatnonzero(self._sample.has(keys))
        while self._over(followed.size):
            self._thin()
            followed = np.flatnonzero(self._sample.has(keys))
        seen = followed[self._known.add(keys[followed])]
        self._count(keys, seen)
        self._batch, self._batch_bytes = [], 0

    def _count(self, keys: Keys, seen: Counts) -> None:
        """Add the blocks at the places `seen` of the batch, which another session used first, to the tally."""
        starts = np.cumsum([0, *(use.keys.size for use in self._batch)])
        ends = np.searchsorted(seen, starts)
        once: list[Counts] = []
        in_all: list[Counts] = []
        for number in np.flatnonzero(np.diff(ends)).tolist():
            use, mine = self._batch[number], seen[ends[number] : ends[number + 1]]
            places = use.places[mine - starts[number]]
            once.append(use.tokens(places))
            in_all.append(once[-1] * use.uses(places))
        if once:
            self._tally.add(keys[seen], np.concatenate(once), np.concatenate(in_all))

    def _over(self, more_keys: int) -> bool:
        """Whether so many keys more would take too much."""
        left = self._memory_bytes - self._known.nbytes_with(more_keys) - self._queued_bytes
        if self._tally.nbytes > left:
            self._tally.merge()
        return self._tally.nbytes > left and self._sample.one_in < _FEWEST_FOLLOWED

    def _thin(self) -> None:
        """Follow half as many blocks."""
        always = self._sample.always
        if self._sample.one_in == 1:  # while all is known exactly; later these would count more than they stand for
            always = self._tally.most_used(self._memory_bytes // (_COMMON_SHARE * _TALLY_BYTES))
        self._sample = Sample(2 * self._sample.one_in, always)
        self._known.thin(self._sample)
        self._tally.thin(self._sample)
        thinned = [(arrival_s, came, use.thinned(self._sample)) for arrival_s, came, use in self._queue]
        self._queue = [waiting for waiting in thinned if waiting[2].keys.size]
        heapq.heapify(self._queue)
        self._queued_bytes = sum(use.nbytes for _, _, use in self._queue)


class _Tally:
    """Blocks that several sessions use: how many those are, and the tokens reused."""

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, dtype=np.uint64)
        self.sessions: Counts = np.empty(0, dtype=np.int64)
        self.first_tokens: Counts = np.empty(0, dtype=np.int64)
        self.all_tokens: Counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Keys, Counts, Counts]] = []
        self._waiting_keys = 0

    @property
    def nbytes(self) -> int:
        """What it takes while it is merged."""
        return _TALLY_BYTES * (self.keys.size + self._waiting_keys)

    def add(self, keys: Keys, first_tokens: Counts, all_tokens: Counts) -> None:
        """One more session for each of `keys`."""
        self._waiting.append((keys, first_tokens, all_tokens))
        self._waiting_keys += keys.size
        if self._waiting_keys > max(_MERGE_KEYS, self.keys.size // 4):
            self.merge()

    def merge(self) -> None:
        """Bring what waits into order. A block's first session, which only made it known, is counted here."""
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

    def most_used(self, most: int) -> Keys:
        """The blocks with the most reuse, `most` at most, by key."""
        self.merge()
        return np.sort(self.keys[np.argsort(-self.all_tokens, kind="stable")[:most]])

    def thin(self, sample: Sample) -> None:
        """Forget every block outside the sample."""
        self.merge()
        kept = sample.has(self.keys)
        self.keys, self.sessions = self.keys[kept], self.sessions[kept]
        self.first_tokens, self.all_tokens = self.first_tokens[kept], self.all_tokens[kept]


def _estimate(tokens: Counts, common: Flags, one_in: int) -> Sum:
    """The total over all blocks: of the common ones exactly, of the others from the sample.

    Variance: the sum of (1 - p) / p^2 x^2 over the sample, with p = 1 / one_in.
    """
    drawn = tokens[~common].astype(np.float64)
    variance = (1 - 1 / one_in) * one_in**2 * float(np.sum(drawn**2))
    return Sum(float(tokens[common].sum()) + float(drawn.sum()) * one_in, math.sqrt(variance))
