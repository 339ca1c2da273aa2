"""Prefix keys: one 64-bit key per block, for the block and all before it; and a compact set of keys.

Two prompts share exactly the blocks with equal keys, whether or not the trace's hashes are chained. All bits of a key
are mixed, so any of them may select a slot or a sample. The probability that two different prefixes among n keys
collide is about n^2 / 2^65: one in three thousand for a hundred million.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of SplitMix64's finalizer (Steele, Lea and Flood, 2014)."""
_EMPTY = np.uint64(0)
_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)

PARTS = 64
"""A set grows one part at a time, which takes a few percent more memory instead of twice as much."""
_PART_SHIFT = np.uint64(58)
_SLOT_SHIFT = np.uint64(26)
_FIRST_SLOTS = 64
_FULLEST = 0.75
_MAPPED_BYTES = 1 << 18
_GROWTH = 1.4


def prefix_keys(hashes: Sequence[int]) -> Keys:
    """One key per hash, in order, never 0. Hashes count modulo 2^64."""
    keys = _convert_to_words(hashes)
    keys += _make_position_words(keys.size)
    mix_bits(keys)
    np.cumsum(keys, out=keys)  # sums of well mixed words are as well mixed
    keys[keys == _EMPTY] = 1
    return keys


def compute_prefix_keys_of_each(prompts: Sequence[Sequence[int]]) -> Keys:
    """The `prefix_keys` of each prompt, one after the other, in one pass.

    For a prompt of a few dozen hashes a call of numpy takes far longer than its work.
    """
    sizes = np.fromiter(map(len, prompts), dtype=np.int64, count=len(prompts))
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)  # of its prompt, for each hash
    keys = _convert_to_words(list(chain.from_iterable(prompts)))
    keys += _make_position_words(int(sizes.max(initial=0)))[np.arange(keys.size) - begins]
    mix_bits(keys)
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(keys)))
    keys = sums[1:] - sums[begins]  # modulo 2^64, as the sums are
    keys[keys == _EMPTY] = 1
    return keys


def find_known_depth(keys: Keys, seen: Container[int]) -> int:
    """Number of leading keys in `seen`, which must contain with a key all keys before it in its prompt."""
    return bisect.bisect_left(range(keys.size), True, key=lambda index: int(keys[index]) not in seen)


@dataclass(frozen=True, slots=True)
class Sample:
    """The sampled keys: all of `always`, and one in `one_in` (a power of two) of the others.

    A sample with a larger `one_in` is a subset of one with a smaller.
    """

    one_in: int = 1
    always: Keys = field(default_factory=lambda: _NO_KEYS)
    """In ascending order."""

    def contains(self, keys: Keys) -> Flags:
        drawn: Flags = (keys & np.uint64(self.one_in - 1)) == _EMPTY
        return drawn | self.always_has(keys)

    def always_has(self, keys: Keys) -> Flags:
        if not self.always.size:
            return np.zeros(keys.size, dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.always, keys), self.always.size - 1)
        matches: Flags = self.always[at] == keys
        return matches


def _convert_to_words(hashes: Sequence[int]) -> Keys:
    try:
        return np.fromiter(hashes, dtype=np.int64, count=len(hashes)).view(np.uint64)
    except OverflowError:  # unsigned values above 2^63
        return np.fromiter((value & _MASK for value in hashes), dtype=np.uint64, count=len(hashes))


def _make_position_words(count: int) -> Keys:
    """Different for each position, so that the same blocks in another order form another prefix."""
    return _make_position_words_to(1 << count.bit_length())[:count]


@lru_cache(maxsize=32)
def _make_position_words_to(count: int) -> Keys:
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= np.uint64(_GOLDEN)
    words.setflags(write=False)
    return words


def mix_bits(keys: Keys) -> Keys:
    """SplitMix64's finalizer, a bijection on 64 bits: changes `keys`, and returns them."""
    for shift, factor in _MIX:
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    return keys


