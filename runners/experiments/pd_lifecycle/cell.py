"""One cell of `pd-lifecycle`: all repetitions of one C, N and O (specs/pd_lifecycle, "Protocol").

Before each request the cell checks both caches, and waits until all evidence of the previous request is on disk. It
discards, counts and repeats a measurement whose C is wrong, whose transfer failed or whose answer has another length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from results.measures.latency import E2E, TTFT, RequestMetric
from results.pd_lifecycle.join import join_request, select_request_events, transfer_of
from results.records.events import CellProgressed, LifecycleMeasured
from results.records.layout import AttemptLayout, append_rows, append_trial
from results.records.lifecycle import NO_PLAIN, Colo, EngineLoad, LifecycleRecord, LoadSpan, RequestConfig
from results.records.lifecycle_cells import LifecycleRequest, Seeding
from results.records.plan import CellPlan
from results.records.schemas import RequestRecord
from runners.errors import CellFailed, CellSkipped
from runners.experiments.pd_lifecycle.bench import CELL_PROMPTS, ENGINES, PREFIX_PROMPTS, Bench
from runners.experiments.pd_lifecycle.evidence import SIDES, Evidence, verify_context
from runners.experiments.pd_lifecycle.grid import Grid, read_shape
from runners.experiments.pd_lifecycle.one_at_a_time import build_completion_body
from runners.experiments.pd_lifecycle.static_pd_or_combined import BEGINS, COLO, HANDOVER, PLAIN
from runners.load.stream import Exchange
from runners.samplers.engine_counters import parse_counters
from state.process_identity import boot_id

EVIDENCE_WITHIN_S = 5.0
"""After the answer: limit of the wait for the router's and the probes' lines about a request."""
PROMPTS_PER_ATTEMPT = 10_000
THROUGH = "router"
"""The requests for a combined engine go through the router too, so that all include its cost."""
ENGINE_WORDS = {COLO: "the combined instance", PLAIN: "the plain combined engine"}
LOCAL = "local_cache_hit"
"""Source of prompt tokens from an engine's own cache, in its counters."""
LOAD_COUNTERS = ("vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
"""In the order of EngineLoad (specs/pd_lifecycle, "Risks & Mitigations": watch the caches)."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    request: str
    client: RequestRecord
    at_decode: int | None
    """Prompt tokens from the decode engine's cache, by its counters; None = not read."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The requests of one repetition, before the check whether it counts."""

    repetition: int
    sent: Mapping[str, SentRequest]
    """By purpose, in the order they were sent."""

    @property
    def handover(self) -> SentRequest:
        return self.sent[HANDOVER]

    def came_first(self, purpose: str) -> bool:
        """Whether this request was sent before the handover request."""
        order = list(self.sent)
        return order.index(purpose) < order.index(HANDOVER)


@dataclass(slots=True)
class Measurements:
    records: dict[int, LifecycleRecord] = field(default_factory=dict)
    """By repetition."""
    discarded: list[LifecycleRecord] = field(default_factory=list)
    seedings: list[Seeding] = field(default_factory=list)
    load: dict[str, LoadSpan] = field(default_factory=dict)
    """By side; empty during the measurement."""


class LifecycleCell:
    """Measures one cell on a bench; writes its files to `folder`."""

    def __init__(
        self,
        cell: CellPlan,
        attempt: int,
        grid: Grid,
        bench: Bench,
        folder: Path,
        emit: Callable[..., None],
        measurements: Measurements,
    ) -> None:
        """measurements: empty; `run` fills it, so that it holds the progress of a failed cell."""
        self.shape: RequestConfig = read_shape(cell)
        self.evidence = Evidence(bench.decisions, bench.probes, folder)
        self._cell = cell
        self._attempt = attempt
        self._grid = grid
        self._bench = bench
        self._emit = emit
        self._requests = AttemptLayout(folder).requests
        self._sent = 0
        """Prompts drawn in this attempt."""
        self._measured = measurements

    async def run(self, model: str) -> None:
        """Measure all repetitions.

        Raises CellSkipped where the engines cannot hold the cell, CellFailed where an engine dies, does not hold C or
        preempts a request, and where too many measurements are discarded.
        """
        self._require_room()
        self._requests.touch()
        await self._seed_caches()
        begin = await self._read_loads()
        todo = deque(range(1, self._grid.repetitions + 1))
        while todo:
            tried = await self._measure_repetition(todo.popleft(), model)
            if not self._file_record(tried):
                todo.append(tried.repetition)
        end = await self._read_loads()
        self._measured.load |= {name: LoadSpan(begin[name], end[name]) for name in begin}
        self._require_no_preemption()

    def _require_room(self) -> None:
        shape, bench = self.shape, self._bench
        if shape.prior_context % bench.block_tokens:
            raise CellSkipped(
                f"C = {shape.prior_context} is not a whole number of the engines' blocks of {bench.block_tokens} "
                "tokens, and caches hold whole blocks"
            )
        if bench.capacity_tokens is not None and shape.tokens + bench.block_tokens > bench.capacity_tokens:
            raise CellSkipped(
                f"C + N + O = {shape.tokens} tokens, and the KV cache of an engine holds {bench.capacity_tokens}"
            )

    async def _read_loads(self) -> dict[str, EngineLoad]:
        """By engine. Called between requests only: a page of metrics takes milliseconds of the engine's process."""
        pages = await self._bench.caches.read_metrics()
        return {name: _read_load(page) for name, page in zip(ENGINES, pages, strict=False)}

    def _require_no_preemption(self) -> None:
        """Discard all records where a request was preempted: the counter does not identify the request."""
        measurements = self._measured
        preemptions = {side: span.preemptions for side, span in measurements.load.items() if span.preemptions}
        if not preemptions:
            return
        named = " and ".join(f"{count} at the {side} engine" for side, count in preemptions.items())
        reason = f"requests were preempted within the cell, {named}: its KV cache is too small for them"
        measurements.discarded += [replace(record, discarded=reason) for record in measurements.records.values()]
        measurements.records.clear()
        raise CellFailed(reason)

    async def _seed_caches(self) -> None:
        """Seed all caches with C tokens; the caller has emptied those of another C."""
        caches, prior = self._bench.caches, self.shape.prior_context
        if caches.is_seeded_with(prior):
            return
        prefix = self._bench.draw.draw_tokens(PREFIX_PROMPTS, prior, prior)
        self._measured.seedings.append(await caches.seed(prefix))

    async def _measure_repetition(self, repetition: int, model: str) -> Repetition:
        """Send the handover request, and one with other tokens of the same lengths on each combined engine.

        The same steps precede each: all evidence of the previous request is on disk, and all caches are checked.
        """
        purposes = self._grid.order_requests(
            self.shape, repetition, self._cell.trial, plain=self._bench.plain is not None
        )
        rest = f"{append_trial(self.shape.label, self._cell.trial)}-a{self._attempt}-r{repetition}-{self._sent}"
        names = {purpose: BEGINS[purpose] + rest for purpose in purposes}
        sent = {}
        for index, purpose in enumerate(purposes):
            await self._ensure_held()
            others = tuple(names[other] for other in purposes if other != purpose)
            row = {"repetition": repetition, "position": index, "first": not index, "others": others}
            sent[purpose] = await self._send_request(purpose, names[purpose], model, row)
        return Repetition(repetition, sent)

    async def _ensure_held(self) -> None:
        try:
            seeding = await self._bench.caches.ensure_held()
        except CellFailed as error:
            raise CellFailed(f"{await self._bench.explain_dead_part() or error}") from error
        if seeding is not None:
            self._measured.seedings.append(seeding)

    async def _send_request(self, purpose: str, name: str, model: str, more: dict[str, Any]) -> SentRequest:
        """Send one request, and wait for its answer and for all evidence of it on disk."""
        shape, bench = self.shape, self._bench
        index = self._attempt * PROMPTS_PER_ATTEMPT + self._sent
        self._sent += 1
        fresh = bench.draw.draw_tokens(CELL_PROMPTS + self._cell.params["position"], index, shape.current_new_tokens)
        prompt = [*bench.caches.prefix, *fresh]
        body = build_completion_body(model, prompt, shape.output_length)
        bench.caches.note_sent(prompt)
        local_before = await self._read_local_tokens()
        exchange: Exchange = await bench.client.send_request(name, body)
        record = exchange.record(shape.total_input_length, shape.output_length)
        dead = await bench.explain_dead_part()
        if dead:
            raise CellFailed(f"{dead}; the request ended as {record.status}: {record.error or 'no error'}")
        local = await self._read_local_tokens()
        row = LifecycleRequest(request=name, purpose=purpose, **more, **asdict(record))
        append_rows(self._requests, [row])
        await self.evidence.wait_until_complete(name, EVIDENCE_WITHIN_S)
        gained = None if local is None or local_before is None else local - local_before
        return SentRequest(name, record, gained)

    async def _read_local_tokens(self) -> int | None:
        """Prompt tokens from the decode engine's cache so far; None where its probe reports them per request."""
        if self._bench.counted_by == "probe":
            return None
        _, page, *_ = await self._bench.caches.read_metrics()
        tokens = parse_counters(page).by_source.get(LOCAL)
        return None if tokens is None else round(tokens)

    def _file_record(self, tried: Repetition) -> bool:
        """File the record as counted or discarded; returns whether it counts.

        Raises CellFailed where too many are discarded.
        """
        record, measurements = self._join_record(tried), self._measured
        if record.discarded:
            measurements.discarded.append(record)
        else:
            measurements.records[tried.repetition] = record
        share = len(measurements.records) / self._grid.repetitions
        note = f"{len(measurements.discarded)} discarded" if measurements.discarded else ""
        self._emit(make_lifecycle_event(self._cell.cell, record), CellProgressed(self._cell.cell, share, note))
        if len(measurements.discarded) > self._grid.discards:
            raise CellFailed(
                f"{len(measurements.discarded)} measurements were discarded, {self._grid.discards} are allowed; "
                f"the last one: {record.discarded}"
            )
        return not record.discarded

    def _join_record(self, tried: Repetition) -> LifecycleRecord:
        handover = tried.handover
        decision = self.evidence.find_decision(handover.request)
        prefill, decode = (self.evidence.read_probe_log(side) for side in SIDES)
        on_both = select_request_events(decision, prefill, decode)
        colo, colo_wrong = _read_baseline(self.shape, tried, COLO)
        plain, plain_wrong = _read_baseline(self.shape, tried, PLAIN)
        return join_request(
            self.shape,
            repetition=tried.repetition,
            trial=self._cell.trial,
            warmup=tried.repetition <= self._grid.warmup_repetitions,
            client=handover.client,
            decision=decision,
            prefill=prefill,
            decode=decode,
            verification=verify_context(self.shape, transfer_of(decision), *on_both, at_decode=handover.at_decode),
            colo=colo,
            plain=plain,
            router_boot_id=boot_id(),
            discarded=colo_wrong or plain_wrong,
            kv_bytes_per_token=self._bench.kv_bytes_per_token,
        )


def _read_load(values: Mapping[str, float]) -> EngineLoad:
    preemptions, queries, hits = (round(values[name]) if name in values else None for name in LOAD_COUNTERS)
    missing = [name for name in LOAD_COUNTERS if name not in values]
    reason = f"the engine's /metrics has no {', '.join(missing)}" if missing else ""
    return EngineLoad(preemptions, queries, hits, reason)


def _read_baseline(shape: RequestConfig, tried: Repetition, purpose: str) -> tuple[Colo, str]:
    """(a combined engine's times, why the repetition does not count)."""
    if purpose not in tried.sent:
        return Colo(reason="the run has no baseline" if purpose == COLO else NO_PLAIN), ""
    request, engine = tried.sent[purpose], ENGINE_WORDS[purpose]
    sent = Colo(first=tried.came_first(purpose), through=THROUGH, request=request.request)
    colo, wrong = request.client, ""
    if colo.status != "ok":
        wrong = f"the request on {engine} ended as {colo.status}: {colo.error or 'no reason given'}"
    elif colo.cached_tokens is None or colo.completion_tokens is None:
        wrong = f"{engine} does not report its cached tokens or its output tokens"
    elif colo.cached_tokens != shape.prior_context:
        wrong = f"{engine} held {colo.cached_tokens} tokens of the prompt, not {shape.prior_context}"
    elif colo.completion_tokens != shape.output_length:
        wrong = f"{engine} generated {colo.completion_tokens} tokens, not {shape.output_length}"
    if wrong:
        return replace(sent, reason=wrong), wrong
    return replace(sent, ttft_ms=_measure_ms(TTFT, colo), e2e_ms=_measure_ms(E2E, colo)), ""


def _measure_ms(metric: RequestMetric, record: RequestRecord) -> float | None:
    seconds = metric.value(*(getattr(record, name) for name in metric.reads))
    return None if seconds is None else seconds * 1e3


def make_lifecycle_event(cell: str, record: LifecycleRecord) -> LifecycleMeasured:
    config, detail = record.config, record.transfer_detail
    return LifecycleMeasured(
        cell=cell,
        context_tokens=config.prior_context,
        new_tokens=config.current_new_tokens,
        output_tokens=config.output_length,
        repetition=record.repetition,
        warmup=record.warmup,
        phases_ms=dict(record.parts_ms),
        e2e_ms=record.ms("client_e2e"),
        ttft_ms=record.client_ttft_ms,
        transfer_ms=record.ms("transfer_total"),
        bytes=detail.bytes_transferred,
        bandwidth_gbps=detail.effective_bw_gbps,
        residual_share=None if record.client_residual_share is None else abs(record.client_residual_share),
        colo_ttft_ms=record.colo.ttft_ms,
        colo_first=record.colo.first,
        plain_ttft_ms=record.plain.ttft_ms,
        plain_first=record.plain.first,
        discarded=record.discarded,
        gaps=dict(record.gaps),
    )
