"""The one page of a run: plain against plain is noise and no tax, and what is judged fits 80 columns and 24 lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from results.connector_tax.analyse import Analysis
from results.connector_tax.page import format_fraction, page_of, page_text
from results.connector_tax.write import analyse_run
from results.records.baseline import BASELINE, REPEAT
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
    return {trials: analyse_run(root) for trials, root in roots.items()}


def text_of(analysis: Analysis, root: Path, width: int = 80) -> list[str]:
    return page_text(page_of(analysis, root), width).plain.splitlines()


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
    page = page_of(analysis, roots[3])
    assert page.floor is not None
    assert (page.floor.ttft.word, page.floor.tpot.word) == ("", "")
    assert [line.config for line in page.taxes] == ["noop_connector", "mooncake_both", "nixl_both"]


def test_three_launches_give_verdicts_and_one_says_why_there_are_none(
    analyses: dict[int, Analysis], roots: dict[int, Path]
) -> None:
    judged, once = (page_of(analyses[trials], roots[trials]) for trials in (3, 1))
    assert {line.ttft.word for line in judged.taxes} <= {"higher", "lower", "n.d."}
    assert next(line for line in judged.taxes if line.config == "mooncake_both").ttft.word == "higher"
    assert "interval over launches" in judged.reading
    assert {line.ttft.word for line in once.taxes} == {"none"}
    assert "one launch per config: two launches of one config differ too; `--trials 3` gives a verdict" in once.reading
    assert "interval" not in once.reading
    assert {outcome for _, outcome, _ in once.hypotheses} <= {"undecided", "open"}


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_a_terminal(analyses: dict[int, Analysis], roots: dict[int, Path], trials: int, width: int) -> None:
    lines = text_of(analyses[trials], roots[trials], width)
    assert len(lines) <= 22
    kept_whole = (str(roots[trials]), "tracon ")
    assert all(len(line) <= width for line in lines if not line.startswith(kept_whole))
    text = "\n".join(lines)
    for part in ("cpu-tiny (demo)", "at 2 req/s", REPEAT, "noise", "mooncake_both", "H1 ", "H6 ", "report.html",
                 f"tracon report {roots[trials].name}", "tracon run connector-tax --profile cpu-tiny"):  # fmt: skip
        assert part in text


def test_callbacks_stand_beside_each_tax(analyses: dict[int, Analysis], roots: dict[int, Path]) -> None:
    line = next(line for line in page_of(analyses[3], roots[3]).taxes if line.config == "mooncake_both")
    assert float(line.callbacks_us) == pytest.approx(157, abs=4)


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    page = page_of(analyse_run(tmp_path), tmp_path)
    assert page.floor is None
    assert page.taxes == ()
    assert "no cell was measured" in page.trouble
    assert "no tax" in page.load


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Estimate(0.123, -0.04, 0.276), "+12% [-4, +28]"),
        (Estimate(-0.004, -0.3, 0.001), "-0.4% [-30, +0.1]"),
        (Estimate(1.6), "+160%"),
        (Estimate(None), "-"),
    ],
)
def test_a_fraction_in_few_characters(found: Estimate, text: str) -> None:
    assert format_fraction(found) == text
