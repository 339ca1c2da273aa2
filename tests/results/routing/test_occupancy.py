"""Decode pools and interference: numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from results.routing.interference import read_interference, summarise_interference
from results.routing.occupancy import Footprints, compute_occupancies, measure_footprints
from results.statistics.estimates import Estimate
from tests.results.routing.synthetic import Truth, World, loaded, write_interference
from tests.results.statistics.in_memory import bounds

WORLD = World(sessions=4, turns=5, gap_s=100.0, turn_sigma=0.0, session_sigma=0.0)


def _at(found: Footprints) -> dict[tuple[str, str], float]:
    return {(row.deployment, row.point): row.p90 for row in compute_occupancies(found) if row.point}


def test_a_lone_session_decodes_as_long_as_it_is_not_in_prefill() -> None:
    """0.2 s of prefill and 0.16 s of decoding, one request at a time."""
    found = measure_footprints([loaded(WORLD, Truth("a"))])
    assert found.decodes_mean == pytest.approx(0.16 / 0.36)
    assert found.decodes_p90 == 1
    assert found.pool_tokens == 80_000
    assert found.tokens["p50"].value == 320 + 2 * 160 + 17


def test_fewer_decode_instances_are_as_much_fuller() -> None:
    at = _at(measure_footprints([loaded(WORLD, Truth("a"))]))
    assert at["4P+4D", "p90"] == pytest.approx(2 * at["combined 8C", "p90"])
    assert at["6P+2D", "p90"] == pytest.approx(4 * at["combined 8C", "p90"])


def test_the_specifications_case() -> None:
    """24 requests of 11.5 GiB fit 8 pools of 38.4 GiB at 98304 B a token, 12 of them four (specs/ear, section 2.1)."""
    per_token = 98_304 / 2**30
    pools = 8 * int(38.4 / per_token)
    held = Footprints({"p99": Estimate(float(int(11.5 / per_token)))}, None, float(pools), 24.0, 24.0, "")
    rows = {row.deployment: row for row in compute_occupancies(held) if row.point}
    assert rows["combined 8C"].p90 == pytest.approx(24 * 11.5 / (8 * 38.4), rel=1e-3)
    assert rows["4P+4D"].p90 > 1  # half the pools do not hold them


def test_an_unknown_capacity_is_a_reason() -> None:
    found = measure_footprints([loaded(replace(WORLD, capacity_tokens=None), Truth("a"))])
    assert compute_occupancies(found) == ()
    assert found.reason == "an instance's KV capacity is not known"
    assert measure_footprints([]).reason == "no turn records can be read"


def test_a_known_slowdown_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write_interference(tmp_path, {512: 1.5, 8192: 66.0})
    rows, gaps = read_interference(tmp_path)
    assert gaps == ()
    found = {row.prefill_tokens: row for row in summarise_interference(rows)}
    assert found[8192].slowdown.value == pytest.approx(66.0)
    low, high = bounds(found[8192].before_s)
    assert low < 0.0102 < high
    assert found[512].worst_gap_s == pytest.approx(0.045)


def test_a_repeat_that_was_not_measured_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    path = tmp_path / "results" / "interference.jsonl"
    path.write_text(
        '{"instance": "e0", "prefill_tokens": 64, "decodes": 2, "itl_before_s": 0.01, "itl_during_s": 0.02}\n'
        '{"instance": "e0", "prefill_tokens": 64, "decodes": 2, "itl_before_s": null, "itl_during_s": null}\n'
    )
    (row,) = summarise_interference(read_interference(tmp_path)[0])
    assert (row.repeats, row.slowdown.n, row.slowdown.value) == (2, 1, 2.0)


@pytest.mark.parametrize("content", [b"", b"{", b'{"instance": 5}\n'])
def test_damaged_rows_are_a_gap(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "interference.jsonl").write_bytes(content)
    rows, gaps = read_interference(tmp_path)
    assert rows == ()
    assert len(gaps) == 1
