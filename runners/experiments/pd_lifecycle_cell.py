"""One cell of `pd-lifecycle`: all repetitions of one C, N and O (specs/pd_lifecycle, "Protocol").

Before each request both engines are asked what they hold, and nothing of the one before it is still being written. A
measurement whose C was not what it claims, whose transfer failed or whose answer had another length is thrown away,
counted, and made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from results.lifecycle.join import events_of, join, movement_of
from results.lifecycle.record import Colo, LifecycleRecord
from results.records import RequestRecord
from runners.engine_counters import counters
from runners.errors import CellFailed, CellSkipped
from runners.experiments.pd_lifecycle_bench import CELL_PROMPTS, PREFIX_PROMPTS, Bench
from runners.experiments.pd_lifecycle_caches import Held, Seeding
from runners.experiments.pd_lifecycle_client import completion
from runners.experiments.pd_lifecycle_evidence import SIDES, Evidence, asked, verification
from runners.experiments.pd_lifecycle_grid import Grid, Shape
from runners.experiments.pd_lifecycle_load import EngineLoad, LoadSpan, load_of
from runners.experiments.pd_lifecycle_plan import shape_of
from runners.experiments.pd_lifecycle_policy import COMBINED
from runners.load.stream import Exchange
from state.events import CellProgressed, LifecycleMeasured
from state.process import boot_id
from state.run import CellPlan

EVIDENCE_WITHIN_S = 5.0
"""After the answer, until the router's and the probes' lines about a request must be on disk."""
PROMPTS_PER_ATTEMPT = 10_000
HANDOVER, COLO = "handover", "colo"
BEGINS = {HANDOVER: "lc-", COLO: COMBINED}
"""How the requests' names begin: neither name holds the other, as an engine's name of a request holds the client's."""
THROUGH = "router"
"""How the combined instance's request is sent, as the other one is: what the router costs is in both."""
LOCAL = "local_cache_hit"
"""Prompt tokens out of an engine's own cache, as it counts them by source."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the client saw it."""

    request: str
    client: RequestRecord
    before: Held
    at_decode: int | None
    """Prompt tokens that came out of the decode engine's cache, by its counters; None = they were not needed."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One repetition as it was sent; what it is worth is found out later."""

    repetition: int
    handover: Sent
    colo: Sent | None
    """None = there is no baseline."""
    colo_first: bool


@dataclass(slots=True)
class Measurements:
    """What a cell's requests came to."""

    records: dict[int, LifecycleRecord] = field(default_factory=dict)
    """By repetition."""
    discarded: list[LifecycleRecord] = field(default_factory=list)
    seedings: list[Seeding] = field(default_factory=list)
    load: dict[str, LoadSpan] = field(default_factory=dict)
    """Of each side; empty while the cell is measured."""


