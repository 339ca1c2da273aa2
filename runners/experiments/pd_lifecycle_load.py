"""How loaded an engine was when a cell of `pd-lifecycle` began and ended, by its own metrics.

specs/pd_lifecycle, "Risks & Mitigations": KV usage and cache metrics are watched. They are read between requests, never
while one is measured: a page of metrics takes milliseconds of the engine's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KV_USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One reading; counters are since the engine started. None = the engine has no such metric, `reason` names it."""

    kv_usage: float | None
    """Share of the KV blocks in use, 0 to 1: an idle engine's is 0, whatever its prefix cache holds."""
    preemptions: int | None
    prefix_cache_queries: int | None
    """Tokens that were looked up."""
    prefix_cache_hits: int | None
    """Tokens that were found."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """Before a cell's first request, and after its last."""

    begin: EngineLoad
    end: EngineLoad

    @property
    def preemptions(self) -> int | None:
        """Within the cell; None = the engine does not count them."""
        before, after = self.begin.preemptions, self.end.preemptions
        return None if before is None or after is None else after - before


def load_of(values: Mapping[str, float]) -> EngineLoad:
    """From the samples of one page (runners/sampler.py, MetricsText)."""
    missing = [name for name in (KV_USAGE, PREEMPTIONS, QUERIES, HITS) if name not in values]
    return EngineLoad(
        kv_usage=values.get(KV_USAGE),
        preemptions=_whole(values.get(PREEMPTIONS)),
        prefix_cache_queries=_whole(values.get(QUERIES)),
        prefix_cache_hits=_whole(values.get(HITS)),
        reason=f"the engine's /metrics has no {', '.join(missing)}" if missing else "",
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
