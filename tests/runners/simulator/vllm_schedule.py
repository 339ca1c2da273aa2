"""vLLM's own scheduler before a model that computes nothing, in simulated time; the Python of an engine runs it.

Standard input: JSON, cases of `test_against_vllm`. Last line of standard output: what became of each of their requests.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
MAX_STEPS = 100_000


def make_scheduler(case: dict[str, Any], model: ModelConfig) -> Scheduler:
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case["sequences"], max_num_batched_tokens=case["budget"], max_model_len=model.max_model_len,
            policy=case["scheduling"], async_scheduling=case["is_async"], is_encoder_decoder=False,
        ),
    )  # fmt: skip
    blocks = case["blocks"] + 1  # one is vLLM's null block
    config.scheduler_config.async_scheduling = case["is_async"]  # a platform may have refused it
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (AsyncScheduler if case["is_async"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


class Core:
    """The loop of vLLM's `EngineCoreProc`: at most two steps in its queue with async scheduling, else one."""

    def __init__(self, case: dict[str, Any], model: ModelConfig) -> None:
        self.case = case
        self.scheduler = make_scheduler(case, model)
        self.now_ns = 0
        self.requests = [self._make_request(number, one) for number, one in enumerate(case["requests"])]
        self.arrivals = deque(sorted(self.requests, key=lambda request: request.arrival_time))
        leaves = [(one["leaves_ns"], str(number)) for number, one in enumerate(case["requests"]) if one["leaves_ns"]]
        self.aborts = sorted(leaves)
        self.results: list[list[int | None]] = [[None, None, None] for _ in self.requests]
        """First token, end, cached tokens."""

    def _make_request(self, number: int, one: dict[str, Any]) -> Request:
        own = 1_000_000 * (number + 1)
        tokens = [BLOCK * key + place for key in one["keys"] for place in range(BLOCK)]
        tokens += range(own, own + one["prompt"] - len(tokens))
        return Request(
            str(number), tokens, SamplingParams(max_tokens=one["answer"], ignore_eos=True), None,
            arrival_time=one["at_ns"], priority=one["priority"], block_hasher=get_request_block_hasher(BLOCK, sha256),
        )  # fmt: skip

    def run(self) -> list[list[int | None]]:
        queue: deque[tuple[SchedulerOutput, list[bool]]] = deque()
        size = 2 if self.case["is_async"] else 1
        for _ in range(MAX_STEPS):
            self._take_input()
            if self.scheduler.has_requests():
                step = self.scheduler.schedule()
                is_chunk = [self.scheduler.requests[name].is_prefill_chunk for name in step.num_scheduled_tokens]
                queue.append((step, is_chunk))
                if len(queue) < size and (step.total_num_scheduled_tokens or self.scheduler.has_requests()):
                    continue
            elif not queue:
                if not self.arrivals:
                    return [
                        [*result, request.num_preemptions]
                        for result, request in zip(self.results, self.requests, strict=True)
                    ]
                self.now_ns = self.arrivals[0].arrival_time
                continue
            self._end_step(*queue.popleft())
        raise RuntimeError(f"not done after {MAX_STEPS} steps")

    def _take_input(self) -> None:
        while self.arrivals and self.arrivals[0].arrival_time <= self.now_ns:
            self.scheduler.add_request(self.arrivals.popleft())
        self._abort()

    def _abort(self) -> None:
        """Before the output of a step too; who has not been added yet waits for the next input."""
        coming = {request.request_id for request in self.arrivals}
        due = [name for at_ns, name in self.aborts if at_ns <= self.now_ns and name not in coming]
        self.aborts = [(at_ns, name) for at_ns, name in self.aborts if name not in due]
        self.scheduler.finish_requests(due, RequestStatus.FINISHED_ABORTED)

    def _end_step(self, step: SchedulerOutput, is_chunk: list[bool]) -> None:
        tokens = step.total_num_scheduled_tokens
        self.now_ns += self.case["base_ns"] + self.case["token_ns"] * tokens if tokens else 0
        self._abort()
        names = list(step.num_scheduled_tokens)
        sampled = [[] if chunk else [self._draw_token(name)] for name, chunk in zip(names, is_chunk, strict=True)]
        output = ModelRunnerOutput(names, {name: place for place, name in enumerate(names)}, sampled)
        for group in self.scheduler.update_from_output(step, output).values():
            for one in group.outputs:
                result = self.results[int(one.request_id)]
                if one.prefill_stats is not None:
                    result[0], result[2] = self.now_ns, one.prefill_stats.num_cached_tokens
                if one.finish_reason is not None:
                    result[1] = self.now_ns

    def _draw_token(self, name: str) -> int:
        """No other request has it."""
        return 1_000_000 * (int(name) + 1) + 500_000 + len(self.requests[int(name)].output_token_ids)


def main() -> None:
    work = json.load(sys.stdin)
    init_none_hash(sha256)
    model = ModelConfig(model=work["model"], skip_tokenizer_init=True, dtype="float32", max_model_len=4096)
    print(json.dumps([Core(case, model).run() for case in work["cases"]]))


if __name__ == "__main__":
    main()