class LifecycleCell:
    """Measures one cell at a bench; its files are gathered in `folder`."""

    def __init__(
        self,
        cell: CellPlan,
        attempt: int,
        grid: Grid,
        bench: Bench,
        folder: Path,
        emit: Callable[..., None],
        found: Measurements,
    ) -> None:
        """`found` is empty, and filled by `run`: it says how far a cell came that failed."""
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
        self._found = found

    async def run(self, model: str) -> None:
        """All repetitions, each of them measured as it should be.

        Raises CellSkipped where the engines cannot hold the cell, CellFailed where one died, where they do not come to
        hold C, where too many measurements had to be thrown away, or where an engine preempted a request.
        """
        self._require_room()
        self._requests.touch()
        await self._seed()
        begin = await self._loads()
        todo = deque(range(1, self._grid.repetitions + 1))
        while todo:
            tried = await self._measure(todo.popleft(), model)
            if not self._take(tried):
                todo.append(tried.repetition)
        end = await self._loads()
        self._found.load |= {side: LoadSpan(begin[side], end[side]) for side in SIDES}
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

    async def _loads(self) -> dict[str, EngineLoad]:
        return {side: load_of(page) for side, page in zip(SIDES, await self._bench.caches.metrics(), strict=True)}

    def _require_no_preemption(self) -> None:
        """A preempted request computes again, and which one it was the counter does not say: all of them go."""
        found = self._found
        many = {side: span.preemptions for side, span in found.load.items() if span.preemptions}
        if not many:
            return
        named = " and ".join(f"{count} at the {side} engine" for side, count in many.items())
        reason = f"requests were preempted within the cell, {named}: its KV cache is too small for them"
        found.discarded += [replace(record, discarded=reason) for record in found.records.values()]
        found.records.clear()
        raise CellFailed(reason)

    async def _seed(self) -> None:
        """Both caches hold C tokens; those of another C were emptied before."""
        caches, prior = self._bench.caches, self.shape.prior_context
        if caches.seeded(prior):
            return
        prefix = self._bench.draw.tokens(PREFIX_PROMPTS, prior, prior)
        self._found.seedings.append(await caches.seed(prefix))

    async def _measure(self, repetition: int, model: str) -> Tried:
        """The request that is handed over, and the same one, with other tokens, on the combined instance.

        Each comes after the same: all that was written about the one before it is on disk, then both caches are asked.
        """
        first = self._grid.baseline and self._grid.combined_first(self.shape, repetition)
        purposes = [HANDOVER, COLO] if self._grid.baseline else [HANDOVER]
        if first:
            purposes.reverse()
        rest = f"{self.shape.name}-a{self._attempt}-r{repetition}-{self._sent}"
        names = {purpose: BEGINS[purpose] + rest for purpose in purposes}
        sent = {}
        for place, purpose in enumerate(purposes):
            pair = {"first": not place, "pair": names[purposes[1 - place]] if self._grid.baseline else ""}
            before = await self._hold()
            sent[purpose] = await self._ask(purpose, names[purpose], before, model, {"repetition": repetition, **pair})
        return Tried(repetition, sent[HANDOVER], sent.get(COLO), first)

    async def _hold(self) -> Held:
        try:
            seeding = await self._bench.caches.hold()
        except CellFailed as error:
            raise CellFailed(f"{self._bench.why_dead() or error}") from error
        if seeding is not None:
            self._found.seedings.append(seeding)
        return Held(self.shape.prior_context, self.shape.prior_context)

    async def _ask(self, purpose: str, name: str, before: Held, model: str, more: dict[str, Any]) -> Sent:
        """Send it alone; once it has ended, wait until nothing about it is still being written."""
        shape, bench = self.shape, self._bench
        index = self._attempt * PROMPTS_PER_ATTEMPT + self._sent
        self._sent += 1
        fresh = bench.draw.tokens(CELL_PROMPTS + self._cell.params["place"], index, shape.new_tokens)
        prompt = [*bench.caches.prefix, *fresh]
        body = completion(model, prompt, shape.output_length)
        bench.caches.sent(prompt)
        local_before = await self._local_tokens()
        exchange: Exchange = await bench.client.ask(name, body)
        record = exchange.record(shape.input_tokens, shape.output_length)
        dead = bench.why_dead()
        if dead:
            raise CellFailed(f"{dead}; the request ended as {record.status}: {record.error or 'it was answered'}")
        local = await self._local_tokens()
        row = {"request": name, "purpose": purpose, **more, **msgspec.to_builtins(record)}
        with self._requests.open("ab") as file:
            file.write(_encode(row) + b"\n")
        await self.evidence.wait(name, EVIDENCE_WITHIN_S)
        gained = None if local is None or local_before is None else local - local_before
        return Sent(name, record, before, gained)

    async def _local_tokens(self) -> int | None:
        """Prompt tokens out of the decode engine's cache so far; None where its probe says it of each request."""
        if self._bench.counted_by == "probe":
            return None
        _, page = await self._bench.caches.metrics()
        tokens = counters(page).by_source.get(LOCAL)
        return None if tokens is None else round(tokens)

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
        handover = tried.handover
        decision = self.evidence.decision(handover.request)
        prefill, decode = (self.evidence.probe(side) for side in SIDES)
        on_both = events_of(decision, prefill, decode)
        colo, wrong = _baseline(self.shape, tried)
        return join(
            asked(self.shape),
            repetition=tried.repetition,
            warmup=tried.repetition <= self._grid.warmup_repetitions,
            client=handover.client,
            decision=decision,
            prefill=prefill,
            decode=decode,
            verification=verification(
                self.shape, handover.before, movement_of(decision), *on_both, at_decode=handover.at_decode
            ),
            colo=colo,
            router_boot_id=boot_id(),
            discarded=wrong,
            kv_bytes_per_token=self._bench.kv_bytes_per_token,
        )


def _baseline(shape: Shape, tried: Tried) -> tuple[Colo, str]:
    """The combined instance's times, and why the pair of requests does not count."""
    if tried.colo is None:
        return Colo(reason="no baseline was asked for"), ""
    sent, colo = Colo(first=tried.colo_first, through=THROUGH, request=tried.colo.request), tried.colo.client
    wrong = ""
    if colo.status != "ok":
        wrong = f"the request on the combined instance ended as {colo.status}: {colo.error or 'no reason given'}"
    elif colo.cached_tokens is None or colo.completion_tokens is None:
        wrong = (
            "the combined instance does not tell how many tokens of the prompt it held, or how many it answered with"
        )
    elif colo.cached_tokens != shape.prior_context:
        wrong = f"the combined instance held {colo.cached_tokens} tokens of the prompt, not {shape.prior_context}"
    elif colo.completion_tokens != shape.output_length:
        wrong = f"the combined instance answered with {colo.completion_tokens} tokens, not {shape.output_length}"
    if wrong:
        return replace(sent, reason=wrong), wrong
    return replace(sent, ttft_ms=_ms(colo, colo.t_first_token_ns), e2e_ms=_ms(colo, colo.t_last_token_ns)), ""


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
        phases_ms=dict(record.parts_ms),
        e2e_ms=record.ms("client_e2e"),
        ttft_ms=record.ttft_ms,
        transfer_ms=record.ms("transfer_total"),
        bytes=detail.bytes_transferred,
        bandwidth_gbps=detail.effective_bw_gbps,
        residual_share=None if record.client_residual_share is None else abs(record.client_residual_share),
        colo_ttft_ms=record.colo.ttft_ms,
        colo_first=record.colo.first,
        discarded=record.discarded,
        gaps=dict(record.gaps),
    )
