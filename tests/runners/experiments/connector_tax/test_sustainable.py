"""A load that no config can sustain is named before a run and after Phase A, with a rate that can be, and its time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from launch.profile import Capacity, load_profile
from results.connector_tax.saturation import choose_reference_rates
from results.connector_tax.saturation_criteria import GROWTH
from runners.campaign.experiment import RunOptions
from runners.experiments.connector_tax.grid import Grid, OwnRate, PhaseA, PhaseB
from runners.experiments.connector_tax.plan import draft_plan
from runners.experiments.connector_tax.sustainable import (
    expected_cell_s,
    list_overloads,
    list_unsustainable,
    load_cell_s,
)
from tests.goldens.fixture import write_checksums
from tests.results.connector_tax.synthetic import DATE, Behavior, Run, write_run

GRID = Grid(
    configs=("plain",), phase_a=PhaseA(4096, 256, (1.0, 2.0)), phase_b=PhaseB((512, 32768), (64,)),
    expected_ref_safe_per_s=1.0, min_duration_s=60.0, min_completed=200, warmup_s=10.0, inflight_cap=256,
    engine_start_s=90.0,
)  # fmt: skip
H20 = Capacity(22_400.0, "an H20's FLOPs")


def test_a_shape_beyond_the_device_is_named_with_a_rate_that_it_sustains() -> None:
    (line,) = list_unsustainable(GRID, H20)
    assert "No config can sustain 32768 x 64 tokens at ref_safe = 1 req/s" in line
    assert "32,832 of 22,400 tokens/s (an H20's FLOPs)" in line
    assert "At 0.55 req/s it would use 80 %" in line  # 0.8 x 22400 / 32832
    assert "`--set phase_b.shape_rates.32768x64.rate_per_s=0.55`" in line
    assert list_unsustainable(GRID, Capacity()) == ()


def test_the_specification_s_grid_on_an_h20_is_warned_of() -> None:
    profile = load_profile("h20-qwen3-coder-30b")
    options = RunOptions("connector-tax", profile.name, settings=("phase_b.shape_rates={}",))
    notes = draft_plan(options, profile).notes
    assert any("8, 16, 32 req/s of 4096 x 256" in note for note in notes)
    assert any("No config can sustain 32768 x 1024 tokens at ref_safe = 4 req/s" in note for note in notes)


def test_a_shape_with_a_rate_of_its_own_is_held_against_that_rate() -> None:
    profile = load_profile("h20-qwen3-coder-30b")
    notes = draft_plan(RunOptions("connector-tax", profile.name), profile).notes
    assert not any("32768 x 1024" in note for note in notes)
    assert any("not at ref_safe, and left out of B': 32768x64 at 0.1 req/s" in note for note in notes)
    own = PhaseB((512, 32768), (64,), {"32768x64": OwnRate(0.9)})
    (line,) = list_unsustainable(msgspec.structs.replace(GRID, phase_b=own), H20)
    assert "No config can sustain 32768 x 64 tokens at its own rate = 0.9 req/s" in line


def test_the_time_of_a_cell_holds_queue_hard_stop_and_drain() -> None:
    kept_up_s = load_cell_s(rate_per_s=1.0, min_duration_s=60, min_completed=200, warmup_s=10)
    assert expected_cell_s(GRID, H20, 1.0, (512, 64), 200) == kept_up_s == 210
    assert expected_cell_s(GRID, Capacity(), 1.0, (32768, 64), 200) == kept_up_s
    served_per_s = 22_400 / 32_832
    window_s = 200 / served_per_s
    left = (1 - served_per_s) * (10 + window_s)
    assert expected_cell_s(GRID, H20, 1.0, (32768, 64), 200) == pytest.approx(10 + window_s + left / served_per_s)
    assert expected_cell_s(GRID, Capacity(100.0), 1.0, (32768, 64), 200) == 10 + 3 * kept_up_s + GRID.drain_s


def test_phase_a_shows_what_no_config_can_sustain(tmp_path: Path) -> None:
    """5000 prompt and 1000 output tokens a second, the most that any config computed."""
    saturating = {"plain": Behavior(knee_per_s=4), "nixl_both": Behavior(knee_per_s=2)}
    write_run(tmp_path, Run(saturating, rates_per_s=(1, 2, 4), requests=100, steps=0))
    (line,) = list_overloads(tmp_path, GRID, choose_reference_rates(tmp_path))
    assert "No config can sustain 32768 x 64 tokens at ref_safe = 1 req/s" in line
    assert "6,000 tokens/s" in line


def test_where_nothing_saturated_no_limit_is_known(tmp_path: Path) -> None:
    write_run(tmp_path, Run({"plain": Behavior()}, rates_per_s=(1, 2), requests=60, steps=0))
    assert list_overloads(tmp_path, GRID, choose_reference_rates(tmp_path)) == ()


def scale_prompts(path: Path, factor: float) -> None:
    """The engine's counter of prompt tokens in these scrapes grows by this factor."""
    scrapes = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for scrape in scrapes:
        scrape["values"]["vllm:prompt_tokens_total"] *= factor
    path.write_bytes(msgspec.json.Encoder().encode_lines(scrapes))


def test_a_load_that_was_measured_without_saturation_is_no_overload(tmp_path: Path) -> None:
    """Near the knee the counters of a saturated cell say a little less than a clear one was sent: 8704 tokens/s."""
    layout = write_run(tmp_path, Run({"plain": Behavior(knee_per_s=4)}, rates_per_s=(1, 2, 4), requests=100, steps=0))
    scale_prompts(layout.config(DATE, "plain").metrics("A", "r4"), 1.5)
    write_checksums(tmp_path)
    rates = choose_reference_rates(tmp_path)
    assert rates.ref_load_per_s == 2
    swept = msgspec.structs.replace(GRID, phase_b=PhaseB((4096, 4400), (256,)))
    (line,) = list_overloads(tmp_path, swept, rates)
    assert "4400 x 256" in line


def test_a_ttft_that_grew_is_no_limit(tmp_path: Path) -> None:
    """Criterion 3 alone fires at the highest rate: all that was sent was computed."""
    write_run(tmp_path, Run({"plain": Behavior(knee_per_s=4)}, rates_per_s=(1, 2, 4), requests=100, steps=0))
    rates = choose_reference_rates(tmp_path)
    assert list_overloads(tmp_path, GRID, rates)
    grown = tuple(
        replace(
            cell, criteria=tuple(replace(one, fired=bool(one.fired) and one.number == GROWTH) for one in cell.criteria)
        )
        for cell in rates.cells
    )
    assert [cell.fired for cell in grown if cell.saturated] == [(GROWTH,)]
    assert list_overloads(tmp_path, GRID, replace(rates, cells=grown)) == ()


def test_what_computed_most_without_being_saturated_is_no_limit(tmp_path: Path) -> None:
    """nixl_both queues where plain does all that it is sent, and three times as much."""
    run = Run({"plain": Behavior(), "nixl_both": Behavior(knee_per_s=2)}, rates_per_s=(1, 2), requests=100, steps=0)
    layout = write_run(tmp_path, run)
    scale_prompts(layout.config(DATE, "plain").metrics("A", "r2"), 3)
    write_checksums(tmp_path)
    rates = choose_reference_rates(tmp_path)
    assert (rates.ref_safe_per_s, rates.ref_load_per_s) == (1, 2)
    assert list_overloads(tmp_path, GRID, rates) == ()
