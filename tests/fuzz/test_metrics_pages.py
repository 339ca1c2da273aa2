"""Whatever an engine's `/metrics` says: numbers that are there, or nothing, or the exception that is promised."""

from __future__ import annotations

from hypothesis import example, given, settings

from runners.router.instances.fleet import read_cache_facts
from runners.router.transfer.counters import read_counters
from runners.samplers.engine import MetricsText
from tests.examples import examples
from tests.fuzz.mutations import mutated

PAGE = b"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4096",kv_cache_size_tokens="65536"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 12.0
vllm:prompt_tokens_by_source_total{engine="1",source="external_kv_transfer"} 3.0
vllm:nixl_bytes_transferred_sum{engine="0"} 4096.0
vllm:request_success_total{finished_reason="st\\"o}p",engine="0"} 3.0 1700000000
"""


@given(mutated([PAGE]))
@settings(max_examples=examples(300))
@example(b'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} twelve\n')
@example(b'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} nan\n')
@example(b'vllm:cache_config_info{block_size="' + b"9" * 5000 + b'"} 1\n')
@example(b'{engine="0"} 1.0\n')
@example(b'vllm:kv_cache_usage_perc{engine="0",\r="tiny"} 0.5\n')
def test_a_page(page: bytes) -> None:
    counters, facts = read_counters(page), read_cache_facts(page)
    for count in (counters.external_tokens, counters.nixl_bytes):
        assert count is None or 0 <= count < float("inf")
    for number in (counters.block_tokens, facts.block_tokens, facts.capacity_tokens):
        assert number is None or 0 < number < 1 << 63
    try:
        MetricsText().values(page.decode("utf-8", "replace"))
    except ValueError as error:
        assert str(error)
