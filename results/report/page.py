"""A run's result on one page: what was asked, the answers with their intervals, what stays undecided or open, and two
figures.

The page begins report.md and report.html, is the first section of the console's Results, and is shown when a run ends.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from rich.text import Text

from results.records.layout import RunLayout
from results.report.judgements import describe_outcome
from results.report.print_sheet import HEIGHT_MM, Part, estimate_height_mm
from results.statistics.judgement import COUNTED, SEVERAL, Judgement, Outcome

MOST_BYTES = 8000
"""Bytes of the page as Markdown."""
_FRAME_BYTES, _MARKS_BYTES = 450, 8
"""Bytes of the page's headings and figure lines, and of the Markdown around each sentence."""
MOST_ANSWERS, MOST_QUESTIONS, MOST_REASON, MOST_NAMES = 16, 14, 200, 600
"""Sentences, and characters of a judgement's reason and of a list of claims; the tables of the appendix have the rest.
"""
IN_APPENDIX = "its intervals: in the appendix"
REMEDIES_TITLE = "What would decide these:"
TITLE_LENGTH = 70
"""Characters of a report's title: kind, date, experiment and profile."""
TONES = {"higher": "yellow", "lower": "green", "holds": "green", "fails": "yellow"}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """One sentence. Every measured number in it has its interval, or the sentence says why it has none."""

    name: str
    """What it is about: a config, a metric, a hypothesis."""
    outcome: str
    """`higher`, `holds: linear`, `no verdict`; empty where nothing is judged."""
    text: str
    """What holds, with its numbers."""
    figure: int = 0
    """Number of the figure that supports it; 0 = none."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """One sentence on what the run leaves undecided or open."""

    name: str
    """What it is about."""
    text: str
    """What is not decided, and why."""
    decides: str
    """What would decide it; questions with the same remedy share it. Empty = no single remedy."""
    figure: int = 0
    """Number of the figure that shows it; 0 = none."""
    outcome: str = Outcome.UNDECIDED.value
    """`undecided`, `open`, or `open` with its label: `open: not testable at this scale`."""
    claims: tuple[str, ...] = ()
    """Names of the claims that share the sentence; `name` joins them, and `text` is the reason alone. Empty = one
    claim."""

    @property
    def is_open(self) -> bool:
        """Nothing was judged, rather than that the numbers allow both."""
        return self.outcome.partition(":")[0] == Outcome.OPEN


@dataclass(frozen=True, slots=True)
class Page:
    """Plain data; `fit_page` keeps it to its size."""

    question: str
    """What the run was to answer."""
    setting: tuple[str, ...]
    """Where it ran, under which load, and what brackets hold: sentences."""
    noise: str
    """What two launches of the same thing differ by, or why that is not known."""
    answers: tuple[PageAnswer, ...]
    """In the order of the page."""
    undecided: tuple[OpenQuestion, ...]
    """And what is open."""
    trouble: str = ""
    """What keeps the page from being whole; empty = nothing."""
    again: tuple[str, str] | None = None
    """A command, and what it gives that this run does not."""

    @property
    def figures(self) -> tuple[int, ...]:
        """Numbers of the figures that support its sentences, in their order."""
        return tuple(dict.fromkeys(one.figure for one in self.sentences if one.figure))

    @property
    def sentences(self) -> tuple[PageAnswer | OpenQuestion, ...]:
        return (*self.answers, *self.undecided)

    @property
    def sections(self) -> Iterator[tuple[str, Sequence[PageAnswer | OpenQuestion]]]:
        """Title and sentences of each section that has any."""
        if self.answers:
            yield "Answers", self.answers
        undecided, left_open = ([one for one in self.undecided if one.is_open is side] for side in (False, True))
        if undecided:
            yield "Undecided", undecided
        if left_open:
            yield "Open", left_open


def fit_page(page: Page) -> Page:
    """Cut answers and questions until the page has at most MOST_BYTES and fits on one printed sheet.

    It states how many are left out.
    """
    most_answers, most_questions = min(len(page.answers), MOST_ANSWERS), min(len(page.undecided), MOST_QUESTIONS)
    while True:
        answers = _keep_answers(page.answers, most_answers)
        undecided = _keep_questions(page.undecided, most_questions)
        fitted = replace(page, answers=answers, undecided=undecided, trouble=cut_text(page.trouble, MOST_NAMES))
        if _has_room(fitted) or most_answers + most_questions <= 1:
            return fitted
        if most_answers > most_questions:
            most_answers -= 1
        else:
            most_questions -= 1


def _keep_answers(answers: tuple[PageAnswer, ...], most: int) -> tuple[PageAnswer, ...]:
    if len(answers) <= most:
        return answers
    return (*answers[:most], PageAnswer("More", "", f"{len(answers) - most} further answers, in the appendix."))


def _keep_questions(questions: tuple[OpenQuestion, ...], most: int) -> tuple[OpenQuestion, ...]:
    if len(questions) <= most:
        return questions
    more = [[one for one in questions[most:] if one.is_open is side] for side in (False, True)]
    return (*questions[:most], *(_name_rest(rest) for rest in more if rest))


def _name_rest(questions: Sequence[OpenQuestion]) -> OpenQuestion:
    names = ", ".join(one.name for one in questions)
    outcome = Outcome.OPEN if questions[0].is_open else Outcome.UNDECIDED
    return OpenQuestion("More", f"{cut_text(names)} (in the appendix).", "", outcome=outcome.value)


def _has_room(page: Page) -> bool:
    return _count_bytes(page) <= MOST_BYTES and estimate_height_mm(list_blocks(page), len(page.figures)) <= HEIGHT_MM


def list_blocks(page: Page) -> Iterator[tuple[Part, str]]:
    """The page in print, block by block."""
    yield Part.TITLE, "-" * TITLE_LENGTH
    yield Part.QUESTION, page.question
    for text in filter(None, (" ".join(page.setting), page.noise, page.trouble)):
        yield Part.PARAGRAPH, text
    for title, sentences in page.sections:
        yield Part.HEADING, title
        yield from ((Part.ITEM, f"{one.name}{describe_sentence(one)}") for one in sentences)
    remedies = group_remedies(page.undecided)
    if remedies:
        yield Part.PARAGRAPH, REMEDIES_TITLE
        yield from ((Part.ITEM, f"{names}: {decides}.") for names, decides in remedies)


def _count_bytes(page: Page) -> int:
    """At least the size of the page as Markdown."""
    sentences = (f"{one.name} {describe_sentence(one).lstrip()}" for one in page.sentences)
    remedies = (f"{names}: {decides}" for names, decides in group_remedies(page.undecided))
    texts = (page.question, *page.setting, page.noise, page.trouble, *sentences, *remedies)
    return _FRAME_BYTES + sum(len(text.encode()) + _MARKS_BYTES for text in texts)


def split_judgements(
    judgements: Iterable[Judgement], decides: Callable[[Judgement], str], figure: int
) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    """The decided ones as answers, the others with what would decide them: one question per reason and remedy."""
    answers = list[PageAnswer]()
    alike: dict[tuple[str, str, str], list[Judgement]] = {}
    for one in judgements:
        if one.outcome.is_decided:
            answers.append(PageAnswer(one.name, describe_outcome(one), _state_claim(one), figure))
        else:
            # An interval does not make a claim open: claims that are open for one reason may have different ones.
            reason = one.reason if one.outcome == Outcome.OPEN else _explain(one)
            alike.setdefault((describe_outcome(one), reason, decides(one)), []).append(one)
    return answers, [_ask_together(group, remedy, figure) for (_, _, remedy), group in alike.items()]


def _ask_together(judgements: Sequence[Judgement], remedy: str, figure: int) -> OpenQuestion:
    """One question for claims with the same outcome and reason."""
    first = judgements[0]
    outcome = describe_outcome(first)
    if len(judgements) == 1:
        return OpenQuestion(first.name, _state_claim(first), remedy, figure, outcome)
    names = tuple(one.name for one in judgements)
    why = cut_text(first.reason) if first.outcome == Outcome.OPEN else _explain(first)
    return OpenQuestion(cut_text(_join_names(names), MOST_NAMES), _end_sentence(why), remedy, figure, outcome, names)


def _join_names(names: Sequence[str]) -> str:
    *others, last = _fold_names(names)
    return f"{_separate(others)} and {last}" if others else last


def _separate(names: Sequence[str]) -> str:
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _fold_names(names: Sequence[str]) -> list[str]:
    """Names that differ in their last part alone, such as the load, once: "C1; C3 (each: load a, load b)"."""
    ends: dict[str, list[str]] = {}
    for name in names:
        stem, end = _split_name(name)
        ends.setdefault(stem, []).append(end)
    stems: dict[tuple[str, ...], list[str]] = {}
    for stem, own in ends.items():
        stems.setdefault(tuple(own), []).append(stem)
    folded = list[str]()
    for own_ends, alike in stems.items():
        if len(set(own_ends)) == 1 or "" in own_ends:
            folded += [f"{stem}, {end}" if end else stem for stem in alike for end in own_ends]
        else:
            each = "each: " if len(alike) > 1 else ""
            folded.append(f"{'; '.join(alike)} ({each}{', '.join(own_ends)})")
    return folded


def _split_name(name: str) -> tuple[str, str]:
    """All before its last part, and that; a comma inside parentheses ends no part."""
    stem, _, end = name.rpartition(", ")
    return (stem, end) if stem and end.count("(") == end.count(")") else (name, "")


def _state_claim(judgement: Judgement) -> str:
    claim = judgement.claim.removesuffix(".")
    return f"{claim[:1].upper()}{claim[1:]}: {_end_sentence(_explain(judgement))}"


def _explain(judgement: Judgement) -> str:
    return explain_interval(cut_text(judgement.reason), judgement)


def _end_sentence(text: str) -> str:
    return text if text.endswith("...") else f"{text}."


def explain_interval(text: str, judgement: Judgement) -> str:
    """The text; where it states no interval, with the interval that decided or the reason why there is none.

    Of an open judgement no number decided: one that was measured all the same is named as not judged.
    """
    measured = judgement.measured
    if "[" in text:
        return text
    if measured.value is not None and measured.low is not None and measured.high is not None:
        of = next((name for name, one in judgement.numbers.items() if one == measured), "measured")
        not_judged = "not judged: " if judgement.outcome == Outcome.OPEN else ""
        return f"{text}; {not_judged}{judgement.quantity or of}: {measured.text(3)}"
    if judgement.outcome == Outcome.OPEN or not re.search(r"\d", text):
        return text
    if measured.reason and measured.reason in text:
        return text
    if measured == SEVERAL:
        return f"{text} ({IN_APPENDIX})"
    return f"{text} (no interval: {cut_text(measured.reason or COUNTED.reason or '')})"


def cut_text(text: str, most: int = MOST_REASON) -> str:
    """At most this many characters: cut between two clauses, else between two words, never inside brackets.

    An interval among these characters is not cut off.
    """
    if len(text) <= most:
        return text
    whole = "]" in text[:most]
    for between in ("; ", ", ", " "):
        cuts = [match.start() for match in re.finditer(re.escape(between), text[:most])]
        outside = [cut for cut in cuts if text.count("[", 0, cut) == text.count("]", 0, cut)]
        if outside and ("]" in text[: outside[-1]] or not whole or between == " "):
            return f"{text[: outside[-1]]} ..."
    return f"{text[:most]} ..."


def group_remedies(questions: Sequence[OpenQuestion]) -> list[tuple[str, str]]:
    """The names of the questions that each remedy decides, and the remedy."""
    by_remedy: dict[str, list[str]] = {}
    for one in questions:
        if one.decides:
            by_remedy.setdefault(one.decides, []).extend(one.claims or (one.name,))
    return [(cut_text(_separate(_fold_names(names)), MOST_NAMES), remedy) for remedy, names in by_remedy.items()]


def group_by_figure(
    sentences: Sequence[PageAnswer | OpenQuestion],
) -> list[tuple[int, list[PageAnswer | OpenQuestion]]]:
    """Adjacent sentences that one figure supports."""
    return [(figure, list(group)) for figure, group in groupby(sentences, key=lambda one: one.figure)]


def describe_sentence(one: PageAnswer | OpenQuestion) -> str:
    """Its outcome and its text, to be appended to its name."""
    return f" ({one.outcome}): {one.text}" if one.outcome else f": {one.text}"


def render_terminal(page: Page, folder: Path, width: int) -> Text:
    """Folded at `width`, except paths and commands, which stay whole for copying.

    The answers come before the setting: a small terminal shows them without scrolling.
    """
    text = Text(no_wrap=False)
    _append_folded(text, page.question, width, bold=len(page.question))
    _append_folded(text, page.noise, width)
    if page.trouble:
        _append_folded(text, page.trouble, width, tone="yellow")
    for title, sentences in page.sections:
        text.append(f"{title}\n", "bold underline")
        for one in sentences:
            tone = TONES.get(one.outcome.partition(":")[0], "") if isinstance(one, PageAnswer) else ""
            _append_folded(text, f"{one.name}{describe_sentence(one)}", width, bold=len(one.name), tone=tone)
    for names, decides in group_remedies(page.undecided):
        _append_folded(text, f"Decides {names}: {decides}.", width, bold=len("Decides"))
    text.append("\n")
    for part in page.setting:
        _append_folded(text, part, width)
    for target, what in _list_next_steps(page, folder):
        text.append(target, "bold").append(f"  {what}\n" if len(target) + len(what) + 2 <= width else "\n", "dim")
    text.rstrip()
    return text


def _list_next_steps(page: Page, folder: Path) -> list[tuple[str, str]]:
    steps = [
        (str(RunLayout(folder).report_html), "every number, with figures"),
        (f"tracon report {folder.name}", "the tables here"),
    ]
    return [*steps, page.again] if page.again is not None else steps


def _append_folded(text: Text, line: str, width: int, *, bold: int = 0, tone: str = "") -> None:
    """`bold`: number of bold characters at the beginning."""
    if not line:
        return
    folded = Text("\n".join(textwrap.wrap(line, max(width, 20), subsequent_indent="  ")) + "\n", tone)
    folded.stylize("bold", 0, bold)
    text.append_text(folded)
