"""The one page of a run: plain against plain is noise and no tax, and one launch per config judges nothing."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.attribution import Cause
from results.connector_tax.configs import BASELINE, CONFIGS, REPEAT
from results.connector_tax.page import TAXES, build_page, format_fraction
from results.connector_tax.remedies import find_remedy
from results.connector_tax.report import list_limits
from results.connector_tax.tax import Metric
from results.connector_tax.write import write_results
from results.records.estimate import Estimate
from results.records.host import HEADER
from results.records.layout import RunLayout
from results.report.page import Page, PageAnswer
from results.statistics.judgement import Judgement, Outcome
from tests.results.connector_tax.synthetic import DATE, Behavior, Run, report_text, write_run
from tests.results.undrawn import nothing_drawn

DEMO = Run(
    configs={
        BASELINE: Behavior(),
        REPEAT: Behavior(),
        "noop_connector": Behavior(callbacks_us=(0.3, 2.0, 0.7)),
        "mooncake_both": Behavior(ttft_p50_s=0.29, callbacks_us=(1.7, 152.0, 3.1)),
        "nixl_both": Behavior(ttft_p50_s=0.26, callbacks_us=(1.0, 80.0, 1.0)),
    },
    rates_per_s=(2,),
    requests=60,
    steps=200,
    trials=3,
)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    found = {}
    for trials in (1, 3):
        found[trials] = tmp_path_factory.mktemp("page") / f"20260131-12000{trials}-connector-tax-cpu-tiny"
        write_run(found[trials], replace(DEMO, trials=trials))
    return found


@pytest.fixture(scope="module")
@nothing_drawn()
def analyzes(roots: dict[int, Path]) -> dict[int, Analysis]:
    return {trials: write_results(root) for trials, root in roots.items()}


def answer_of(page: Page, name: str) -> PageAnswer:
    return next(one for one in page.answers if one.name == name)


def test_plain_twice_is_the_noise_floor_and_no_connectors_tax(
    analyzes: dict[int, Analysis], roots: dict[int, Path]
) -> None:
    analysis = analyzes[3]
    assert REPEAT not in {row.config for row in analysis.taxes}
    assert REPEAT not in {row.config for row in analysis.decomposition}
    assert REPEAT not in {row.config for row in analysis.amplification}
    assert {row.config for row in analysis.noise_floor} == {REPEAT}
    written = json.loads((roots[3] / "tax.json").read_bytes())
    assert REPEAT not in {row["config"] for row in written["taxes"]}
    assert {row["config"] for row in written["noise_floor"]} == {REPEAT}
    assert "## Noise floor: plain against plain" in report_text(analysis)
    page = build_page(analysis)
    assert f"{REPEAT} against {BASELINE}: TTFT p90 " in page.noise
    assert [one.name for one in page.answers[:3]] == ["noop_connector", "mooncake_both", "nixl_both"]


def test_three_launches_give_verdicts_and_one_says_why_there_are_none(analyzes: dict[int, Analysis]) -> None:
    judged, once = (build_page(analyzes[trials]) for trials in (3, 1))
    assert answer_of(judged, "mooncake_both").outcome.startswith("higher")
    assert "interval over launches" in judged.setting[1]
    together = "for all configs together, per latency and load (hypotheses, hooks and the noise floor: each by itself)"
    assert together in judged.setting[1]
    assert {one.outcome for one in once.answers if one.figure == TAXES} == {"no verdict"}
    assert "what two launches of one config differ by is not known" in once.noise
    assert "no verdict rests" in once.setting[1]
    (question,) = once.undecided
    assert (question.name, "--trials 3" in question.decides) == ("H1 to H6", True)


def test_callbacks_stand_beside_each_tax(analyzes: dict[int, Analysis]) -> None:
    text = answer_of(build_page(analyzes[3]), "mooncake_both").text
    hooks = re.search(r"hooks (\d+)", text)
    assert hooks is not None
    assert float(hooks[1]) == pytest.approx(157, abs=4)
    assert " us per step at the median" in text, "work that comes with a few steps does not move it"
    bases = {row.estimate.basis for row in analyzes[3].taxes if row.metric == Metric.CALLBACK_P50 and row.estimate.low}
    assert bases == {"over 3 launches, by itself"}, "no launch of plain is paired with them"


def with_cause(analysis: Analysis, cause: Cause, changed: tuple[str, ...] = ()) -> str:
    """What the page says of mooncake_both where the anchor of its taxes is this."""
    rows = tuple(replace(one, cause=cause, changed=changed) for one in analysis.attribution)
    return answer_of(build_page(replace(analysis, attribution=rows)), "mooncake_both").text


def test_the_causal_anchor_is_beside_each_tax(analyzes: dict[int, Analysis]) -> None:
    """A page that reads "higher" alone says that the connector costs it."""
    analysis = analyzes[3]
    (anchor,) = (
        one
        for one in analysis.attribution
        if (one.row.config, one.row.metric, one.row.reference) == ("mooncake_both", Metric.TTFT_P90, "ref_safe")
    )
    assert anchor.share_p50 is not None
    assert anchor.plain_step_p50_us is not None
    assert anchor.reach is not None
    share = f"{100 * anchor.share_p50:.1f} % of plain's {anchor.plain_step_p50_us:.0f} us"
    reach = f"{100 * anchor.reach:.1f} % of a step"
    tax = r"TTFT p90 \+\d+ % \[[^]]+\] "
    may, beyond, none = (with_cause(analysis, one) for one in (Cause.CALLBACKS, Cause.CHANGES, Cause.NOT_ATTRIBUTABLE))
    assert all(f" us per step at the median, {share}." in text for text in (may, beyond, none))
    assert re.search(rf"{tax}\(hooks may account for it: up to {reach}\)", may)
    assert re.search(rf"{tax}\(outside its hooks' {reach}; vLLM changed the engine\)", beyond)
    assert re.search(rf"{tax}\(not attributable: outside its hooks' {reach}, vLLM changed nothing\)", none)
    changed = with_cause(analysis, Cause.CHANGES, ("graph mode: FULL -> NONE", "a: on -> off", "b: on -> off"))
    assert changed.endswith("; vLLM changed graph mode: FULL -> NONE; a: on -> off; and 1 more.")
    doubled = tuple(replace(one, callbacks_p50_us=2 * (one.callbacks_p50_us or 0)) for one in analysis.attribution)
    saving = answer_of(build_page(replace(analysis, attribution=doubled)), "mooncake_both").text
    assert re.search(rf" us per step at the median, \d+ us with saving, {share}", saving)
    assert "a share of a step has none" in build_page(analysis).setting[1]
    once = answer_of(build_page(analyzes[1]), "mooncake_both").text
    assert "account" not in once, "without a verdict there is no tax to attribute"
    assert "of plain's" in once


def test_a_tax_that_is_not_told_from_none_names_what_it_excludes(analyzes: dict[int, Analysis]) -> None:
    """The bound is not rounded to less than the interval allows."""
    text = answer_of(build_page(analyzes[3]), "noop_connector").text
    assert re.search(r"TPOT p90 [^,]+, [^,]+ \(above \d+(\.\d+)? % excluded\)", text), text
    wanted = ("noop_connector", Metric.TPOT_P90, "ref_safe")
    (row,) = (row for row in analyzes[3].taxes if (row.config, row.metric, row.reference) == wanted)
    assert row.estimate.high is not None
    assert f"(above {100 * row.estimate.high:.1f} % excluded)" in text


def test_reference_rates_say_how_many_launches_chose_them(analyzes: dict[int, Analysis]) -> None:
    once, often = (answer_of(build_page(analyzes[trials]), "Rates without saturation").text for trials in (1, 3))
    assert "(steps of the grid, by one launch per config: no interval)" in once
    assert "(steps of the grid: no interval)" in often


def test_the_rate_that_a_config_sustains_has_its_own_sentence(analyzes: dict[int, Analysis]) -> None:
    analysis = analyzes[3]
    everywhere = answer_of(build_page(analysis), "Capacity")
    assert everywhere.text == "all configs sustain at least 2 req/s (steps: no interval)."
    facts = replace(analysis.facts, slo={"ttft_s": 0.5})
    by_config = {row.config: row for row in analysis.capacity}
    limits = {BASELINE: (64.0, 128.0), "noop_connector": (32.0, 64.0), "nixl_both": (32.0, 64.0)}

    def describe(of_plain: Estimate) -> str:
        goodputs = {BASELINE: of_plain}
        rows = tuple(
            replace(by_config[config], sustained_per_s=(sustained,), next_per_s=(saturated,),
                    goodput_per_s=goodputs.get(config, Estimate(1.2, reason="one launch")))
            for config, (sustained, saturated) in limits.items()
        )  # fmt: skip
        return answer_of(build_page(replace(analysis, capacity=rows, facts=facts)), "Capacity").text

    begin = (
        "sustained req/s 64 (saturated at 128) under plain; 32 (saturated at 64) under noop_connector, nixl_both "
        "(steps: no interval); goodput with TTFT <= 500 ms, req/s: plain "
    )
    once = " (no interval: one launch)"
    assert (
        describe(Estimate(1.5, 1.4, 1.6))
        == f"{begin}1.50 [1.40, 1.60], noop_connector 1.20{once}, nixl_both 1.20{once}."
    )
    assert describe(Estimate(1.5, reason="one launch")) == f"{begin}1.50, noop_connector 1.20, nixl_both 1.20{once}."
    launches = tuple(replace(by_config[config], sustained_per_s=rates, next_per_s=following)
                     for config, rates, following in ((BASELINE, (2.0, 1.0), (None, 2.0)),
                                                      ("nixl_both", (1.0, 2.0), (2.0, None))))  # fmt: skip
    differ = answer_of(build_page(replace(analysis, capacity=launches)), "Capacity").text
    assert differ == "all configs sustain 1 (saturated at 2) or at least 2 req/s (steps: no interval)."
    assert "Capacity" not in {one.name for one in build_page(replace(analysis, capacity=())).answers}


def test_a_whole_run_with_verdicts_offers_no_other_one(analyzes: dict[int, Analysis]) -> None:
    whole = {
        trials: replace(one, facts=replace(one.facts, preset="full", configs=(*CONFIGS, REPEAT)))
        for trials, one in analyzes.items()
    }
    again = ("tracon run connector-tax --profile cpu-tiny --trials 3", "all configs, rates and shapes, with verdicts")
    assert build_page(whole[3]).again is None
    assert build_page(whole[1]).again == again
    assert build_page(analyzes[3]).again == again


def test_a_config_with_fewer_launches_shows_in_their_number(roots: dict[int, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(roots[3], tmp_path / roots[3].name))
    assert " 3 launches per config" in build_page(analyze(root)).setting[1]
    (root / "results" / f"{DATE}_nixl_both" / "cell_A_r2_t2.json").unlink()
    assert " 2 to 3 of 3 launches per config" in build_page(analyze(root)).setting[1]
    for config in DEMO.configs:
        (root / "results" / f"{DATE}_{config}" / "cell_A_r2_t1.json").unlink()
    found = analyze(root)
    assert " 1 to 2 of 3 launches per config" in build_page(found).setting[1]
    (question,) = build_page(found).undecided
    assert question.decides.startswith("the run plans 3: `tracon retry`, then `tracon resume`"), "not another run"
    (limit,) = (text for text in list_limits(found) if "fewer than 3 times" in text)
    retry = "`tracon retry`, then `tracon resume`, measures those that failed, a new run those that are degraded."
    assert limit.endswith(f"The run plans 3: {retry}")


def test_a_run_on_a_cpu_does_not_judge_the_trace_replay_on_gpus(analyzes: dict[int, Analysis]) -> None:
    """Its H1 and H2 are compared with priors of another model on other hardware."""

    def find(kind: str) -> list[str]:
        analysis = replace(analyzes[3], facts=replace(analyzes[3].facts, engine_kind=kind))
        return [text for text in list_limits(analysis) if "that trace replay is neither confirmed nor refuted" in text]

    assert (len(find("cpu")), find("cuda")) == (1, [])


def test_cells_of_a_disturbed_host_are_counted(roots: dict[int, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(roots[1], tmp_path / roots[1].name))
    first, second = analyze(root).cells[:2]
    seconds = [(first.cell, first.t_start_unix_s - 5), (second.cell, second.t_start_unix_s + 5)]
    rows = [f"{cell},{at_unix_s},3.0,0.5,0.0,0.1,100.0" for cell, at_unix_s in seconds]
    RunLayout(root).host_csv.write_text("\n".join([",".join(HEADER), *rows]) + "\n")
    found = analyze(root)
    assert found.disturbed == (second.cell,), "the first one's engine was still starting"
    assert f"the host was disturbed in 1 of {len(found.cells)} cells, which take part" in build_page(found).trouble
    assert "disturbed" not in build_page(analyze(roots[1])).trouble


def write_work(root: Path, work_us: Sequence[float]) -> None:
    """A second of the host for each of these times, in turn beside all cells of the run."""
    cells = analyze(root).cells
    rows = [
        f"{cell.cell},{cell.t_start_unix_s + 5},0.0,0.5,0.0,0.1,{work}"
        for cell, work in zip(itertools.cycle(cells), work_us, strict=False)
    ]
    RunLayout(root).host_csv.write_text("\n".join([",".join(HEADER), *rows]) + "\n")


def test_a_share_of_slow_seconds_that_explains_noise_is_named(roots: dict[int, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(roots[1], tmp_path / roots[1].name))
    write_work(root, [100.0] * 66 + [200.0] * 34)
    assert "a core was slow in 34 % of the seconds under load" in build_page(analyze(root)).trouble
    write_work(root, [100.0] * 97 + [200.0] * 3)
    assert "slow" not in build_page(analyze(root)).trouble


def test_cells_whose_client_was_late_beside_ttft_are_counted(analyzes: dict[int, Analysis]) -> None:
    """TTFT begins at the actual send; the arrivals were others all the same."""
    found = analyzes[1]
    assert "sent late" not in build_page(found).trouble
    first, second, *others = found.cells
    late = [replace(cell, fidelity={"lateness_p90_s": share * (cell.value("ttft_p90_s") or 0)})
            for cell, share in ((first, 0.09), (second, 0.11))]  # fmt: skip
    page = build_page(replace(found, cells=(*late, *others)))
    assert (
        f"in 1 of {len(found.cells)} cells the client sent late, at p90 by more than 10 % of TTFT p90" in page.trouble
    )


def test_what_would_decide_is_launches_that_tell_more(analyzes: dict[int, Analysis]) -> None:
    """Also where 10 % is detected already: the interval goes on narrowing with the root of their number."""
    undecided = Judgement("H2", "", "", Outcome.UNDECIDED, "")

    def find(needed: int | None, name: str = "H2") -> str:
        noise = tuple(
            replace(row, launches_for_named=needed, sigma=0.21, sigma_for_named=0.031)
            for row in analyzes[3].launch_noise
        )
        return find_remedy(replace(analyzes[3], launch_noise=noise), replace(undecided, name=name))

    # a launch of each of five configs every five minutes
    assert find(3) == (
        "12 launches per config (`--trials 12`, about 1.0 h), or a host with half the noise (a sigma of 10 %): either "
        "about halves its interval"
    )
    assert find(9) == "9 launches per config (`--trials 9`, about 45 min), which detect a single tax of 10 %"
    assert find(9, "H1").endswith("which detect a tax of 10 %")
    calmer = (
        "a calmer host first, with a sigma of at most 3.1 %: there 3 launches per config detect a single tax of 10 %"
    )
    assert find(77) == (
        f"{calmer}; at the sigma here, 21 %, it takes 77 launches per config (`--trials 77`, about 6.4 h)"
    )
    assert find(None) == f"{calmer}; at the sigma here, 21 %, it takes more than 200 launches"


def test_the_page_says_how_long_the_launches_for_a_named_tax_take(analyzes: dict[int, Analysis]) -> None:
    noise = tuple(replace(row, launches_for_named=150) for row in analyzes[3].launch_noise)
    text = build_page(replace(analyzes[3], launch_noise=noise)).noise
    assert "10 % takes 150 launches per config, about 12 h." in text


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    page = build_page(write_results(tmp_path))
    assert page.answers == ()
    assert "no cell was measured" in page.trouble
    assert "no tax" in page.setting[1]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Estimate(0.123, -0.04, 0.276), "+12 % [-4, +28]"),
        (Estimate(-0.004, -0.3, 0.001), "-0.4 % [-30, +0.1]"),
        (Estimate(1.6, reason="6 samples"), "+160 % (no interval: 6 samples)"),
        (Estimate(None), "not measured"),
    ],
)
def test_a_fraction_in_few_characters(found: Estimate, text: str) -> None:
    assert format_fraction(found) == text
