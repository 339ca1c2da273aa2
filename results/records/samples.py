"""What is sampled or repeated beside a cell: engine counters, what a prefill does to running decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

INTERFERENCE_VERSION = 2
"""Version of a row of `interference.jsonl`; `results.records.rows` reads the older ones."""


@dataclass(frozen=True, slots=True)
class PromptCounters:
    """Prompt tokens since the engine started; None = the engine has no such counter."""

    prompt_tokens: float | None
    """Tokens of all prompts."""
    cached_tokens: float | None
    """Prompt tokens that the prefix cache had."""
    by_source: Mapping[str, float] = field(default_factory=dict)
    """By where their KV came from, in vLLM's words."""


@dataclass(frozen=True, slots=True)
class CounterSpan:
    """One instance's counters around a cell."""

    before: PromptCounters | None
    """Before the first request; None = that scrape failed."""
    after: PromptCounters | None
    """After the last request; None = that scrape failed."""

    def gained(self, name: Literal["prompt_tokens", "cached_tokens"]) -> float | None:
        """What that counter rose by; None where a scrape failed or the engine has no such counter."""
        if self.before is None or self.after is None:
            return None
        before: float | None = getattr(self.before, name)
        after: float | None = getattr(self.after, name)
        return None if before is None or after is None else after - before

    def gained_by_source(self) -> dict[str, float]:
        if self.before is None or self.after is None:
            return {}
        before = self.before.by_source
        return {source: value - before.get(source, 0.0) for source, value in self.after.by_source.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceRecord:
    """One prefill beside running decodes: a row of `interference.jsonl`. None = not measured."""

    instance: str
    """By the journal's name."""
    prefill_tokens: int
    """Prompt length of the prefill."""
    decodes: int
    """Requests that decode beside it."""
    repeat: int = 0
    """From 0."""
    itl_before_s: float | None = None
    """Mean ITL of the decodes (gap between two neighboring tokens) in the settling time before the prefill's send."""
    itl_during_s: float | None = None
    """The same of gaps that overlap the time from the prefill's send to its token."""
    itl_after_s: float | None = None
    """The same in the settling time after its token."""
    worst_gap_before_s: float | None = None
    """The longest gap of any decode before."""
    worst_gap_during_s: float | None = None
    """The longest gap of any decode during."""
    prefill_ttft_s: float | None = None
    """From the prefill's send to its token."""
    gaps_before: int | None = None
    """Number of gaps in the mean."""
    gaps_during: int | None = None
    """Number of gaps in the mean."""
    gaps_after: int | None = None
    """Number of gaps in the mean."""
    t_unix_s: float | None = None
    """When the prefill was sent."""
    version: int = INTERFERENCE_VERSION
    """Version of this record; a row that states none is of version 1."""
