"""A run with a confirm stage: verdicts come from its launches alone, and saturated shapes take no part in them."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.compare import build_comparable
from results.connector_tax.draw import _format_tax_cell
from results.connector_tax.figures import make_shape_heatmaps
from results.connector_tax.launch_noise import LaunchNoise
from results.connector_tax.launch_table import build_launch_table
from results.connector_tax.page import build_page
from results.connector_tax.saturation import choose_reference_rates, fix_rates
from results.connector_tax.tables import build_tables
from results.connector_tax.tax import Metric, TaxRow
from results.connector_tax.write import write_results
from results.records.layout import RunLayout
from results.records.reference_rates import ReferenceRates
from results.records.schemas import RequestStatus
from results.report.table import Table
from results.statistics.blocks import detectable_effect
from results.statistics.judgement import Judgement, Outcome, Verdict
from tests.goldens.fixture import write_checksums
from tests.results.connector_tax.synthetic import DATE, Behavior, Cell, Load, Run, report_text, write_cell, write_run
from tests.results.statistics.in_memory import covers

SHAPES = ((512, 64), (512, 256), (4096, 64), (4096, 256))


def taxed(ttft: float, **more: object) -> Behavior:
    return Behavior(ttft_p50_s=0.2 * (1 + ttft), sigma=0.05, **more)  # type: ignore[arg-type]


RUN = Run(
    {
        "plain": taxed(0.0),
        "plain_again": taxed(0.0),
        "noop_connector": taxed(0.0),
        "mooncake_both": taxed(0.45, slow_by_input={512: 0.85}),
        "nixl_both": taxed(0.20),
    },
    (2, 4), SHAPES, ref_safe_per_s=2.0, prime=(4.0, ((512, 256),)), requests=60, steps=40, confirm=3,
    launch_sigma=0.02, seed=4,
)  # fmt: skip
TTFT = Metric.TTFT_P90
RATES = ReferenceRates(2.0, 4.0, "", "", rates_per_s=(2.0, 4.0))


def write(root: Path, run: Run) -> Path:
    write_run(root, run).reference_rates.write_bytes(RATES.to_json())
    return root


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("confirmed") / "run", RUN)


@pytest.fixture(scope="module")
def analysis(original: Path) -> Analysis:
    return analyze(original)


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def tax_of(analysis: Analysis, config: str, phase: str, shape: str, metric: Metric = Metric.TTFT_P90) -> TaxRow:
    rate_per_s = 4.0 if phase == "Bp" else 2.0
    wanted = (config, metric, phase, shape, rate_per_s)
    rows = ((row.config, row.metric, row.phase, str(row.shape), row.rate_per_s) for row in analysis.taxes)
    return analysis.taxes[list(rows).index(wanted)]


def hypothesis(analysis: Analysis, name: str) -> Judgement:
    return next(one for one in analysis.verdicts if one.name == name)


def test_every_tax_comes_from_the_launches_of_the_confirm_stage(analysis: Analysis) -> None:
    known = [row for row in analysis.taxes if row.estimate.value is not None]
    assert {row.estimate.launches for row in known} == {3}
    assert {row.phase for row in known} == {"A", "B", "Bp"}
    assert all(row.estimate.n == 3 * 60 for row in known if row.metric == Metric.TTFT_P90)
    assert covers(tax_of(analysis, "mooncake_both", "A", "4096x256").estimate, 0.45)
    assert tax_of(analysis, "mooncake_both", "A", "4096x256").verdict == Verdict.HIGHER


def test_the_tables_of_taxes_name_those_that_their_own_launches_judge_otherwise(analysis: Analysis) -> None:
    def note(of: Analysis, title: str = "Substrate tax (Phase A shape)") -> str:
        return next(table.note for table in build_tables(of) if table.title == title)

    same = "by itself, 12 of 12 verdicts are those of the residual that the configs share."
    assert note(analysis).endswith(same)
    row = tax_of(analysis, "mooncake_both", "A", "4096x256")
    assert row.own is not None
    assert row.alone is not None
    wide = replace(row, own=replace(row.own, low=-0.05))
    unsure = replace(analysis, taxes=tuple(wide if one is row else one for one in analysis.taxes))
    assert wide.own is not None
    assert note(unsure).endswith(
        "by itself, 11 of 12 verdicts are those of the residual that the configs share; mooncake_both TTFT p90 "
        f"(ref_safe, 4096x256) {wide.own.percent()} undecided, not higher."
    )
    assert "by itself, 30 of 30 verdicts" in note(unsure, "Tax by shape")
    few = replace(wide, own=replace(wide.own, launches=2), verdict=None)
    without = replace(analysis, taxes=tuple(few if one is row else one for one in analysis.taxes))
    assert "11 of 11 verdicts" in note(without), "a tax without a verdict is not compared"


def test_the_same_load_has_one_tax_wherever_it_is_shown(analysis: Analysis) -> None:
    """Phase A's shape at ref_safe is a shape of Phase B: one launch measured it, not two."""
    for config in ("noop_connector", "mooncake_both", "nixl_both"):
        one, other = (tax_of(analysis, config, phase, "4096x256") for phase in ("A", "B"))
        assert one.estimate == other.estimate


