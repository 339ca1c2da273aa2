"""A standalone replay: any trace against a router or an engine that already runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from results.measures.replay_numbers import compute_apc_of_totals, replay_numbers
from results.records.errors import DAMAGED_JSON
from results.records.estimate import Estimate, unknown
from results.records.layout import AttemptLayout
from results.records.load_specs import ReplaySpec
from results.records.percent import format_percent
from results.records.spec_rules import has_user
from runners.errors import ExitCode, RunnerError
from runners.load.messages import LoadError
from runners.load.process import run_replay
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.samplers.engine import MetricsSampler
from runners.samplers.engine_counters import read_baseline_shape, read_span
from runners.trace.formats import open_trace
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session

ASK_TIMEOUT_S = 10.0
DEFAULT_BLOCK_TOKENS = 16
"""vLLM's own default on a GPU; used where the server does not state its block size."""

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The operator's options."""

    trace: Path
    format: str | None
    """None = by the file's first line."""
    url: str
    model: str | None
    """None = the first that the server names."""
    folder: Path
    """Where trace, spec and records go."""
    settings: Mapping[str, Any]
    """Further fields of ReplaySpec; `block_tokens` None = as the engine reports it."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A replay that has ended."""

    spec: ReplaySpec
    outcome: ReplayOutcome
    numbers: Mapping[str, Estimate]
    """By name with its unit; `apc` is the engine's own count."""
    block_tokens_from: str
    """`asked for`, `the engine` or `assumed`."""

    @property
    def exit_code(self) -> ExitCode:
        if self.outcome.stop_reason == "cancelled":
            return ExitCode.INTERRUPTED
        well = self.outcome.completed == self.outcome.turns
        return ExitCode.DONE if well else ExitCode.CELLS_FAILED


@dataclass(frozen=True, slots=True)
class _Served:
    """What the server reports of its model; None = it does not."""

    model: str
    max_model_len: int | None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


async def replay_trace(
    options: ReplayOptions, on_step: OnStep, on_tick: Callable[[ReplayTick], None], cut: asyncio.Event
) -> ReplayReport:
    """Convert the trace, check that its prompts fit, replay it and sum up.

    `on_step` receives the current step, in words. Setting `cut` ends the replay early, with a report. Raises
    RunnerError where the server does not answer, a turn is longer than its model takes, or `cut` came first;
    TraceError; LoadError.
    """
    if has_user(options.url):
        raise LoadError("--url contains a user or a password", remedy="Give the URL without them, http://HOST:PORT.")
    on_step(f"asking {options.url} what it serves")
    served = await _ask_served_model(options)

    def read(share: float) -> None:
        on_step(f"reading {options.trace.name}: {format_percent(share)}")

    path = await asyncio.to_thread(_convert_trace, options, served, read, cut)
    scrapes = AttemptLayout(options.folder).scrapes
    async with MetricsSampler(options.url, scrapes):
        block_tokens, source = _choose_block_tokens(options, scrapes)
        settings = {**options.settings, "block_tokens": block_tokens}
        spec = ReplaySpec(
            url=options.url,
            model=served.model,
            trace_path=str(path),
            requests_path=str(AttemptLayout(options.folder).metrics),
            **settings,
        )
        on_step("building the first prompts")
        outcome = await run_replay(spec, on_tick, cut=cut)
    numbers = dict(await asyncio.to_thread(replay_numbers, Path(spec.requests_path)))
    numbers["apc"] = _read_engine_apc(scrapes)
    return ReplayReport(spec, outcome, numbers, source)


async def _ask_served_model(options: ReplayOptions) -> _Served:
    url = f"{options.url.rstrip('/')}/v1/models"
    remedy = "Check that an engine or a router listens there, or correct --url."
    try:
        async with httpx.AsyncClient(timeout=ASK_TIMEOUT_S, trust_env=False) as client:
            answer = await client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RunnerError(f"{url} does not answer: {str(error) or type(error).__name__}", remedy=remedy) from error
    try:
        models = msgspec.json.decode(answer.content, type=_Models).data if answer.status_code == 200 else []
    except DAMAGED_JSON:
        models = []
    known = {model.id: model.max_model_len for model in models}
    if options.model is None and not known:
        raise RunnerError(f"{url} names no model (HTTP {answer.status_code})", remedy="Name it with --model.")
    model = options.model or models[0].id
    if known and model not in known:
        raise RunnerError(f"{options.url} does not serve {model!r}", remedy=f"It serves {', '.join(known)}.")
    return _Served(model, known.get(model))


def _convert_trace(
    options: ReplayOptions, served: _Served, on_progress: Callable[[float], None], cut: asyncio.Event
) -> Path:
    """The path of the trace in the project's own format, every turn of it short enough for the model."""
    facts, sessions = open_trace(options.trace, options.format, on_progress)
    checked = _check_lengths(sessions, served, cut)
    if facts.format == "tracon":
        for _ in checked:
            pass
        return options.trace.resolve()
    path = AttemptLayout(options.folder).trace
    write_trace(path, facts, checked)
    return path


def _check_lengths(sessions: Iterable[Session], served: _Served, cut: asyncio.Event) -> Iterator[Session]:
    limit = served.max_model_len
    for session in sessions:
        if cut.is_set():
            raise RunnerError("stopped before anything was sent", exit_code=ExitCode.INTERRUPTED)
        for index, turn in enumerate(session.turns):
            tokens = turn.input_tokens + turn.output_tokens
            if limit is not None and tokens > limit:
                raise RunnerError(
                    f"session {session.session}, turn {index} has {tokens} tokens; {served.model} takes {limit}",
                    remedy="Shrink the trace (`tracon trace scale`), or leave out its long sessions (`tracon trace "
                    "sample`).",
                )
        yield session


def _choose_block_tokens(options: ReplayOptions, scrapes: Path) -> tuple[int, str]:
    """The block size that the trace's bounds are computed for, and its source."""
    requested = options.settings.get("block_tokens")
    if requested is not None:
        return int(requested), "asked for"
    reported = read_baseline_shape(scrapes).block_tokens
    return (DEFAULT_BLOCK_TOKENS, "assumed") if reported is None else (reported, "the engine")


def _read_engine_apc(scrapes: Path) -> Estimate:
    """Cached over all prompt tokens, by the server's own counters."""
    span = read_span(scrapes)
    prompts, cached = span.gained("prompt_tokens"), span.gained("cached_tokens")
    if prompts is None or cached is None:
        return unknown("its /metrics holds no prompt counters: it is no engine, or could not be read")
    return compute_apc_of_totals(prompts, cached)
