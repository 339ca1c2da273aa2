"""Bytes that nearly are what a parser expects."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

ODD = (
    b"\x00", b"\xff", b"\xc3", b"\r", b"\n", b"\r\n", b" ", b"\t", b",", b":", b";", b'"', b"\\", b"{", b"}", b"[",
    b"]", b"-1", b"0", b"1e999", b"NaN", b"nan", b"inf", b"true", b"null", b"9" * 25, b"9" * 5000, b"[" * 3000,
    b'{"a":' * 3000, b"\\u0000", b"\\ud800", b"a = " + b"[" * 3000,
)  # fmt: skip
"""Pieces that parsers are known to stumble over."""


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A valid text with pieces cut, doubled, exchanged or put in."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from(ODD) | st.binary(max_size=4) | st.just(data[begin:end] * 2))
        data = data[:begin] + piece + data[end:]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 3)) == 0 else data
