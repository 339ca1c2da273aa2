"""Random prompts of an exact number of token ids, no two of which share their first block, and their request bodies.

A prompt is a pure function of (seed, cell_index, index): the same index means the same prompt under every config. It
begins with an identity, the base-`span` digits of a bijection of (cell_index, index), so that under one seed two
prompts differ within the first `count_identity_tokens(span)` tokens (8 for 256 token ids, 4 for 150,000): no engine
whose block is at least that long can reuse anything. The rest is uniform.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from runners.load.bodies import Bodies, build_body_preamble

_DOMAIN = 0x70_726F_6D70_74  # "prompt": keeps this stream apart from the schedule's
_MASK = (1 << 64) - 1

BUDGET_BYTES = 128 << 20
"""For bodies that are built ahead."""
SLICE_TOKENS = 1024
"""A body is built in slices of this many tokens, tens of microseconds each, so that building never holds up a stamp."""


def _mix_bits(value: int) -> int:
    """A bijection on 64 bits (the finalizer of SplitMix64)."""
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ (value >> 31)


def count_identity_tokens(span: int) -> int:
    """Tokens a 64-bit identity takes when there are `span` token ids."""
    count = 1
    while span**count <= _MASK:
        count += 1
    return count


def derive_identity(seed: int, cell_index: int, index: int, span: int) -> list[int]:
    """The prompt's first tokens, as digits below `span`; injective in (cell_index, index) for a fixed seed."""
    value = _mix_bits((cell_index << 32 | index) ^ _mix_bits(seed ^ 0x9E37_79B9_7F4A_7C15))
    digits = []
    for _ in range(count_identity_tokens(span)):
        value, digit = divmod(value, span)
        digits.append(digit)
    return digits


def draw_token_slices(
    *, seed: int, cell_index: int, index: int, count: int, low: int, high: int
) -> Iterator[NDArray[np.int64]]:
    """The prompt in consecutive slices of at most SLICE_TOKENS ids, low <= id < high, `count` in all."""
    span = high - low
    head = derive_identity(seed, cell_index, index, span)[:count]
    raw = np.random.Philox(
        key=np.array([seed, _DOMAIN ^ cell_index], dtype=np.uint64), counter=np.array([0, index, 0, 0], dtype=np.uint64)
    )
    for first in range(0, count, SLICE_TOKENS):
        size = min(SLICE_TOKENS, count - first)
        # Multiply-shift instead of NumPy's bounded integers: NumPy guarantees the raw stream, but not those.
        scaled = (raw.random_raw(size) >> np.uint64(32)) * np.uint64(span) >> np.uint64(32)
        ids = scaled.astype(np.int64) + low
        if first == 0:
            ids[: len(head)] = np.array(head, dtype=np.int64) + low
        yield ids


def token_ids(*, seed: int, cell_index: int, index: int, count: int, low: int, high: int) -> NDArray[np.int64]:
    """The whole prompt."""
    return np.concatenate(
        list(draw_token_slices(seed=seed, cell_index=cell_index, index=index, count=count, low=low, high=high))
    )


class BodyShape(msgspec.Struct, frozen=True):
    """What the bodies of a cell are built from."""

    model: str
    output_tokens: int
    input_tokens: int
    seed: int
    cell_index: int
    low: int
    high: int
    evidence: str
    """`token_ids` or `usage`, see LoadSpec.token_evidence."""


def build_bodies(shape: BodyShape, count: int) -> Bodies:
    """The bodies of the first `count` requests of a cell, all of them expected in their order."""
    preamble = build_body_preamble(shape.model, shape.output_tokens, shape.evidence)

    def pieces(index: int) -> Iterator[bytes]:
        slices = draw_token_slices(
            seed=shape.seed,
            cell_index=shape.cell_index,
            index=index,
            count=shape.input_tokens,
            low=shape.low,
            high=shape.high,
        )
        return (msgspec.json.encode(ids.tolist())[1:-1] for ids in slices)

    bodies = Bodies(lambda index: preamble, pieces, budget_bytes=BUDGET_BYTES)
    for index in range(count):
        bodies.expect_soon(index)
    return bodies
