"""Commands about trace files: describe, convert, sample, scale, synth."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runners.cli import output
from runners.cli.options import JsonOption
from runners.errors import RunnerError

if TYPE_CHECKING:
    from runners.trace.session import Session, TraceFacts

trace_app = typer.Typer(
    no_args_is_help=True,
    help="""Trace files: what is in them, and how to make them fit.

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
    typer.Option("--format", "-f", help="`mooncake`, `bailian`, `agentic` or `tracon` (default: by its first line)."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same trace.")]
TurnsOption = Annotated[
    int, typer.Option("--turns", min=0, help="Only the first so many turns of each session; 0 = all.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (describe, convert, sample, scale, synth):
        trace_app.command()(command)
    app.add_typer(trace_app, name="trace")


def describe(
    file: SourceArg,
    format: FormatOption = None,
    kv_pool_gib: Annotated[
        float, typer.Option("--kv-pool-gib", help="KV memory of one instance, GiB (default: an H20's).")
    ] = 38.4,
    bytes_per_token: Annotated[
        float, typer.Option("--bytes-per-token", help="KV of one token (default: Qwen3-Coder-30B-A3B).")
    ] = 98_304,
    shared_from: Annotated[
        int, typer.Option("--shared-from", min=2, help="A block that so many sessions use is a shared prefix.")
    ] = 3,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write figures 2a to 2c and their tables into this folder.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what a trace is made of: lengths, reuse and its bounds, skew, room for its KV.

    Example: `tracon trace describe conversation_trace.jsonl.xz --json`
    """
    from results.traces.description import GIB
    from runners.trace.describe import describe as describe_trace
    from runners.trace.formats import open_trace

    with _progress(f"reading {file.name}") as watch:
        facts, sessions = open_trace(file, format, watch)
        found = describe_trace(
            facts,
            sessions,
            kv_pool_bytes=kv_pool_gib * GIB,
            bytes_per_token=bytes_per_token,
            shared_from=shared_from,
        )
    if figures is not None:
        from results.traces.figures import write

        for figure in write(found, figures):
            said = f"left out, {figure.missing}" if figure.missing else f"in {figures}"
            output.err().print(f"{figure.stem}: {said}", markup=False, soft_wrap=True)
    if json:
        output.print_json(found)
    else:
        from results.report import rich_tables
        from results.traces.tables import headline, limits, tables

        output.out().print(rich_tables(headline(found), tables(found), limits(found)))


def convert(file: SourceArg, out: TargetArg, format: FormatOption = None, json: JsonOption = False) -> None:
    """Write a trace of any format as the project's own file, checked rule by rule.

    Example: `tracon trace convert agentic_sessions.tar.xz sessions.jsonl.gz`
    """
    _check_target(file, out)
    with _progress(f"converting {file.name}") as watch:
        facts, sessions = _opened(file, format, watch)
        change = _write(out, facts, facts, sessions, lambda taken: taken)
    _tell(out, change, json)


def sample(
    file: SourceArg,
    out: TargetArg,
    sessions: Annotated[
        int | None, typer.Option("--sessions", "-n", min=1, help="So many sessions, at random.")
    ] = None,
    share: Annotated[
        float | None, typer.Option("--share", min=0.0, max=1.0, help="About this share of the sessions instead.")
    ] = None,
    seed: SeedOption = 1,
    turns: TurnsOption = 0,
    format: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Keep some of the sessions, whole, with the times between them; the first one arrives at 0.

    The rate of arrival falls with their number: `tracon trace scale --time` raises it again. A larger sample with the
    same seed holds the smaller one.

    Example: `tracon trace sample sessions.jsonl few.jsonl --sessions 20 --seed 7`
    """
    from runners.trace.transform import drawn, limited_sessions, lucky

    if (sessions is None) == (share is None):
        raise RunnerError("say how many sessions to keep", remedy="give --sessions or --share, one of the two")
    _check_target(file, out)
    chosen: Callable[[str], bool]
    if sessions is None:
        wanted = share or 0.0

        def chosen(name: str) -> bool:
            return lucky(name, wanted, seed)
    else:
        with _progress(f"drawing from {file.name}") as watch:
            _, everyone = _opened(file, format, watch)
            chosen = drawn((session.session for session in everyone), sessions, seed).__contains__

    with _progress(f"sampling {file.name}") as watch:
        facts, everyone = _opened(file, format, watch)
        change = _write(
            out,
            facts,
            facts,
            everyone,
            lambda taken: limited_sessions((one for one in taken if chosen(one.session)), turns=turns),
        )
    _tell(out, change, json)


def scale(
    file: SourceArg,
    out: TargetArg,
    tokens: Annotated[
        float, typer.Option("--tokens", help="Factor on lengths and block size: 0.0625 makes 16 tokens of 256.")
    ] = 1.0,
    output_tokens: Annotated[
        float | None, typer.Option("--output-tokens", help="Factor on output lengths (default: as --tokens).")
    ] = None,
    time_factor: Annotated[
        float, typer.Option("--time", help="Factor on arrivals and think times: 0.1 is ten times as fast.")
    ] = 1.0,
    max_context: Annotated[
        int, typer.Option("--max-context", min=0, help="Leave out turns with more tokens than this, after scaling.")
    ] = 0,
    turns: TurnsOption = 0,
    sessions_per_s: Annotated[
        float | None,
        typer.Option("--sessions-per-s", help="Let sessions arrive at this rate (Poisson) instead of as recorded."),
    ] = None,
    seed: SeedOption = 1,
    format: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Make a big trace small or fast enough for a small model, with its prefixes shared as before.

    The block size shrinks with the lengths, so every prompt keeps its number of blocks and every hash its meaning.

    Example: `tracon trace scale sessions.jsonl small.jsonl --tokens 0.03125 --max-context 4000 --time 0.01`
    """
    from runners.trace.transform import Scaling, arriving, limited_sessions, scaled_sessions

    _check_target(file, out)
    scaling = Scaling(tokens, output_tokens, time_factor)
    with _progress(f"scaling {file.name}") as watch:
        facts, sessions = _opened(file, format, watch)

        def scaled(taken: Iterator[Session]) -> Iterable[Session]:
            kept = limited_sessions(scaled_sessions(facts, taken, scaling), max_context_tokens=max_context, turns=turns)
            return kept if sessions_per_s is None else arriving(kept, sessions_per_s, seed)

        change = _write(out, facts, scaling.facts(facts), sessions, scaled)
    _tell(out, change, json)


def synth(
    out: TargetArg,
    sessions: Annotated[int, typer.Option("--sessions", "-n", min=1, help="How many to generate.")] = 1000,
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="A statistic over its default (repeatable)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Generate agentic sessions from stated statistics; the defaults are those of a production trace.

    The statistics and how closely they are met: docs/traces.md.

    Example: `tracon trace synth sessions.jsonl.gz -n 2000 --seed 7 --set span_s=300 --set input_output_ratio=40`
    """
    from runners.trace.synth import open_synthetic

    _check_target(None, out)
    facts, made = open_synthetic(sessions, seed, _statistics(settings or ()))
    with _progress(f"generating {sessions} sessions") as watch:

        def counted(taken: Iterator[Session]) -> Iterator[Session]:
            for number, session in enumerate(taken, start=1):
                yield session
                watch(number / sessions)

        change = _write(out, facts, facts, made, counted)
    _tell(out, change, json)


@dataclass(slots=True)
class _Change:
    """What came in, and what went out."""

    block_tokens: int
    sessions_in: int = 0
    requests_in: int = 0
    sessions: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    span_s: float = 0.0


def _write(
    out: Path,
    before: TraceFacts,
    after: TraceFacts,
    sessions: Iterator[Session],
    changed: Callable[[Iterator[Session]], Iterable[Session]],
) -> _Change:
    """Stream the sessions through `changed` into the file. Raises RunnerError where none is left."""
    from runners.trace.formats import write_trace

    change = _Change(after.block_tokens)

    def counted() -> Iterator[Session]:
        for session in sessions:
            change.sessions_in += 1
            change.requests_in += len(session.turns)
            yield session

    def some() -> Iterator[Session]:
        found = False
        for session in changed(counted()):
            found = True
            yield session
        if not found:
            raise RunnerError(
                f"nothing of {before.source} is left to write", remedy="keep more sessions, or allow longer prompts"
            )

    written = write_trace(out, after, some())
    for name in ("sessions", "requests", "input_tokens", "output_tokens", "span_s"):
        setattr(change, name, getattr(written, name))
    return change


def _tell(out: Path, change: _Change, json: bool) -> None:
    if json:
        row: dict[str, Any] = {
            "file": str(out),
            "sessions": change.sessions,
            "requests": change.requests,
            "input_tokens": change.input_tokens,
            "output_tokens": change.output_tokens,
            "span_s": change.span_s,
            "block_tokens": change.block_tokens,
            "left_out_sessions": change.sessions_in - change.sessions,
            "left_out_requests": change.requests_in - change.requests,
        }
        output.print_json(row)
        return
    left_out = change.requests_in - change.requests
    output.err().print(
        f"{out}: {change.requests} requests of {change.sessions} sessions, {change.input_tokens} input and "
        f"{change.output_tokens} output tokens in blocks of {change.block_tokens}, {change.span_s:.1f} s"
        + (f"; {left_out} requests left out" if left_out else ""),
        markup=False,
        soft_wrap=True,
    )


def _opened(file: Path, format: str | None, watch: Callable[[float], None]) -> tuple[TraceFacts, Iterator[Session]]:
    from runners.trace.formats import open_trace

    return open_trace(file, format, watch)


def _check_target(source: Path | None, out: Path) -> None:
    if not out.name.endswith(ENDINGS):
        raise RunnerError(f"{out} is no name for a trace file", remedy=f"end it in {', '.join(ENDINGS)}")
    if source is not None and out.exists() and out.samefile(source):
        raise RunnerError(f"{out} is what is read", remedy="write to another file")


def _statistics(given: Iterable[str]) -> dict[str, object]:
    """`KEY=VALUE` texts as a mapping; values are JSON, or text where they are none."""
    import msgspec

    from runners.cli.policies import settings

    found = settings(list(given))
    for key, value in found.items():
        try:
            found[key] = msgspec.json.decode(str(value))
        except msgspec.DecodeError:
            continue
    return found


@contextmanager
def _progress(text: str) -> Iterator[Callable[[float], None]]:
    """A callback for the share that is done: a bar with its ETA on a terminal, now and then a line in a pipe."""
    if not sys.stderr.isatty():
        yield _Lines(text)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.err(), transient=True) as bar:
        task = bar.add_task(text.replace("[", r"\["), total=1.0)
        yield lambda share: bar.update(task, completed=share)


class _Lines:
    """A line after every PROGRESS_LINE_S: short work says nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin_s = self._told_s = time.monotonic()

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < PROGRESS_LINE_S or share <= 0:
            return
        self._told_s = now_s
        left_s = (now_s - self._begin_s) * (1 - share) / share
        output.err().print(f"{self._text}: {share:.0%}, {left_s:.0f} s left", markup=False, soft_wrap=True)
