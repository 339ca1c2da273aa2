"""Prefix keys: one 64-bit key per block that stands for the block and all before it, and a compact set of them.

Two prompts share exactly the blocks whose keys are equal, whether or not the trace's own hashes are chained. Keys are
mixed well enough that any of their bits may choose a slot or a sample. Among n keys two different prefixes share one
with a chance of about n^2 / 2^65: one in three thousand for a hundred million.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
_EMPTY = np.uint64(0)
_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)

PARTS = 64
"""A set grows one part at a time, so that growing takes a few hundredths more memory, not twice as much."""
_PART_SHIFT = np.uint64(58)
_SLOT_SHIFT = np.uint64(26)
_FIRST_SLOTS = 64
_FULLEST = 0.75
_MAPPED_BYTES = 1 << 18
_GROWTH = 1.4


def prefix_keys(hashes: Sequence[int]) -> Keys:
    """A key per hash, in order; never 0. Hashes are taken modulo 2^64."""
    keys = _as_words(hashes)
    keys += _places(keys.size)
    _mix(keys)
    np.cumsum(keys, out=keys)  # sums of well mixed words are as well mixed
    keys[keys == _EMPTY] = 1
    return keys


def known_depth(keys: Keys, seen: Container[int]) -> int:
    """How many keys from the start `seen` holds; with every key it must hold all that come before it in its prompt."""
    low, high = 0, int(keys.size)
    while low < high:
        middle = (low + high) // 2
        if int(keys[middle]) in seen:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Sample:
    """Which keys are followed: all of some, and of the rest one in `one_in`, a power of two.

    A sample with a larger `one_in` is part of one with a smaller.
    """

    one_in: int = 1
    always: Keys = field(default_factory=lambda: _NO_KEYS)
    """In ascending order."""

    def has(self, keys: Keys) -> Flags:
        """Of each key whether it is followed."""
        drawn: Flags = (keys & np.uint64(self.one_in - 1)) == _EMPTY
        return drawn | self.always_has(keys)

    def always_has(self, keys: Keys) -> Flags:
        """Of each key whether it is one of `always`."""
        if not self.always.size:
            return np.zeros(keys.size, dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.always, keys), self.always.size - 1)
        found: Flags = self.always[at] == keys
        return found


def _as_words(hashes: Sequence[int]) -> Keys:
    try:
        return np.fromiter(hashes, dtype=np.int64, count=len(hashes)).view(np.uint64)
    except OverflowError:  # unsigned ones above 2^63
        return np.fromiter((value & _MASK for value in hashes), dtype=np.uint64, count=len(hashes))


def _places(count: int) -> Keys:
    """Different for each place, so that the same blocks in another order are another prefix."""
    return _all_places(1 << count.bit_length())[:count]


@lru_cache(maxsize=32)
def _all_places(count: int) -> Keys:
    places = np.arange(1, count + 1, dtype=np.uint64)
    places *= np.uint64(_GOLDEN)
    places.setflags(write=False)
    return places


def _mix(keys: Keys) -> None:
    """SplitMix64's finaliser, in place."""
    for shift, factor in _MIX:
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(31)


class KeySet:
    """A set of keys in 11 to 15 bytes each: open addressing with linear probing, in numpy arrays."""

    def __init__(self) -> None:
        self._slots = [_zeros(_FIRST_SLOTS) for _ in range(PARTS)]
        self._held = [0] * PARTS
        self._nbytes = sum(slots.nbytes for slots in self._slots)

    def __len__(self) -> int:
        return sum(self._held)

    @property
    def nbytes(self) -> int:
        """What its arrays take."""
        return self._nbytes

    def nbytes_with(self, more: int) -> int:
        """What its arrays will take with so many more keys, spread over its parts."""
        if not more:
            return self._nbytes
        each = -(-more // PARTS)
        needed = [held + each for held in self._held]
        return sum(
            slots.nbytes if count <= _FULLEST * slots.size else 8 * _roomy(count)
            for slots, count in zip(self._slots, needed, strict=True)
        )

    def add(self, keys: Keys) -> Flags:
        """Insert all; True where the key was there already, or stands at an earlier place of `keys`."""
        part = (keys >> _PART_SHIFT).astype(np.uint8)
        order = np.argsort(part, kind="stable")
        found = np.zeros(keys.size, dtype=np.bool_)
        for number, mine in enumerate(np.split(order, np.cumsum(np.bincount(part, minlength=PARTS))[:-1])):
            if mine.size:
                found[mine] = self._add_to(number, keys[mine])
        return found

    def thin(self, sample: Sample) -> None:
        """Forget every key outside the sample."""
        for number, slots in enumerate(self._slots):
            held = slots[slots != _EMPTY]
            self._rebuild(number, held[sample.has(held)])

    def _add_to(self, number: int, keys: Keys) -> Flags:
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        needed = self._held[number] + distinct.size
        if needed > _FULLEST * self._slots[number].size:
            slots = self._slots[number]
            self._rebuild(number, slots[slots != _EMPTY], room_for=needed)
        known = _insert(self._slots[number], distinct)
        self._held[number] += int(distinct.size - np.count_nonzero(known))
        found: Flags = known[inverse]
        again = np.ones(keys.size, dtype=np.bool_)
        again[first] = False
        return found | again

    def _rebuild(self, number: int, keys: Keys, room_for: int = 0) -> None:
        slots = _zeros(_roomy(max(keys.size, room_for)))
        self._nbytes += slots.nbytes - self._slots[number].nbytes
        self._slots[number] = slots
        _insert(self._slots[number], keys)
        self._held[number] = int(keys.size)


def _roomy(keys: int) -> int:
    """Slots for so many keys and as many more as it takes until they have to grow."""
    return max(int(keys / _FULLEST * _GROWTH), _FIRST_SLOTS)


def _zeros(count: int) -> Keys:
    """Empty slots. Large ones are a mapping of their own, which goes back to the system as a whole: from the heap, the
    gaps that a growing set leaves behind came to a third of its size."""
    if 8 * count < _MAPPED_BYTES:
        return np.zeros(count, dtype=np.uint64)
    return np.frombuffer(mmap.mmap(-1, 8 * count), dtype=np.uint64)


def _insert(slots: Keys, keys: Keys) -> Flags:
    """Put `keys`, all different, into `slots`, which have room; True where one was there already."""
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
        slots[at[free]] = keys[free]  # of several that want one slot the last gets it
        lost = free[slots[at[free]] != keys[free]]
        left = np.concatenate((left[~same & (held != _EMPTY)], lost))
        at[left] += 1
        at[left[at[left] == slots.size]] = 0
    return known
