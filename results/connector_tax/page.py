"""A connector-tax run on one page: where it ran, the noise floor, each config's tax, the hypotheses, what to do next.

The console draws the same page. For a terminal its lines are cut at the width, never folded.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from results.connector_tax.analyse import Analysis
from results.connector_tax.launch_noise import NAMED_TAX, LaunchNoise
from results.connector_tax.tax import Metric, TaxRow
from results.measures.saturation import REF_SAFE
from results.records.baseline import BASELINE, REPEAT
from results.records.layout import RunLayout
from results.report.figure import in_order
from results.report.table import NOT_MEASURED
from results.statistics.estimates import Estimate, figure
from results.statistics.judgement import Verdict
from results.statistics.trials import MIN_PAIRED

WORDS = {Verdict.HIGHER: "higher", Verdict.LOWER: "lower", Verdict.NOT_DISTINGUISHABLE: "n.d."}
NO_VERDICT = "none"
LATENCIES = (Metric.TTFT_P90, Metric.TPOT_P90)


@dataclass(frozen=True, slots=True)
class Change:
    """One latency against plain, as text."""

    text: str
    """`+12% [-4, +28]`; `-` where it was not measured."""
    word: str
    """Of the verdict; `none` where there is none; empty where nothing is judged."""


@dataclass(frozen=True, slots=True)
class Line:
    config: str
    ttft: Change
    tpot: Change
    callbacks_us: str
    """Per step, with its bounds; `-` where there are none."""


@dataclass(frozen=True, slots=True)
class Page:
    """The page; every text but `reading` is for one line, which may be cut at its width."""

    host: str
    load: str
    noise: str
    """How much one launch differs from another, and which tax shows; empty where each config was launched once."""
    floor: Line | None
    """Plain against plain."""
    taxes: tuple[Line, ...]
    reading: str
    """What brackets and words mean."""
    hypotheses: tuple[tuple[str, str, str], ...]
    """Name, outcome, why."""
    trouble: str
    """What keeps the page from being whole; empty = nothing."""
    next_steps: tuple[tuple[str, str], ...]
    """A file or a command, and what it gives."""

    @property
    def change_width(self) -> int:
        """Characters of the longest difference from plain."""
        lines = (*self.taxes, *([self.floor] if self.floor is not None else []))
        return max((len(change.text) for line in lines for change in (line.ttft, line.tpot)), default=8)


def page_of(analysis: Analysis, root: Path) -> Page:
    """The page of this analysis of the run folder `root`; a number that is missing is shown as missing."""
    rows = [row for row in analysis.taxes if (row.phase, row.reference) == ("A", REF_SAFE)]
    floor = [row for row in analysis.noise_floor if (row.phase, row.reference) == ("A", REF_SAFE)]
    configs = sorted({row.config for row in rows}, key=in_order)
    return Page(
        host=_describe_host(analysis),
        load=_describe_load(analysis, rows),
        noise=_describe_noise(analysis.launch_noise),
        floor=_build_line(REPEAT, floor, judge=False) if floor else None,
        taxes=tuple(_build_line(config, [row for row in rows if row.config == config]) for config in configs),
        reading=_explain_reading(rows, bool(floor)),
        hypotheses=tuple((verdict.name, str(verdict.outcome), verdict.reason) for verdict in analysis.verdicts),
        trouble=_list_trouble(analysis),
        next_steps=_next_steps(analysis, root),
    )


def _next_steps(analysis: Analysis, root: Path) -> tuple[tuple[str, str], ...]:
    profile = analysis.facts.profile or "cpu-tiny"
    again = f"tracon run connector-tax --profile {profile} --trials {MIN_PAIRED}"
    return (
        (str(RunLayout(root).report_html), "every number, with figures"),
        (f"tracon report {root.name}", "the same tables here"),
        (again, "all configs, rates and shapes, with verdicts"),
    )


def _describe_host(analysis: Analysis) -> str:
    facts = analysis.facts
    where = {"cpu": "CPU build of vLLM", "cuda": "GPU"}.get(facts.engine_kind, "engine not known")
    version = f" {facts.versions['vllm']}" if "vllm" in facts.versions else ""
    host = f", {facts.host}" if facts.host else ""
    return f"{facts.label}: {where}{version}{host}"


def _describe_load(analysis: Analysis, rows: Iterable[TaxRow]) -> str:
    row = next(iter(rows), None)
    launches = len({cell.trial for cell in analysis.cells})
    count = "one launch per config" if launches == 1 else f"{launches} launches per config"
    cells = f"{len(analysis.cells)} cells, {count}"
    if row is None:
        return f"{cells}; no tax: {analysis.rates.reason_for(REF_SAFE)}"
    tokens = f"{row.shape.input_tokens} tokens in, {row.shape.output_tokens} out"
    return f"{cells}; at {row.rate_per_s:g} req/s, {tokens}"


def _describe_noise(rows: Iterable[LaunchNoise]) -> str:
    there = {row.metric: row for row in rows if (row.phase, row.reference) == ("A", REF_SAFE)}
    shown = [(name, there[metric]) for name, metric in zip(("TTFT", "TPOT"), LATENCIES, strict=True) if metric in there]
    if not shown:
        return ""
    sigmas = ", ".join(f"{name} p90 {_format_percents(row.sigma)}" for name, row in shown)
    needed = [row.launches_for_named for _, row in shown]
    launches = "too many" if None in needed else str(max(count or 0 for count in needed))
    smallest = [(name, row.detectable) for name, row in shown if row.detectable is not None]
    taxes = ", ".join(f"{name} {_format_percents(tax)}" for name, tax in smallest)
    shows = f" {shown[0][1].launches} launches detect taxes from {taxes} on;" if smallest else ""
    return f"Noise of a launch (sigma): {sigmas}.{shows} {NAMED_TAX:.0%} takes {launches} launches."


def _format_percents(fraction: float) -> str:
    return f"{figure(fraction * 100, 2)} %"


def _build_line(config: str, rows: Iterable[TaxRow], *, judge: bool = True) -> Line:
    own = {row.metric: row for row in rows}
    ttft, tpot = (_build_change(own.get(metric), judge) for metric in LATENCIES)
    callbacks = own.get(Metric.CALLBACK_P50)
    return Line(config, ttft, tpot, _format_microseconds(callbacks.estimate) if callbacks else NOT_MEASURED)


def _build_change(row: TaxRow | None, judge: bool) -> Change:
    if row is None or row.estimate.value is None:
        return Change(NOT_MEASURED, "")
    word = "" if not judge else WORDS[row.verdict] if row.verdict is not None else NO_VERDICT
    return Change(format_fraction(row.estimate), word)


def format_fraction(estimate: Estimate) -> str:
    """A fraction as `+12% [-4, +28]`; below 1 % with a decimal, so that a small one is not shown as none."""
    if estimate.value is None:
        return NOT_MEASURED
    value = f"{_format_signed(estimate.value)}%"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{_format_signed(estimate.low)}, {_format_signed(estimate.high)}]"


def _format_signed(fraction: float) -> str:
    return f"{fraction * 100:+.0f}" if abs(fraction) >= 0.00995 else f"{fraction * 100:+.1f}"


def _format_microseconds(estimate: Estimate) -> str:
    if estimate.value is None:
        return NOT_MEASURED
    return figure(estimate.value, 2 if abs(estimate.value) < 100 else 3)


def _explain_reading(rows: list[TaxRow], floored: bool) -> str:
    latencies = [row for row in rows if row.metric in LATENCIES]
    judged = any(row.verdict is not None for row in latencies)
    why = next((row.withheld for row in latencies if row.withheld and row.estimate.value is not None), "")
    together = "95 % interval over launches, for all configs together (hypotheses: by itself)"
    brackets = together if judged else "95 % spread within the launch"
    noise = f" {REPEAT} is {BASELINE} again: noise." if floored else ""
    words = " n.d.: not distinguishable." if judged else f" No verdict: {why}." if why else ""
    return f"Brackets: {brackets}.{noise}{words}"


def _list_trouble(analysis: Analysis) -> str:
    parts = []
    if analysis.degraded:
        parts.append(f"{len(analysis.degraded)} degraded cells take no part")
    if analysis.gaps:
        parts.append(f"{len(analysis.gaps)} gaps: {analysis.gaps[0].artifact} {analysis.gaps[0].reason}")
    skipped = [row.config for row in analysis.manifest if row.status != "ran"]
    if skipped:
        parts.append(f"not measured: {', '.join(skipped)}")
    if not analysis.cells:
        parts.append("no cell was measured")
    return "; ".join(parts)


WORD = 7
"""Columns of a verdict's word."""
TONES = {"higher": "yellow", "lower": "green", "holds": "green", "fails": "yellow"}


