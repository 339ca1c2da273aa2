"""Token ids from block hashes: a prefix is shared exactly as far as the hashes agree, on every machine."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.trace_lines import Turn
from runners.load.block_prompts import BlockShape, make_prompt_ids, make_prompt_pieces, name_tokens
from runners.load.prompts import SLICE_TOKENS
from tests.examples import examples

SEEDS = st.integers(0, 2**64 - 1)
HASHES = st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1))
SPANS = st.sampled_from((2, 97, 256, 151_643))


def shape(block_tokens: int = 8, *, scope: str = "session", seed: int = 5, span: int = 256) -> BlockShape:
    return BlockShape(seed, block_tokens, scope, low=3, high=3 + span)


def turn(hashes: list[int], input_tokens: int) -> Turn:
    return Turn(arrival_s=0.0, input_tokens=input_tokens, output_tokens=1, hashes=tuple(hashes))


def ids_of(shape: BlockShape, hashes: list[int], count: int, *, session: str = "s", place: int = 0) -> np.ndarray:
    return make_prompt_ids(shape, session, place, turn(hashes, count))


def shared(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens two prompts share from the start."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


@given(
    hashes=st.lists(HASHES, max_size=40),
    block_tokens=st.sampled_from((1, 3, 8, 16, 64, 512)),
    tail=st.integers(0, 3000),
    missing=st.integers(0, 600),
    span=SPANS,
    seed=SEEDS,
)
@settings(max_examples=examples(60), deadline=None)
def test_a_prompt_has_the_exact_length_and_only_allowed_tokens(
    hashes: list[int], block_tokens: int, tail: int, missing: int, span: int, seed: int
) -> None:
    """Whether tokens follow the last hash or its block is not full."""
    full = len(hashes) * block_tokens
    count = full + tail if tail else max(1, full - missing % block_tokens)
    form = shape(block_tokens, span=span, seed=seed)
    ids = ids_of(form, hashes, count)
    assert len(ids) == count
    assert ids.min() >= 3
    assert ids.max() < 3 + span
    pieces = list(make_prompt_pieces(form, "s", 0, turn(hashes, count)))
    assert json.loads(b"[" + b",".join(pieces) + b"]") == ids.tolist()
    assert max(len(json.loads(b"[" + piece + b"]")) for piece in pieces) <= max(SLICE_TOKENS, block_tokens)


@given(
    common=st.lists(HASHES, max_size=30),
    mine=st.lists(HASHES, min_size=1, max_size=5),
    other=st.lists(HASHES, min_size=1, max_size=5),
    block_tokens=st.sampled_from((8, 16, 64)),
    seed=SEEDS,
)
@settings(max_examples=examples(80), deadline=None)
def test_two_prompts_share_a_prefix_exactly_as_far_as_their_hashes_agree(
    common: list[int], mine: list[int], other: list[int], block_tokens: int, seed: int
) -> None:
    if mine[0] == other[0]:
        other = [mine[0] ^ 1, *other[1:]]
    form = shape(block_tokens, seed=seed)
    one, two = ([*common, *own] for own in (mine, other))
    ids = [ids_of(form, hashes, len(hashes) * block_tokens, place=place) for place, hashes in enumerate((one, two))]
    agreed = len(common) * block_tokens
    assert agreed <= shared(*ids) < agreed + name_tokens(block_tokens, 256)


@given(hashes=st.sets(st.integers(0, 2**64 - 1), min_size=2, max_size=200), block_tokens=st.integers(8, 20), seed=SEEDS)
@settings(max_examples=examples(40), deadline=None)
def test_siblings_are_distinct_within_their_first_tokens(hashes: set[int], block_tokens: int, seed: int) -> None:
    form = shape(block_tokens, seed=seed)
    heads = {tuple(ids_of(form, [value], block_tokens)[:8]) for value in hashes}
    assert len(heads) == len(hashes)


def test_blocks_too_short_for_64_bits_still_tell_small_hashes_apart() -> None:
    """A scaled trace: blocks of two tokens, hashes counted from 1, as recorded sessions have them."""
    for span, block_tokens in ((256, 2), (256, 1), (100, 3), (2, 9)):
        form = shape(block_tokens, span=span)
        count = min(span**block_tokens, 3000)
        blocks = {tuple(ids_of(form, [value], block_tokens)) for value in range(count)}
        assert len(blocks) == count


def test_sessions_share_nothing_where_hashes_are_local_and_everything_where_they_are_global() -> None:
    hashes = [1, 2, 3]
    local = [ids_of(shape(16), hashes, 48, session=name) for name in "ab"]
    assert shared(*local) < 8
    everywhere = [ids_of(shape(16, scope="global"), hashes, 48, session=name) for name in "ab"]
    assert shared(*everywhere) == 48


def test_the_tokens_behind_the_last_hash_belong_to_one_turn() -> None:
    form = shape(16, scope="global")
    tails = [ids_of(form, [1, 2], 32 + 2000, session=name, place=place)[32:] for name in "ab" for place in range(20)]
    assert len({tuple(tail[:8]) for tail in tails}) == len(tails)
    assert len({tuple(tail[1024:1032]) for tail in tails}) == len(tails)


def test_a_partial_last_block_is_the_beginning_of_the_whole_one() -> None:
    form = shape(64)
    whole, part = (ids_of(form, [1, 2], count) for count in (128, 100))
    assert shared(whole, part) == 100


def test_tokens_are_uniform_behind_the_names() -> None:
    ids = ids_of(shape(512, span=64), list(range(400)), 400 * 512).reshape(400, 512)[:, 12:]
    counts = np.bincount(ids.ravel() - 3, minlength=64)
    assert counts.min() > 0.9 * counts.mean()
    assert counts.max() < 1.1 * counts.mean()
    assert abs(np.corrcoef(ids[:-1].ravel(), ids[1:].ravel())[0, 1]) < 0.01


def test_the_same_hash_is_the_same_tokens_on_every_machine() -> None:
    """Pinned, whatever the process salts its own hashes with: a change makes replays of two versions incomparable."""
    ids = ids_of(shape(), [7, 2**63 + 5, 9], 40, session="x", place=3)
    assert ids.tolist() == PINNED
    assert ids_of(shape(2, scope="global"), [7, 11], 4).tolist() == PINNED_SHORT


PINNED = [
    58, 22, 221, 40, 80, 139, 122, 16, 133, 176, 86, 76, 109, 10, 234, 152, 233, 254, 95, 134,
    191, 54, 210, 8, 136, 11, 111, 59, 95, 234, 21, 240, 258, 184, 139, 47, 105, 221, 245, 100,
]  # fmt: skip
PINNED_SHORT = [239, 51, 25, 190]
