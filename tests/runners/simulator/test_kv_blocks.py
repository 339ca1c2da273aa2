"""The simulated KV cache: no block is lost, and what goes first is what was unused for longest, tails before heads."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runners.simulator.kv_blocks import KvBlocks

CAPACITY = 8
PROBES = [
    ([10 * family + place + 1 for place in range(depth)], depth + more)
    for family in range(3)
    for depth in (0, 3, 5)
    for more in (0, 3)
]
"""Requests that wait: the keys of their prompts, and all blocks that they need."""


class Blocks(RuleBasedStateMachine):
    """Requests take and give back blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = KvBlocks(CAPACITY, 16)
        self.open: list[tuple[list[int], int]] = []
        self.seen: dict[int, tuple[int, bool]] = {}
        """By place among PROBES: the pool's gains, and whether it had room for that request."""

    @rule(family=st.integers(0, 2), depth=st.integers(0, 5), more=st.integers(0, 3))
    def admit(self, family: int, depth: int, more: int) -> None:
        keys = [10 * family + place + 1 for place in range(depth)]
        cached = keys[: self.blocks.match(keys)]
        lacking = depth - len(cached) + more
        if lacking + self.blocks.count_idle(cached) > self.blocks.free:
            return
        self.blocks.use(cached)
        assert self.blocks.take(lacking)
        named, anonymous = list(cached), lacking
        for key in keys[len(cached) :]:
            if self.blocks.name([key]):
                named.append(key)
                anonymous -= 1
        self.open.append((named, anonymous))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        named, anonymous = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        partial = data.draw(st.integers(0, anonymous))
        self.blocks.release(named, anonymous - partial, partial)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave_and_reclaim(self, data: st.DataObject) -> None:
        """A request gives its blocks up, others may take some, and it finds the first of the rest again."""
        named, anonymous = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        number = self.blocks.release(named, anonymous)
        taken = data.draw(st.integers(0, self.blocks.free))
        assert self.blocks.take(taken)
        left = self.blocks.count_left(number)
        assert left <= anonymous
        self.blocks.reclaim(number, left)
        self.open += [([], taken), ([], left)]
        assert self.blocks.count_left(number) == 0

    @invariant()
    def every_block_is_free_or_used(self) -> None:
        in_use = {key for named, _ in self.open for key in named}
        assert self.blocks.used == len(in_use) + sum(anonymous for _, anonymous in self.open)
        assert 0 <= self.blocks.free <= CAPACITY
        for named, _ in self.open:
            assert all(self.blocks.match((key,)) for key in named), "what a request uses stays"

    @invariant()
    def no_request_comes_to_have_room_without_a_gain(self) -> None:
        for place, (keys, count) in enumerate(PROBES):
            cached = keys[: self.blocks.match(keys)]
            has_room = count - len(cached) + self.blocks.count_idle(cached) <= self.blocks.free
            gains, had_room = self.seen.get(place, (0, True))
            assert had_room or not has_room or self.blocks.gains > gains
            self.seen[place] = self.blocks.gains, has_room


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    blocks = KvBlocks(4, 16)
    for keys in ((1, 2), (5, 6)):
        assert blocks.take(2)
        assert blocks.name(keys) == list(keys)
        blocks.release(keys, 0)
    blocks.use((1, 2))
    blocks.release((1, 2), 0)
    assert blocks.take(1)
    assert [blocks.match(keys) for keys in ((1, 2), (5, 6))] == [2, 1]
    assert blocks.take(1)
    assert [blocks.match(keys) for keys in ((1, 2), (5,))] == [2, 0]


def test_a_block_that_was_not_full_is_taken_before_any_that_is_cached() -> None:
    blocks = KvBlocks(4, 16)
    assert blocks.take(2)
    assert blocks.name((1, 2)) == [1, 2]
    blocks.release((1, 2), 0)
    assert blocks.take(2)
    number = blocks.release((), 1, 1)
    assert (blocks.used, blocks.count_left(number)) == (0, 1)
    assert blocks.take(1)
    assert blocks.match((1, 2)) == 2
    assert blocks.take(1)
    assert blocks.match((1, 2)) == 1


def test_a_request_gets_all_its_blocks_or_none() -> None:
    blocks = KvBlocks(3, 16)
    assert blocks.take(2)
    assert not blocks.take(2)
    assert (blocks.free, blocks.used) == (1, 2)


@pytest.mark.parametrize(("capacity", "block"), [(0, 16), (4, 0)])
def test_a_cache_without_room_is_refused(capacity: int, block: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KvBlocks(capacity, block)
