"""One cell of `pd-lifecycle`: all repetitions of one C, N and O (specs/pd_lifecycle, "Protocol").

Before each request both engines are asked what they hold. A measurement whose C was not what it claims, whose transfer
failed or whose answer had another length is thrown away, counted, and made again. What router and engines wrote of a
request is read while the next ones run: it is on disk a moment later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from results.lifecycle.join import events_of, join, movement_of
from results.lifecycle.record import Colo, LifecycleRecord
from results.records import RequestRecord
from runners.errors import CellFailed, CellSkipped
from runners.experiments.pd_lifecycle_bench import CELL_PROMPTS, PREFIX_PROMPTS, Bench
from runners.experiments.pd_lifecycle_caches import Held, Seeding
from runners.experiments.pd_lifecycle_client import completion
from runners.experiments.pd_lifecycle_evidence import SIDES, Evidence, asked, verification
from runners.experiments.pd_lifecycle_grid import Grid, Shape
from runners.experiments.pd_lifecycle_plan import shape_of
from runners.load.stream import Exchange
from state.events import CellProgressed, LifecycleMeasured
from state.process import boot_id
from state.run import CellPlan

EVIDENCE_WITHIN_S = 5.0
"""After the answer, until the router's and the probes' lines about a request must be on disk."""
PROMPTS_PER_ATTEMPT = 10_000
HANDOVER, COLO = "handover", "colo"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Tried:
    """One repetition as it was sent; what it is worth is found out later."""

    repetition: int
    request: str
    client: RequestRecord
    before: Held
    colo: RequestRecord | None
    """None = there is no baseline."""


@dataclass(slots=True)
class Measurements:
    """What a cell's requests came to."""

    records: dict[int, LifecycleRecord] = field(default_factory=dict)
    """By repetition."""
    discarded: list[LifecycleRecord] = field(default_factory=list)
    seedings: list[Seeding] = field(default_factory=list)


class LifecycleCell:
    """Measures one cell at a bench; its files are gathered in `folder`."""

    def __init__(
        self, cell: CellPlan, attempt: int, grid: Grid, bench: Bench, folder: Path, emit: Callable[..., None]
    ) -> None:
        self.shape: Shape = shape_of(cell)
        self.evidence = Evidence(bench.decisions, bench.probes, folder)
        self._cell = cell
        self._attempt = attempt
        self._grid = grid
        self._bench = bench
        self._emit = emit
        self._requests = folder / "requests.jsonl"
        self._sent = 0
        """Prompts drawn in this attempt."""
        self._found = Measurements()

    async def run(self, model: str) -> Measurements:
        """All repetitions, each of them measured as it should be.

        Raises CellSkipped where the engines cannot hold the cell, CellFailed where one died, where they do not come to
        hold C, or where too many measurements had to be thrown away.
        """
        self._require_room()
        self._requests.touch()
        await self._seed()
        found, grid = self._found, self._grid
        todo, under_way = deque(range(1, grid.repetitions + 1)), list[Tried]()
        while len(found.records) < grid.repetitions:
            if todo:
                under_way.append(await self._measure(todo.popleft(), model))
                self.evidence.poll()
                told = [tried for tried in under_way if not self.evidence.missing(tried.request)]
            else:
                await self.evidence.wait([tried.request for tried in under_way], EVIDENCE_WITHIN_S)
                told = list(under_way)
            for tried in told:
                under_way.remove(tried)
                if not self._take(tried):
                    todo.append(tried.repetition)
        return found

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

    async def _seed(self) -> None:
        """Both caches hold C tokens; those of another C were emptied before."""
        caches, prior = self._bench.caches, self.shape.prior_context
        if caches.seeded(prior):
            return
        prefix = self._bench.draw.tokens(PREFIX_PROMPTS, prior, prior)
        self._found.seedings.append(await caches.seed(prefix))

    async def _measure(self, repetition: int, model: str) -> Tried:
        """The request through the router, then the same one, with other tokens, on the combined instance."""
        bench = self._bench
        name = f"lc-{self.shape.name}-a{self._attempt}-r{repetition}-{self._sent}"
        before = await self._hold()
        client = await self._ask(HANDOVER, name, repetition, model)
        colo = None
        if self._grid.baseline:
            await self._hold()
            colo = await self._ask(COLO, f"{name}-{COLO}", repetition, model)
        dead = bench.why_dead()
        if dead:
            raise CellFailed(f"{dead}; the request ended as {client.status}: {client.error or 'it was answered'}")
        return Tried(repetition, name, client, before, colo)

    async def _hold(self) -> Held:
        try:
            seeding = await self._bench.caches.hold()
        except CellFailed as error:
            raise CellFailed(f"{self._bench.why_dead() or error}") from error
        if seeding is not None:
            self._found.seedings.append(seeding)
        return Held(self.shape.prior_context, self.shape.prior_context)

    async def _ask(self, purpose: str, name: str, repetition: int, model: str) -> RequestRecord:
        shape, bench = self.shape, self._bench
        index = self._attempt * PROMPTS_PER_ATTEMPT + self._sent
        self._sent += 1
        fresh = bench.draw.tokens(CELL_PROMPTS + self._cell.params["place"], index, shape.new_tokens)
        prompt = [*bench.caches.prefix, *fresh]
        body = completion(model, prompt, shape.output_length)
        bench.caches.sent(prompt)
        where = bench.handed_over if purpose == HANDOVER else bench.combined
        exchange: Exchange = await where.ask(name, body)
        record = exchange.record(shape.input_tokens, shape.output_length)
        row = {"request": name, "purpose": purpose, "repetition": repetition, **msgspec.to_builtins(record)}
        with self._requests.open("ab") as file:
            file.write(_encode(row) + b"\n")
        return record

    def _take(self, tried: Tried) -> bool:
        """Whether the measurement counts; one that does not is kept beside those that do.

        Raises CellFailed where it is one too many.
        """
        record, found = self._record(tried), self._found
        if record.discarded:
            found.discarded.append(record)
        else:
            found.records[tried.repetition] = record
        share = len(found.records) / self._grid.repetitions
        note = f"{len(found.discarded)} discarded" if found.discarded else ""
        self._emit(measured(self._cell.cell, record), CellProgressed(self._cell.cell, share, note))
        if len(found.discarded) > self._grid.discards:
            raise CellFailed(
                f"{len(found.discarded)} measurements had to be discarded, {self._grid.discards} may be; "
                f"the last one: {record.discarded}"
            )
        return not record.discarded

    def _record(self, tried: Tried) -> LifecycleRecord:
        decision = self.evidence.decision(tried.request)
        prefill, decode = (self.evidence.probe(side) for side in SIDES)
        on_both = events_of(decision, prefill, decode)
        colo, wrong = _baseline(self.shape, tried.colo)
        return join(
            asked(self.shape),
            repetition=tried.repetition,
            warmup=tried.repetition <= self._grid.warmup_repetitions,
            client=tried.client,
            decision=decision,
            prefill=prefill,
            decode=decode,
            verification=verification(self.shape, tried.before, movement_of(decision), *on_both),
            colo=colo,
            router_boot_id=boot_id(),
            discarded=wrong,
            kv_bytes_per_token=self._bench.kv_bytes_per_token,
        )


