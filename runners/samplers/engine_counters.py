"""What an engine's own counters gained over a cell, and the shape of its KV cache, from the scrapes of `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from results.records.samples import CounterSpan, PromptCounters
from results.records.schemas import MetricsRecord

PROMPT = "vllm:prompt_tokens_total"
CACHED = "vllm:prompt_tokens_cached_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The engine's KV cache; None = not reported."""

    block_tokens: int | None
    capacity_tokens: int | None


def parse_counters(values: Mapping[str, float]) -> PromptCounters:
    """From the samples of one scrape (runners/samplers/engine.py, MetricsText)."""
    by_source = {
        source: value
        for name, value in values.items()
        if name.startswith(BY_SOURCE) and (source := _parse_labels(name).get("source"))
    }
    return PromptCounters(values.get(PROMPT), values.get(CACHED), by_source)


def parse_cache_shape(values: Mapping[str, float]) -> CacheShape:
    """From the labels of vLLM's cache configuration sample."""
    name = next((name for name in values if name.startswith(CACHE_CONFIG)), "")
    labels = _parse_labels(name)
    block, blocks = _parse_whole(labels.get("block_size")), _parse_whole(labels.get("num_gpu_blocks"))
    capacity = _parse_whole(labels.get("kv_cache_size_tokens"))
    if capacity is None and block is not None and blocks is not None:
        capacity = block * blocks
    return CacheShape(block, capacity)


def read_span(scrapes: Path) -> CounterSpan:
    """From a sampler's file: its baseline and its final scrape."""
    counters_at = {
        record.moment: parse_counters(record.values) for record in _read_records(scrapes) if record.error is None
    }
    return CounterSpan(counters_at.get("baseline"), counters_at.get("final"))


def read_baseline_shape(scrapes: Path) -> CacheShape:
    """From the first scrape of a sampler's file, which may still be written to."""
    return parse_cache_shape(next(_read_records(scrapes)).values)


def _read_records(scrapes: Path) -> Iterator[MetricsRecord]:
    decode = msgspec.json.Decoder(MetricsRecord).decode
    with scrapes.open("rb") as file:
        for line in file:
            yield decode(line)


def _parse_labels(name: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', name))


def _parse_whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
