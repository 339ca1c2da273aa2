"""A tax stands beside what its connector does inside a step, and beside what vLLM changed for the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.connector_tax.analyze import analyze
from results.connector_tax.attribution import Attribution, Cause, attribute_taxes, make_attribution_table
from results.connector_tax.engine_changes import list_engine_changes, make_engine_changes_table
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import Metric, TaxRow
from results.records.estimate import Estimate
from tests.results.connector_tax.cells import SHAPE, make_cell
from tests.results.connector_tax.synthetic import Behavior, Run, write_run

NOOP: Mapping[str, Any] = {"all_callbacks_p50_us": 7.0, "all_callbacks_mean_us": 9.0}
PLAIN = make_cell("plain", engine_step_p50_us=1721.0, engine_step_mean_us=1800.0)


def attribute(
    tax: Estimate,
    *,
    own: CellSummary | None = None,
    plain: CellSummary = PLAIN,
    metric: Metric = Metric.TPOT_P90,
    recorded: Sequence[str] = ("plain", "noop_connector"),
) -> Attribution:
    """`recorded`: the configs whose settings are known; equal ones, unless the cells have others."""
    cells = [
        replace(cell, settings=cell.settings or {"async_scheduling": True}) if cell.config in recorded else cell
        for cell in (plain, own or make_cell("noop_connector", **NOOP))
    ]
    row = TaxRow("ref_safe", "A", 4.0, SHAPE, "noop_connector", metric, tax, None, "")
    (found,) = attribute_taxes([row], cells, list_engine_changes(cells))
    return found


def interval(low: float, high: float, launches: int = 8) -> Estimate:
    return Estimate((low + high) / 2, low, high, launches=launches)


def test_seven_microseconds_of_a_step_are_not_ten_percent() -> None:
    found = attribute(interval(0.06, 0.136))
    assert found.share_p50 == pytest.approx(7 / 1721)
    assert found.share_mean == pytest.approx(9 / 1800)
    assert found.cause == Cause.NOT_ATTRIBUTABLE
    table = make_attribution_table([found])
    assert dict(zip(table.columns, table.rows[0], strict=True))["cause"] == "not attributable"
    assert "0.41 %" in table.rows[0]


@pytest.mark.parametrize(
    ("tax", "cause"),
    [
        (interval(-0.02, 0.04), Cause.CALLBACKS),
        (interval(0.004, 0.04), Cause.CALLBACKS),
        (interval(-0.2, -0.1), Cause.NOT_ATTRIBUTABLE),
        (interval(0.1, 0.2, launches=1), Cause.UNDECIDED),
        (Estimate(0.1, launches=8), Cause.UNDECIDED),
        (Estimate(None, reason="degraded"), Cause.OPEN),
    ],
)
def test_the_interval_decides(tax: Estimate, cause: Cause) -> None:
    assert attribute(tax).cause == cause


@pytest.mark.parametrize(
    ("callbacks_us", "metric", "cause"),
    [
        (900.0, Metric.TTFT_P90, Cause.CALLBACKS),
        (90.0, Metric.TTFT_P90, Cause.NOT_ATTRIBUTABLE),
        (900.0, Metric.TPOT_P90, Cause.NOT_ATTRIBUTABLE),
    ],
)
def test_ttft_goes_by_the_steps_that_hold_prefill_tokens_too(callbacks_us: float, metric: Metric, cause: Cause) -> None:
    plain = make_cell(
        "plain", engine_step_p50_us=1721.0, engine_step_mean_us=1800.0, engine_step_prefill_mean_us=9000.0
    )
    own = make_cell("noop_connector", **NOOP, all_callbacks_prefill_mean_us=callbacks_us)
    found = attribute(interval(0.06, 0.136), own=own, plain=plain, metric=metric)
    assert found.share_prefill == pytest.approx(callbacks_us / 9000)
    assert found.cause == cause


def test_a_ttft_above_the_share_is_undecided_where_that_of_prefill_steps_is_not_known() -> None:
    found = attribute(interval(0.06, 0.136), metric=Metric.TTFT_P90)
    assert found.cause == Cause.UNDECIDED
    assert "prefill steps alone is not known" in found.reason
    assert attribute(interval(-0.2, -0.1), metric=Metric.TTFT_P90).cause == Cause.NOT_ATTRIBUTABLE


def test_a_load_that_two_phases_share_has_one_row_in_the_table() -> None:
    found = attribute(interval(0.06, 0.136))
    again = replace(found, row=replace(found.row, phase="B"))
    other = replace(found, row=replace(found.row, phase="B", rate_per_s=8.0))
    assert [row[1] for row in make_attribution_table([found, again, other]).rows] == ["4", "8"]


def test_bursts_in_prefill_steps_count_by_their_mean() -> None:
    bursty = make_cell("noop_connector", all_callbacks_p50_us=7.0, all_callbacks_mean_us=270.0)
    found = attribute(interval(0.06, 0.136), own=bursty)
    assert (found.cause, found.reason) == (Cause.CALLBACKS, "callbacks are up to 15.00 % of a step of plain")


def test_what_a_connector_saves_counts_as_its_callback(tmp_path: Path) -> None:
    """LMCache copies a prompt's KV in `wait_for_save`, which is in no other callback."""
    noop = Behavior(callbacks_us=(0.3, 2.0, 0.7))
    configs = {"plain": Behavior(), "noop_connector": noop, "lmcache_only": replace(noop, save_us=600.0)}
    write_run(tmp_path, Run(configs, (2,), requests=60, steps=200))
    found = {one.row.config: one for one in analyze(tmp_path).attribution if one.row.metric == Metric.TPOT_P90}
    assert found["lmcache_only"].callbacks_mean_us == pytest.approx(603, rel=0.02)
    assert found["lmcache_only"].share_p50 == pytest.approx(603 / 1500, rel=0.02)
    assert found["noop_connector"].callbacks_mean_us == pytest.approx(3, rel=0.02)


