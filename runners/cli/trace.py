"""Commands about trace files: describe, convert, sample, scale, synth."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import runners.cli.terminal as terminal
from results.records.percent import format_percent
from results.traces.description import BYTES_PER_TOKEN, GIB, KV_POOL_BYTES, SHARED_FROM
from runners.cli.options import TRACES_PANEL, JsonOption
from runners.cli.spec_options import SpecOption, SpecOptions, chosen, make_command_class
from runners.errors import RunnerError

if TYPE_CHECKING:
    from runners.trace.session import Session, TraceFacts

trace_app = typer.Typer(
    no_args_is_help=True,
    help="""Describe, convert, sample, scale and generate trace files.

    From a recording to something a small model can serve:

    `tracon trace describe sessions.tar.xz`

    `tracon trace sample sessions.tar.xz few.jsonl --sessions 20`

    `tracon trace scale few.jsonl small.jsonl --tokens 0.03125 --max-context 4000 --sessions-per-s 0.5`
    """,
)

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.xz")
PROGRESS_LINE_S = 10.0

SourceArg = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, help="A trace: a file (plain, .gz, .xz), a tar of files, or a folder of them."
    ),
]
TargetArg = Annotated[
    Path, typer.Argument(metavar="OUT", help=f"The trace to write: a name that ends in {', '.join(ENDINGS)}.")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", "-f", help="Read it as `mooncake`, `bailian`, `agentic` or `tracon` (default: by its first line)."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Random seed; the same seed gives the same trace.")]
_SEED = SpecOption("seed", "--seed", "Random seed; the same seed gives the same trace", minimum=0)
_TURNS = SpecOption("turns", "--turns", "Keep only the first N turns of each session (0 = all)", minimum=0)

SAMPLING = SpecOptions(
    "runners.trace.transform:Sampling",
    (
        SpecOption("sessions", "--sessions -n", "Keep this many sessions, chosen at random", minimum=1),
        SpecOption("share", "--share", "Keep about this share of the sessions instead (0 to 1)"),
        _SEED,
    ),
)
TURN_LIMIT = SpecOptions("runners.trace.transform:Limits", (_TURNS,))
SCALING = SpecOptions(
    "runners.trace.transform:Scaling",
    (
        SpecOption(
            "tokens", "--tokens", "Multiply lengths and block size by this factor: 0.0625 makes 16 tokens of 256"
        ),
        SpecOption("output_tokens", "--output-tokens", "Multiply output lengths by this factor", default="as --tokens"),
        SpecOption("time", "--time", "Multiply arrivals and think times by this factor: 0.1 is ten times as fast"),
    ),
)
LIMITS = SpecOptions(
    "runners.trace.transform:Limits",
    (
        SpecOption(
            "max_context_tokens", "--max-context", "Leave out turns with more tokens, after scaling (0 = none)", None, 0
        ),
        _TURNS,
    ),
)
ARRIVALS = SpecOptions(
    "runners.trace.transform:Arrivals",
    (
        SpecOption(
            "sessions_per_s", "--sessions-per-s", "Let sessions arrive at this rate (Poisson) instead of as recorded"
        ),
        _SEED,
    ),
)


def add_to(app: typer.Typer) -> None:
    for command in (describe, convert, synth):
        trace_app.command()(command)
    trace_app.command(cls=make_command_class(SAMPLING, TURN_LIMIT))(sample)
    trace_app.command(cls=make_command_class(SCALING, LIMITS, ARRIVALS))(scale)
    app.add_typer(trace_app, name="trace", rich_help_panel=TRACES_PANEL)


def describe(
    file: SourceArg,
    format: FormatOption = None,
    kv_pool_gib: Annotated[
        float, typer.Option("--kv-pool-gib", help="KV memory of one instance, GiB; the default is an H20's.")
    ] = round(KV_POOL_BYTES / GIB, 1),
    bytes_per_token: Annotated[
        float,
        typer.Option("--bytes-per-token", help="KV bytes of one token; the default is that of Qwen3-Coder-30B-A3B."),
    ] = BYTES_PER_TOKEN,
    shared_from: Annotated[
        int, typer.Option("--shared-from", min=2, help="Count a block as a shared prefix from this many sessions on.")
    ] = SHARED_FROM,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write figures 2a to 2c and their tables into this folder.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Describe a trace: lengths, reuse and its bounds, skew, room for its KV.

    Example: `tracon trace describe conversation_trace.jsonl.xz --json`
    """
    from runners.trace.describe import describe_trace
    from runners.trace.formats import open_trace

    with _show_progress(f"reading {file.name}") as watch:
        facts, sessions = open_trace(file, format, watch)
        description = describe_trace(
            facts,
            sessions,
            kv_pool_bytes=kv_pool_gib * GIB,
            bytes_per_token=bytes_per_token,
            shared_from=shared_from,
        )
    if figures is not None:
        from results.traces.figures import write_trace_figures

        for figure in write_trace_figures(description, figures):
            result = f"left out, {figure.missing}" if figure.missing else f"in {figures}"
            terminal.err().print(f"{figure.stem}: {result}", markup=False, soft_wrap=True)
    if json:
        terminal.print_json(description)
    else:
        from results.report.content import ReportText
        from results.report.document import make_rich_tables
        from results.traces.tables import build_tables, format_headline, list_limits

        text = ReportText(format_headline(description), build_tables(description), list_limits(description))
        terminal.out().print(make_rich_tables(text))