def test_a_load_that_two_phases_share_is_compared_with_another_run_once(analysis: Analysis) -> None:
    """Counted twice, one disjoint pair of intervals would look like two."""
    taxes = [one.key for one in build_comparable(analysis).measures if one.table == "Taxes"]
    shared = [key for key in taxes if (key["reference"], key["shape"]) == ("ref_safe", "4096x256")]
    assert {key["phase"] for key in shared} == {"A"}
    assert len(shared) == 3 * 2, "three connectors, two latencies"
    assert {key["phase"] for key in taxes} == {"A", "B", "Bp"}


def test_hypotheses_name_the_loads_that_they_are_judged_over(analysis: Analysis, queued: Analysis) -> None:
    loads = build_comparable(analysis).loads
    assert {loads[name] for name in ("H1", "H2", "H3", "H4")} == {"2 req/s, 4096x256"}
    assert loads["H5"] == loads["H6"] == "2 req/s, 512x64, 512x256, 4096x64, 4096x256"
    saturated = build_comparable(queued).loads
    assert saturated["H5"] == "2 req/s, 512x256, 4096x256", "without the output length of which a shape is left out"
    assert "H6" not in saturated, "one length is left"


def test_taxes_state_the_degrees_of_freedom_of_the_residual_that_configs_share(analysis: Analysis) -> None:
    measures = build_comparable(analysis).measures
    assert {one.degrees for one in measures if one.table == "Taxes"} == {(5 - 1) * (3 - 1)}
    confirmed = [one for one in measures if one.table == "Latencies" and one.estimate.launches == 3]
    assert {one.degrees for one in confirmed} == {2}


def test_a_rate_that_is_both_reference_rates_is_compared_with_another_run_once(tmp_path: Path) -> None:
    configs = {name: RUN.configs[name] for name in ("plain", "mooncake_both")}
    run = replace(RUN, configs=configs, shapes=(), prime=(0.0, ()), steps=0)
    rates = ReferenceRates(2.0, 2.0, "", "", rates_per_s=(2.0, 4.0))
    write_run(tmp_path, run).reference_rates.write_bytes(rates.to_json())
    found = analyze(tmp_path)
    assert {row.reference for row in found.taxes} == {"ref_safe", "ref_load"}
    taxes = [one.key for one in build_comparable(found).measures if one.table == "Taxes"]
    assert [(key["reference"], key["tax"]) for key in taxes] == [("ref_safe", "TTFT p90"), ("ref_safe", "TPOT p90")]


def test_the_sweep_decides_nothing(root: Path, analysis: Analysis) -> None:
    for path in root.glob("results/*/cell_[AB]*_*.json"):
        if path.name != "cell_A_r2.json":  # one tells which shape Phase A has
            path.unlink()
    less = analyze(root)
    assert [row.estimate for row in less.taxes] == [row.estimate for row in analysis.taxes]
    assert [one.outcome for one in less.verdicts] == [one.outcome for one in analysis.verdicts]
    assert less.attribution == analysis.attribution


def test_a_load_that_is_not_confirmed_yet_shows_the_sweep_without_a_verdict(root: Path) -> None:
    for path in root.glob("results/*/cell_C_512x64-ref_safe*.json"):
        path.unlink()
    found = analyze(root)
    row = tax_of(found, "mooncake_both", "B", "512x64")
    assert (row.estimate.launches, row.verdict) == (1, None)
    assert tax_of(found, "mooncake_both", "B", "512x256").estimate.launches == 3