def test_what_vllm_changed_may_account_for_it() -> None:
    plain = make_cell(
        "plain", engine_step_p50_us=1721.0, engine_step_mean_us=1800.0, settings={"async_scheduling": True}
    )
    own = make_cell("noop_connector", settings={"async_scheduling": False}, **NOOP)
    found = attribute(interval(0.06, 0.136), own=own, plain=plain)
    assert (found.cause, found.reason) == (Cause.CHANGES, "async_scheduling: on -> off")


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [(("plain",), "unknown: not recorded: the probe"), (("noop_connector",), "unknown: the settings of plain are not")],
)
def test_settings_that_were_not_recorded_may_have_changed(recorded: Sequence[str], reason: str) -> None:
    found = attribute(interval(0.06, 0.136), recorded=recorded)
    assert found.cause == Cause.UNDECIDED
    assert reason in found.reason
    assert attribute(interval(-0.02, 0.04), recorded=recorded).cause == Cause.CALLBACKS


def test_without_step_timing_nothing_is_said() -> None:
    untimed = make_cell("noop_connector", all_callbacks_p50_us=None, all_callbacks_mean_us=None)
    found = attribute(interval(0.06, 0.136), own=untimed)
    assert (found.cause, found.share_p50) == (Cause.OPEN, None)
    assert "lost" in found.reason


def test_where_steps_overlap_the_period_stands_for_a_step() -> None:
    overlapping = {"available": True, "batch_queue": True}
    values: Mapping[str, Any] = {"engine_step_p50_us": 9000.0, "engine_step_mean_us": 9000.0, "period_p50_us": 700.0}
    plain = make_cell("plain", step_timing=overlapping, **values, period_mean_us=900.0)
    found = attribute(interval(0.06, 0.136), plain=plain)
    assert found.share_p50 == pytest.approx(0.01)
    assert found.share_mean == pytest.approx(0.01)


def settings(**changed: object) -> Mapping[str, Any]:
    return {"async_scheduling": True, "cudagraph_mode": "FULL", "kv_blocks": 10_000, **changed}


def test_the_settings_of_each_config_are_shown_beside_plain_s() -> None:
    cells = [
        make_cell("lmcache_only", settings=settings(kv_blocks=9_000, cudagraph_mode="PIECEWISE")),
        make_cell("plain", settings=settings()),
        make_cell("nixl_both", settings=settings(kv_blocks=9_950)),
        make_cell("mooncake_both"),
    ]
    changes = list_engine_changes(cells)
    assert [change.config for change in changes] == ["plain", "lmcache_only", "mooncake_both", "nixl_both"]
    by_config = {change.config: change.changed for change in changes}
    assert by_config["lmcache_only"] == ("cudagraph_mode: FULL -> PIECEWISE", "kv_blocks: 10000 -> 9000")
    assert by_config["nixl_both"] == ()  # half a percent: free memory was measured anew
    table = make_engine_changes_table(changes)
    assert [row[0] for row in table.rows] == ["plain", "lmcache_only", "nixl_both"]  # the fourth recorded none
    assert table.rows[1][1:4] == ("on", "PIECEWISE", "9000")


def test_the_layout_of_the_kv_cache_that_a_connector_asks_for_is_shown_as_a_change() -> None:
    cells = [
        make_cell("plain", settings=settings(kv_cache_layout="LBNHC")),
        make_cell("mooncake_both", settings=settings(kv_cache_layout="LBHNC")),
    ]
    changes = list_engine_changes(cells)
    assert {change.config: change.changed for change in changes} == {
        "plain": (),
        "mooncake_both": ("kv_cache_layout: LBNHC -> LBHNC",),
    }
    table = make_engine_changes_table(changes)
    layouts = [dict(zip(table.columns, row, strict=True))["KV layout"] for row in table.rows]
    assert layouts == ["LBNHC", "LBHNC"]


@pytest.mark.parametrize("recorded", [{}, {"kv_cache_layout": None}], ids=["older run", "older vLLM"])
def test_a_run_without_the_layout_of_its_kv_caches_has_no_column_for_it(recorded: dict[str, None]) -> None:
    cells = [make_cell(config, settings=settings(**recorded)) for config in ("plain", "nixl_both")]
    changes = list_engine_changes(cells)
    assert [change.changed for change in changes] == [(), ()]
    assert "KV layout" not in make_engine_changes_table(changes).columns


def test_of_several_launches_the_most_memory_and_the_lowest_clock_are_shown_as_such() -> None:
    gpus = ({"memory_used_mib": 900.0, "clock_mhz": 1400.0}, {"memory_used_mib": 950.0, "clock_mhz": 1980.0})
    cells = [replace(make_cell("plain", trial=trial, settings=settings()), gpu=gpu) for trial, gpu in enumerate(gpus)]
    table = make_engine_changes_table(list_engine_changes(cells))
    shown = dict(zip(table.columns, table.rows[0], strict=True))
    assert (shown["most GPU memory MiB"], shown["lowest GPU clock MHz"]) == ("950", "1400")
