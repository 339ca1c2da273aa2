"""Real architectures without their weights: configuration and tokenizer as Tracon writes them (`--load-format dummy`).

An engine makes the weights up itself, on the GPU, so that nothing of a model comes from a hub. Kernels, KV sizes and
vocabulary are those of the model of that name; answers mean nothing, and depend on little more than the last token.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.tiny_model import TEXT_TOKENS, build_tokenizer, describe_tokenizer, write_model_files

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
"""30.5e9 parameters (61 GB in bfloat16), 3.3e9 of them per token; 98,304 bytes of KV per token."""
QWEN3_0_6B: Mapping[str, Any] = {
    **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 40_960, "rope_theta": 1_000_000, "tie_word_embeddings": True,
}  # fmt: skip
"""0.6e9 parameters (1.2 GB in bfloat16), all of them dense; 114,688 bytes of KV per token."""


def write_dummy_model(config: Mapping[str, Any], folder: Path) -> Path:
    """Write configuration and tokenizer into `folder` and return it; files that are already right stay untouched."""
    return write_model_files(folder, _build_files(config), {})


def _build_files(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [config["eos_token_id"], config["bos_token_id"]]},
        "tokenizer.json": build_tokenizer(_make_words()),
        "tokenizer_config.json": describe_tokenizer(config["max_position_embeddings"]),
    }


def _make_words() -> tuple[str, ...]:
    """Words that stand for the ids above the bytes, so that every id has a text. No text is encoded to them: the
    tokenizer has no merges."""
    letters = itertools.product(string.ascii_lowercase, repeat=WORD_LETTERS)
    return tuple("".join(word) for word in itertools.islice(letters, TEXT_VOCABULARY - TEXT_TOKENS))
