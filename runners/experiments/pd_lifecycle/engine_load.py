"""The load of an engine at the begin and end of a `pd-lifecycle` cell, by its own metrics.

specs/pd_lifecycle, "Risks & Mitigations": watch the caches. The counters are read between requests only: a page of
metrics takes milliseconds of the engine's process. KV usage is not read: between requests it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from results.records.lifecycle import EngineLoad

PREEMPTIONS = "vllm:num_preemptions_total"
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


def read_load(values: Mapping[str, float]) -> EngineLoad:
    """`values`: the samples of one page (runners/samplers/engine.py, MetricsText)."""
    missing = [name for name in (PREEMPTIONS, QUERIES, HITS) if name not in values]
    return EngineLoad(
        preemptions=_round_count(values.get(PREEMPTIONS)),
        prefix_cache_queries=_round_count(values.get(QUERIES)),
        prefix_cache_hits=_round_count(values.get(HITS)),
        reason=f"the engine's /metrics has no {', '.join(missing)}" if missing else "",
    )


def _round_count(value: float | None) -> int | None:
    return None if value is None else round(value)
