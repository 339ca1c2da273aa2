"""Whether C was what it claimed to be in a request that was measured (specs/pd_lifecycle, "D-Side Cache Verification").

Both caches are asked before each request; what the engines did with the request itself is held against it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from results.decisions import KvTransfer
from results.lifecycle.probe import ProbeEvent
from results.lifecycle.record import RequestConfig, Verification
from runners.experiments.pd_lifecycle_caches import Held
from runners.experiments.pd_lifecycle_grid import Shape


def asked(shape: Shape) -> RequestConfig:
    """A cell's C, N and O as its records have them."""
    return RequestConfig(shape.prior_context, shape.new_tokens, shape.output_length)


def verification(
    shape: Shape,
    before: Held,
    moved: KvTransfer | None,
    prefill: Iterable[ProbeEvent],
    decode: Iterable[ProbeEvent],
) -> Verification:
    """What both engines held of the prompt when they first scheduled it; `before` where neither probe nor router says.

    prefill, decode: what their probes wrote about the request. `counted_tokens` is the decode engine's; the prefill
    engine's is in the reason where it is another one.
    """
    at_decode, at_prefill = _decode_held(shape, moved, decode), _prefill_held(moved, prefill)
    held = Held(
        before.prefill if at_prefill is None else at_prefill,
        before.decode if at_decode is None else at_decode,
    )
    wrong = [
        f"the {side} engine held {count} tokens of the prompt, not {shape.prior_context}"
        for side, count in (("decode", held.decode), ("prefill", held.prefill))
        if count != shape.prior_context
    ]
    silent = [side for side, count in (("decode", at_decode), ("prefill", at_prefill)) if count is None]
    asked = (
        f"asked just before the request: {' and '.join(silent)} engine did not count at scheduling" if silent else ""
    )
    return Verification(shape.prior_context, held.decode, not wrong, "; ".join(wrong) or asked)


def _decode_held(shape: Shape, moved: KvTransfer | None, events: Iterable[ProbeEvent]) -> int | None:
    """By its own count; else the prompt less what it waits for, or the router's account of its counters."""
    for event in events:
        if event.event == "blocks_allocated":
            if event.local_tokens is not None:
                return event.local_tokens
            if event.external_tokens is not None:
                return shape.input_tokens - event.external_tokens
    return None if moved is None else moved.local_tokens


def _prefill_held(moved: KvTransfer | None, events: Iterable[ProbeEvent]) -> int | None:
    for event in events:
        if event.event == "scheduled" and event.cached_tokens is not None:
            return event.cached_tokens
    return None if moved is None else moved.source_cached_tokens
