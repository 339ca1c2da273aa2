"""The page in print is one sheet of A4: text over the whole width, the two figures side by side below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.report import page as pages
from results.report.content import Report, ReportText
from results.report.document import APPENDIX
from results.report.figure import Figure
from results.report.html import build_page
from results.report.page import MOST_BYTES, OpenQuestion, Page, PageAnswer, fit_page
from results.report.print_sheet import HEIGHT_MM, PRINT_CSS
from tests.results.report.printed import count_lines, markdown_to_html, measure_em, measure_sheets_mm

EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[3] / "docs" / "examples").glob("*/report.md"))
    if f"## {APPENDIX}\n" in path.read_text()
]
SENTENCE = (
    "Unified's TTFT p90 is lower than LMetric's: distinguishably lower (p = 6.1e-08, 1.2e-06 after Holm over 20); "
    "ratio: 0.327 [0.317, 0.337]."
)


JUST_OVER_A_LINE = f"{SENTENCE} It is a claim of a log."


def make_page(answers: int, questions: int, text: str, *, remedies: int = 3, claims: int = 0) -> Page:
    names = tuple(f"log: unified before LMetric, claim {number}" for number in range(claims))
    return Page(
        question="SIMULATED, nothing here was measured. Which policy serves these sessions best?",
        setting=(SENTENCE * 2, SENTENCE * 2),
        noise=f"Noise floor: {SENTENCE * 3}",
        answers=tuple(PageAnswer(f"log: a claim, load {n}", "holds", text, 1 + n % 2) for n in range(answers)),
        undecided=tuple(
            OpenQuestion(f"H{n}", text, f"remedy {n % remedies}", 2, "open" if n % 3 else "undecided", names)
            for n in range(questions)
        ),
        trouble="; ".join(f"stalled: static PD-disagg 4P+4D time_scale=9 in trial {n}" for n in range(40)),
    )


def render(page: Page) -> str:
    figures = [Figure(number, "A title as long as they come, with a metric and a load") for number in (1, 2)]
    title = "SIMULATED: routing 20261128-101403-routing-h20-qwen3-coder-30b"
    return build_page(Report(title, page, ReportText("", (), ()), figures, "", {}), {}, {1: "<svg/>", 2: "<svg/>"})


LONG = [
    pytest.param((16, 14, SENTENCE), id="as many sentences as a page may have"),
    pytest.param((40, 40, SENTENCE), id="more than that"),
    pytest.param((16, 14, JUST_OVER_A_LINE), id="just over a line each"),
    pytest.param((40, 40, "It holds: 1.06 [1.05, 1.07]."), id="short ones"),
    pytest.param((12, 12, SENTENCE * 4), id="long ones"),
    pytest.param((2, 40, SENTENCE), id="questions alone"),
    pytest.param((40, 0, SENTENCE), id="answers alone"),
]


@pytest.mark.parametrize("remedies", [1, 40])
@pytest.mark.parametrize("claims", [0, 25])
@pytest.mark.parametrize("made", LONG)
def test_the_longest_page_is_one_sheet(made: tuple[int, int, str], claims: int, remedies: int) -> None:
    answers, questions, text = made
    page = fit_page(make_page(answers, questions, text, remedies=remedies, claims=claims))
    height_mm, sheet_mm = measure_sheets_mm(render(page))
    assert sheet_mm == HEIGHT_MM
    assert 0.6 * sheet_mm < height_mm <= sheet_mm, "nor is it cut to less than there is room for"


def test_bytes_alone_do_not_keep_it_to_a_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "estimate_height_mm", lambda blocks, figures: 0.0)
    page = fit_page(make_page(16, 14, JUST_OVER_A_LINE, remedies=14))
    assert pages._count_bytes(page) <= MOST_BYTES
    height_mm, sheet_mm = measure_sheets_mm(render(page))
    assert height_mm > sheet_mm


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_pages_of_the_examples_are_one_sheet(path: Path) -> None:
    first = path.read_text().partition(f"## {APPENDIX}\n")[0]
    height_mm, sheet_mm = measure_sheets_mm(markdown_to_html(first, PRINT_CSS))
    assert height_mm <= sheet_mm


def test_figures_take_one_row_below_the_text() -> None:
    """The order of a grid's items puts them last, whichever sentences they support."""
    page = make_page(4, 2, SENTENCE)
    with_figures, _ = measure_sheets_mm(render(page))
    none, _ = measure_sheets_mm(render(page).replace("<img", "<span"))
    assert with_figures - none == pytest.approx(50)


def test_lines_are_counted_by_the_widths_of_characters() -> None:
    assert measure_em("iiii", bold=False) < measure_em("mmm", bold=False)
    assert measure_em("abc", bold=False) < measure_em("abc", bold=True)
    assert count_lines([("one two three", False)], measure_em("one two three", bold=False)) == 1
    assert count_lines([("one two ", False), ("three", True)], measure_em("one two", bold=False)) == 2
