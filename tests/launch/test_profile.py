"""Profiles and configs are data; a mistake in one is an error that names the file, the key, and what would be right."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.profile import (
    CONFIGS_FOLDER,
    PROFILES_FOLDER,
    ConnectorConfig,
    Profile,
    ProfileError,
    list_config_names,
    list_profile_names,
    load_config,
    load_profile,
)
from results.records.router_spec import TransferRules

CPU_TINY = (PROFILES_FOLDER / "cpu-tiny.toml").read_text()
NIXL = (CONFIGS_FOLDER / "nixl_both.toml").read_text()


def refused(tmp_path: Path, text: str) -> ProfileError:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return caught.value


def test_the_three_profiles_and_the_eight_configs_load_under_their_own_names() -> None:
    assert set(list_profile_names()) >= {"cpu-tiny", "h20-qwen3-coder-30b", "h200-qwen3-coder-30b-dummy"}
    assert set(list_config_names()) == {
        "plain", "noop_connector", "mooncake_producer", "mooncake_consumer", "mooncake_both", "nixl_both",
        "lmcache_only", "multi_mooncake_lmcache",
    }  # fmt: skip
    assert [load_profile(name).name for name in list_profile_names()] == list(list_profile_names())
    assert [load_config(name).name for name in list_config_names()] == list(list_config_names())


def test_the_h20_profile_has_the_parameters_of_the_specification() -> None:
    engine = load_profile("h20-qwen3-coder-30b").engine
    assert (engine.tensor_parallel_size, engine.max_model_len, engine.max_num_batched_tokens) == (1, 200_000, 8192)
    assert (engine.prefix_caching, engine.chunked_prefill, engine.gpu_memory_utilization) == (True, True, 0.9)
    assert load_profile("h20-qwen3-coder-30b").launch.release_wait_s == 60


def test_every_cuda_profile_states_its_cold_start_and_waits_more_than_twice_as_long_for_an_engine() -> None:
    launches = {
        name: load_profile(name).launch for name in list_profile_names() if load_profile(name).engine.kind == "cuda"
    }
    assert len(launches) >= 3
    for name, launch in launches.items():
        assert isinstance(launch.cold_start_s, float), name
        assert launch.ready_timeout_s > 2 * launch.cold_start_s, name


@pytest.mark.parametrize(
    ("right", "wrong", "said", "nearest"),
    [
        ("enforce_eager", "enforce_eagre", "engine.enforce_eagre is not a known key", "engine.enforce_eager"),
        ('"fork_server"', '"forkserver"', "launch.method cannot be 'forkserver'", "'fork_server'"),
        ("max_model_len = 40960", "", "engine.max_model_len is missing", ""),
        ("= 40960", '= "long"', "engine.max_model_len is wrong: expected `int`, got `str`", ""),
        ("port_base = 18100", "port_base = 0", "launch.port_base is wrong", ""),
        ('kind = "cpu"', 'kind = "cuda"', "launch.method", ""),
    ],
    ids=["a key", "a choice", "a key that is missing", "a type", "a number out of range", "a fork server for CUDA"],
)
def test_what_is_wrong_is_named_with_its_place_and_the_nearest_valid_one(
    tmp_path: Path, right: str, wrong: str, said: str, nearest: str
) -> None:
    error = refused(tmp_path, CPU_TINY.replace(right, wrong))
    assert said in str(error)
    assert not nearest or f"did you mean {nearest}?" in error.remedy


def test_a_wrong_table_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, CPU_TINY.replace("[launch]", "[lanuch]"))
    assert "lanuch is not a known key" in str(error) or "launch is missing" in str(error)


def test_broken_toml_is_named_with_the_line(tmp_path: Path) -> None:
    assert "line 1" in str(refused(tmp_path, "name = \n"))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("cpu-tyni")
    assert "did you mean cpu-tiny?" in caught.value.remedy
    with pytest.raises(ProfileError) as caught:
        load_config("mooncake_bth")
    assert "did you mean mooncake_both?" in caught.value.remedy


def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CPU_TINY.replace('name = "cpu-tiny"', 'name = "mine"'))
    assert load_profile(path).name == "mine"
    path.write_text(NIXL.replace('name = "nixl_both"', 'name = "my_nixl"'))
    assert load_config(str(path)).name == "my_nixl"


def test_the_tables_of_an_experiment_are_carried_through(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CPU_TINY.split("[experiment")[0] + "\n[experiment.some-test.full]\nrates = [0.5, 1]\n")
    assert load_profile(path).experiments == {"some-test": {"full": {"rates": [0.5, 1]}}}


def test_a_config_changes_with_the_kind_of_engine() -> None:
    mooncake = load_config("mooncake_both")
    assert mooncake.merge_kv_transfer("cuda") == {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
    assert mooncake.merge_kv_transfer("cpu") == {
        "kv_connector": "MooncakeConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    }
    assert (mooncake.requires_on("cuda"), mooncake.requires_on("cpu")) == (("mooncake",), ("mooncake", "patches"))
    plain = load_config("plain")
    assert plain.merge_kv_transfer("cpu") is None
    assert plain.connectors == ()


WITH_MOONCAKE = [config for config in map(load_config, list_config_names()) if "mooncake" in config.requires_on("cuda")]


def test_mooncake_lets_the_blocks_of_long_prompts_wait_for_one_peer() -> None:
    """By its own limit of 1024 two prompts of 4500 tokens that are handed over together fail."""
    assert len(WITH_MOONCAKE) == 4
    for config in WITH_MOONCAKE:
        assert config.merge_env("cpu")["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] == "65535"
        assert config.merge_env("cuda")["MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"] == "65535"


def test_mooncake_gives_a_write_as_long_as_the_router_gives_a_transfer() -> None:
    """specs/load_floor, Q1.C: by its own limit a write ends after 30 s, whatever the router allows."""
    limits = {
        config.merge_env(kind).get("MC_TRANSFER_TIMEOUT", "30") for config in WITH_MOONCAKE for kind in ("cpu", "cuda")
    }
    assert {float(limit) for limit in limits} == {TransferRules().timeout_s}


def test_a_connector_without_a_class_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(NIXL.replace('kv_connector = "NixlConnector"', ""))
    with pytest.raises(ProfileError, match=r"kv_transfer\.kv_connector is missing"):
        load_config(path)


KEYS = sorted({field.encode_name for field in msgspec.structs.fields(Profile)})


@given(key=st.from_regex(r"[a-z][a-z_]{0,15}", fullmatch=True).filter(lambda key: key not in KEYS))
def test_no_unknown_key_is_accepted(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    error = refused(tmp_path_factory.mktemp("profile"), f"{key} = 1\n{CPU_TINY}")
    assert f"{key} is not a known key" in str(error)


def test_settings_are_frozen() -> None:
    config: ConnectorConfig = load_config("plain")
    with pytest.raises(AttributeError):
        config.name = "other"  # type: ignore[misc]
