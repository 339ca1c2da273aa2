"""An estimate of the GPU memory that an engine needs, for the models that Tracon writes itself."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from launch.builtin_models import MODELS
from launch.profile import EngineSettings, Profile

REST_BYTES = 4 << 30
"""For the CUDA context, activations, workspaces and CUDA graphs."""
LOGIT_BYTES = 26
"""Per request and vocabulary entry, when vLLM profiles a step with the most requests: logits in two precisions,
probabilities, and the buffers of their sort."""
LARGE_GPU_BYTES = 70 << 30
DEFAULT_REQUESTS, SMALL_GPU_REQUESTS = 1024, 256
"""--max-num-seqs of vLLM's server on a GPU of at least LARGE_GPU_BYTES, and of less. On an A100 of 80 GB it is 256 too,
and the estimate is high."""
SPLITS = (1, 2, 4)
"""GPUs of an engine that a remedy may name: they divide the KV heads of both dummy models."""
CONTEXT_STEP = 8192
"""A context that a remedy names is a multiple of it. The least is enough for pre-flight and the presets `gpu-demo`
and `calibrate` of connector-tax."""


def estimate_engine_bytes(profile: Profile, gpu_bytes: int = LARGE_GPU_BYTES) -> int | None:
    """Bytes per GPU for weights, the KV of the longest request, logits and the rest; None for any other model.

    `gpu_bytes`: all memory of a GPU, by which vLLM chooses how many requests a step may have.
    """
    model, settings = MODELS.get(profile.model.source), profile.engine
    if model is None:
        return None
    split = model.weight_bytes + settings.max_model_len * model.kv_bytes_per_token
    return split // settings.tensor_parallel_size + _estimate_rest(profile, gpu_bytes)


def find_fitting_settings(profile: Profile, gpu_bytes: int, gpus: int) -> EngineSettings | None:
    """The profile's engine with the fewest of these GPUs and the longest context that fits by the estimate, at most the
    profile's; None = none does.

    `gpu_bytes`: all memory of each GPU.
    """
    model, settings = MODELS.get(profile.model.source), profile.engine
    if model is None:
        return None
    room = int((settings.gpu_memory_utilization or 1.0) * gpu_bytes) - _estimate_rest(profile, gpu_bytes)
    for size in (size for size in SPLITS if settings.tensor_parallel_size <= size <= gpus):
        tokens = (room * size - model.weight_bytes) // model.kv_bytes_per_token
        context = min(tokens // CONTEXT_STEP * CONTEXT_STEP, settings.max_model_len)
        if context >= min(CONTEXT_STEP, settings.max_model_len):
            return msgspec.structs.replace(settings, tensor_parallel_size=size, max_model_len=context)
    return None


def _estimate_rest(profile: Profile, gpu_bytes: int) -> int:
    """What every GPU of an engine needs in full: logits, and REST_BYTES."""
    options = dict(pairwise(profile.engine.extra_args))
    default = DEFAULT_REQUESTS if gpu_bytes >= LARGE_GPU_BYTES else SMALL_GPU_REQUESTS
    requests = int(options.get("--max-num-seqs", default))
    return requests * profile.model.vocab_high * LOGIT_BYTES + REST_BYTES
