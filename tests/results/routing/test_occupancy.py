"""Decode pools and interference: numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from results.records.estimate import Estimate
from results.routing.interference import read_interference, summarise_interference
from results.routing.occupancy import (
    Deployment,
    Footprints,
    compute_occupancies,
    measure_deployments,
    measure_footprints,
)
from results.routing.read import LoadedCell
from tests.results.routing.synthetic import Truth, World, loaded, write_interference
from tests.results.statistics.in_memory import bounds

WORLD = World(sessions=4, turns=5, gap_s=100.0, turn_sigma=0.0, session_sigma=0.0)


def _measured(*cells: LoadedCell, labels: Sequence[str] = ("a",)) -> tuple[Deployment, ...]:
    deployments, why = measure_deployments(cells, labels)
    assert not why
    return deployments


def _with_roles(cell: LoadedCell, *roles: str) -> LoadedCell:
    engines = tuple(replace(engine, role=role) for engine, role in zip(cell.record.engines, roles, strict=True))
    return replace(cell, record=replace(cell.record, engines=engines))


def test_a_lone_session_decodes_as_long_as_it_is_not_in_prefill() -> None:
    """0.2 s of prefill and 0.16 s of decoding, one request at a time."""
    cell = loaded(WORLD, Truth("a"))
    combined = _measured(cell)[0]
    assert (combined.name, combined.arm, combined.is_measured) == ("combined 2C", "a", True)
    assert combined.decodes_mean == pytest.approx(0.16 / 0.36)
    assert (combined.decodes_p90, combined.pool_tokens) == (1, 40_000)
    assert measure_footprints([cell]).tokens["p50"].value == 320 + 2 * 160 + 17


def test_deployments_are_of_the_instances_there_are() -> None:
    assert [one.name for one in _measured(loaded(WORLD, Truth("a")))] == ["combined 2C", "1P+1D"]
    eight = _measured(loaded(replace(WORLD, instances=8), Truth("a")))
    assert [(one.name, one.is_measured) for one in eight] == [
        ("combined 8C", True), ("4P+4D", False), ("6P+2D", False),
    ]  # fmt: skip
    footprints = measure_footprints([loaded(WORLD, Truth("a"))])
    at = {row.deployment: row.p90 for row in compute_occupancies(footprints, eight) if row.point == "p90"}
    assert at["4P+4D"] == pytest.approx(2 * at["combined 8C"])
    assert at["6P+2D"] == pytest.approx(4 * at["combined 8C"])


def test_pools_that_were_run_show_their_own_requests_and_not_a_mean_over_arms() -> None:
    busy = loaded(replace(WORLD, gap_s=0.01), Truth("a"))
    pooled = _with_roles(loaded(WORLD, Truth("pd")), "prefill", "decode")
    combined, pools = _measured(busy, pooled, labels=("a", "pd"))
    assert (pools.name, pools.arm, pools.is_measured, pools.decoding) == ("1P+1D", "pd", True, 1)
    assert pools.decodes_p90 == 1 < combined.decodes_p90
    (alone,) = _measured(pooled, labels=("pd",))
    assert alone.name == "1P+1D", "without a combined arm nothing is modelled"


def test_the_specifications_case() -> None:
    """Whole footprints per instance of 38.4 GiB, times the instances that decode (specs/ear: 32/16/8, 24/12/6)."""
    tokens_per_gib = 2**30 / 98_304
    gib = {"p50": 1.8, "p90": 8.0, "p95": 9.6, "p99": 11.5}
    held = Footprints({name: Estimate(size * tokens_per_gib) for name, size in gib.items()}, None, "")
    combined = Deployment("combined 8C", "a", True, 8, 38.4 * tokens_per_gib, 24.0, 24.0)
    deployments = [combined, *(replace(combined, decoding=number) for number in (4, 2))]
    rows = [row for row in compute_occupancies(held, deployments) if row.point]
    fits = {name: [row.fit_in_all_pools for row in rows if row.point == name] for name in gib}
    assert fits == {"p50": [168, 84, 42], "p90": [32, 16, 8], "p95": [32, 16, 8], "p99": [24, 12, 6]}
    p99 = [row.p90 for row in rows if row.point == "p99"]
    assert p99[0] == pytest.approx(24 * 11.5 / (8 * 38.4))
    assert p99[1] > 1  # half the pools do not hold them


def test_an_unknown_capacity_is_a_reason() -> None:
    unknown_size = loaded(replace(WORLD, capacity_tokens=None), Truth("a"))
    assert "KV capacity is not known" in measure_deployments([unknown_size], ["a"])[1]
    assert measure_footprints([]).reason == measure_deployments([], [])[1] == "no turn records can be read"


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
