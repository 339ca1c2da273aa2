"""What an engine's own counters gained over a cell, and what its cache is made of, from the scrapes of `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from results.records.schemas import MetricsRecord

PROMPT = "vllm:prompt_tokens_total"
CACHED = "vllm:prompt_tokens_cached_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class Counters:
    """Prompt tokens since the engine started; None = the engine has no such counter."""

    prompt_tokens: float | None
    cached_tokens: float | None
    by_source: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The engine's KV cache; None = it does not say."""

    block_tokens: int | None
    capacity_tokens: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """Counters before the first and after the last request of a cell; None = that scrape failed."""

    before: Counters | None
    after: Counters | None

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


def counters(values: Mapping[str, float]) -> Counters:
    """From the samples of one scrape (runners/samplers/engine.py, MetricsText)."""
    by_source = {
        source: value
        for name, value in values.items()
        if name.startswith(BY_SOURCE) and (source := _labels(name).get("source"))
    }
    return Counters(values.get(PROMPT), values.get(CACHED), by_source)


def cache_shape(values: Mapping[str, float]) -> CacheShape:
    """From the labels of vLLM's cache configuration sample."""
    name = next((name for name in values if name.startswith(CACHE_CONFIG)), "")
    labels = _labels(name)
    block, blocks = _whole(labels.get("block_size")), _whole(labels.get("num_gpu_blocks"))
    capacity = _whole(labels.get("kv_cache_size_tokens"))
    if capacity is None and block is not None and blocks is not None:
        capacity = block * blocks
    return CacheShape(block, capacity)


def span_of(scrapes: Path) -> Span:
    """From a sampler's file: its baseline and its final scrape."""
    counters_at = {record.moment: counters(record.values) for record in _records(scrapes) if record.error is None}
    return Span(counters_at.get("baseline"), counters_at.get("final"))


def baseline_shape(scrapes: Path) -> CacheShape:
    """From the first scrape of a sampler's file, which may still be written to."""
    return cache_shape(next(_records(scrapes)).values)


def _records(scrapes: Path) -> Iterator[MetricsRecord]:
    decode = msgspec.json.Decoder(MetricsRecord).decode
    with scrapes.open("rb") as file:
        for line in file:
            yield decode(line)


def _labels(name: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', name))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
