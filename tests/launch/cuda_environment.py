"""What a CUDA environment does without a GPU: its modules import, and its vLLM settles Tracon's launches."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from launch.builtin_models import write_builtin
from launch.command import LaunchSpec, build_launch
from launch.doctor import DRIVER_LIBRARY
from launch.environment import Engine
from launch.gpu_fit import DEFAULT_REQUESTS
from launch.install_plan import CONNECTORS, list_modules
from launch.profile import list_config_names, load_config, load_profile
from results.records.layout import ConfigLayout
from tests.launch.cuda_settings import MARK

PROFILES = ("h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy")
MODULES = (
    "vllm.v1.core.sched.async_scheduler", "vllm.v1.engine.core", "vllm.v1.engine.async_llm",
    "vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.executor.multiproc_executor", "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.qwen3", "vllm.model_executor.models.qwen3_moe",
    "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector", "tracon_patches.noop_connector",
)  # fmt: skip
"""What an engine on a GPU imports, beside its connector's own package."""
CUTE = ("nvidia_cutlass_dsl", "cutlass.cute")
"""The distribution of CuTe DSL, in which vLLM has kernels for GPUs such as an H200, and its module. The lock has it."""
NEED_DRIVER = ("mooncake.engine",)
"""They link DRIVER_LIBRARY: on a host without a GPU, where no package has it, their import fails for want of it."""
_IMPORT = """
import importlib, json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
for name in ("schedule", "update_from_output"):
    if "tracon_patches" not in getattr(AsyncScheduler, name).__code__.co_filename:
        failed[name] = "the step probe is not on it"
print()
print(sys.argv[2] + json.dumps(failed), flush=True)
"""
SETTLED_WITH = {"HF_HUB_OFFLINE": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
"""Without a driver vLLM finds no Triton and falls back to its first model runner; on a GPU 0.32 takes the second."""
TIMEOUT_S = 1200.0


def import_modules(engine: Engine) -> dict[str, str]:
    """Import MODULES, CuTe DSL and the installed connectors with the probes on, as an engine's process would.

    Module, or method without probe, to why not; without those of NEED_DRIVER that lack it.
    """
    folder = engine.root.parent / "steps"
    folder.mkdir(exist_ok=True)
    environ = {"AGENTIC_STEP_LOG_PATH": str(folder / "engine_step.jsonl"), "TRACON_TRANSFER_LOG": str(folder)}
    installed = (connector for connector in CONNECTORS if connector in engine.versions)
    lists = (list_modules(connector, engine.kind, engine.site_packages) for connector in installed)
    distribution, module = CUTE
    cute = [module] if any(engine.site_packages.glob(f"{distribution}-*.dist-info")) else []
    modules = [*MODULES, *cute, *(module for named in lists for module in named)]
    failed: dict[str, str] = _read_answer(engine, ("-c", _IMPORT, json.dumps(modules), MARK), environ)
    return {name: why for name, why in failed.items() if name not in NEED_DRIVER or DRIVER_LIBRARY not in why}


def settle_launches(engine: Engine, folder: Path) -> None:
    """vLLM's own parser and configuration take the launch arguments of every config, and settle on what a GPU's engine
    has: asynchronous scheduling, CUDA graphs, the connector. Asserts it."""
    specs = [_build_spec(engine, folder, profile, config) for profile in PROFILES for config in list_config_names()]
    lines = folder / "arguments.json"
    lines.write_text(json.dumps([spec.argv[3:] for spec in specs]))
    script = Path(__file__).with_name("cuda_settings.py")
    settled: list[dict[str, Any]] = _read_answer(engine, (str(script), str(lines)), SETTLED_WITH)
    assert len(settled) == len(specs) == 16
    for spec, one in zip(specs, settled, strict=True):
        transfer = load_config(spec.config).merge_kv_transfer("cuda")
        assert one["connector"] == (transfer["kv_connector"] if transfer else None), spec.config
        settings = one["settings"]
        assert (settings["async_scheduling"], settings["enforce_eager"]) == (True, False), spec.config
        assert settings["cudagraph_mode"] == "FULL_AND_PIECEWISE", spec.config
        assert settings["prefix_caching"] is True, spec.config
        assert settings["max_num_seqs"] == DEFAULT_REQUESTS, "vLLM's choice for a GPU of this size"
        assert settings["use_v2_model_runner"] is not False, spec.config


def _build_spec(engine: Engine, folder: Path, profile: str, config: str) -> LaunchSpec:
    spec = build_launch(
        load_profile(profile), load_config(config), engine, instance=config, port=18_100, layout=ConfigLayout(folder),
        launch=1,
    )  # fmt: skip
    assert spec.model_folder is not None
    write_builtin(spec.model_folder)
    return spec


def _read_answer(engine: Engine, arguments: tuple[str, ...], environ: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    done = subprocess.run(
        [str(engine.python), *arguments], env={**os.environ, **engine.env, "VLLM_PLUGINS": "tracon", **environ},
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert lines, (done.stdout + done.stderr)[-3000:]
    return json.loads(lines[-1].removeprefix(MARK))
