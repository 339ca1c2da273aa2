"""The noise between launches comes back as it was made, stands first, and taxes are judged together against it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.figures import make_decomposition_figure
from results.connector_tax.launch_noise import LaunchNoise
from results.connector_tax.measurements import Load
from results.connector_tax.page import build_page
from results.connector_tax.summary import Shape
from results.connector_tax.tax import Metric, TaxRow
from results.connector_tax.write import write_results
from results.records.reference_rates import REF_SAFE
from results.statistics.judgement import Verdict
from tests.results.connector_tax.synthetic import DATE, Behavior, Run, run_cells, write_run
from tests.results.statistics.in_memory import bounds
from tests.results.undrawn import nothing_drawn

SIGMA = 0.10
RUN = Run(
    configs={
        BASELINE: Behavior(),
        REPEAT: Behavior(),
        "noop_connector": Behavior(),
        "mooncake_both": Behavior(ttft_p50_s=0.2 * 1.6),
        "nixl_both": Behavior(),
    },
    rates_per_s=(2,),
    requests=200,
    steps=20,
    trials=8,
    launch_sigma=SIGMA,
    seed=3,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noise")


@pytest.fixture(scope="module")
@nothing_drawn()
def analysis(root: Path) -> Analysis:
    write_run(root, RUN)
    return write_results(root)


def rows(analysis: Analysis, config: str) -> TaxRow:
    wanted = (config, Metric.TTFT_P90, REF_SAFE)
    (row,) = (row for row in analysis.taxes if (row.config, row.metric, row.reference) == wanted)
    return row


def noise(analysis: Analysis) -> LaunchNoise:
    rows_at_safe = (row for row in analysis.launch_noise if row.reference == REF_SAFE)
    (row,) = (row for row in rows_at_safe if row.metric == Metric.TTFT_P90)
    return row


def test_sigma_is_what_the_launches_were_made_with(analysis: Analysis) -> None:
    row = noise(analysis)
    assert (row.launches, row.degrees) == (8, 7 * 4)
    assert math.log1p(row.sigma) == pytest.approx(SIGMA, rel=0.35)  # 28 degrees of freedom, and 200 requests a cell
    quantiles = [float(stats.chi2.ppf(p, row.degrees)) for p in (0.975, 0.025)]
    expected = [math.log1p(row.sigma) * math.sqrt(row.degrees / quantile) for quantile in quantiles]
    assert [math.log1p(row.sigma_low), math.log1p(row.sigma_high)] == pytest.approx(expected)
    assert row.repeat is not None
    low, high = bounds(row.repeat)
    assert low < 0 < high
    assert row.detectable is not None
    assert 1.2 < math.log1p(row.detectable) / math.log1p(row.sigma) < 1.8
    assert row.launches_for_named is not None
    assert row.launches_for_named > 8
    assert row.sigma_for_named is not None
    unit = math.log1p(row.detectable) / math.log1p(row.sigma)
    assert math.log1p(row.sigma_for_named) == pytest.approx(math.log1p(0.10) / unit), "8 launches detect 10 % there"


def test_what_of_the_noise_is_the_host_s_speed_is_told_where_it_was_timed(tmp_path: Path, analysis: Analysis) -> None:
    """Every launch is as slow as the fixed piece of work beside it."""
    assert noise(analysis).sigma_at_one_speed is None
    assert "one speed" not in build_page(analysis).noise
    layout = write_run(tmp_path, RUN)
    lines = ["cell,t_unix_s,late_s,busy,stolen,waiting,work_us"]
    for cell in run_cells(RUN):
        times = (cell.t_start_unix_s - 5, cell.t_start_unix_s + 5)  # before its load the host was something else
        lines += [
            f"{cell.load.cell(cell.config)},{at},0,0,0,0,{work}"
            for at, work in zip(times, (9e9, 140 * cell.slow), strict=True)
        ]
    layout.host_csv.write_text("\n".join(lines) + "\n")
    found = analyze(tmp_path)
    row = noise(found)
    assert row.sigma == noise(analysis).sigma, "descriptive: the noise that verdicts rest on stays"
    assert row.sigma_at_one_speed is not None
    assert row.sigma_at_one_speed < 0.75 * row.sigma  # what is left is that of 200 requests
    assert "On a host of one speed it would be TTFT p90" in build_page(found).noise


def test_a_tax_is_the_geometric_mean_against_both_plains_and_judged_with_the_others(analysis: Analysis) -> None:
    row = rows(analysis, "mooncake_both")
    load = Load("A", row.rate_per_s, Shape(4096, 256))
    p90 = {
        name: [cell.values["ttft_p90_s"].value or math.nan for cell in analysis.cells if cell.config == name]
        for name in RUN.configs
    }
    base = np.sqrt(np.array(p90[BASELINE]) * np.array(p90[REPEAT]))
    expected = math.exp(float(np.mean(np.log(np.array(p90["mooncake_both"]) / base)))) - 1
    assert row.shape == load.shape
    assert row.estimate.value == pytest.approx(expected)
    assert row.verdict == Verdict.HIGHER
    assert row.own is not None
    assert row.own.value == row.estimate.value
    assert row.p is not None
    assert rows(analysis, "nixl_both").verdict == Verdict.NOT_DISTINGUISHABLE
    h1 = analysis.verdicts[0].measured
    assert h1.value == pytest.approx(row.estimate.value), "the hypothesis is judged on the number that the table shows"
    low, _ = bounds(h1)
    assert low > bounds(row.estimate)[0], "one hypothesis alone needs no correction for the other configs"
    assert row.alone is not None
    assert low == pytest.approx(row.alone.low, abs=0.02)


def test_all_bars_of_the_decomposition_hold_by_themselves(analysis: Analysis) -> None:
    """The engine step's as those of the latencies, and the connector's part as the framework's."""
    figure = make_decomposition_figure(analysis)
    assert "95 % interval between launches, by itself" in figure.caption
    wanted = (Metric.ENGINE_STEP_P50, "nixl_both", REF_SAFE)
    (step,) = (row for row in analysis.taxes if (row.metric, row.config, row.reference) == wanted)
    assert step.alone is not None
    (drawn,) = figure.table.query(f"config == 'nixl_both' and metric == '{step.metric}'").to_dict("records")
    assert [drawn["low"], drawn["high"]] == pytest.approx([step.alone.low, step.alone.high], abs=1.0), "joint draws, us"
    for row in figure.table.to_dict("records"):
        assert row["connector_low"] < row["connector"] < row["connector_high"]
        assert row["framework"] + row["connector"] == pytest.approx(row["tax"])


