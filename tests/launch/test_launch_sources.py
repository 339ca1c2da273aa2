"""What Tracon passes to an engine, against the source files of the vLLM releases that this host has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from launch.command import SERVER_MODULE, build_launch
from launch.environment import Engine
from launch.profile import list_config_names, list_profile_names, load_config, load_profile
from results.records.layout import ConfigLayout
from runners.experiments.engine_choice import EngineChoice, make_counting_profile
from tests.launch.vllm_sources import packages_of

OURS = (
    "AGENTIC_", "TRACON_", "PYTHON", "HF_", "LMCACHE_", "TRANSFORMERS_", "UCX_", "DO_NOT_TRACK", "OMP_", "TORCH",
    "CUDA_", "MC_",
)  # fmt: skip
"""Variables that vLLM itself does not read, or does not declare."""
EXPERIMENTS = ("--kv-events-config", "--kv-cache-memory-bytes", "--seed")
VERSIONS = ["0.32.0", "0.26.0"]
NOT_YET = {"0.32.0": set[str](), "0.26.0": {"kv_cache_layout"}}
"""Settings that a release does not keep in its configuration: they are null there."""


def module(version: str, name: str) -> Path:
    path = packages_of(version).joinpath(*name.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def known_options(version: str) -> set[str]:
    """Every option of the server: the fields of vLLM's argument classes, and what is added by name."""
    names: set[str] = set()
    server = "launchers" if version == "0.32.0" else "openai"
    for name in ("vllm.engine.arg_utils", f"vllm.entrypoints.{server}.cli_args"):
        for node in ast.walk(ast.parse(module(version, name).read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(f"--{node.target.id.replace('_', '-')}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                names.add(node.value.split()[0])
    return names | {f"--no-{name[2:]}" for name in names}


def launches(tmp_path: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Options and environment of every config with every CUDA profile."""
    engine = Engine("cuda", tmp_path / "python", tmp_path, tmp_path, {})
    choice = EngineChoice(block_size=16, scheduling="priority", gpu_memory_utilization=0.4, max_num_seqs=64)
    made = []
    for profile in (load_profile(name) for name in list_profile_names()):
        if profile.engine.kind != "cuda":
            continue
        for config in map(load_config, list_config_names()):
            spec = build_launch(
                make_counting_profile(profile, choice), config, engine, instance="e0", port=1,
                layout=ConfigLayout(tmp_path), launch=1, preflight=True, transfer_log=True, extra_args=EXPERIMENTS,
            )  # fmt: skip
            made.append(([word for word in spec.argv if word.startswith("--")], dict(spec.env)))
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_the_server_knows_every_option(version: str, tmp_path: Path) -> None:
    passed = {option for options, _ in launches(tmp_path) for option in options}
    assert len(passed) > 15
    assert passed - known_options(version) == set()
    assert module(version, SERVER_MODULE).is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_reads_every_variable_of_its_own_that_is_set(version: str, tmp_path: Path) -> None:
    names = {name for _, env in launches(tmp_path) for name in env if not name.startswith(OURS)}
    assert {"VLLM_PLUGINS", "VLLM_HOST_IP", "VLLM_MOONCAKE_BOOTSTRAP_PORT"} <= names
    declared = module(version, "vllm.envs").read_text()
    assert {name for name in names if f'"{name}"' not in declared} == set()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("config", [name for name in list_config_names() if load_config(name).kv_transfer])
def test_vllm_registers_the_connectors_that_configs_name(version: str, config: str) -> None:
    transfer = load_config(config).merge_kv_transfer("cuda")
    assert transfer is not None
    inner = transfer.get("kv_connector_extra_config", {}).get("connectors", [])
    named = [part["kv_connector"] for part in (transfer, *inner) if "kv_connector_module_path" not in part]
    factory = module(version, "vllm.distributed.kv_transfer.kv_connector.factory").read_text()
    assert [name for name in named if f'"{name}"' not in factory] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_settings_that_a_report_compares_are_in_vllms_configuration(version: str) -> None:
    from patches.engine_settings import SETTINGS

    folder = packages_of(version) / "vllm" / "config"
    text = "\n".join(path.read_text() for path in sorted(folder.glob("*.py")))
    absent = {attribute for _, attribute in SETTINGS.values() if f"    {attribute}:" not in text}
    assert absent <= NOT_YET[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_architectures_that_tracon_writes_are_vllms(version: str) -> None:
    from launch.builtin_models import QWEN3_0_6B, QWEN3_CODER_30B_A3B

    registry = module(version, "vllm.model_executor.models.registry").read_text()
    for config in (QWEN3_0_6B, QWEN3_CODER_30B_A3B):
        assert f'"{config["architectures"][0]}"' in registry
