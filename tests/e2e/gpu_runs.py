"""Runs of CUDA profiles on a fake GPU host: its GPUs are fake, everything else is real.

The engines are real engines of the CPU environment, with the launch arguments and the environment of the CUDA profile.
What is another: `gpu_host/` says what stands in for the GPU; weights are those of the smallest model; a connector moves
host memory, for which it needs what its config has for CPU engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.environment import find_engine
from launch.profile import CONFIGS_FOLDER, PROFILES_FOLDER
from tests.e2e.cli import port
from tests.fake_gpus import DRIVER_TEXT, FakeGpu, FakeHost

PROFILE = "h200-qwen3-0.6b-dummy"
PORTS = 40
"""Eight engines with their connector's take fewer."""
SMALLER = {
    'source = "builtin:qwen3-0.6b"': 'source = "builtin:tiny"',
    "vocab_low = 1000": "vocab_low = 0",
    "vocab_high = 151643": "vocab_high = 256",
    "chunked_prefill = true\n": "chunked_prefill = true\nkv_cache_memory_bytes = 134217728\n",
    "release_wait_s = 15.0": "release_wait_s = 0.1",
}
"""Of the profile: what a GPU has and this host has not."""
CPU_TAKES_ITS_PART = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TRACON_CPU_CONNECTORS": "1",
    "TRACON_RUN_FIRST": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""What Tracon sets for CPU engines alone, and the user here."""
SHORT = """
[experiment.connector-tax.short]
like = "gpu-demo"
configs = ["plain"]
confirm = false
trials = 1
warmup_s = 0.5
min_duration_s = 3.0
min_completed = 10
engine_start_s = 20.0

[experiment.connector-tax.short.phase_a]
input_tokens = 128
output_tokens = 16
rates_per_s = [4, 8]

[experiment.connector-tax.confirmed]
like = "short"
configs = ["plain", "plain_again", "noop_connector"]
confirm = true
trials = 3

[experiment.connector-tax.confirmed.phase_a]
rates_per_s = [4]
"""

LIFECYCLE = """
[experiment.pd-lifecycle.short-PRESET]
like = "PRESET"
prior_context = [1024]
new_tokens = [256]
output_length = [4]
trials = 1
repetitions = 3
warmup_repetitions = 1
age = false
"""
"""Of `gpu-demo`, two engines on one GPU, and `two-gpus`."""

ROUTING = """
[experiment.routing.short-PRESET]
like = "PRESET"
trials = 1
engine_start_s = 40.0
expected_replay_s = 6.0
policies = [{ name = "ear", label = "EAR", parameters = { hot_tokens = 100, cooldown_s = 0.5 } }]

[experiment.routing.short-PRESET.trace]
sessions = 12
turns = 6
tokens = 0.0625
output_tokens = 0.03125
statistics = { apc_bound_any = 0.9, apc_bound_intra = 0.89, span_s = 100.0 }

[experiment.routing.short-PRESET.replay]
time_scale = 0.01
idle_gap_cap_s = 0.1
max_inflight_sessions = 12
max_duration_s = 30.0
lateness_p99_s = 0.5
achieved_ratio = 0.5
"""
"""Of `two`, `four` and `eight` engines on one GPU, and `two-gpus`; no other shipped setting is replaced."""


@contextmanager
def gpu_host(folder: Path) -> Iterator[Path]:
    """For the length of the context, Tracon's commands see a host with two H200; yields the CUDA profile for it."""
    host = FakeHost(folder / "host", [FakeGpu(used=100 << 20), FakeGpu(used=100 << 20)])
    host.folder.mkdir()
    host.write_tools()
    (host.folder / "version").write_text(DRIVER_TEXT)
    (host.folder / "infiniband" / "mlx5_0").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setenv("PATH", str(host.folder), prepend=":")
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("gpu_host")))
        patch.setenv("TRACON_FAKE_GPU_HOST", str(host.folder))
        for name, value in CPU_TAKES_ITS_PART.items():
            patch.setenv(name, value)
        yield write_profile(folder)


def write_profile(folder: Path) -> Path:
    text = (PROFILES_FOLDER / f"{PROFILE}.toml").read_text()
    for shipped, here in SMALLER.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    path = folder / f"{PROFILE}.toml"
    routing = [ROUTING.replace("PRESET", preset) for preset in ("two", "four", "eight", "two-gpus")]
    lifecycle = [LIFECYCLE.replace("PRESET", preset) for preset in ("gpu-demo", "two-gpus")]
    path.write_text("".join([text, SHORT, *routing, *lifecycle]))
    return path


def write_config(folder: Path, name: str) -> Path:
    """The config with what it has for CPU engines in the place of what it has for CUDA engines."""
    path = folder / f"{name}.toml"
    tables = re.split(r"^(?=\[)", (CONFIGS_FOLDER / f"{name}.toml").read_text(), flags=re.MULTILINE)
    others = (table for table in tables if not table.startswith(("[cuda", "[[cuda")))
    path.write_text("".join(others).replace("[cpu", "[cuda"))
    return path


def arguments(experiment: str, profile: Path, *configs: Path | str, preset: str = "short") -> tuple[str, ...]:
    """Of `tracon run`, in one of the presets above."""
    chosen = [word for config in configs for word in ("--config", str(config))]
    engine = ("--engine-python", str(find_engine("cpu").python))
    return ("run", experiment, "--profile", str(profile), "--preset", preset, *chosen, *engine, "--port", port(PORTS))
