"""`tracon replay`: a trace against a server that already runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from runners.cli import output
from runners.cli.options import JsonOption, WorkspaceOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runners.load.replay_spec import ReplayTick
    from runners.replay import ReplayReport, ReplayWish

PROGRESS_LINE_S = 10.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(replay)


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file of any format that Tracon reads.")],
    url: Annotated[str, typer.Option("--url", help="Router or engine, e.g. `http://127.0.0.1:8000`.")],
    model: Annotated[str | None, typer.Option("--model", help="Default: the first that the server names.")] = None,
    format: Annotated[str | None, typer.Option("--format", help="Default: by the file's first line.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the prompts' token ids.")] = 0,
    time_scale: Annotated[
        float, typer.Option("--time-scale", help="Multiplies every recorded time: 0.5 = twice as fast.")
    ] = 1.0,
    idle_gap_cap: Annotated[
        float | None, typer.Option("--idle-gap-cap", metavar="S", help="No pause inside a session is longer.")
    ] = None,
    think: Annotated[
        str,
        typer.Option("--think", help="Pauses: `recorded` think times, `gaps` from send to send, or `none`."),
    ] = "recorded",
    max_inflight_sessions: Annotated[
        int, typer.Option("--max-inflight-sessions", min=0, help="Further sessions wait and are counted; 0 = no limit.")
    ] = 0,
    on_error: Annotated[
        str, typer.Option("--on-error", help="After a failed turn: `continue` the session or `end_session`.")
    ] = "continue",
    vocab_low: Annotated[int, typer.Option("--vocab-low", min=0, help="Smallest token id of prompts.")] = 0,
    vocab_high: Annotated[int, typer.Option("--vocab-high", help="Token ids stay below it.")] = 256,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            "--block-tokens", min=1, help="The engine's block size, for the bounds; default: as it says, or 16."
        ),
    ] = None,
    max_duration: Annotated[
        float, typer.Option("--max-duration", metavar="S", help="After it nothing more is sent.")
    ] = 3600.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the records (default: a new one in the workspace).")
    ] = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Replay a trace against a router or an engine that runs: sessions in closed loop, prompts that share what the
    trace's hashes share.

    Ctrl-C ends it with what there is. Every turn becomes a record in `metrics.jsonl`.

    Example: `tracon replay sessions.jsonl --url http://127.0.0.1:8000 --time-scale 0.2 --max-inflight-sessions 64`
    """
    from runners.replay import ReplayWish

    settings = {
        "seed": seed,
        "time_scale": time_scale,
        "idle_gap_cap_s": idle_gap_cap,
        "think": think,
        "max_inflight_sessions": max_inflight_sessions,
        "on_error": on_error,
        "vocab_low": vocab_low,
        "vocab_high": vocab_high,
        "block_tokens": block_tokens,
        "max_duration_s": max_duration,
    }
    wish = ReplayWish(trace, format, url, model, out or _new_folder(workspace), settings)
    report = asyncio.run(_replay(wish))
    if json:
        output.print_json(_json(report))
    else:
        output.out().print(_tables(report))
    if report.outcome.fidelity.degraded:
        output.err().print(f"degraded: {report.outcome.fidelity.reason}", soft_wrap=True)
    raise typer.Exit(int(report.exit_code))


async def _replay(wish: ReplayWish) -> ReplayReport:
    from runners.replay import replay_trace

    cut = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, cut.set)
    with contextlib.closing(_Progress()) as progress:
        return await replay_trace(wish, progress.step, progress.tick, cut)


def _new_folder(workspace: Path | None) -> Path:
    from state.workspace import default_root

    return (workspace or default_root()) / "replays" / time.strftime("%Y%m%d-%H%M%S")


class _Progress:
    """On a terminal one line that is redrawn; in a pipe a line now and then."""

    def __init__(self) -> None:
        self._console = output.err()
        self._status = self._console.status("") if self._console.is_terminal else None
        self._of = ""
        self._next_s = 0.0
        if self._status is not None:
            self._status.start()

    def step(self, text: str) -> None:
        self._show(text, text.partition(":")[0])

    def tick(self, tick: ReplayTick) -> None:
        self._show(progress_line(tick), "tick")

    def _show(self, text: str, of: str) -> None:
        """`of`: what it is a state of; in a pipe each is said when it begins, then now and then."""
        if self._status is not None:
            self._status.update(escape(text))
        elif of != self._of or time.monotonic() >= self._next_s:
            self._of, self._next_s = of, time.monotonic() + PROGRESS_LINE_S
            self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()


def progress_line(tick: ReplayTick) -> str:
    """Where a replay stands, with the time it will still take at this pace."""
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


def _json(report: ReplayReport) -> dict[str, Any]:
    import msgspec

    return {
        "spec": msgspec.to_builtins(report.spec),
        "outcome": msgspec.to_builtins(report.outcome),
        "numbers": msgspec.to_builtins(report.numbers),
        "block_tokens_from": report.block_tokens_from,
    }


def _tables(report: ReplayReport) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for point in ("mean", "p50", "p90", "p99"):
        table.add_column(f"{point} (ms)", justify="right")
    for series in ("ttft", "tpot", "e2e"):
        cells = [report.numbers[f"{series}_{point}_s"].text(scale=1e3) for point in ("mean", "p50", "p90", "p99")]
        table.add_row(series.upper(), *cells)
    return Group(
        *(Text(line) for line in facts(report)), Text(), table, Text(), Text(f"records: {report.spec.requests_path}")
    )


def facts(report: ReplayReport) -> list[str]:
    """What became of the replay, in lines."""
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
