"""The router's own index: what the engine's prefix cache would hold, block by block."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import OrderedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runners.router.prefix_index import (
    PrefixIndex,
    count_cached_by_instance,
    make_block_keys,
    make_byte_keys,
    make_chained_key,
)
from tests.examples import examples


def test_only_full_blocks_have_keys_and_each_stands_for_all_before_it() -> None:
    assert make_block_keys(range(15), 16) == ()
    one, two = make_block_keys(range(40), 16)
    assert make_block_keys(range(16), 16) == (one,)
    assert make_block_keys([9, *range(1, 40)], 16)[1] != two, "same second block below another first"
    assert len(make_block_keys([7] * 64, 16)) == len(set(make_block_keys([7] * 64, 16))) == 4
    assert make_chained_key(one, range(16, 32)) == two
    assert make_chained_key(None, range(16)) == one


def test_keys_are_the_same_in_another_process() -> None:
    code = "from runners.router.prefix_index import make_block_keys; print(make_block_keys(range(64), 16))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(make_block_keys(range(64), 16))


def test_ids_that_are_no_integers_are_refused() -> None:
    with pytest.raises(TypeError):
        make_block_keys(["a"], 16)  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        make_block_keys([1 << 64] * 16, 16)
    with pytest.raises(OverflowError):
        make_block_keys([-1] * 16, 16)


def test_texts_have_keys_too() -> None:
    assert make_byte_keys(b"x" * 130, 64) == make_byte_keys(b"x" * 128, 64)
    assert make_byte_keys(b"x" * 63, 64) == ()


def test_a_prompts_last_token_is_never_cached() -> None:
    index = PrefixIndex(16)
    keys = make_block_keys(range(48), 16)
    index.insert_keys(keys)
    assert count_cached_by_instance({"a": index}, keys, 48) == {"a": 32}
    assert count_cached_by_instance({"a": index}, make_block_keys(range(49), 16), 49) == {"a": 48}
    assert count_cached_by_instance({"a": index}, (), 0) == {"a": 0}


def test_clearing_forgets_all() -> None:
    index = PrefixIndex(16)
    index.insert_keys(make_block_keys(range(48), 16))
    index.clear()
    assert index.count_matching(make_block_keys(range(48), 16)) == 0
    with pytest.raises(ValueError):
        PrefixIndex(0)


def test_forged_keys_cost_their_sender_alone() -> None:
    index = PrefixIndex(1)
    index.insert_keys((1, 2, 3, 4))
    index._used.pop(2)  # as where another path's tail has the key of this one's
    index.insert_keys((1, 2, 3, 4))
    assert index.count_matching((1,)) == 1


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=40), st.integers(1, 8))
@example([[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]], 4)
def test_forged_keys_leave_the_index_whole(paths: list[list[int]], capacity: int) -> None:
    """Keys that follow no prefix: blocks in two paths, twice in one, or before themselves."""
    index = PrefixIndex(1, capacity)
    for path in paths:
        index.insert_keys(path)
        assert len(index) <= sum(len(run.keys) for run in index._runs) <= capacity
        order = {run: position for position, run in enumerate(index._runs)}
        assert all(key in run.keys and run in order for key, run in index._used.items())
        assert all(run.before is None or position < order[run.before] for run, position in order.items())


@given(st.integers(0, 2**32), st.integers(1, 12))
@settings(max_examples=examples(80), deadline=None)
def test_it_agrees_with_a_plain_lru_walked_block_by_block(seed: int, capacity: int) -> None:
    source = random.Random(seed)
    index, plain = PrefixIndex(1, capacity), OrderedDict[int, None]()
    paths = [make_block_keys([source.randrange(2) for _ in range(source.randrange(1, 9))], 1) for _ in range(12)]
    for _ in range(60):
        path = source.choice(paths)
        walked = 0
        while walked < len(path) and path[walked] in plain:
            walked += 1
        assert index.count_matching(path) == walked
        index.insert_keys(path)
        for key in reversed(path[:capacity]):
            plain[key] = None
            plain.move_to_end(key)
        while len(plain) > capacity:
            plain.popitem(last=False)
