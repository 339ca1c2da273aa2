"""The trace as a `routing` run replays it: read or generated once, cut to what the engines can serve, and stored.

RUN/trace/trace.jsonl       what cells replay
RUN/trace/trace.json        TraceRecord, written last
RUN/trace/NAME/trace.*      the same of a further trace, which some policies replay (`traces` of the preset)
RUN/trace/[NAME/]N/trace.*  the same of trace N, where a simulated run has one for each trial; 0 is the one above
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from results.records.layout import RunLayout, read_json, sha256, write_indented_json
from results.records.turns import TraceRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed
from runners.experiments.routing.grid import SYNTH, Grid, TraceChoice
from runners.experiments.routing.plan import list_traces
from runners.trace.formats import read_trace
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Trace
from runners.trace.synth import synthesize_trace
from runners.trace.transform import Arrivals, Limits, limit_trace, redraw_arrivals, sample_trace, scale_trace


def prepare_trace(choice: TraceChoice, max_tokens: int, path: Path, name: str = "") -> TraceRecord:
    """Make a trace of the run; the same choice gives the same file. `name`: among the preset's `traces`.

    Raises TraceError naming file, line and rule, or CellFailed where nothing of it fits.
    """
    trace = _read_source(choice)
    if choice.tokens != 1.0 or choice.output_tokens is not None:
        trace = scale_trace(trace, choice.tokens, output_tokens=choice.output_tokens)
    wanted = sum(min(len(session.turns), choice.turns or len(session.turns)) for session in trace.sessions)
    trace = limit_trace(trace, Limits(max_tokens, choice.turns))
    if choice.sessions_per_s:
        arrivals = Arrivals(choice.sessions_per_s, choice.seed)
        trace = Trace(trace.facts, tuple(redraw_arrivals(trace.sessions, arrivals)))
    if not trace.requests:
        raise CellFailed(f"no turn of the trace fits into {max_tokens} tokens: lower trace.tokens")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_trace(path, trace.facts, trace.sessions)
    turns = [turn for session in trace.sessions for turn in session.turns]
    record = TraceRecord(
        file=choice.source if choice.source == SYNTH else Path(choice.source).name,
        sha256=sha256(path),
        format=trace.facts.format,
        requests=len(turns),
        sessions=len(trace.sessions),
        input_tokens=sum(turn.input_tokens for turn in turns),
        output_tokens=sum(turn.output_tokens for turn in turns),
        span_s=trace.span_s,
        block_tokens=trace.facts.block_tokens,
        tokens_factor=choice.tokens,
        turns_dropped=wanted - len(turns),
        max_tokens=max_tokens,
        name=name,
    )
    write_indented_json(_record_beside(path), record)
    return record


async def run_trace_cell(grid: Grid, context: RunContext) -> CellOutcome:
    """Make every trace of a run; the outcome describes the first. Raises as `prepare_trace`."""
    record = await asyncio.to_thread(_prepare_traces, grid, context.profile.engine.max_model_len, context.layout)
    names = ("requests", "sessions", "input_tokens", "output_tokens", "span_s", "block_tokens", "turns_dropped")
    return CellOutcome({name: getattr(record, name) for name in names})


def _prepare_traces(grid: Grid, max_tokens: int, layout: RunLayout) -> TraceRecord:
    record = prepare_trace(grid.trace, max_tokens, layout.trace)
    for name, number in list_traces(grid)[1:]:
        source = grid.further_traces.get(name, grid.trace)
        drawn = msgspec.structs.replace(source, seed=source.seed + number)
        prepare_trace(drawn, max_tokens, layout.trace_of(name, number), name)
    return record


def require_trace(path: Path) -> TraceRecord:
    """The record of a trace of the run. Raises CellFailed where the trace is missing or changed."""
    record = read_json(_record_beside(path), TraceRecord)
    if record is None or not path.is_file() or sha256(path) != record.sha256:
        raise CellFailed(f"{path} is missing or changed since the run made it: restore it, or start a new run")
    return record


def _record_beside(path: Path) -> Path:
    """The commit mark of a trace."""
    return path.with_suffix(".json")


def _read_source(choice: TraceChoice) -> Trace:
    if choice.source == SYNTH:
        return synthesize_trace(choice.sessions, choice.seed, choice.statistics)
    trace = read_trace(Path(choice.source), choice.format)
    return sample_trace(trace, choice.sessions, choice.seed) if choice.sessions else trace