def convert(file: SourceArg, out: TargetArg, format: FormatOption = None, json: JsonOption = False) -> None:
    """Convert a trace of any supported format to Tracon's own, and check it against every rule of that format.

    Example: `tracon trace convert agentic_sessions.tar.xz sessions.jsonl.gz`
    """
    from runners.trace.formats import open_trace

    _check_target(file, out)
    with _show_progress(f"converting {file.name}") as watch:
        facts, sessions = open_trace(file, format, watch)
        change = _write_changed(out, facts, facts, sessions, lambda taken: taken)
    _report_change(change, json)


def sample(
    context: typer.Context,
    file: SourceArg,
    out: TargetArg,
    format: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Keep some of the sessions, whole, with the times between them; the first one arrives at 0.

    The rate of arrival falls with their number: `tracon trace scale --time` raises it again. A larger sample with the
    same seed contains the smaller one.

    Example: `tracon trace sample sessions.jsonl few.jsonl --sessions 20 --seed 7`
    """
    from runners.trace.formats import open_trace
    from runners.trace.transform import Limits, Sampling, draw_names, is_sampled, limit_sessions

    sampling, limits = Sampling(**chosen(context, SAMPLING)), Limits(**chosen(context, TURN_LIMIT))
    _check_target(file, out)
    is_kept: Callable[[str], bool]
    if sampling.sessions is not None:
        with _show_progress(f"drawing from {file.name}") as watch:
            _, recorded = open_trace(file, format, watch)
            names = (session.session for session in recorded)
            is_kept = draw_names(names, sampling.sessions, sampling.seed).__contains__
    else:
        is_kept = partial(is_sampled, share=sampling.share or 0.0, seed=sampling.seed)

    def select(sessions: Iterator[Session]) -> Iterable[Session]:
        return limit_sessions((session for session in sessions if is_kept(session.session)), limits)

    with _show_progress(f"sampling {file.name}") as watch:
        facts, recorded = open_trace(file, format, watch)
        change = _write_changed(out, facts, facts, recorded, select)
    _report_change(change, json)


def scale(
    context: typer.Context,
    file: SourceArg,
    out: TargetArg,
    format: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Make a big trace small or fast enough for a small model, with its prefixes shared as before.

    The block size shrinks with the lengths, so every prompt keeps its number of blocks and every hash its meaning.

    Example: `tracon trace scale sessions.jsonl small.jsonl --tokens 0.03125 --max-context 4000 --time 0.01`
    """
    from runners.trace.formats import open_trace
    from runners.trace.transform import Arrivals, Limits, Scaling, limit_sessions, redraw_arrivals, scale_sessions

    _check_target(file, out)
    scaling, limits = Scaling(**chosen(context, SCALING)), Limits(**chosen(context, LIMITS))
    arrivals = Arrivals(**chosen(context, ARRIVALS))
    with _show_progress(f"scaling {file.name}") as watch:
        facts, sessions = open_trace(file, format, watch)

        def change_sessions(recorded: Iterator[Session]) -> Iterable[Session]:
            limited = limit_sessions(scale_sessions(facts, recorded, scaling), limits)
            return redraw_arrivals(limited, arrivals)

        change = _write_changed(out, facts, scaling.scale_facts(facts), sessions, change_sessions)
    _report_change(change, json)


def synth(
    out: TargetArg,
    sessions: Annotated[int, typer.Option("--sessions", "-n", min=1, help="Generate this many sessions.")] = 1000,
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a statistic (repeatable)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Generate agentic sessions from stated statistics; the defaults are those of a production trace.

    The statistics and how closely they are met: docs/traces.md.

    Example: `tracon trace synth sessions.jsonl.gz -n 2000 --seed 7 --set span_s=300 --set input_output_ratio=40`
    """
    from runners.trace.synth import open_synthetic

    _check_target(None, out)
    facts, made = open_synthetic(sessions, seed, _read_statistics(settings or ()))
    with _show_progress(f"generating {sessions} sessions") as watch:

        def counted(taken: Iterator[Session]) -> Iterator[Session]:
            for number, session in enumerate(taken, start=1):
                yield session
                watch(number / sessions)

        change = _write_changed(out, facts, facts, made, counted)
    _report_change(change, json)


def _write_changed(
    out: Path,
    before: TraceFacts,
    after: TraceFacts,
    sessions: Iterator[Session],
    change_sessions: Callable[[Iterator[Session]], Iterable[Session]],
) -> dict[str, Any]:
    """Stream the sessions through `change_sessions` into the file; returns what was written and what was left out.

    Raises RunnerError if no session is left.
    """
    from runners.trace.formats.tracon import write_trace

    read: Counter[str] = Counter()

    def count_read() -> Iterator[Session]:
        for session in sessions:
            read["sessions"] += 1
            read["requests"] += len(session.turns)
            yield session

    def require_some() -> Iterator[Session]:
        any_left = False
        for session in change_sessions(count_read()):
            any_left = True
            yield session
        if not any_left:
            raise RunnerError(
                f"nothing of {before.source} is left to write", remedy="keep more sessions, or allow longer prompts"
            )

    written = write_trace(out, after, require_some())
    left_out = {f"left_out_{name}": read[name] - getattr(written, name) for name in ("sessions", "requests")}
    return {"file": str(out), **asdict(written), "block_tokens": after.block_tokens, **left_out}


def _report_change(row: Mapping[str, Any], json: bool) -> None:
    if json:
        terminal.print_json(row)
        return
    text = (
        f"{row['file']}: {row['requests']} requests of {row['sessions']} sessions, {row['input_tokens']} input and "
        f"{row['output_tokens']} output tokens in blocks of {row['block_tokens']}, {row['span_s']:.1f} s"
    )
    left_out = f"; {row['left_out_requests']} requests left out" if row["left_out_requests"] else ""
    terminal.err().print(text + left_out, markup=False, soft_wrap=True)


def _check_target(source: Path | None, out: Path) -> None:
    if not out.name.endswith(ENDINGS):
        raise RunnerError(f"{out} is no name for a trace file", remedy=f"end it in {', '.join(ENDINGS)}")
    if source is not None and out.exists() and out.samefile(source):
        raise RunnerError(f"{out} is what is read", remedy="write to another file")


def _read_statistics(texts: Iterable[str]) -> dict[str, object]:
    """`KEY=VALUE` texts as a mapping; a value that is not JSON stays text."""
    import msgspec

    from runners.cli.options import read_pairs

    statistics: dict[str, object] = dict(read_pairs(texts, "--set", "KEY=VALUE"))
    for key, value in statistics.items():
        try:
            statistics[key] = msgspec.json.decode(str(value))
        except msgspec.DecodeError:
            continue
    return statistics


@contextmanager
def _show_progress(text: str) -> Iterator[Callable[[float], None]]:
    """A callback for the share done (0 to 1): a bar with ETA on a terminal, a line every PROGRESS_LINE_S in a pipe."""
    if not sys.stderr.isatty():
        yield _Lines(text)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.err(), transient=True) as bar:
        task = bar.add_task(text.replace("[", r"\["), total=1.0)
        yield lambda share: bar.update(task, completed=share)


class _Lines:
    """Prints a line every PROGRESS_LINE_S; shorter work prints none."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin_s = self._last_line_s = time.monotonic()

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s - self._last_line_s < PROGRESS_LINE_S or share <= 0:
            return
        self._last_line_s = now_s
        left_s = (now_s - self._begin_s) * (1 - share) / share
        terminal.err().print(
            f"{self._text}: {format_percent(share)}, {left_s:.0f} s left", markup=False, soft_wrap=True
        )