def test_a_confirm_stage_of_two_launches_gives_no_verdict(root: Path) -> None:
    for path in root.glob("results/*/cell_C_*_t2.json"):
        path.unlink()
    found = analyze(root)
    assert {row.verdict for row in found.taxes} == {None}
    assert all("2 launches per config" in row.withheld for row in found.taxes if row.metric == Metric.TTFT_P90)
    lacking = [gap for gap in found.gaps if "512x256-ref_safe_t2" in gap.reason]
    assert {gap.artifact for gap in lacking} == {f"{config}, confirm stage" for config in RUN.configs}


@pytest.fixture(scope="module")
def confirmed_only(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The sweep has Phase A alone, and one shape has a rate of its own."""
    run = replace(RUN, sweeps_shapes=False, own_rates={(4096, 64): 0.5}, prime=(4.0, ((512, 256),)))
    return write_results(write(tmp_path_factory.mktemp("confirmed-only") / "run", run))


def test_shapes_need_no_sweep(confirmed_only: Analysis) -> None:
    assert {cell.phase for cell in confirmed_only.cells} == {"A", "confirm"}
    assert {gap.artifact for gap in confirmed_only.gaps} == {"reference_rates.json"}, "the test states its own"
    assert tax_of(confirmed_only, "mooncake_both", "B", "512x64").estimate.launches == 3
    assert tax_of(confirmed_only, "mooncake_both", "Bp", "512x256").estimate.launches == 3
    assert hypothesis(confirmed_only, "H5").measured.launches == 3
    finished = next(one for one in confirmed_only.criteria if one.name == "7")
    whole = finished.numbers["with the confirm stage, h"].value or 0.0
    assert 0 < (finished.measured.value or 0.0) < 0.7 * whole, "Phase A and the first of three launches of each config"


def test_a_shape_with_a_rate_of_its_own_is_marked_with_it_wherever_its_tax_is_shown(confirmed_only: Analysis) -> None:
    rows = [row for row in confirmed_only.taxes if str(row.shape) == "4096x64"]
    assert {(row.phase, row.reference, row.rate_per_s) for row in rows} == {("B", "own rate", 0.5)}
    assert {row.reference for row in confirmed_only.taxes if row.phase == "B"} == {"ref_safe", "own rate"}
    text = report_text(confirmed_only)
    assert "| own rate, 0.5 req/s | 4096x64 | mooncake_both |" in text
    assert "left out: 4096x64: at 0.5 req/s, other lengths at 2" in hypothesis(confirmed_only, "H5").reason
    figure = make_shape_heatmaps(confirmed_only)
    assert "at 2 req/s (4096x64 at 0.5 req/s)" in figure.caption
    assert _format_tax_cell(
        {**figure.table.iloc[0].to_dict(), "tax": 0.1, "reference": "own rate", "rate_per_s": 0.5}
    ) == ("(+10.0 %)\nat 0.5/s")


def test_a_config_with_a_queue_at_ref_load_widens_no_other(root: Path, analysis: Analysis) -> None:
    """Its launches differ by its queue; in the comparison of all configs they would be everybody's noise."""
    for launch, trial in enumerate(("", "_t1", "_t2")):
        slow_down(root, "mooncake_both", f"4096x256-ref_load{trial}", 1.0 + launch)
    saturate(root, "mooncake_both", "4096x256-ref_load")
    found = analyze(root)

    def noise(of: Analysis) -> LaunchNoise:
        wanted = ("A", "ref_load", TTFT)
        (row,) = (row for row in of.launch_noise if (row.phase, row.reference, row.metric) == wanted)
        return row

    own = noise(found)
    assert own.sigma < 2 * noise(analysis).sigma
    planned = detectable_effect(math.log1p(own.sigma), 3, 2, level=1 - 0.05 * 2 / 3)
    assert own.degrees == 2 * 3
    assert own.detectable == pytest.approx(math.expm1(planned)), "of the two with that sigma"
    rows = {row.config: row for row in found.taxes if (row.phase, row.reference, row.metric) == ("A", "ref_load", TTFT)}
    assert rows["nixl_both"].verdict == Verdict.HIGHER
    queue = rows["mooncake_both"]
    assert queue.saturated == "mooncake_both"
    assert queue.estimate.value is not None
    assert (queue.estimate.high or 0.0) - (queue.estimate.low or 0.0) > 1.0, "its own launches tell little"


def test_against_a_plain_with_a_queue_at_ref_load_there_is_a_mark_and_no_verdict(root: Path) -> None:
    for config in ("plain", "mooncake_both"):
        saturate(root, config, "4096x256-ref_load")
    found = analyze(root)
    rows = [row for row in found.taxes if (row.phase, row.reference, row.metric) == ("A", "ref_load", TTFT)]
    assert {row.config for row in rows if row.estimate.value is not None} >= {"mooncake_both", "nixl_both"}
    assert {(row.saturated, row.verdict) for row in rows} == {("plain", None)}
    assert all("plain is saturated" in row.withheld for row in rows)
    added = [row for row in found.amplification if row.phases == ("A", "A")]
    assert {row.verdict for row in added} == {None}
    assert all("plain is saturated" in row.withheld for row in added)
    assert "| nixl_both (plain saturated) |" in report_text(found)


def slow_down(root: Path, config: str, stem: str, seconds: float) -> None:
    """Every first token of the cell comes later."""
    path = root / "results" / f"{DATE}_{config}" / f"requests_C_{stem}.jsonl"
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for row in rows:
        row["t_first_token_ns"] += int(seconds * 1e9)
        row["t_last_token_ns"] += int(seconds * 1e9)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def test_the_report_says_which_cells_are_descriptive(analysis: Analysis) -> None:
    text = report_text(analysis)
    assert "## Confirm stage\n\nVerdicts rest on these launches." in text
    assert "or all of them where 3 did. Criterion 3 is the growth of TTFT p90 over half the rate" in text
    assert text.count("Descriptive: one launch per config and phase. No verdict rests on these cells") == 3
    assert "undecided; effects above" in text
    assert "Brackets hold for each number by itself; those of the substrate tax hold for all configs together." in text
    assert "those of a difference for all configs at a shape together" in text


def columns_of(table: Table, column: str) -> dict[tuple[str, ...], str]:
    """A column of a table of launches, by load and config."""
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {(row["req/s"], row["shape"], row["config"]): row[column] for row in rows}


def test_requests_without_a_latency_are_counted_where_verdicts_rest(root: Path) -> None:
    """A config that fails or drops its slow requests would look fast."""
    load = Load(2.0, 4096, 256, "C", RUN.requests, trial=1, reference="ref_safe")
    ended = {30: RequestStatus.ERROR, 40: RequestStatus.DROPPED, 41: RequestStatus.DROPPED}
    cell = Cell("nixl_both", RUN.configs["nixl_both"], load, RUN.seed, RUN.steps, statuses=ended)
    write_cell(RunLayout(root).config(DATE, "nixl_both"), cell)
    found = analyze(root)
    lost = columns_of(build_launch_table(found.cells, found.saturation), "requests lost")
    assert lost.pop(("2", "4096x256", "nixl_both")) == "1 failed, 2 dropped"
    assert set(lost.values()) == {"0"}


def test_launches_that_were_lost_stand_against_the_plan(root: Path) -> None:
    folder = root / "results" / f"{DATE}_nixl_both"
    (folder / "cell_C_4096x256-ref_safe_t1.json").unlink()
    found = analyze(root)
    counts = columns_of(next(table for table in build_tables(found) if table.title == "Confirm stage"), "launches")
    assert counts.pop(("2", "4096x256", "nixl_both")) == "2 of 3"
    assert set(counts.values()) == {"3"}
    assert " 3 launches per config" in build_page(found).setting[1], "each was launched three times"
    for path in folder.glob("cell_C_*_t1.json"):
        path.unlink()
    assert " 2 to 3 of 3 launches per config" in build_page(analyze(root)).setting[1]


def test_lateness_stands_beside_ttft_where_verdicts_rest(root: Path) -> None:
    path = root / "results" / f"{DATE}_nixl_both" / "cell_C_4096x256-ref_safe_t1.json"
    record = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(record | {"fidelity": record["fidelity"] | {"lateness_p90_s": 0.0032}}))
    found = analyze(root)
    table = build_launch_table(found.cells, found.saturation)
    late = table.columns.index("late p90 ms")
    assert late == table.columns.index("TTFT p90 ms") + 1
    assert sorted({row[late] for row in table.rows}) == ["-", "3.2"], "`-`: the others do not say"


