"""How the engines of a cell exchange KV, by their configs and their model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launch.profile import load_config
from launch.tiny_model import write_tiny_model
from results.records.router_spec import KvEndpoint
from runners.campaign.engine_group import Member
from runners.experiments.kv_endpoints import endpoint_of, kv_bytes_per_token


def member(**ports: int) -> Member:
    return Member("e0", "both", cast(Any, SimpleNamespace(ports={"http": 1, **ports})), cast(Any, None), None)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("plain", None),
        ("noop_connector", None),
        ("lmcache_only", None),
        ("mooncake_both", KvEndpoint("mooncake", "kv_both", "http://127.0.0.1:7", 512)),
        ("mooncake_producer", KvEndpoint("mooncake", "kv_producer", "http://127.0.0.1:7", 512)),
        ("mooncake_consumer", KvEndpoint("mooncake", "kv_consumer", "http://127.0.0.1:7", 512)),
        ("multi_mooncake_lmcache", KvEndpoint("mooncake", "kv_both", "http://127.0.0.1:7", 512)),
        ("nixl_both", KvEndpoint("nixl", "kv_both", "", 512)),
    ],
)
def test_an_engine_exchanges_kv_by_the_connector_of_its_config(config: str, expected: KvEndpoint | None) -> None:
    wanted = load_config(config)
    ports = {name: 7 for name in wanted.ports if "BOOTSTRAP" in name}
    assert endpoint_of(member(**ports), wanted, "cpu", 512) == expected


def test_the_bytes_of_a_token_come_from_the_models_own_configuration(tmp_path: Path) -> None:
    assert kv_bytes_per_token(write_tiny_model(tmp_path / "tiny")) == 512  # 2 x 2 layers x 2 heads x 32 x 2 bytes
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,'
        ' "dtype": "bfloat16"}'
    )
    assert kv_bytes_per_token(tmp_path) == 98_304  # specs/ear.md, 2.1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"num_attention_heads": 0, "hidden_size": 1}'])
def test_a_configuration_that_does_not_say_it_leaves_them_unknown(tmp_path: Path, text: str) -> None:
    assert kv_bytes_per_token(tmp_path / "nowhere") is None
    (tmp_path / "config.json").write_text(text)
    assert kv_bytes_per_token(tmp_path) is None
