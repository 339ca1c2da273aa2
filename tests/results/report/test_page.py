"""The one page of every experiment: its size, an interval or a reason behind every number, the same in every form."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from results.records.estimate import Estimate
from results.registry import find_results
from results.report.content import Report, ReportText
from results.report.document import APPENDIX, render_markdown
from results.report.figure import Figure
from results.report.html import build_page as build_html
from results.report.output import BESIDE_WIDTH
from results.report.page import (
    MOST_ANSWERS,
    MOST_BYTES,
    MOST_QUESTIONS,
    OpenQuestion,
    Page,
    PageAnswer,
    cut_text,
    describe_sentence,
    explain_interval,
    fit_page,
    group_remedies,
    render_terminal,
    split_judgements,
)
from results.report.stored_page import read_page
from results.statistics.judgement import COUNTED, SEVERAL, Judgement, Outcome
from tests.results.test_reports import EXPERIMENTS

MEASURED = re.compile(r"\d ?(%|pp|ms|us|s\b|req/s|times|bytes)")
EXPLAINED = re.compile(r"\[[^]]*, [^]]*\]|no interval|not measured|no verdict|is judged")
COUNTING = ("Criterion 1", "Criterion 4", "no thrashing", "D4")
"""The rules that count; of any other, an interval exists or is missing for a reason."""


def is_explained(sentence: str, name: str = "") -> bool:
    """Whether a number with a unit has its interval beside it, or the sentence says why it has none, and that is so."""
    if "counted, not sampled" in sentence and not name.startswith(COUNTING):
        return False
    return not MEASURED.search(sentence) or EXPLAINED.search(sentence) is not None


@pytest.fixture(scope="module", params=EXPERIMENTS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    root = tmp_path_factory.mktemp("runs") / f"20260131-120000-{request.param}-cpu-tiny"
    root.mkdir()
    EXPERIMENTS[request.param].write_raw(root)
    results = find_results(request.param)
    assert results.page is not None
    return root, results.page(results.write(root))


def test_the_page_comes_first_is_short_and_the_appendix_has_the_tables(written: tuple[Path, Page]) -> None:
    root, page = written
    first, _, appendix = (root / "report.md").read_text().partition(f"## {APPENDIX}\n")
    assert len(first.encode()) <= MOST_BYTES
    assert first.splitlines()[2] == f"**{page.question}**"
    assert "\n|" not in first
    assert "\n### " in appendix
    assert 1 <= first.count("![Figure") <= 2


def test_the_analysis_stores_the_page_as_data(written: tuple[Path, Page]) -> None:
    root, page = written
    assert read_page(root) == page


def test_every_number_has_its_interval_or_the_reason_why_it_has_none(written: tuple[Path, Page]) -> None:
    _, page = written
    assert page.answers
    for one in page.sentences:
        is_open = isinstance(one, OpenQuestion) and one.is_open  # its numbers are of the run, and judge nothing
        assert is_open or is_explained(one.text, one.name), one.text
    assert "sigma" not in page.noise or EXPLAINED.search(page.noise)
    assert page.noise.startswith("Noise floor: ")


def test_what_is_undecided_names_what_would_decide_it(written: tuple[Path, Page]) -> None:
    _, page = written
    assert page.undecided
    assert all(one.decides for one in page.undecided)


def test_every_form_has_every_sentence(written: tuple[Path, Page]) -> None:
    root, page = written
    first = (root / "report.md").read_text().partition(f"## {APPENDIX}")[0]
    html = (root / "report.html").read_text().partition('<div id="appendix">')[0]
    terminal = " ".join(render_terminal(page, root, 80).plain.split())
    for one in page.sentences:
        assert one.text in first
        assert escape(one.text) in html.replace("<code>", "`").replace("</code>", "`")
        assert " ".join(one.text.split()) in terminal
    assert html.count("<figure>") == len(page.figures)
    for part in ("prefers-color-scheme: dark", "@page { size: A4", "#appendix { display: none; }"):
        assert part in html


def test_the_page_s_figures_can_be_read_beside_text_and_lead_to_the_large_ones(written: tuple[Path, Page]) -> None:
    """Letters have one size on every sheet: a sheet as wide as its place shows them at that size."""
    root, page = written
    first, _, appendix = (root / "report.html").read_text().partition('<div id="appendix">')
    images = re.findall(r'<a href="#(figure-[^"]+)"[^>]*><img [^>]*base64,([^"]+)">', first)
    assert len(images) == len(page.figures) > 0
    for place, image in images:
        assert f'id="{place}"' in appendix
        width = re.search(r'<svg [^>]*?width="([0-9.]+)pt"', b64decode(image).decode())
        assert width is not None
        assert float(width[1]) <= 72 * BESIDE_WIDTH + 1


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_folds_all_but_paths_and_commands(written: tuple[Path, Page], width: int) -> None:
    root, page = written
    lines = render_terminal(page, root, width).plain.splitlines()
    kept_whole = (str(root), "tracon ")
    assert all(len(line) <= width for line in lines if not line.startswith(kept_whole))
    assert any(line.startswith(f"tracon report {root.name}") for line in lines)


def test_a_number_without_an_interval_is_caught() -> None:
    assert not is_explained("TTFT p90 is 12 ms.")
    assert not is_explained("+12 % at ref_safe")
    assert is_explained("TTFT p90 is 12 [10, 14] ms.")
    assert is_explained("16 req/s (steps of the grid: no interval)")
    assert is_explained("H1 at C = 4096")
    denied = "15 of 15 differences are distinguishable by 3 % (no interval: counted, not sampled)."
    assert not is_explained(denied, "D7"), "its verdict rests on intervals over trials"
    assert is_explained("all 972 requests, up to 1.56 % (no interval: counted, not sampled).", "Criterion 1")


@pytest.mark.parametrize(("answers", "questions"), [(40, 40), (40, 0), (0, 40), (16, 14), (1, 40)])
def test_the_longest_page_has_room_for_its_sentences_and_counts_the_rest(answers: int, questions: int) -> None:
    sentence = "\u00b5" * 20 + " and a claim with its interval" * 16
    whole = Page(
        question="What does it cost?" * 10,
        setting=("A sentence about the host." * 10, "One about the load." * 10),
        noise="Noise floor: " + "a launch differs from its config by 16 % (no interval). " * 8,
        answers=tuple(PageAnswer(f"config {n}", "higher", sentence, 1) for n in range(answers)),
        undecided=tuple(OpenQuestion(f"H{n}", sentence, f"{n} more launches", 2) for n in range(questions)),
    )
    page = fit_page(whole)
    figures = [Figure(number, "A title as long as they come, with a metric and a load") for number in (1, 2)]
    name = "connector-tax 20260131-120000-connector-tax-cpu-tiny"
    text = render_markdown(name, ReportText("", (), ()), figures, page)
    first = text.partition(f"## {APPENDIX}")[0]
    assert MOST_BYTES / 2 < len(first.encode()) <= MOST_BYTES
    if answers > MOST_ANSWERS:
        kept = len(page.answers) - 1
        assert page.answers[-1].text == f"{answers - kept} further answers, in the appendix."
    if questions > MOST_QUESTIONS:
        assert page.undecided[-1].name == "More"
        assert f"H{len(page.undecided) - 1}" in page.undecided[-1].text


def judgement(outcome: Outcome, reason: str, measured: Estimate) -> Judgement:
    return Judgement("H1", "it persists.", "a rule", outcome, reason, measured)


def test_judgements_become_answers_and_questions() -> None:
    holds = judgement(Outcome.HOLDS, "+45 % [+40, +50] lies at or above 10 %", Estimate(0.45, 0.4, 0.5))
    other = judgement(Outcome.UNDECIDED, "+5 % [-4, +14] straddles 10 %", Estimate(0.05, -0.04, 0.14))
    answers, questions = split_judgements([holds, other], lambda _: "more launches", 4)
    assert answers == [PageAnswer("H1", "holds", "It persists: +45 % [+40, +50] lies at or above 10 %.", 4)]
    assert questions == [OpenQuestion("H1", "It persists: +5 % [-4, +14] straddles 10 %.", "more launches", 4)]
    assert group_remedies([*questions, *questions]) == [("H1, H1", "more launches")]


def test_claims_with_one_outcome_and_reason_share_a_sentence() -> None:
    reason = "every session of the trace has one turn"
    rows = [
        replace(judgement(outcome, why, measured), name=name)
        for name, outcome, why, measured in (
            ("C1", Outcome.OPEN, reason, Estimate(1.06, 1.05, 1.07)),
            ("C2", Outcome.UNDECIDED, "the interval allows both", Estimate(0.1, -0.1, 0.3)),
            ("C3", Outcome.OPEN, reason, Estimate(None, reason=reason)),
            ("C4", Outcome.UNDECIDED, "the interval allows both", Estimate(0.2, -0.2, 0.6)),
            ("C5", Outcome.OPEN, "plain was not measured", Estimate(None, reason="plain was not measured")),
            ("C6", Outcome.OPEN, reason, Estimate(7.85, 4.09, 15.1)),
            ("C7", Outcome.OPEN, "plain was not measured", Estimate(None, reason="plain was not measured")),
        )
    ]
    answers, questions = split_judgements(rows, lambda one: f"a run for {one.outcome}", 2)
    assert not answers
    assert [one.name for one in questions] == ["C1, C3 and C6", "C2", "C4", "C5 and C7"], "C2 and C4 differ by interval"
    together = questions[0]
    assert f"{together.name}{describe_sentence(together)}" == f"C1, C3 and C6 (open): {reason}."
    assert describe_sentence(questions[3]) == " (open): plain was not measured."
    assert group_remedies(questions) == [
        ("C1, C3, C6, C5, C7", "a run for open"),
        ("C2, C4", "a run for undecided"),
    ]
    page = Page("?", (), "", (), tuple(questions))
    assert "C1, C3 and C6 (open): every session" in " ".join(render_terminal(page, Path("run"), 80).plain.split())
    assert "- **C1, C3 and C6** (open): every session" in render_markdown("run", ReportText("", (), ()), [], page)


def test_undecided_open_and_not_testable_are_told_apart_in_words() -> None:
    """A claim that is not testable at this scale, with a number that looks decided, read as a contradiction."""
    small = "2 instances that share a host's cores (it takes 8 or more with compute of their own)"
    ratio = Estimate(1.74, 1.54, 1.97)
    scale = replace(judgement(Outcome.OPEN, small, ratio), name="C1", label="not testable at this scale")
    scale = replace(scale, quantity="ratio", needs="8 or more instances")
    missing = replace(judgement(Outcome.OPEN, "plain was not measured", Estimate(None)), name="C2")
    unclear = replace(judgement(Outcome.UNDECIDED, "the interval allows both", Estimate(0.1, -0.1, 0.3)), name="C3")
    _, questions = split_judgements([scale, missing, unclear], lambda one: one.needs or "a run", 1)
    page = Page("?", (), "", (), tuple(questions))
    assert [(title, [one.name for one in own]) for title, own in page.sections] == [
        ("Undecided", ["C3"]), ("Open", ["C1", "C2"]),
    ]  # fmt: skip
    markdown = render_markdown("run", ReportText("", (), ()), [], page)
    first = f"- **C1** (open: not testable at this scale): It persists: {small}; not judged: ratio: 1.74 [1.54, 1.97]."
    for line in (
        first,
        "- **C2** (open): It persists: plain was not measured.",
        "- **C3** (undecided): It persists: the interval allows both; measured: 0.100 [-0.100, 0.300].",
        "- C1: 8 or more instances.",
    ):
        assert line in markdown
    assert "not testable at this scale" in render_terminal(page, Path("run"), 120).plain
    assert '(<span class="outcome">open: not testable at this scale</span>)' in build_html(
        Report("run", page, ReportText("", (), ()), (), "", {}), {}, {}
    )


def test_what_would_decide_a_claim_is_whole_where_its_reason_is_cut() -> None:
    needs = "a rate that its policies sustain, " * 9
    long = replace(judgement(Outcome.OPEN, f"no steady state; {'so it is ' * 40}", Estimate(None)), needs=needs)
    _, (question,) = split_judgements([long], lambda one: one.needs, 1)
    assert question.text == "It persists: no steady state ..."
    assert question.decides == needs


def test_claims_that_are_open_under_every_load_name_the_loads_once() -> None:
    names = (
        "C1, load 1", "C1, load 2", "C2: p90, load 1", "C2: p90, load 2", "D4", "C3, load 2", "C4, load 1",
        "C4, load 2", "C4, load 3",
    )  # fmt: skip
    _, (question,) = split_judgements(
        (replace(judgement(Outcome.OPEN, "two instances", Estimate(None)), name=name) for name in names),
        lambda one: "eight instances",
        1,
    )
    assert question.name == "C1; C2: p90 (each: load 1, load 2); D4; C3, load 2 and C4 (load 1, load 2, load 3)"
    assert question.claims == names
    assert [text for text, _ in group_remedies([question])] == [question.name.replace(" and C4", "; C4")]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        pytest.param(("3.2: pools", "3.2: pools, 6P+2D"), "3.2: pools; 3.2: pools, 6P+2D", id="begin of another"),
        pytest.param(
            ("Best (A, trace a)", "Best (B, trace a)", "Best (A, trace b)"),
            "Best (A, trace a); Best (B, trace a); Best (A, trace b)",
            id="a comma in parentheses",
        ),
        pytest.param(("D1, load a", "D1, load b"), "D1 (load a, load b)", id="two loads"),
    ],
)
def test_names_are_folded_at_their_last_part_alone(names: tuple[str, ...], shown: str) -> None:
    assert group_remedies([OpenQuestion("", "", "a run", 1, "open", names)]) == [(shown, "a run")]


def test_claims_that_need_different_runs_do_not_share_a_sentence() -> None:
    rows = [replace(judgement(Outcome.OPEN, "not measured", Estimate(None)), name=name) for name in ("3", "4")]
    _, questions = split_judgements(rows, lambda one: f"`--set {one.name}`", 1)
    assert [(one.name, one.decides) for one in questions] == [("3", "`--set 3`"), ("4", "`--set 4`")]


@pytest.mark.parametrize(
    ("reason", "measured", "text"),
    [
        ("distinguishably lower", Estimate(0.76, 0.67, 0.87), "distinguishably lower; measured: 0.760 [0.670, 0.870]"),
        ("none of 20 did", Estimate(0.0, reason="a count"), "none of 20 did (no interval: a count)"),
        ("none of 20 did", Estimate(0.0), "none of 20 did (no interval: counted, not sampled)"),
        ("one of the two was not run", Estimate(None, reason="x"), "one of the two was not run"),
        ("none of 20 did", COUNTED, "none of 20 did (no interval: counted, not sampled)"),
        ("9 of 9 differ", SEVERAL, "9 of 9 differ (its intervals: in the appendix)"),
        ("none of 20 did", Estimate(0.0, reason=f"one; {'two ' * 99}"), "none of 20 did (no interval: one ...)"),
    ],
)
def test_a_reason_gets_the_interval_that_it_lacks(reason: str, measured: Estimate, text: str) -> None:
    assert explain_interval(reason, judgement(Outcome.HOLDS, reason, measured)) == text


def test_a_long_text_is_cut_between_clauses_and_never_inside_brackets() -> None:
    assert cut_text("short") == "short"
    assert cut_text("one clause; another clause", 15) == "one clause ..."
    assert cut_text("at first 12 [10, 14] ms and more", 14) == "at first 12 ..."
    assert cut_text("one clause; then 12 [10, 14] ms and more", 30) == "one clause; then 12 [10, 14] ..."
    assert cut_text("one clause; then 12 [10, 14] ms and more", 27) == "one clause ..."
