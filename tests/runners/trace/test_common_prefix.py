"""What a run sends ahead of a trace: the beginning that most sessions share."""

from __future__ import annotations

from typing import Any

from runners.trace.common_prefix import common_prefix
from runners.trace.session import Trace
from tests.runners.trace.made import BLOCK, PARTIAL, session, trace, turn


def opening_with(*openings: list[int], **facts: Any) -> Trace:
    return trace([session(str(number), [turn(hashes)]) for number, hashes in enumerate(openings)], **facts)


def test_the_path_of_most_sessions_is_taken_until_one_is_left() -> None:
    made = opening_with([1, 2, 3, 4], [1, 2, 3, 5], [1, 9], [1, 9], [7, 8])
    assert common_prefix(made, 1000) == (1, 2, 3)
    assert common_prefix(made, 3 * BLOCK - 1) == (1, 2)


def test_only_whole_blocks_count() -> None:
    assert common_prefix(opening_with([1, PARTIAL], [1, PARTIAL]), 1000) == (1,)


def test_sessions_that_share_nothing_have_no_common_prefix() -> None:
    assert common_prefix(opening_with([1], [2]), 1000) == ()
    assert common_prefix(opening_with([1, 2], [1, 2], hash_scope="session"), 1000) == ()
