"""The tokens that each transfer moved, from the target engine's counters: pure.

An engine counts the prompt tokens of all its requests by their source. If one transfer ended between two reads, the
rise of `external_kv_transfer` belongs to it. If several ended, the rise can be attributed only if each moved all it
could, or none moved any. Otherwise the count is null with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

COUNT_LIMIT = 1e18
_SAMPLE = re.compile(
    rb"^vllm:(prompt_tokens_by_source_total|nixl_bytes_transferred_sum|cache_config_info)(?:\{([^}]*)\})? (\S+)",
    re.MULTILINE,
)
_SOURCE = re.compile(rb'source="external_kv_transfer"')
_BLOCK = re.compile(rb'block_size="(\d{1,9})"')


class Counters(NamedTuple):
    """The counters in one page of vLLM's metrics, summed over its engines; None = not in the page."""

    external_tokens: float | None = None
    """Prompt tokens that arrived by transfer since the engine started."""
    nixl_bytes: float | None = None
    block_tokens: int | None = None


class TargetAnswer(NamedTuple):
    """The prompt's token counts in the target's answer; None = not reported."""

    prompt_tokens: int | None
    cached_tokens: int | None
    """Tokens that the target did not compute: from its own cache and by transfer together."""

    @property
    def limit(self) -> int | None:
        """Upper bound of the tokens that the transfer moved; None = unknown."""
        return self.prompt_tokens if self.cached_tokens is None else self.cached_tokens


class Attribution(NamedTuple):
    """One transfer's part of the target's counters; None = unknown, for `reason`."""

    external_tokens: int | None = None
    nixl_bytes: int | None = None
    reason: str = ""


def read_counters(page: bytes) -> Counters:
    external: float | None = None
    moved: float | None = None
    block: int | None = None
    for name, labels, value in _SAMPLE.findall(page):
        if name == b"prompt_tokens_by_source_total" and _SOURCE.search(labels):
            external = _add_sample(external, value)
        elif name == b"nixl_bytes_transferred_sum":
            moved = _add_sample(moved, value)
        elif name == b"cache_config_info" and block is None and (size := _BLOCK.search(labels)):
            block = int(size[1]) or None
    return Counters(external, moved, block)


def _add_sample(sum_so_far: float | None, text: bytes) -> float | None:
    """The sum plus one sample; a sample that is not a count is ignored."""
    try:
        value = float(text)
    except ValueError:
        return sum_so_far
    return (sum_so_far or 0.0) + value if 0 <= value < COUNT_LIMIT else sum_so_far


def attribute_rise(before: Counters, after: Counters, answers: Sequence[TargetAnswer]) -> list[Attribution]:
    """Attribute the rise between two reads to `answers`, which are all the transfers that ended in between."""
    if before.external_tokens is None or after.external_tokens is None:
        return [Attribution(reason="the engine does not count prompt tokens by their source")] * len(answers)
    rise = round(after.external_tokens - before.external_tokens)
    if rise < 0:
        return [Attribution(reason="the engine was restarted: its counters began at 0")] * len(answers)
    moved = None
    if after.nixl_bytes is not None:
        moved = round(after.nixl_bytes - (before.nixl_bytes or 0.0))
    limits = [answer.limit for answer in answers]
    if len(answers) == 1:
        limit = limits[0]
        if limit is not None and rise > limit:
            return [Attribution(reason=f"{rise} tokens came by transfer, more than its {limit}: not only this one's")]
        return [Attribution(rise, moved)]
    if rise == 0:
        return [Attribution(0, 0 if moved == 0 else None)] * len(answers)
    shared = f"{len(answers)} transfers there overlapped, {rise} tokens came in all"
    if None not in limits and rise == sum(limit or 0 for limit in limits):
        return [Attribution(limit, None, f"bytes are not known: {shared}" if moved else "") for limit in limits]
    return [Attribution(reason=shared)] * len(answers)
