"""A known tax is found; an indistinguishable one gets no verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.tables import build_tables
from results.connector_tax.tax import Metric, TaxRow
from results.statistics.judgement import Verdict
from tests.results.connector_tax.synthetic import (
    DATE,
    Behavior,
    Cell,
    Load,
    Run,
    write_cell,
    write_measured_run,
    write_run,
)
from tests.results.statistics.in_memory import covers

PLAIN = Behavior(step_us=40, engine_step_us=1500)
MOONCAKE = Behavior(
    ttft_p50_s=0.2 * 1.45, tpot_p50_s=0.01 * 1.25, step_us=42, engine_step_us=1680, callbacks_us=(1.7, 152.0, 3.1),
    knee_per_s=8,
)  # fmt: skip
SAME = Behavior(step_us=40, engine_step_us=1500, callbacks_us=(0.3, 2.0, 0.7))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    root = tmp_path_factory.mktemp("run")
    configs = {"plain": PLAIN, "mooncake_both": MOONCAKE, "noop_connector": SAME}
    shapes = ((512, 64), (4096, 64))
    write_run(root, Run(configs, (2, 4, 8), shapes, ref_safe_per_s=4.0, requests=400, steps=3000, trials=3, seed=2))
    return analyze(root)


def _row(analysis: Analysis, config: str, metric: Metric, **where: object) -> TaxRow:
    wanted: Mapping[str, object] = {"reference": "ref_safe", "phase": "A", **where}
    (row,) = [
        row
        for row in analysis.taxes
        if (row.config, row.metric) == (config, metric)
        and all(str(getattr(row, name)) == value for name, value in wanted.items())
    ]
    return row


def test_known_latency_taxes_lie_in_their_intervals(analysis: Analysis) -> None:
    ttft = _row(analysis, "mooncake_both", Metric.TTFT_P90)
    assert covers(ttft.estimate, 0.45)
    assert ttft.verdict == Verdict.HIGHER
    assert ttft.estimate.n == 3 * 400
    assert covers(_row(analysis, "mooncake_both", Metric.TPOT_P90).estimate, 0.25)


def test_known_step_taxes_are_found(analysis: Analysis) -> None:
    assert _row(analysis, "mooncake_both", Metric.STEP_P50).estimate.value == pytest.approx(2, abs=0.5)
    assert _row(analysis, "mooncake_both", Metric.STEP_P50).verdict == Verdict.HIGHER
    engine = _row(analysis, "mooncake_both", Metric.ENGINE_STEP_P50)
    assert engine.estimate.value == pytest.approx(180, abs=12)
    callback = _row(analysis, "mooncake_both", Metric.CALLBACK_P50)
    assert callback.estimate.value == pytest.approx(156.8, abs=2)
    assert callback.estimate.low is not None
    assert callback.verdict is None  # nothing to compare with: plain has no callbacks
    remainder = _row(analysis, "mooncake_both", Metric.REMAINDER_P50)
    assert remainder.estimate.value == pytest.approx(2 - 156.8, abs=3)
    rest = _row(analysis, "mooncake_both", Metric.ENGINE_REMAINDER_P50)
    assert rest.estimate.value == pytest.approx(180 - 156.8, abs=13)


def test_a_remainder_is_judged_together_with_those_of_the_other_configs(analysis: Analysis) -> None:
    """It has a verdict, in a table whose other verdicts are corrected."""
    cells = {(cell.config, cell.trial): cell for cell in analysis.cells if (cell.phase, cell.rate_per_s) == ("A", 4.0)}

    def median_us(config: str, trial: int, series: str) -> float:
        return cells[config, trial].value(f"{series}_p50_us") or math.nan

    steps = [median_us("mooncake_both", t, "step_duration") - median_us("plain", t, "step_duration") for t in range(3)]
    values = [step - median_us("mooncake_both", t, "connector_total") for t, step in enumerate(steps)]
    half = float(stats.t.ppf(1 - 0.05 / 2 / 2, 2)) * float(np.std(values, ddof=1)) / math.sqrt(3)
    found = _row(analysis, "mooncake_both", Metric.REMAINDER_P50).estimate
    assert found.value == pytest.approx(float(np.mean(values)))
    assert found.basis == "over 3 launches, all configs together"
    assert found.low == pytest.approx(float(np.mean(values)) - half)
    assert found.high == pytest.approx(float(np.mean(values)) + half)


def test_a_remainder_is_not_called_lower_than_plain(analysis: Analysis) -> None:
    """It is below zero because the worker's callbacks run outside schedule(); the connector makes no step faster."""
    (table,) = (table for table in build_tables(analysis) if table.title == "Step tax")
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    (row,) = (row for row in rows if (row["reference"], row["config"]) == ("ref_safe", "mooncake_both"))
    assert row["remainder"].endswith(" below zero")
    assert row["tax_step"].endswith(" higher")
    assert "below zero where callbacks run in the worker" in table.note


def test_both_references_are_quoted_and_the_loaded_one_is_worse(analysis: Analysis) -> None:
    safe = _row(analysis, "mooncake_both", Metric.TTFT_P90).estimate.value
    load = _row(analysis, "mooncake_both", Metric.TTFT_P90, reference="ref_load").estimate.value
    assert safe is not None
    assert load is not None
    assert load > safe + 1  # mooncake saturates there, plain does not


def test_every_shape_of_phase_b_has_its_tax(analysis: Analysis) -> None:
    for shape in ("512x64", "4096x64"):
        row = _row(analysis, "mooncake_both", Metric.TTFT_P90, phase="B", shape=shape)
        assert covers(row.estimate, 0.45)
        assert row.reference == "ref_safe"
    steps = [row for row in analysis.taxes if row.phase == "B" and row.metric not in (Metric.TTFT_P90, Metric.TPOT_P90)]
    assert steps == []


def test_a_degraded_side_is_not_a_tax(tmp_path: Path) -> None:
    layout = write_measured_run(tmp_path, Run({"plain": PLAIN, "nixl_both": PLAIN}, (1, 2), steps=0))
    write_cell(layout.config(DATE, "plain"), Cell("plain", PLAIN, Load(2.0), steps=0, degraded="slow client"))
    row = _row(analyze(tmp_path), "nixl_both", Metric.TTFT_P90)
    assert row.estimate.value is None
    assert "plain is degraded at this load: slow client" in str(row.estimate.reason)


def test_without_step_timing_the_latency_taxes_stand(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path, Run({"plain": PLAIN, "mooncake_both": MOONCAKE}, (2,), steps=0)).root)
    assert _row(found, "mooncake_both", Metric.TTFT_P90).estimate.value is not None
    step = _row(found, "mooncake_both", Metric.STEP_P50).estimate
    assert step.value is None
    assert step.reason == "mooncake_both has no step_duration_us"
    assert "no step timing" in str(_row(found, "mooncake_both", Metric.CALLBACK_P50).estimate.reason)
