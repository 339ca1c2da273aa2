"""How a cell's engines exchange KV, and the summary of its decision log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launch.profile import load_config
from launch.tiny_model import write_tiny_model
from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from runners.campaign.engine_group import Member
from runners.experiments.routing.kv_movements import count_movements, endpoint_of, kv_bytes_per_token, movement_headline
from runners.router.spec import KvEndpoint

MS = 1_000_000


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


def record(migration: str = "", **transfer: Any) -> DecisionRecord:
    move = KvTransfer("t", transport="mooncake", source="e0", target="e1", **transfer) if transfer else None
    request = RoutedRequest("r", "s", 0, 64, 8, 32, {})
    outcome = RoutedOutcome("ok", 200, migration=migration, transfer=move)
    return DecisionRecord(0, 0, 1.0, request, ClusterView((), 0), Decision("ear", "e1", "migrated"), outcome)


def moved(ms: int, tokens: int | None, **more: Any) -> dict[str, Any]:
    return {"status": "transferred", "t_begin_ns": MS, "t_done_ns": (1 + ms) * MS, "external_tokens": tokens, **more}


def test_movements_are_counted_by_what_came_of_them() -> None:
    moved_kv = count_movements(
        [
            record(),
            record("transferred", purpose="migration", **moved(20, 640, bytes=327_680)),
            record("transferred", purpose="migration", **moved(40, None)),
            record("recomputed", purpose="migration", status="failed", reason="gone", t_begin_ns=1, t_done_ns=9 * MS),
            record("failed"),
            record(purpose="handover", **moved(60, 128, bytes=65_536)),
            record(purpose="handover", status="refused"),
        ]
    )
    assert moved_kv == {
        "migrations": {"failed": 1, "recomputed": 1, "transferred": 2},
        "handovers": {"refused": 1, "transferred": 1},
        "external_tokens": 768,
        "bytes": 393_216,
        "uncounted": 1,
        "transfer_mean_s": pytest.approx(0.040),
    }
    assert movement_headline(moved_kv) == {
        "migrations_failed": 1,
        "migrations_recomputed": 1,
        "migrations_transferred": 2,
        "handovers_refused": 1,
        "handovers_transferred": 1,
        "external_tokens": 768,
        "transfer_mean_s": pytest.approx(0.040),
    }


def test_a_cell_in_which_nothing_was_to_be_moved_says_nothing_of_it() -> None:
    assert count_movements([record(), record()]) == {}
    assert movement_headline({}) == {}


def test_what_was_not_counted_is_not_nothing() -> None:
    moved_kv = count_movements([record("transferred", purpose="migration", **moved(20, None))])
    assert (moved_kv["external_tokens"], moved_kv["bytes"], moved_kv["uncounted"]) == (None, None, 1)
    assert count_movements([record("recomputed")])["transfer_mean_s"] is None
