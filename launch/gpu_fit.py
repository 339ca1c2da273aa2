"""How much of a GPU's memory an engine needs: an estimate, for the models that Tracon writes itself."""

from __future__ import annotations

from itertools import pairwise

from launch.builtin_models import MODELS
from launch.profile import Profile

REST_BYTES = 4 << 30
"""For the CUDA context, activations, workspaces and CUDA graphs."""
LOGIT_BYTES = 26
"""Per request and word of the vocabulary, when vLLM looks how much a step of the most requests takes: logits in two
precisions, probabilities, and what sorting them takes."""
DEFAULT_REQUESTS = 1024
"""--max-num-seqs of vLLM's server on a GPU of 70 GiB or more."""


def estimate_engine_bytes(profile: Profile) -> int | None:
    """Bytes per GPU for weights, the KV of the longest request, logits and the rest; None for a model of others."""
    model, settings = MODELS.get(profile.model.source), profile.engine
    if model is None:
        return None
    options = dict(pairwise(settings.extra_args))
    requests = int(options.get("--max-num-seqs", DEFAULT_REQUESTS))
    split = model.weight_bytes + settings.max_model_len * model.kv_bytes_per_token
    return split // settings.tensor_parallel_size + requests * profile.model.vocab_high * LOGIT_BYTES + REST_BYTES
