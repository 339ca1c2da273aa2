"""Measures how a prefill slows the decodes beside it: their ITL before, during and after it on the same engine.

Figure f4d of specs/ear, section 3.3. A few requests decode; when all of them have run for a while, one prompt of N
tokens is sent with one output token. Every gap between two tokens of a decode that overlaps the time from that send to
that token counts as `during`; the gaps of the settling times around it count as `before` and `after`.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from results.measures.itl import measure_gaps
from results.records.samples import InterferenceRecord
from runners.errors import CellFailed
from runners.load.bodies import Bodies
from runners.load.client import LoadClient
from runners.load.messages import LoadError
from runners.load.prompts import BodyShape, build_bodies
from runners.load.stream import Exchange
from runners.target import resolve_target

POLL_S = 0.02
START_LIMIT_S = 60.0
"""Until every decode has its first token."""
PREFILL_LIMIT_S = 300.0
IDLE_S = 0.3
"""After the decodes are cut, until the engine has dropped them."""
DECODE_CELL, PREFILL_CELL = 1, 2
"""Keep the prompts of both apart."""


@dataclass(frozen=True, slots=True)
class InterferenceSpec:
    """One cell: one prefill length on one engine."""

    url: str
    model: str
    prefill_tokens: int
    decodes: int
    decode_prompt_tokens: int
    decode_tokens: int
    """Requested by each decode: more than it generates before it is cut."""
    settle_s: float
    repeats: int
    seed: int
    vocab_low: int
    vocab_high: int


class _NoListener:
    """Ignores the requests; their exchanges hold all that is needed."""

    def first_token(self, exchange: Exchange) -> None: ...

    def ended(self, exchange: Exchange) -> None: ...


async def measure_interference(
    spec: InterferenceSpec, instance: str, on_repeat: Callable[[int], None]
) -> tuple[InterferenceRecord, ...]:
    """Every repeat, in order. Raises CellFailed where a request fails, LoadError where there is no server."""
    decodes, prefills = _build_bodies(spec)
    client = LoadClient(
        await resolve_target(spec.url, LoadError),
        spares=spec.decodes + 1,
        request_timeout_s=PREFILL_LIMIT_S,
        stall_timeout_s=PREFILL_LIMIT_S,
    )
    records = []
    try:
        await client.open()
        for repeat in range(spec.repeats):
            records.append(await _measure_repeat(spec, client, decodes, prefills, instance, repeat))
            on_repeat(repeat)
    finally:
        client.cut(perf_counter_ns())
        await client.close()
    return tuple(records)


async def _measure_repeat(
    spec: InterferenceSpec, client: LoadClient, decodes: Bodies, prefills: Bodies, instance: str, repeat: int
) -> InterferenceRecord:
    streams = [
        _send_request(client, decodes, repeat * spec.decodes + index, stamps=True) for index in range(spec.decodes)
    ]
    await _wait_until(client, lambda: all(stream.t_first_ns for stream in streams), streams, START_LIMIT_S)
    await _wait_settled(client, spec.settle_s)
    t_unix_s = time.time()
    prefill = _send_request(client, prefills, repeat, stamps=False)
    await _wait_until(client, lambda: prefill.status is not None, [*streams, prefill], PREFILL_LIMIT_S)
    await _wait_settled(client, spec.settle_s)
    _require_running(streams)
    client.cut(perf_counter_ns())
    await asyncio.sleep(IDLE_S)
    stamps = [stream.stamps for stream in streams if stream.stamps is not None]
    settle_ns = round(spec.settle_s * 1e9)
    before = measure_gaps(stamps, prefill.t_send_ns - settle_ns, prefill.t_send_ns, overlapping=False)
    during = measure_gaps(stamps, prefill.t_send_ns, prefill.t_first_ns, overlapping=True)
    after = measure_gaps(stamps, prefill.t_first_ns, prefill.t_first_ns + settle_ns, overlapping=False)
    return InterferenceRecord(
        instance=instance,
        prefill_tokens=spec.prefill_tokens,
        decodes=spec.decodes,
        repeat=repeat,
        itl_before_s=before.itl_s,
        itl_during_s=during.itl_s,
        itl_after_s=after.itl_s,
        worst_gap_before_s=before.worst_s,
        worst_gap_during_s=during.worst_s,
        prefill_ttft_s=prefill.ttft_s,
        gaps_before=before.gaps,
        gaps_during=during.gaps,
        gaps_after=after.gaps,
        t_unix_s=t_unix_s,
    )


def _send_request(client: LoadClient, bodies: Bodies, index: int, *, stamps: bool) -> Exchange:
    exchange = Exchange(index, _NoListener(), perf_counter_ns(), stamps=array("q") if stamps else None)
    kind = "decode" if stamps else "prefill"
    client.send(exchange, f"tracon-interference-{kind}-{index}", bodies.take_body(index))
    return exchange


async def _wait_until(
    client: LoadClient, reached: Callable[[], bool], requests: Sequence[Exchange], limit_s: float
) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():
        client.sweep(perf_counter_ns())
        failed = next((request for request in requests if request.error is not None), None)
        if failed is not None:
            raise CellFailed(f"a request beside the prefill failed: {failed.error}")
        if time.monotonic() > deadline:
            raise CellFailed(f"the engine took more than {limit_s:g} s")
        await asyncio.sleep(POLL_S)


async def _wait_settled(client: LoadClient, seconds: float) -> None:
    await asyncio.sleep(seconds)
    client.sweep(perf_counter_ns())


def _require_running(streams: Sequence[Exchange]) -> None:
    ended = [stream for stream in streams if stream.status is not None]
    if ended:
        why = ended[0].error or f"it had its {ended[0].tokens} tokens"
        raise CellFailed(f"{len(ended)} of {len(streams)} decodes ended before the measurement did: {why}")


def _build_bodies(spec: InterferenceSpec) -> tuple[Bodies, Bodies]:
    """The decodes' and the prefills', all built before the first send."""

    def shape(cell: int, input_tokens: int, output_tokens: int) -> BodyShape:
        return BodyShape(
            model=spec.model,
            output_tokens=output_tokens,
            input_tokens=input_tokens,
            seed=spec.seed,
            cell_index=spec.prefill_tokens << 2 | cell,
            low=spec.vocab_low,
            high=spec.vocab_high,
            evidence="token_ids",
        )

    decodes = build_bodies(
        shape(DECODE_CELL, spec.decode_prompt_tokens, spec.decode_tokens), spec.decodes * spec.repeats
    )
    prefills = build_bodies(shape(PREFILL_CELL, spec.prefill_tokens, 1), spec.repeats)
    decodes.build_first(spec.decodes * spec.repeats)
    prefills.build_first(spec.repeats)
    return decodes, prefills
