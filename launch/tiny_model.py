"""The tiny model of the CPU profiles: a Qwen3 with a byte-level tokenizer, so small that the engine's own work shows.

Its weights are drawn from a fixed seed, large enough that every answer depends on the whole context: answers mean
nothing, but the same ones from loaded and from computed KV mean that the right KV was loaded. (Weights that an engine
makes up itself, `--load-format dummy`, are so small that only the last token of a prompt decides the answer.)
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results.records.layout import write_atomic

MODEL_ID = "tiny-qwen3"
"""Name of the model's folder, and what an engine serves it as."""
MAX_POSITION = 131_072
"""Longest sequence the configuration allows, tokens; a profile's `--max-model-len` stays below it."""
TEXT_TOKENS = 256
"""Ids 0..255 stand for one byte each (not in byte order); any sequence of them is a prompt of exactly that length."""
VOCAB_SIZE = 512
"""Rows of the embedding. Ids from 259 up can be sampled but stand for nothing: they decode to empty text."""
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 64, 128, 2, 4, 2, 32
WEIGHTS_SEED = 7
WEIGHTS_SCALE, ATTENTION_GAIN, EMBEDDING_SCALE = 3.0, 2.5, 0.5
"""The first times 1/sqrt(inputs); queries and keys are multiplied by the second after their norm. Attention then picks
few tokens of a long context and weighs more than a token's own embedding: another context, another answer."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257, 258; the last one ends a turn."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path) -> Path:
    """Write the model into `folder` and return it; files that are already right are left untouched."""
    return write_model_files(folder, _build_files(), {"model.safetensors": _encode_safetensors(_draw_weights())})


def write_model_files(folder: Path, texts: Mapping[str, Mapping[str, Any]], rest: Mapping[str, bytes]) -> Path:
    """Write a model's JSON files and the rest into `folder`; files that are already right stay untouched."""
    encoded = {name: (json.dumps(content, indent=1) + "\n").encode() for name, content in texts.items()}
    for name, data in {**encoded, **rest}.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)
    return folder


def describe_tokenizer(longest: int) -> dict[str, Any]:
    """`tokenizer_config.json` of a model whose longest sequence has this many tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest,
        "pad_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[2], "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip


def make_byte_alphabet() -> tuple[str, ...]:
    """The 256 characters that stand for bytes in a byte-level tokenizer, in token-id order (sorted by code point).

    Printable Latin-1 characters stand for themselves, the other bytes for the code points from 256 up, in byte order
    (the mapping of GPT-2, which the `ByteLevel` pre-tokenizer uses).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = range(256, 512 - len(printable))
    return tuple(map(chr, sorted({*printable, *shifted})))


def _build_files() -> dict[str, dict[str, Any]]:
    end, _, stop = range(TEXT_TOKENS, TEXT_TOKENS + len(SPECIAL_TOKENS))
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE,
        "vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_POSITION,
        "rope_theta": 1_000_000, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "bos_token_id": end, "eos_token_id": stop,
    }  # fmt: skip
    return {
        "config.json": config,
        "generation_config.json": {"eos_token_id": stop},
        "tokenizer.json": build_tokenizer(),
        "tokenizer_config.json": describe_tokenizer(MAX_POSITION),
    }


def build_tokenizer(words: Sequence[str] = ()) -> dict[str, Any]:
    """The `tokenizers` file format: a BPE without merges over the byte alphabet; `words` have the ids after it, and the
    special tokens those after them."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocabulary = {token: number for number, token in enumerate((*make_byte_alphabet(), *words, *SPECIAL_TOKENS))}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocabulary[token], "content": token, **flags} for token in SPECIAL_TOKENS],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [],
        },
    }  # fmt: skip


def _draw_weights() -> dict[str, np.ndarray]:
    """Every parameter by its name in the checkpoint, (outputs, inputs)."""
    draw = np.random.Generator(np.random.PCG64(WEIGHTS_SEED))
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_SIZE, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    norms = {
        "self_attn.q_norm": np.full(HEAD_SIZE, ATTENTION_GAIN), "self_attn.k_norm": np.full(HEAD_SIZE, ATTENTION_GAIN),
        "input_layernorm": np.ones(HIDDEN), "post_attention_layernorm": np.ones(HIDDEN),
    }  # fmt: skip
    weights = {"model.embed_tokens.weight": draw.normal(0.0, EMBEDDING_SCALE, (VOCAB_SIZE, HIDDEN))}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            spread = WEIGHTS_SCALE / math.sqrt(shape[1])
            weights[f"model.layers.{layer}.{name}.weight"] = draw.normal(0.0, spread, shape)
        weights |= {f"model.layers.{layer}.{name}.weight": values for name, values in norms.items()}
    return {**weights, "model.norm.weight": np.ones(HIDDEN)}


def _encode_safetensors(weights: Mapping[str, np.ndarray]) -> bytes:
    """The safetensors file format, bfloat16: length of the header, header (JSON, padded to 8), tensors."""
    header: dict[str, Any] = {}
    blocks: list[bytes] = []
    end = 0
    for name, values in weights.items():
        bits = values.astype("<f4").view("<u4")
        block = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()  # to the nearest, ties to even
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [end, end + len(block)]}
        blocks.append(block)
        end += len(block)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(blocks)