def _baseline(shape: Shape, colo: RequestRecord | None) -> tuple[Colo, str]:
    """The combined instance's times, and why the pair of requests does not count."""
    if colo is None:
        return Colo(reason="no baseline was asked for"), ""
    wrong = ""
    if colo.status != "ok":
        wrong = f"the request on the combined instance ended as {colo.status}: {colo.error or 'no reason given'}"
    elif colo.cached_tokens is not None and colo.cached_tokens != shape.prior_context:
        wrong = f"the combined instance held {colo.cached_tokens} tokens of the prompt, not {shape.prior_context}"
    elif colo.completion_tokens is not None and colo.completion_tokens != shape.output_length:
        wrong = f"the combined instance answered with {colo.completion_tokens} tokens, not {shape.output_length}"
    if wrong:
        return Colo(reason=wrong), wrong
    return Colo(_ms(colo, colo.t_first_token_ns), _ms(colo, colo.t_last_token_ns)), ""


def _ms(record: RequestRecord, t_ns: int | None) -> float | None:
    return None if t_ns is None or record.t_send_ns is None else (t_ns - record.t_send_ns) / 1e6


def measured(cell: str, record: LifecycleRecord) -> LifecycleMeasured:
    """The journal's word for a record."""
    config, detail = record.config, record.transfer_detail
    return LifecycleMeasured(
        cell=cell,
        context_tokens=config.prior_context,
        new_tokens=config.current_new_tokens,
        output_tokens=config.output_length,
        repetition=record.repetition,
        warmup=record.warmup,
        phases_ms=dict(record.phases_ms),
        e2e_ms=record.ms("client_e2e"),
        ttft_ms=record.ttft_ms,
        transfer_ms=record.ms("transfer_total"),
        bytes=detail.bytes_transferred,
        bandwidth_gbps=detail.effective_bw_gbps,
        residual_share=None if record.client_residual_share is None else abs(record.client_residual_share),
        colo_ttft_ms=record.colo.ttft_ms,
        discarded=record.discarded,
        gaps=dict(record.gaps),
    )
