"""The one page of a run: plain against plain is noise and no tax, and one launch per config judges nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from results.connector_tax.analyse import Analysis
from results.connector_tax.page import TAXES, build_page, format_fraction
from results.connector_tax.write import write_results
from results.records.baseline import BASELINE, REPEAT
from results.report.page import Page, PageAnswer
from results.statistics.estimates import Estimate
from tests.results.connector_tax.synthetic import Behaviour, Run, report_text, write_run

DEMO = Run(
    configs={
        BASELINE: Behaviour(),
        REPEAT: Behaviour(),
        "noop_connector": Behaviour(callbacks_us=(0.3, 2.0, 0.7)),
        "mooncake_both": Behaviour(ttft_p50_s=0.29, callbacks_us=(1.7, 152.0, 3.1)),
        "nixl_both": Behaviour(ttft_p50_s=0.26, callbacks_us=(1.0, 80.0, 1.0)),
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
def analyses(roots: dict[int, Path]) -> dict[int, Analysis]:
    return {trials: write_results(root) for trials, root in roots.items()}


def answer_of(page: Page, name: str) -> PageAnswer:
    return next(one for one in page.answers if one.name == name)


def test_plain_twice_is_the_noise_floor_and_no_connectors_tax(
    analyses: dict[int, Analysis], roots: dict[int, Path]
) -> None:
    analysis = analyses[3]
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


def test_three_launches_give_verdicts_and_one_says_why_there_are_none(analyses: dict[int, Analysis]) -> None:
    judged, once = (build_page(analyses[trials]) for trials in (3, 1))
    assert answer_of(judged, "mooncake_both").outcome.startswith("higher")
    assert "interval over launches" in judged.setting[1]
    assert {one.outcome for one in once.answers if one.figure == TAXES} == {"no verdict"}
    assert "what two launches of one config differ by is not known" in once.noise
    assert "no verdict rests" in once.setting[1]
    (question,) = once.undecided
    assert (question.name, "--trials 3" in question.decides) == ("H1 to H6", True)


def test_callbacks_stand_beside_each_tax(analyses: dict[int, Analysis]) -> None:
    hooks = re.search(r"hooks (\d+)", answer_of(build_page(analyses[3]), "mooncake_both").text)
    assert hooks is not None
    assert float(hooks[1]) == pytest.approx(157, abs=4)


def test_a_tax_that_is_not_told_from_none_names_what_it_excludes(analyses: dict[int, Analysis]) -> None:
    text = answer_of(build_page(analyses[3]), "noop_connector").text
    assert re.search(r"TPOT p90 [^,]+, [^,]+ \(above \d+(\.\d+)? % excluded\)", text), text


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