def test_the_noise_stands_first_in_report_page_and_files(analysis: Analysis, root: Path) -> None:
    report = (root / "report.md").read_text()
    tables = [line for line in report.splitlines() if line.startswith("### ")]
    assert tables.index("### Noise between launches") < tables.index("### Hypotheses")
    page = build_page(analysis)
    wanted = r"by a sigma of TTFT p90 [0-9.]+ % \[[0-9.]+, [0-9.]+\], TPOT p90 [0-9.]+ % \[[0-9.]+, [0-9.]+\] \("
    assert re.search(wanted, page.noise), page.noise
    assert " 8 launches detect taxes from TTFT " in page.noise
    assert " % on with a probability of 80 %. " in page.noise
    assert f"10 % takes {max(row.launches_for_named or 0 for row in analysis.launch_noise)} launches" in page.noise
    assert re.search(r"launches per config, about \d+(\.\d)? h\. ", page.noise), "a launch of each takes minutes"
    written = json.loads((root / "tax.json").read_bytes())
    assert [row["metric"] for row in written["launch_noise"]] == ["tax_ttft_p90", "tax_tpot_p90"] * 2
    mooncake = next(row for row in written["taxes"] if row["config"] == "mooncake_both")
    assert 0 < mooncake["p_corrected"] < 0.05
    assert mooncake["own_low"] < mooncake["value"] < mooncake["own_high"]


def test_a_launch_of_one_plain_that_is_missing_takes_no_launch_from_the_taxes(tmp_path: Path) -> None:
    write_run(tmp_path, replace(RUN, trials=3))
    (tmp_path / "results" / f"{DATE}_{REPEAT}" / "cell_A_r2_t2.json").unlink()
    row = rows(analyze(tmp_path), "mooncake_both")
    assert (row.estimate.launches, row.withheld) == (3, "")
    assert row.verdict is not None


def test_two_launches_promise_nothing_and_plain_against_plain_is_no_verdict(tmp_path: Path) -> None:
    analysis = analyze(write_run(tmp_path, replace(RUN, trials=2)).root)
    assert noise(analysis).detectable is None
    assert "detect taxes" not in build_page(analysis).noise
    assert "100 % takes" not in build_page(analysis).noise
    assert {(row.verdict, row.p) for row in analysis.noise_floor} == {(None, None)}


def test_one_launch_per_config_has_no_noise_to_tell(tmp_path: Path) -> None:
    analysis = analyze(write_run(tmp_path, replace(RUN, trials=1)).root)
    assert analysis.launch_noise == ()
    assert "is not known (one launch per config" in build_page(analysis).noise
    assert rows(analysis, "mooncake_both").p is None
