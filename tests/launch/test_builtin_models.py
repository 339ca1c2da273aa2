"""The models that Tracon writes: whole without a hub, and of the architecture that they are named after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launch.builtin_models import MODELS, find_builtin_folder, write_builtin
from launch.errors import LaunchError
from launch.profile import list_profile_names, load_profile
from runners.experiments.kv_endpoints import kv_bytes_per_token

DUMMIES = ("builtin:qwen3-coder-30b-a3b", "builtin:qwen3-0.6b")


def written(source: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / MODELS[source].folder
    write_builtin(folder)
    return folder, json.loads((folder / "config.json").read_text())


def count_parameters(config: dict[str, Any]) -> float:
    """Weights of a Qwen3, dense or a mixture of experts, in billions; norms are left out."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    mlp = 3 * hidden * config["intermediate_size"]
    if "num_experts" in config:
        mlp = config["num_experts"] * (3 * hidden * config["moe_intermediate_size"] + hidden)
    layers = config["num_hidden_layers"] * (hidden * (2 * heads + 2 * kv) + mlp)
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return float(layers + embeddings) / 1e9


@pytest.mark.parametrize(("source", "billions", "kv_bytes"), zip(DUMMIES, (30.5, 0.6), (98_304, 114_688), strict=True))
def test_a_dummy_has_the_size_of_the_model_it_is_named_after(
    source: str, billions: float, kv_bytes: int, tmp_path: Path
) -> None:
    folder, config = written(source, tmp_path)
    assert count_parameters(config) == pytest.approx(billions, abs=0.05)
    assert MODELS[source].weight_bytes / 2e9 == pytest.approx(count_parameters(config), rel=0.001)
    assert kv_bytes_per_token(folder) == kv_bytes == MODELS[source].kv_bytes_per_token


@pytest.mark.parametrize("source", DUMMIES)
def test_every_id_below_the_special_ones_has_a_text_of_its_own(source: str, tmp_path: Path) -> None:
    folder, config = written(source, tmp_path)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(151_646))
    assert vocabulary["<|im_end|>"] == config["eos_token_id"] == 151_645
    profiles = [load_profile(name) for name in list_profile_names()]
    assert [profile.model.vocab_high for profile in profiles if profile.model.source == source] == [151_643]


def test_files_that_are_right_stay_untouched(tmp_path: Path) -> None:
    folder, _ = written("builtin:qwen3-0.6b", tmp_path)
    stamps = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    write_builtin(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps


def test_a_model_that_tracon_does_not_write_is_refused_with_those_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    assert find_builtin_folder("builtin:tiny") == tmp_path / "models" / "tiny-qwen3"
    assert find_builtin_folder("Qwen/Qwen3-0.6B") is None
    with pytest.raises(LaunchError) as caught:
        find_builtin_folder("builtin:big")
    assert "builtin:qwen3-0.6b" in caught.value.remedy


@pytest.mark.parametrize("name", ["h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy"])
def test_a_dummy_profile_needs_no_network(name: str) -> None:
    profile = load_profile(name)
    assert profile.model.source in MODELS
    assert profile.engine.load_format == "dummy"
    assert profile.engine.env["HF_HUB_OFFLINE"] == profile.engine.env["TRANSFORMERS_OFFLINE"] == "1"
    assert profile.engine.env["VLLM_HOST_IP"] == "127.0.0.1"
