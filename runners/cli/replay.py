"""`tracon replay`: replay a trace against a running server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

import runners.cli.terminal as terminal
from runners.cli.options import TRACES_PANEL, JsonOption, WorkspaceOption
from runners.cli.spec_options import SpecOption, SpecOptions, chosen, make_command_class

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runners.load.replay_messages import ReplayTick
    from runners.load.standalone_replay import ReplayOptions, ReplayReport

PROGRESS_LINE_S = 10.0

REPLAY = SpecOptions(
    "results.records.load_specs:ReplaySpec",
    (
        SpecOption("seed", "--seed", "Draw the prompts' token ids from this seed", None, 0),
        SpecOption("time_scale", "--time-scale", "Multiply every recorded time by this: 0.5 replays twice as fast"),
        SpecOption("idle_gap_cap_s", "--idle-gap-cap", "Cut pauses inside a session to this", "S", default="no limit"),
        SpecOption(
            "think", "--think", "Pause between turns by `recorded` think times, by `gaps` from send to send, or `none`"
        ),
        SpecOption(
            "max_inflight_sessions", "--max-inflight-sessions",
            "Maximum sessions in flight; further sessions wait and are counted (0 = no limit)", None, 0,
        ),
        SpecOption("on_error", "--on-error", "After a failed turn, `continue` the session or `end_session`"),
        SpecOption("vocab_low", "--vocab-low", "Draw token ids of prompts from this one on", None, 0),
        SpecOption("vocab_high", "--vocab-high", "Draw token ids of prompts below this one"),
        SpecOption(
            "block_tokens", "--block-tokens", "Compute the trace's bounds for blocks of N tokens", None, 1,
            "as the engine reports, or {}",
        ),
        SpecOption("max_duration_s", "--max-duration", "Stop sending after this many seconds", "S"),
    ),
)  # fmt: skip
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Ask for this model (default: the first that the server names).")
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="Read this trace format (default: by the file's first line).")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the records to this folder (default: a new one in the workspace).")
]


def add_to(app: typer.Typer) -> None:
    app.command(cls=make_command_class(REPLAY), rich_help_panel=TRACES_PANEL)(replay)


def replay(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file of any format that Tracon reads.")],
    url: Annotated[str, typer.Option("--url", help="Send to this router or engine, e.g. `http://127.0.0.1:8000`.")],
    model: ModelOption = None,
    format: FormatOption = None,
    out: OutOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Replay a trace against a running router or engine: sessions in closed loop, with the trace's shared prefixes.

    Ctrl-C ends it and reports what was measured. Every turn becomes a record in `metrics.jsonl`.

    Example: `tracon replay sessions.jsonl --url http://127.0.0.1:8000 --time-scale 0.2 --max-inflight-sessions 64`
    """
    from runners.load.standalone_replay import ReplayOptions

    options = ReplayOptions(trace, format, url, model, out or _name_new_folder(workspace), chosen(context, REPLAY))
    report = asyncio.run(_run_replay(options))
    if json:
        parts = {"spec": report.spec, "outcome": report.outcome, "numbers": report.numbers}
        terminal.print_json(parts | {"block_tokens_from": report.block_tokens_from})
    else:
        terminal.out().print(_make_report_tables(report))
    if report.outcome.fidelity.degraded:
        terminal.err().print(f"degraded: {report.outcome.fidelity.reason}", markup=False, soft_wrap=True)
    raise typer.Exit(int(report.exit_code))


async def _run_replay(options: ReplayOptions) -> ReplayReport:
    from runners.load.standalone_replay import replay_trace

    cut = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, cut.set)
    with contextlib.closing(_Progress()) as progress:
        return await replay_trace(options, progress.step, progress.tick, cut)


def _name_new_folder(workspace: Path | None) -> Path:
    from state.workspace import find_default_root

    return (workspace or find_default_root()) / "replays" / time.strftime("%Y%m%d-%H%M%S")


class _Progress:
    """On a terminal, one line that is redrawn; in a pipe, a line every PROGRESS_LINE_S."""

    def __init__(self) -> None:
        self._console = terminal.err()
        self._status = self._console.status("") if self._console.is_terminal else None
        self._phase = ""
        self._next_s = 0.0
        if self._status is not None:
            self._status.start()

    def step(self, text: str) -> None:
        self._show_text(text, text.partition(":")[0])

    def tick(self, tick: ReplayTick) -> None:
        self._show_text(progress_line(tick), "tick")

    def _show_text(self, text: str, phase: str) -> None:
        """In a pipe, print the first text of each `phase`, then one every PROGRESS_LINE_S."""
        if self._status is not None:
            self._status.update(escape(text))
        elif phase != self._phase or time.monotonic() >= self._next_s:
            self._phase, self._next_s = phase, time.monotonic() + PROGRESS_LINE_S
            self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()


def progress_line(tick: ReplayTick) -> str:
    """The progress of a replay, with the time left at this pace."""
    over = tick.completed + tick.failed
    parts = [f"{over} of {tick.turns} turns", f"{tick.sessions_done} of {tick.sessions} sessions"]
    parts.append(f"{tick.inflight_sessions} sessions in flight")
    if tick.waiting_sessions:
        parts.append(f"{tick.waiting_sessions} waiting")
    if tick.failed:
        parts.append(f"{tick.failed} failed")
    if tick.ttft_p90_s is not None:
        parts.append(f"TTFT p90 {tick.ttft_p90_s * 1e3:.0f} ms")
    if tick.phase == "replay" and over:
        left_s = max(tick.elapsed_s * (tick.turns - over) / over, tick.trace_span_s - tick.elapsed_s)
        parts.append(f"about {left_s:.0f} s left")
    return ", ".join(parts)


def _make_report_tables(report: ReplayReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    points = ("mean", "p50", "p90", "p99")
    table = begin_table("", *(f">{point} (ms)" for point in points))
    for series in ("ttft", "tpot", "e2e"):
        cells = [report.numbers[f"{series}_{point}_s"].text(scale=1e3) for point in points]
        table.add_row(series.upper(), *cells)
    return Group(
        *(Text(line) for line in list_facts(report)),
        Text(),
        table,
        Text(),
        Text(f"records: {report.spec.requests_path}"),
    )


def list_facts(report: ReplayReport) -> list[str]:
    outcome, numbers = report.outcome, report.numbers
    lines = [
        f"{outcome.completed} of {outcome.turns} turns completed, {outcome.failed} failed, {outcome.cut} cut; "
        f"{outcome.sessions_done} of {outcome.sessions} sessions over ({outcome.stop_reason})"
    ]
    if outcome.sessions_delayed:
        lines.append(
            f"{outcome.sessions_delayed} sessions were held back, for up to {outcome.session_delay_max_s:.1f} s"
        )
    wall = "-" if outcome.wall_clock_s is None else f"{outcome.wall_clock_s:.1f} s"
    ratio = outcome.amplification_reason if outcome.amplification is None else f"{outcome.amplification:.3f}"
    lines.append(f"wall clock {wall}, trace span {outcome.trace_span_s:.1f} s, amplification {ratio}")
    apc = numbers["apc"] if numbers["apc"].value is not None else numbers["apc_usage"]
    bounds = [numbers[f"apc_bound_{kind}"].text() for kind in ("any", "intra")]
    lines.append(
        f"APC {apc.text()}; the trace's bound for these turns at blocks of {report.spec.block_tokens} "
        f"({report.block_tokens_from}) is {bounds[0]} in any session, {bounds[1]} within its own"
    )
    return lines