class KeySet:
    """A set of keys at 11 to 15 bytes each: open addressing with linear probing, in numpy arrays."""

    def __init__(self) -> None:
        self._slots = [_make_empty_slots(_FIRST_SLOTS) for _ in range(PARTS)]
        self._held = [0] * PARTS
        self._nbytes = sum(slots.nbytes for slots in self._slots)

    def __len__(self) -> int:
        return sum(self._held)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def count_bytes_with(self, more: int) -> int:
        """Bytes of the arrays after adding `more` keys, spread evenly over the parts."""
        if not more:
            return self._nbytes
        each = -(-more // PARTS)
        needed = [held + each for held in self._held]
        return sum(
            slots.nbytes if count <= _FULLEST * slots.size else 8 * _count_slots_for(count)
            for slots, count in zip(self._slots, needed, strict=True)
        )

    def add(self, keys: Keys) -> Flags:
        """Insert all; True where the set or an earlier position of `keys` has the key."""
        part = (keys >> _PART_SHIFT).astype(np.uint8)
        order = np.argsort(part, kind="stable")
        known = np.zeros(keys.size, dtype=np.bool_)
        for number, mine in enumerate(np.split(order, np.cumsum(np.bincount(part, minlength=PARTS))[:-1])):
            if mine.size:
                known[mine] = self._add_to(number, keys[mine])
        return known

    def thin(self, sample: Sample) -> None:
        """Remove every key outside the sample."""
        for number, slots in enumerate(self._slots):
            held = slots[slots != _EMPTY]
            self._rebuild_part(number, held[sample.contains(held)])

    def _add_to(self, number: int, keys: Keys) -> Flags:
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        needed = self._held[number] + distinct.size
        if needed > _FULLEST * self._slots[number].size:
            slots = self._slots[number]
            self._rebuild_part(number, slots[slots != _EMPTY], room_for=needed)
        known = _insert_keys(self._slots[number], distinct)
        self._held[number] += int(distinct.size - np.count_nonzero(known))
        earlier: Flags = known[inverse]
        again = np.ones(keys.size, dtype=np.bool_)
        again[first] = False
        return earlier | again

    def _rebuild_part(self, number: int, keys: Keys, room_for: int = 0) -> None:
        slots = _make_empty_slots(_count_slots_for(max(keys.size, room_for)))
        self._nbytes += slots.nbytes - self._slots[number].nbytes
        self._slots[number] = slots
        _insert_keys(self._slots[number], keys)
        self._held[number] = int(keys.size)


def _count_slots_for(keys: int) -> int:
    """Number of slots for `keys` keys with room for growth."""
    return max(int(keys / _FULLEST * _GROWTH), _FIRST_SLOTS)


def _make_empty_slots(count: int) -> Keys:
    """Empty slots. A large array is its own mapping, which returns to the system when freed: on the heap the gaps of a
    growing set reached a third of its size."""
    if 8 * count < _MAPPED_BYTES:
        return np.zeros(count, dtype=np.uint64)
    return np.frombuffer(mmap.mmap(-1, 8 * count), dtype=np.uint64)


def _insert_keys(slots: Keys, keys: Keys) -> Flags:
    """Put `keys`, all different, into `slots`, which have room; True where the slots already held the key."""
    size = np.uint64(slots.size)
    at = (((keys >> _SLOT_SHIFT) & np.uint64(0xFFFFFFFF)) * size >> np.uint64(32)).astype(np.int64)
    known = np.zeros(keys.size, dtype=np.bool_)
    left = np.arange(keys.size)
    for _ in range(slots.size):
        if left.size == 0:
            break
        held = slots[at[left]]
        same = held == keys[left]
        known[left[same]] = True
        free = left[held == _EMPTY]
        slots[at[free]] = keys[free]  # of several keys for one slot the last is stored
        displaced = free[slots[at[free]] != keys[free]]
        left = np.concatenate((left[~same & (held != _EMPTY)], displaced))
        at[left] += 1
        at[left[at[left] == slots.size]] = 0
    return known
