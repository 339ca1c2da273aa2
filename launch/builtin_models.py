"""The models that Tracon writes itself, by the `model.source` of a profile: no hub is needed for them.

One is tiny. The others are real architectures without their weights (`--load-format dummy`): an engine makes these up
itself, on the GPU. Kernels, KV sizes and vocabulary are those of the model of that name; answers mean nothing, and
depend on little more than the last token.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launch.environment import home
from launch.errors import LaunchError
from launch.tiny_model import (
    MODEL_ID,
    TEXT_TOKENS,
    build_tokenizer,
    describe_tokenizer,
    write_model_files,
    write_tiny_model,
)

PREFIX = "builtin:"
TEXT_VOCABULARY = 151_643
"""Ids below it stand for text; the special tokens begin here, as in Qwen's own vocabulary."""
WORD_LETTERS = 4

_COMMON: Mapping[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": TEXT_VOCABULARY,
    "eos_token_id": TEXT_VOCABULARY + 2, "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
    "rms_norm_eps": 1e-6, "rope_scaling": None, "sliding_window": None, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151_936,
}  # fmt: skip
QWEN3_CODER_30B_A3B: Mapping[str, Any] = {
    **_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 2048, "intermediate_size": 5472, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "output_router_logits": False,
    "router_aux_loss_coef": 0.0, "max_position_embeddings": 262_144, "rope_theta": 10_000_000,
    "tie_word_embeddings": False,
}  # fmt: skip
"""30.5e9 parameters, 3.3e9 of them per token."""
QWEN3_0_6B: Mapping[str, Any] = {
    **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 40_960, "rope_theta": 1_000_000, "tie_word_embeddings": True,
}  # fmt: skip
"""0.6e9 parameters, all of them dense."""


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    folder: str
    """Its name below the folder of models."""
    write: Callable[[Path], Path]
    """Writes it into a folder and returns that; files that are already right stay untouched."""
    weight_bytes: int
    """In GPU memory, bfloat16."""
    kv_bytes_per_token: int


def write_dummy_model(config: Mapping[str, Any], folder: Path) -> Path:
    """Write configuration and tokenizer of a real architecture; the words of the tokenizer give every id a text."""
    # No text is encoded to these words: the tokenizer has no merges.
    letters = itertools.product(string.ascii_lowercase, repeat=WORD_LETTERS)
    words = tuple("".join(word) for word in itertools.islice(letters, TEXT_VOCABULARY - TEXT_TOKENS))
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [config["eos_token_id"], config["bos_token_id"]]},
        "tokenizer.json": build_tokenizer(words),
        "tokenizer_config.json": describe_tokenizer(config["max_position_embeddings"]),
    }
    return write_model_files(folder, files, {})


MODELS: Mapping[str, BuiltinModel] = {
    "builtin:tiny": BuiltinModel(MODEL_ID, write_tiny_model, 263_000, 512),
    "builtin:qwen3-coder-30b-a3b": BuiltinModel(
        "qwen3-coder-30b-a3b-dummy", partial(write_dummy_model, QWEN3_CODER_30B_A3B), 61_060_000_000, 98_304
    ),
    "builtin:qwen3-0.6b": BuiltinModel(
        "qwen3-0.6b-dummy", partial(write_dummy_model, QWEN3_0_6B), 1_192_000_000, 114_688
    ),
}


def find_builtin_folder(source: str) -> Path | None:
    """The folder of the model of this `model.source`, which need not exist yet; None where Tracon does not write it.

    Raises LaunchError for an unknown `builtin:` name.
    """
    if not source.startswith(PREFIX):
        return None
    model = MODELS.get(source)
    if model is None:
        raise LaunchError(f"Tracon writes no model {source!r}", remedy=f"write one of: {', '.join(MODELS)}")
    return home() / "models" / model.folder


def write_builtin(folder: Path) -> None:
    """Write the model whose folder has this name. Raises OSError."""
    next(model for model in MODELS.values() if model.folder == folder.name).write(folder)