def page_text(page: Page, width: int) -> Text:
    """The page, no line longer than `width` but paths and commands, which stay whole to be copied."""
    text = Text(no_wrap=False)
    for line in _build_lines(page, width):
        line.truncate(width, overflow="ellipsis")
        text.append_text(line).append("\n")
    for target, what in page.next_steps:
        text.append(target, "bold").append(f"  {what}\n" if len(target) + len(what) + 2 <= width else "\n", "dim")
    text.rstrip()
    return text


def _build_lines(page: Page, width: int) -> Iterator[Text]:
    yield Text(page.host, "bold")
    yield Text(page.load)
    if page.trouble:
        yield Text(page.trouble, "yellow")
    for part in textwrap.wrap(page.noise, width):
        yield Text(part)
    lines = [*([page.floor] if page.floor is not None else []), *page.taxes]
    if lines:
        room = max(len(line.config) for line in lines) + 1
        change = page.change_width
        latency = change + WORD + 1
        yield Text(f"{'against plain':<{room}}{'TTFT p90':<{latency}}{'TPOT p90':<{latency}}hooks us", "dim")
        for line in lines:
            yield _build_row(line, room, change, noise=line is page.floor)
    for part in textwrap.wrap(page.reading, width):
        yield Text(part, "dim")
    for name, outcome, why in page.hypotheses:
        yield Text(f"{name} ", "bold").append(f"{outcome:<10} ", TONES.get(outcome, "dim")).append(why)


def _build_row(line: Line, room: int, change_width: int, *, noise: bool) -> Text:
    text = Text(f"{line.config:<{room}}", "dim" if noise else "bold")
    for change in (line.ttft, line.tpot):
        _append_change(text, change, change_width, noise=noise)
    return text.append("noise" if noise else f"{line.callbacks_us:>5}", "dim" if noise else "")


def _append_change(text: Text, change: Change, width: int, *, noise: bool) -> None:
    text.append(f"{change.text:<{width}} ", "dim" if noise else "")
    text.append(f"{change.word:<{WORD}}", TONES.get(change.word, "dim"))
