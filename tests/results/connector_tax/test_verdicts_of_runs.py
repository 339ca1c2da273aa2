"""A whole run of known truth, from its files to its verdicts; what is lost on the way leaves a named gap in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.combined_taxes import Additive
from results.connector_tax.figures import make_additivity_figure
from results.connector_tax.tax import Metric, TaxRow
from results.connector_tax.write import flatten_taxes, write_results
from results.measures.drift import DriftVerdict
from results.statistics.judgement import Judgement, Outcome, Verdict
from tests.results.connector_tax.synthetic import DATE, Behavior, Run, report_text, write_measured_run, write_run
from tests.results.statistics.in_memory import covers
from tests.results.undrawn import nothing_drawn

LENGTHS = ((512, 64), (512, 256), (4096, 64), (4096, 256))


def taxed(ttft: float, tpot: float = 0.0, **more: Any) -> Behavior:
    """A config with these taxes; latencies vary by 1 %."""
    return Behavior(ttft_p50_s=0.2 * (1 + ttft), tpot_p50_s=0.01 * (1 + tpot), sigma=0.01, **more)


MOONCAKE = taxed(0.45, 0.25, knee_per_s=4, slow_by_input={512: 0.9}, slow_by_output={64: 0.95})
EIGHT = {
    "plain": taxed(0.0),
    "noop_connector": taxed(0.08),
    "mooncake_producer": taxed(0.30),
    "mooncake_consumer": taxed(0.20),
    "mooncake_both": MOONCAKE,
    "nixl_both": taxed(0.38, 0.2),
    "lmcache_only": taxed(0.20, 0.1),
    "multi_mooncake_lmcache": taxed(1.30, 0.36),
}
RUN = Run(
    EIGHT, (1, 2, 4), LENGTHS, ref_safe_per_s=2.0, prime=(4.0, ((512, 256), (4096, 256))), steps=0, cell_s=90,
    trials=3,
)  # fmt: skip
SMALL = replace(
    RUN,
    configs={name: EIGHT[name] for name in EIGHT if name not in ("mooncake_producer", "mooncake_consumer")},
    rates_per_s=(2,), prime=(0, ()), requests=60, trials=3,
)  # fmt: skip
NAME = "20260131-120000-connector-tax-cpu-tiny"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / NAME
    return write_measured_run(root, RUN).root


@pytest.fixture(scope="module")
def analysis(original: Path) -> Analysis:
    return analyze(original)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small") / NAME
    write_measured_run(root, SMALL)
    assert Outcome.UNDECIDED not in {verdict.outcome for verdict in analyze(root).verdicts}
    return root


def _verdict(found: Analysis, name: str) -> Judgement:
    return next(verdict for verdict in found.verdicts if verdict.name == name)


@pytest.mark.parametrize(
    ("name", "outcome", "label", "truth"),
    [
        ("H1", Outcome.HOLDS, "", 0.45),
        ("H2", Outcome.HOLDS, "", 0.07),
        ("H3", Outcome.HOLDS, "implementation-cost-dominated", 0.08 / 0.45),
        ("H4", Outcome.FAILS, "super-additive", (1.30 - 0.65) / 1.30),
        ("H5", Outcome.HOLDS, "", 0.1 * 1.45 / 3),  # 0.9 of it at 512 tokens, three doublings below 4096
        ("H6", Outcome.HOLDS, "", 0.05 * 1.25 / 2),
    ],
)
def test_a_known_truth_is_recovered_and_judged(
    analysis: Analysis, name: str, outcome: Outcome, label: str, truth: float
) -> None:
    found = _verdict(analysis, name)
    assert (found.outcome, found.label) == (outcome, label)
    assert covers(found.measured, truth)
    assert found.measured.basis == "over 3 launches, by itself"
    assert found.alone == outcome
    assert found.p is not None
    assert found.p_corrected is not None
    assert found.p <= found.p_corrected <= 0.05


def test_every_success_criterion_of_a_whole_run_is_met(analysis: Analysis) -> None:
    assert {criterion.name: criterion.outcome for criterion in analysis.criteria} == dict.fromkeys(
        "1234567", Outcome.HOLDS
    )


def test_the_figure_of_additivity_says_that_bars_and_marks_hold_for_different_things(analysis: Analysis) -> None:
    """A tax can be distinguishable from zero by itself and not once all configs are judged together."""
    figure = make_additivity_figure(analysis)
    assert "interval of each number by itself" in figure.caption
    row = _tax(analysis, "lmcache_only")
    (drawn,) = figure.table.query("config == 'lmcache_only' and metric == 'tax_ttft_p90'").to_dict("records")
    assert row.estimate.low is not None
    assert drawn["low"] > row.estimate.low


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Analysis]:
    """The same truth measured in one launch per config, and in two."""
    found = {}
    for trials in (1, 2):
        root = tmp_path_factory.mktemp(f"few{trials}") / NAME
        write_run(root, replace(RUN, trials=trials))
        found[trials] = analyze(root)
    return found


@pytest.mark.parametrize("trials", [1, 2])
def test_one_launch_or_two_give_no_verdict_anywhere(few: dict[int, Analysis], trials: int) -> None:
    found = few[trials]
    taxed_rows = [row for row in found.taxes if row.metric != Metric.CALLBACK_P50]
    assert {row.verdict for row in taxed_rows} | {row.verdict for row in found.amplification} == {None}
    assert {row.verdict for row in found.additivity} == {Additive.UNDECIDED}
    assert {verdict.outcome for verdict in found.verdicts} == {Outcome.UNDECIDED}
    assert {verdict.label for verdict in found.verdicts} == {""}
    launches = "one launch" if trials == 1 else "2 launches"
    assert all(f"{launches} per config" in row.withheld for row in taxed_rows if row.estimate.value is not None)
    for verdict in found.verdicts:
        assert f"{launches} per config: two launches of one config differ too; `--trials 3`" in verdict.reason
        assert "accepted: " not in verdict.prior
    by_name = {criterion.name: criterion.outcome for criterion in found.criteria}
    assert by_name == {**dict.fromkeys("12345", Outcome.UNDECIDED), "6": Outcome.HOLDS, "7": Outcome.HOLDS}


@pytest.mark.parametrize("trials", [1, 2])
def test_what_is_withheld_reaches_every_file_with_its_reason(few: dict[int, Analysis], trials: int) -> None:
    text = report_text(few[trials])
    assert "no verdict" in text
    assert "`--trials 3` gives a verdict" in text
    assert "interval" not in text.split("\n")[2]  # what the brackets hold
    assert "Brackets hold for each number by itself" not in text
    assert "by itself" not in make_additivity_figure(few[trials]).caption
    for word in (" higher", " lower ", "not distinguishable", "holds", "fails"):
        assert not any(word in line for line in text.splitlines() if line.startswith(("| ref_", "| mooncake")))
    csv = flatten_taxes(few[trials].taxes)
    named = csv[csv["value"].notna() & (csv["metric"] != "tax_callback_p50_us")]
    assert named["verdict"].isna().all()
    assert named["withheld"].str.contains("--trials 3").all()


def test_a_run_without_trials_is_tested_for_drift_by_what_its_phases_share(few: dict[int, Analysis]) -> None:
    assert {row.verdict for row in few[1].drift} == {DriftVerdict.NOT_DETECTED}
    assert all("Phase A and in Phase B" in row.reason for row in few[1].drift)


LOSSES = [  # file of which config, the verdicts it takes, the reason they name
    ("mooncake_both", "cell_A_r2.json", ("H1", "H2", "H3", "H4"), "mooncake_both was not measured"),
    ("mooncake_both", "requests_A_r2.jsonl", ("H1", "H2", "H3", "H4"), "mooncake_both has no ttft_s"),
    ("nixl_both", "requests_A_r2.jsonl", ("H2",), "nixl_both has no ttft_s"),
    ("noop_connector", "requests_A_r2.jsonl", ("H3",), "noop_connector has no ttft_s"),
    ("lmcache_only", "requests_A_r2.jsonl", ("H4",), "lmcache_only has no ttft_s"),
    ("mooncake_both", "requests_B_512x64.jsonl", ("H5", "H6"), "mooncake_both has no t"),
    ("plain", "requests_A_r2.jsonl", ("H1", "H2", "H3", "H4"), "plain has no ttft_s"),
    ("plain", "cell_B_4096x64.json", ("H5", "H6"), "plain was not measured at this load"),
]


@pytest.mark.parametrize(
    ("config", "file", "taken", "reason", "damage"),
    [(*loss, "removed") for loss in LOSSES] + [(*loss, "corrupted") for loss in LOSSES[:2]],
)
def test_a_lost_artifact_takes_its_verdicts_and_no_other(
    small: Path, tmp_path: Path, config: str, file: str, taken: tuple[str, ...], reason: str, damage: str
) -> None:
    root = Path(shutil.copytree(small, tmp_path / NAME))
    stem, suffix = file.split(".")
    for trial in ("", "_t1", "_t2"):
        path = root / "results" / f"{DATE}_{config}" / f"{stem}{trial}.{suffix}"
        path.with_suffix(".parquet").unlink(missing_ok=True)
        if damage == "removed":
            path.unlink()
        else:
            path.write_bytes(b'{"a": \x00')
    found = analyze(root)
    assert {verdict.name for verdict in found.verdicts if verdict.outcome == Outcome.OPEN} == set(taken)
    for name in taken:
        assert _verdict(found, name).measured.value is None
        assert reason in _verdict(found, name).reason
    six = found.criteria[5]
    assert six.outcome == Outcome.FAILS
    assert f"results/{DATE}_{config}/{file}" in six.reason
    assert f"results/{DATE}_{config}/{file}" in report_text(found)


def test_an_empty_folder_has_every_verdict_open_with_a_reason(tmp_path: Path) -> None:
    found = write_results(tmp_path)
    assert {verdict.outcome for verdict in found.verdicts} == {Outcome.OPEN}
    assert all(verdict.reason and verdict.measured.value is None for verdict in found.verdicts)
    assert Outcome.HOLDS not in {criterion.outcome for criterion in found.criteria}
    assert {row.verdict for row in found.drift} == {DriftVerdict.NOT_TESTABLE}


def test_a_config_that_was_skipped_leaves_its_verdict_open_and_the_artifacts_complete(tmp_path: Path) -> None:
    configs = {name: EIGHT[name] for name in ("plain", "mooncake_both", "nixl_both")}
    skipped = {"multi_mooncake_lmcache": "LMCache is not installed"}
    found = analyze(write_run(tmp_path, replace(SMALL, configs=configs, shapes=(), skipped=skipped)).root)
    assert _verdict(found, "H2").outcome == Outcome.HOLDS
    assert (_verdict(found, "H4").outcome, found.criteria[3].outcome) == (Outcome.OPEN, Outcome.FAILS)
    assert found.criteria[5].outcome == Outcome.HOLDS


def _tax(found: Analysis, config: str, metric: Metric = Metric.TTFT_P90) -> TaxRow:
    rows: Iterable[TaxRow] = (row for row in found.taxes if (row.config, row.metric) == (config, metric))
    return next(row for row in rows if (row.phase, row.reference) == ("A", "ref_safe"))


TRIALS = Run(
    {"plain": taxed(0.0), "noop_connector": taxed(0.0), "mooncake_both": taxed(0.45), "nixl_both": taxed(0.20)},
    (2,), steps=300, trials=4, seed=2, launch_sigma=0.02, drift_per_h=0.05, cell_s=900, requests=60,
)  # fmt: skip


@nothing_drawn()
def test_trials_give_paired_intervals_and_a_drift(tmp_path: Path) -> None:
    found = write_results(write_run(tmp_path, TRIALS).root)
    mooncake = _tax(found, "mooncake_both")
    assert covers(mooncake.estimate, 0.45)
    assert mooncake.estimate.basis == "over 4 launches, all configs together"
    assert mooncake.own is not None
    assert covers(mooncake.own, 0.45)
    assert mooncake.p is not None
    assert 0 < mooncake.p < 0.01 < (_tax(found, "noop_connector").p or 0)
    assert _tax(found, "noop_connector").verdict == Verdict.NOT_DISTINGUISHABLE
    assert _tax(found, "mooncake_both", Metric.ENGINE_STEP_P50).estimate.basis == mooncake.estimate.basis
    assert _verdict(found, "H1").outcome == Outcome.HOLDS
    assert all(covers(row.slope_per_h, 0.05) and row.verdict == DriftVerdict.DETECTED for row in found.drift)
    assert "over 4 launches, all configs together" in (tmp_path / "report.md").read_text()
    assert "what drifted inside a round is part of the noise" in (tmp_path / "report.md").read_text()
    assert found.criteria[6].outcome == Outcome.HOLDS
    assert found.criteria[6].measured.value == pytest.approx(3.8, abs=0.3), "hours of all trials"


def test_a_trial_that_lost_its_baseline_is_left_out_and_said(tmp_path: Path) -> None:
    write_run(tmp_path, TRIALS)
    (tmp_path / "results" / f"{DATE}_plain" / "cell_A_r2_t3.json").unlink()
    whole = _tax(analyze(tmp_path), "mooncake_both").estimate
    assert (whole.basis, whole.launches) == ("over 3 launches, all configs together", 3)
    (tmp_path / "results" / f"{DATE}_plain" / "cell_A_r2_t2.json").unlink()
    less = _tax(analyze(tmp_path), "mooncake_both").estimate
    assert less.basis == "spread within 2 launches"
    assert less.low is not None


def test_a_run_of_four_launches_that_lost_two_is_not_told_to_make_three(tmp_path: Path) -> None:
    write_run(tmp_path, TRIALS)
    for trial in (2, 3):
        (tmp_path / "results" / f"{DATE}_plain" / f"cell_A_r2_t{trial}.json").unlink()
    found = analyze(tmp_path)
    retry = "`tracon retry`, then `tracon resume`, measures those that failed, a new run those that are degraded"
    remedy = f"the run plans 4: {retry}"
    withheld = _tax(found, "mooncake_both").withheld
    assert withheld.startswith(f"2 launches per config: two launches of one config differ too; {remedy}")
    for text in (withheld, *(_verdict(found, name).reason for name in ("H1", "H2", "H3"))):
        assert remedy in text
        assert "--trials" not in text
