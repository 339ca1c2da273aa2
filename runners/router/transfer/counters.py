"""What a transfer brought, by the target engine's own counters: pure.

An engine counts the prompt tokens of all its requests by where they came from. Over a time in which one transfer ended
there, the rise of `external_kv_transfer` is that transfer's; of several it is told apart only where all brought as much
as they could, or nothing. Everything else is null with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_SAMPLE = re.compile(
    rb"^vllm:(prompt_tokens_by_source_total|nixl_bytes_transferred_sum|cache_config_info)(?:\{([^}]*)\})? (\S+)",
    re.MULTILINE,
)
_SOURCE = re.compile(rb'source="external_kv_transfer"')
_BLOCK = re.compile(rb'block_size="(\d+)"')


class Counters(NamedTuple):
    """Of one page of vLLM's metrics, over all its engines; None = it does not say."""

    external_tokens: float | None = None
    """Prompt tokens that came by transfer, since the engine started."""
    nixl_bytes: float | None = None
    block_tokens: int | None = None


class Ended(NamedTuple):
    """A transfer as its target's answer tells it; None = it does not say."""

    prompt_tokens: int | None
    cached_tokens: int | None
    """What the target did not compute: out of its cache and by transfer together."""

    @property
    def limit(self) -> int | None:
        """As many tokens it can have brought; None = not known."""
        return self.prompt_tokens if self.cached_tokens is None else self.cached_tokens


class Brought(NamedTuple):
    """What one transfer brought; None = not known, `reason` says why."""

    external_tokens: int | None = None
    nixl_bytes: int | None = None
    reason: str = ""


def read_counters(page: bytes) -> Counters:
    """The counters in a page of metrics."""
    external: float | None = None
    moved: float | None = None
    block: int | None = None
    for name, labels, value in _SAMPLE.findall(page):
        if name == b"prompt_tokens_by_source_total" and _SOURCE.search(labels):
            external = (external or 0.0) + float(value)
        elif name == b"nixl_bytes_transferred_sum":
            moved = (moved or 0.0) + float(value)
        elif name == b"cache_config_info" and block is None and (found := _BLOCK.search(labels)):
            block = int(found[1])
    return Counters(external, moved, block)


def attribute(before: Counters, after: Counters, ended: Sequence[Ended]) -> list[Brought]:
    """What each of the transfers brought that ended between two pages, and no other did in that time."""
    if before.external_tokens is None or after.external_tokens is None:
        return [Brought(reason="the engine does not count prompt tokens by their source")] * len(ended)
    rise = round(after.external_tokens - before.external_tokens)
    if rise < 0:
        return [Brought(reason="the engine's counters began anew: it was restarted")] * len(ended)
    moved = None
    if after.nixl_bytes is not None:
        moved = round(after.nixl_bytes - (before.nixl_bytes or 0.0))
    limits = [one.limit for one in ended]
    if len(ended) == 1:
        limit = limits[0]
        if limit is not None and rise > limit:
            return [Brought(reason=f"{rise} tokens came by transfer, more than its {limit}: not only this one's")]
        return [Brought(rise, moved)]
    if rise == 0:
        return [Brought(0, 0 if moved == 0 else None)] * len(ended)
    shared = f"{len(ended)} transfers there overlapped, {rise} tokens came in all"
    if None not in limits and rise == sum(limit or 0 for limit in limits):
        return [Brought(limit, None, f"bytes are not known: {shared}" if moved else "") for limit in limits]
    return [Brought(reason=shared)] * len(ended)
