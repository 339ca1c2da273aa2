"""What the engines' own counters say over a cell, from the samples of real pages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from results.records.samples import CounterSpan
from results.records.schemas import MetricsRecord
from runners.samplers.engine_counters import parse_cache_shape, parse_counters, read_baseline_shape, read_span

VALUES = {
    "vllm:prompt_tokens_total": 1000.0,
    "vllm:prompt_tokens_cached_total": 600.0,
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': 400.0,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 600.0,
    'vllm:cache_config_info{block_size="32",kv_cache_size_tokens="8192",num_gpu_blocks="256"}': 1.0,
}


def write(path: Path, *records: MetricsRecord) -> Path:
    path.write_bytes(msgspec.json.Encoder().encode_lines(records))
    return path


def test_gains_are_between_the_first_and_the_last_scrape(tmp_path: Path) -> None:
    later = VALUES | {"vllm:prompt_tokens_total": 3000.0, "vllm:prompt_tokens_cached_total": 2100.0}
    path = write(
        tmp_path / "metrics.jsonl",
        MetricsRecord(1, 1.0, "baseline", VALUES),
        MetricsRecord(2, 2.0, "sample", {}),
        MetricsRecord(3, 3.0, "final", later | {'vllm:prompt_tokens_by_source_total{source="new"}': 5.0}),
    )
    span = read_span(path)
    assert (span.gained("prompt_tokens"), span.gained("cached_tokens")) == (2000.0, 1500.0)
    assert span.gained_by_source() == {"local_compute": 0.0, "local_cache_hit": 0.0, "new": 5.0}
    assert read_baseline_shape(path).block_tokens == 32


def test_a_scrape_that_failed_is_not_measured_and_never_zero(tmp_path: Path) -> None:
    path = write(
        tmp_path / "metrics.jsonl",
        MetricsRecord(1, 1.0, "baseline", VALUES),
        MetricsRecord(3, 3.0, "final", {}, "ConnectError"),
    )
    span = read_span(path)
    assert span.gained("prompt_tokens") is None
    assert span.gained_by_source() == {}
    assert CounterSpan(parse_counters({}), parse_counters(VALUES)).gained("cached_tokens") is None


def test_the_cache_is_what_the_engine_says() -> None:
    assert parse_cache_shape(VALUES).capacity_tokens == 8192
    older = {'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="100"}': 1.0}
    assert parse_cache_shape(older).capacity_tokens == 1600
    assert parse_cache_shape({}).block_tokens is None
