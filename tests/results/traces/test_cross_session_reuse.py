"""What sessions reuse of one another: exact while there is room, an honest estimate beyond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.traces.cross_session_reuse import CrossReuse, CrossSessionReuse, FirstUse, make_first_use
from results.traces.prefix_keys import prefix_keys

BLOCK = 16


def use(hashes: Sequence[int], last_tokens: int = BLOCK, branches: Sequence[tuple[int, int]] = ()) -> FirstUse:
    return make_first_use(prefix_keys(hashes), BLOCK, last_tokens, np.array(branches, dtype=np.int64).reshape(-1, 2))


def counted(uses: Sequence[FirstUse], shared_from: int = 3) -> CrossReuse:
    across = CrossSessionReuse(shared_from=shared_from)
    for number, one in enumerate(uses):
        across.add(float(number), one)
    return across.finish()


def test_every_later_use_of_another_sessions_block_counts_in_the_split_and_once_in_the_bound() -> None:
    later = use(
        [1, 2, 3, 4], branches=[(4, 5), (2, 3)]
    )  # five turns go on from the fourth block, three from the second
    assert later.count_uses(np.arange(4, dtype=np.int32)).tolist() == [9, 9, 6, 6]
    reuse = counted([use([1, 2, 3]), later])
    assert reuse.first.tokens == 3 * BLOCK
    assert reuse.cross.tokens == (9 + 9 + 6) * BLOCK


def test_a_partial_last_block_has_its_own_tokens() -> None:
    reuse = counted([use([1, 2], last_tokens=5), use([1, 2], last_tokens=5)])
    assert reuse.first.tokens == BLOCK + 5


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=30), st.integers(2, 4))
def test_counts_agree_with_counting_prefixes_one_by_one(prompts: list[list[int]], shared_from: int) -> None:
    users: dict[tuple[int, ...], int] = defaultdict(int)
    for prompt in prompts:
        for end in range(1, len(prompt) + 1):
            users[tuple(prompt[:end])] += 1
    reuse = counted([use(prompt) for prompt in prompts], shared_from)
    assert reuse.first.tokens == BLOCK * sum(count - 1 for count in users.values())
    assert reuse.shared.tokens == BLOCK * sum(count - 1 for count in users.values() if count >= shared_from)
    assert reuse.cross.tokens == BLOCK * sum(count - 1 for count in users.values() if count < shared_from)
    assert reuse.blocks == len(users)


def stream(sessions: int, seed: int) -> Iterator[FirstUse]:
    """Sessions that begin with one of many heads and go on alone."""
    rng = np.random.default_rng(seed)
    for number in range(sessions):
        head = int(rng.integers(0, sessions // 4))
        yield use([head * 1000 + place for place in range(30)] + [10**9 + number * 1000 + place for place in range(70)])


def summed(sessions: int, seed: int, memory_bytes: int, waits: float = 0.0) -> tuple[CrossReuse, int]:
    """The sums, and the most that was held; `waits`: seconds between adding a turn and its arrival."""
    across, most = CrossSessionReuse(shared_from=3, memory_bytes=memory_bytes), 0
    for number, one in enumerate(stream(sessions, seed)):
        across.take_up(number)
        across.add(number + waits, one)
        most = max(most, across.nbytes)
    return across.finish(), most


def test_memory_stays_within_its_bound_and_the_estimate_within_its_error() -> None:
    exact, needed = summed(8000, 1, 1 << 30)
    bound = 2 << 20
    rough, most = summed(8000, 1, bound)
    assert needed > 4 * bound
    assert most <= bound
    assert exact.one_in == 1
    assert rough.one_in >= 4
    for name in ("first", "cross", "shared"):
        truth, actual = getattr(exact, name), getattr(rough, name)
        assert 0 < actual.error < 0.1 * truth.tokens
        assert abs(actual.tokens - truth.tokens) < 4 * actual.error
    assert rough.blocks == pytest.approx(exact.blocks, rel=0.05)


def test_what_waits_for_its_time_counts_and_is_thinned_too() -> None:
    exact, rough, most = summed(4000, 1, 1 << 30)[0], *summed(4000, 1, 2 << 20, waits=1e6)
    assert most <= 2 << 20
    assert rough.one_in > 1
    assert abs(rough.first.tokens - exact.first.tokens) < 4 * rough.first.error


def test_order_of_arrival_counts_not_the_order_of_handing_over() -> None:
    across = CrossSessionReuse(shared_from=3)
    across.add(9.0, use([1, 2], branches=[(1, 5)]))
    across.add(1.0, use([1, 3]))
    assert across.finish().cross.tokens == 6 * BLOCK  # the one that arrived at 9 reuses, with its five later turns


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        CrossSessionReuse(shared_from=3, memory_bytes=1000)


def test_blocks_known_to_be_common_before_memory_ran_out_are_still_counted_one_by_one() -> None:
    """A head that every session shares weighs more than all else: a sample that misses it would be far off."""
    head = list(range(20))
    uses = [use(head + [1000 + number * 100 + place for place in range(80)]) for number in range(6000)]
    across = CrossSessionReuse(shared_from=3, memory_bytes=2 << 20)
    for number, one in enumerate(uses):
        across.take_up(number)
        across.add(number, one)
    reuse = across.finish()
    assert reuse.one_in > 1
    assert (reuse.shared.tokens, reuse.shared.error) == (5999 * 20 * BLOCK, 0)
    assert reuse.blocks == pytest.approx(20 + 6000 * 80, rel=0.05)
