"""A p as text has two digits, or the bound below which its size is not known."""

from __future__ import annotations

import pytest

from results.statistics.p_values import format_p, state_p


@pytest.mark.parametrize(
    ("p", "text", "sentence"),
    [
        (1.0, "1", "p = 1"),
        (0.0124, "0.012", "p = 0.012"),
        (0.001, "0.001", "p = 0.001"),
        (0.00099, "< 0.001", "p < 0.001"),
        (1e-52, "< 0.001", "p < 0.001"),
        (0.0, "< 0.001", "p < 0.001"),
    ],
)
def test_a_p_below_the_floor_shows_the_floor(p: float, text: str, sentence: str) -> None:
    assert (format_p(p), state_p(p)) == (text, sentence)
