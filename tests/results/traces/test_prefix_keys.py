"""Keys are equal exactly as far as prompts agree; the set holds what was put in, in the memory it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.traces.prefix_keys import Keys, KeySet, Sample, compute_prefix_keys_of_each, find_known_depth, prefix_keys

hashes = st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**64 - 1), max_size=12)


def common(first: list[int], second: list[int]) -> int:
    """How far two prompts agree."""
    agree = [a % 2**64 == b % 2**64 for a, b in zip(first, second, strict=False)]
    return agree.index(False) if False in agree else len(agree)


def many(count: int, seed: int = 0) -> Keys:
    return np.random.default_rng(seed).integers(1, 2**64 - 1, count, dtype=np.uint64)


@given(hashes, hashes, hashes)
def test_keys_are_equal_exactly_as_far_as_the_hashes_are(head: list[int], first: list[int], second: list[int]) -> None:
    first, second = head + first, head + second
    depth = common(first, second)
    ours, theirs = prefix_keys(first), prefix_keys(second)
    assert ours.size == len(first)
    assert np.array_equal(ours[:depth], theirs[:depth])
    assert not set(ours[depth:].tolist()) & set(theirs[depth:].tolist())


@given(st.lists(hashes, max_size=6))
def test_the_keys_of_many_prompts_are_those_of_each(prompts: list[list[int]]) -> None:
    assert compute_prefix_keys_of_each(prompts).tolist() == [
        key for one in prompts for key in prefix_keys(one).tolist()
    ]


def test_the_same_blocks_in_another_order_are_another_prefix() -> None:
    assert not set(prefix_keys([1, 2]).tolist()) & set(prefix_keys([2, 1]).tolist())
    assert len(set(prefix_keys([7] * 100).tolist())) == 100


def test_keys_are_the_same_in_every_process_and_release() -> None:
    """As the formula has it, in plain integers: they choose the sample, so they may not depend on numpy or the host."""
    mask = 2**64 - 1

    def mixed(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        return value ^ value >> 31

    blocks = [1, 2, 2**64 - 1, 0]
    terms = [mixed(value + place * 0x9E3779B97F4A7C15 & mask) for place, value in enumerate(blocks, 1)]
    assert prefix_keys(blocks).tolist() == [sum(terms[:end]) & mask for end in range(1, 5)]


@given(hashes, hashes)
def test_the_known_depth_is_the_longest_prefix_that_was_seen(first: list[int], second: list[int]) -> None:
    assert find_known_depth(prefix_keys(second), set(prefix_keys(first).tolist())) == common(first, second)


@given(st.lists(st.lists(st.integers(0, 40)), max_size=8))
def test_a_set_says_of_every_key_whether_it_came_before(batches: list[list[int]]) -> None:
    key = prefix_keys(range(41))
    key_set, seen = KeySet(), set[int]()
    for batch in batches:
        expected = [number in seen or number in batch[:place] for place, number in enumerate(batch)]
        assert key_set.add(key[np.array(batch, dtype=np.int64)]).tolist() == expected
        seen |= set(batch)
        assert len(key_set) == len(seen)


def test_keys_that_want_the_same_slot_are_all_kept() -> None:
    keys = np.arange(1, 5000, dtype=np.uint64) | np.uint64(5 << 60)  # differ only in bits that choose no slot
    key_set = KeySet()
    assert not key_set.add(keys).any()
    assert key_set.add(keys).all()


def test_a_set_takes_at_most_fifteen_bytes_a_key_while_it_grows() -> None:
    key_set = KeySet()
    for batch in np.split(many(400_000), 50):
        foretold = key_set.count_bytes_with(batch.size)
        key_set.add(batch)
        assert key_set.nbytes / len(key_set) < 16
        assert key_set.nbytes == pytest.approx(foretold, rel=0.3)  # some of its parts grow a batch earlier or later
    assert len(key_set) == 400_000


@pytest.mark.parametrize("one_in", [2, 16])
def test_thinning_keeps_the_sample_and_nothing_else(one_in: int) -> None:
    keys = many(100_000)
    key_set = KeySet()
    key_set.add(keys)
    before = key_set.nbytes
    key_set.thin(Sample(one_in))
    inside = Sample(one_in).contains(keys)
    assert len(key_set) == np.count_nonzero(inside)
    assert key_set.nbytes < 1.3 * before / one_in
    assert np.array_equal(key_set.add(keys[inside]), np.ones(np.count_nonzero(inside), dtype=np.bool_))
    assert abs(np.count_nonzero(inside) - keys.size / one_in) < 5 * np.sqrt(keys.size / one_in)


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    keys = many(10_000)
    assert not (Sample(8).contains(keys) & ~Sample(4).contains(keys)).any()
    assert Sample().contains(keys).all()


def test_some_keys_are_always_in_the_sample() -> None:
    keys = many(1000)
    always = np.sort(keys[:100])
    sample = Sample(2**20, always)
    assert sample.contains(keys[:100]).all()
    assert sample.always_has(keys).tolist() == [True] * 100 + [False] * 900
    key_set = KeySet()
    key_set.add(keys)
    key_set.thin(sample)
    assert len(key_set) == np.count_nonzero(sample.contains(keys))
