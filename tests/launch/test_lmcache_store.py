"""LMCache's store on a GPU: its size is stated, and the records of a launch have it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from launch.builtin_models import MODELS
from launch.command import build_launch, write_launch
from launch.environment import Engine
from launch.profile import load_config, load_profile
from results.records.launches import LaunchRecord
from results.records.layout import ConfigLayout

SIZE, CHUNK = "LMCACHE_MAX_LOCAL_CPU_SIZE", "LMCACHE_CHUNK_SIZE"
CONFIGS = ("lmcache_only", "multi_mooncake_lmcache")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("profile", ["h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy"])
def test_it_holds_the_longest_prompt_of_the_profile(profile: str, config: str) -> None:
    served, env = load_profile(profile), load_config(config).merge_env("cuda")
    tokens = float(env[SIZE]) * 2**30 / MODELS[served.model.source].kv_bytes_per_token
    assert tokens >= served.engine.max_model_len
    assert env["LMCACHE_LOCAL_CPU"] == "True"


@pytest.mark.parametrize("config", CONFIGS)
def test_the_records_of_a_launch_have_it(config: str, tmp_path: Path) -> None:
    engine = Engine("cuda", tmp_path / "python", tmp_path, tmp_path, {})
    profile, layout = load_profile("h200-qwen3-coder-30b-dummy"), ConfigLayout(tmp_path / "config")
    spec = build_launch(profile, load_config(config), engine, instance="e0", port=1, layout=layout, launch=1)
    write_launch(spec, layout)
    record = msgspec.json.decode(layout.launches.read_bytes(), type=LaunchRecord)
    assert (record.env[SIZE], record.env[CHUNK]) == ("20", "256")
    assert f"{SIZE}=20 " in layout.launch_sh.read_text()
