"""A number under its field name is shown as people read it, with its unit and its bounds."""

from __future__ import annotations

import pytest

from results.records.named_number import list_numbers, name_value


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("ttft_p90_s", 0.1423, ("TTFT p90", "142 ms")),
        ("step_p50_us", 1663, ("step p50", "1.66 ms")),
        ("effective_throughput_per_s", 3.91, ("effective throughput", "3.91 /s")),
        ("external_tokens", 120, ("external", "120 tok")),
        ("completed", 120, ("completed", "120")),
        ("transfer_ms", 0.0412, ("transfer", "0.0412 ms")),
        ("transfer_ms", -0.00412, ("transfer", "-0.00412 ms")),
        ("apc", 0.09996, ("APC", "0.1000")),
        ("transfer_ms", 0.0, ("transfer", "0 ms")),
        ("saturated", True, ("saturated", "yes")),
        ("tpot_p90_s", None, ("TPOT p90", "–")),
        ("reason", "no engine reported a step", ("reason", "no engine reported a step")),
    ],
)
def test_named_values_take_their_unit_from_the_name(key: str, value: object, shown: tuple[str, str]) -> None:
    assert name_value(key, value) == shown


def test_bounds_stand_behind_the_number_that_they_belong_to() -> None:
    summary = {
        "ttft_p50_s": 0.0072, "ttft_p90_s": 0.00882, "ttft_p90_low_s": 0.00853, "ttft_p90_high_s": 0.00931,
        "step_p50_us": 41.26, "step_p50_low_us": 9.5, "step_p50_high_us": 104.4,
        "tpot_p90_s": None, "tpot_p90_low_s": None, "completed": 96, "saturated": False, "reason": "none",
    }  # fmt: skip
    assert list(list_numbers(summary)) == [
        "TTFT p50 7.20 ms", "TTFT p90 8.82 ms [8.53, 9.31]", "step p50 0.0413 ms [0.00950, 0.10]", "completed 96",
    ]  # fmt: skip