def test_what_queueing_adds_and_trends_come_from_joint_draws(analysis: Analysis) -> None:
    rows = [row for row in analysis.amplification if row.amplification.value is not None]
    assert {row.phases for row in rows} == {("A", "A"), ("B", "Bp")}
    assert {row.amplification.basis for row in rows} == {"over 3 launches, all configs together"}
    trend = hypothesis(analysis, "H5")
    assert trend.measured.basis == "over 3 launches, by itself"
    assert covers(trend.measured, 1.45 * 0.15 / 3)
    assert trend.outcome == Outcome.HOLDS
    for one in analysis.verdicts:
        assert (one.p is None) == (one.measured.low is None)
        assert one.p is None or one.p <= (one.p_corrected or 0)


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Mooncake is saturated at one shape, plain at another, in two of three launches."""
    root = write(tmp_path_factory.mktemp("queued") / "run", replace(RUN, seed=5))
    saturate(root, "mooncake_both", "512x64-ref_safe")
    saturate(root, "plain", "4096x64-ref_safe")
    saturate(root, "plain", "512x256-ref_load")
    saturate(root, "nixl_both", "512x256-ref_safe", trials=("_t1",))
    return analyze(root)


def saturate(root: Path, config: str, stem: str, trials: tuple[str, ...] = ("", "_t1")) -> None:
    """Let the engine report a queue in these launches."""
    for trial in trials:
        path = root / "results" / f"{DATE}_{config}" / f"metrics_C_{stem}{trial}.jsonl"
        text = path.read_text().replace('"vllm:num_requests_waiting":0.0', '"vllm:num_requests_waiting":9.0')
        path.write_text(text)
    write_checksums(root)


def test_saturated_shapes_are_marked_and_have_no_tax(queued: Analysis) -> None:
    ours = tax_of(queued, "mooncake_both", "B", "512x64")
    assert (ours.estimate.value, ours.saturated) == (None, "mooncake_both")
    assert ours.estimate.reason == "mooncake_both is saturated at this load"
    assert tax_of(queued, "nixl_both", "B", "512x64").estimate.value is not None
    for config in ("mooncake_both", "nixl_both"):
        row = tax_of(queued, config, "B", "4096x64")
        assert (row.estimate.reason, row.saturated) == ("plain is saturated at this load", "plain")
    assert tax_of(queued, "nixl_both", "B", "512x256").saturated == "", "one launch of three is noise"


def test_a_config_that_is_saturated_at_ref_safe_after_all_decides_no_hypothesis(root: Path) -> None:
    """The sweep that chose the rate is one launch."""
    saturate(root, "mooncake_both", "4096x256-ref_safe")
    found = analyze(root)
    row = tax_of(found, "mooncake_both", "A", "4096x256")
    assert (row.estimate.reason, row.saturated) == ("mooncake_both is saturated at this load", "mooncake_both")
    assert hypothesis(found, "H1").outcome == Outcome.OPEN
    assert tax_of(found, "nixl_both", "A", "4096x256").estimate.value is not None


def test_figure_5_hatches_what_the_confirm_stage_saturated(queued: Analysis) -> None:
    table = make_shape_heatmaps(queued).table
    shape = (table["input_tokens"] == 512) & (table["output_tokens"] == 64)
    assert dict(zip(table[shape]["config"], table[shape]["saturated"], strict=True))["mooncake_both"]
    assert not table[shape & (table["config"] == "nixl_both")]["saturated"].any()


def test_b_prime_against_a_saturated_plain_prints_no_tax(queued: Analysis) -> None:
    assert tax_of(queued, "mooncake_both", "Bp", "512x256").estimate.reason == "plain is saturated at this load"
    rows = [row for row in queued.amplification if row.phases == ("B", "Bp")]
    assert rows
    assert all(row.amplification.value is None for row in rows)


def test_trends_leave_saturated_shapes_out_and_name_them(queued: Analysis) -> None:
    h5 = hypothesis(queued, "H5")
    assert h5.measured.value is not None
    assert "left out: 512x64: mooncake_both is saturated at this load; 4096x64: plain is saturated" in h5.reason
    rows = [row for row in queued.trends if (row.config, row.along) == ("mooncake_both", "input_tokens")]
    lines = {row.at: row for row in rows}
    assert lines[None].taxes == lines[256].taxes, "only the output length whose shapes are all clear takes part"
    assert lines[64].slope.value is None
    assert "fewer than two lengths are left" in (lines[64].slope.reason or "")


def test_rates_that_the_plan_fixed_are_no_gap_and_stand_beside_those_of_phase_a(root: Path) -> None:
    """Phase A of this run gives 4 req/s for both."""
    chosen = choose_reference_rates(root)
    assert (chosen.ref_safe_per_s, chosen.ref_load_per_s) == (4.0, 4.0)
    assert [gap.artifact for gap in analyze(root).gaps] == ["reference_rates.json"]
    fixed = fix_rates(chosen, {"ref_safe": 2.0, "ref_load": 4.0})
    RunLayout(root).reference_rates.write_bytes(fixed.to_json())
    found = analyze(root)
    assert found.gaps == ()
    assert (found.rates.fixed, found.rates.ref_safe_per_s, found.rates.ref_load_per_s) == (True, 2.0, 4.0)
    why = f"fixed by the plan; Phase A gives 4 req/s: {chosen.ref_safe_reason}"
    assert why in report_text(found)
    answers = {answer.name: answer.text for answer in build_page(found).answers}
    assert answers["Reference rates"] == f"ref_safe 2 req/s and ref_load 4 req/s; {why}."
    assert "Rates without saturation" not in answers
    assert tax_of(found, "mooncake_both", "A", "4096x256").estimate.launches == 3


@pytest.mark.parametrize(("content", "why"), [(None, "is missing"), (b"{", "is damaged")])
def test_rates_that_the_plan_fixed_survive_the_loss_of_their_file(root: Path, content: bytes | None, why: str) -> None:
    layout = RunLayout(root)
    plan = json.loads(layout.plan.read_bytes())
    plan["inputs"]["grid"] |= {"ref_safe_per_s": 2.0, "ref_load_per_s": 4.0}
    layout.plan.write_text(json.dumps(plan))
    layout.reference_rates.unlink(missing_ok=True)
    if content is not None:
        layout.reference_rates.write_bytes(content)
    found = analyze(root)
    assert (found.rates.fixed, found.rates.ref_safe_per_s, found.rates.ref_load_per_s) == (True, 2.0, 4.0)
    assert found.rates.ref_safe_reason.startswith("fixed by the plan; Phase A gives 4 req/s")
    (gap,) = found.gaps
    assert why in gap.reason
    assert gap.reason.endswith("the reference rates are those the plan fixes")
    assert tax_of(found, "mooncake_both", "A", "4096x256").estimate.launches == 3


def test_with_fixed_rates_verdicts_need_no_sweep(root: Path) -> None:
    """Phase A and the stage of the reference rates were skipped: the plan states the shape and the rates."""
    layout = RunLayout(root)
    plan = json.loads(layout.plan.read_bytes())
    plan["inputs"]["grid"] |= {
        "ref_safe_per_s": 2.0, "ref_load_per_s": 4.0, "phase_a": {"input_tokens": 4096, "output_tokens": 256},
    }  # fmt: skip
    plan["cells"] = [cell for cell in plan["cells"] if cell["params"].get("phase") not in ("A", "B", "Bp")]
    layout.plan.write_text(json.dumps(plan))
    layout.reference_rates.unlink(missing_ok=True)
    for phase in ("A", "B", "Bp"):
        for path in root.rglob(f"*_{phase}_*"):
            path.unlink()
    found = analyze(root)
    assert {cell.phase for cell in found.cells} == {"confirm"}
    assert tax_of(found, "mooncake_both", "A", "4096x256").estimate.launches == 3
    assert hypothesis(found, "H1").measured.launches == 3
    assert hypothesis(found, "H5").measured.launches == 3
    assert build_comparable(found).loads["H1"] == "2 req/s, 4096x256", "as where Phase A was swept"
