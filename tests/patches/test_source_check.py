"""Hooks against source files alone: made-up ones here, and those of the vLLM releases that this host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from patches.compile_key import COMPILE_FACTORS
from patches.hooks import HAS_REQUESTS, SCHEDULE, SCHEDULER_OUTPUT, UPDATE
from patches.source_check import Sources, check_sources, list_probes
from tests.launch.vllm_sources import packages_of

SCHEDULER = """
from vllm.v1.core.sched.interface import SchedulerInterface

class Scheduler(SchedulerInterface):
    def __init__(self, vllm_config, kv_cache_config, *, log_stats=False): ...
    def schedule(self, throttle_prefills=False): ...
    def update_from_output(self, scheduler_output, model_runner_output): ...
    def get_request_counts(self): ...
"""
INTERFACE = """
class SchedulerInterface:
    def has_requests(self): ...
"""
OUTPUT = """
class SchedulerOutput:
    scheduled_new_reqs: list
    scheduled_cached_reqs: object
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
"""


def make_vllm(folder: Path, **changes: str) -> Path:
    """A vLLM of a few modules; `changes` replace their text."""
    modules = {"engine/arg_utils": "", "v1/core/sched/scheduler": SCHEDULER, "v1/core/sched/interface": INTERFACE,
               "v1/core/sched/output": OUTPUT} | changes  # fmt: skip
    for name, text in modules.items():
        path = folder / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "vllm-0.99.0.dist-info").mkdir(exist_ok=True)
    return folder


def test_a_hook_fits_where_the_method_has_a_known_signature(tmp_path: Path) -> None:
    sources = Sources(make_vllm(tmp_path))
    assert [sources.misfit(hook) for hook in (SCHEDULE, UPDATE, SCHEDULER_OUTPUT)] == [None] * 3
    assert sources.misfit(HAS_REQUESTS) is None, "a base class of another module has it"
    assert sources.version() == "0.99.0"


def test_a_hook_that_does_not_fit_says_what_is_there(tmp_path: Path) -> None:
    changed = SCHEDULER.replace("throttle_prefills=False", "budget, *extra")
    sources = Sources(make_vllm(tmp_path, **{"v1/core/sched/scheduler": changed, "v1/core/sched/output": ""}))
    assert sources.misfit(SCHEDULE) == "unknown signature (self, budget, extra)"
    assert sources.misfit(SCHEDULER_OUTPUT) == "no class SchedulerOutput"
    misfits = check_sources(tmp_path)["misfits"]
    assert isinstance(misfits, dict)
    assert misfits["step probe"]["Scheduler.schedule"] == "unknown signature (self, budget, extra)"


def test_a_function_of_a_module_is_found_as_methods_are(tmp_path: Path) -> None:
    sources = Sources(make_vllm(tmp_path, envs="def compile_factors(): ...\n"))
    assert sources.misfit(COMPILE_FACTORS) is None
    make_vllm(tmp_path / "older", envs="class Factors:\n    def compile_factors(): ...\n")
    assert Sources(tmp_path / "older").misfit(COMPILE_FACTORS) == "missing"
    make_vllm(tmp_path / "newer", envs="def compile_factors(config): ...\n")
    assert Sources(tmp_path / "newer").misfit(COMPILE_FACTORS) == "unknown signature (config)"
    assert Sources(make_vllm(tmp_path / "none")).misfit(COMPILE_FACTORS) == "no module vllm.envs"


def test_without_sources_there_is_no_verdict(tmp_path: Path) -> None:
    assert check_sources(tmp_path) == {
        "vllm": None, "misfits": None, "essential": ["Scheduler.schedule", "Scheduler.update_from_output"],
    }  # fmt: skip


def test_every_hook_fits_the_sources_of_the_locked_release() -> None:
    check = check_sources(packages_of("0.32.0"))
    assert check["misfits"] == {probe: {} for probe in list_probes()}


def test_of_the_release_before_the_steps_and_what_mooncake_moves_are_seen() -> None:
    misfits = check_sources(packages_of("0.26.0"))["misfits"]
    assert isinstance(misfits, dict)
    assert {probe: sorted(own) for probe, own in misfits.items()} == {
        "step probe": [],
        "transfer probe": [],
        "Mooncake's transfers": ["MooncakeConnectorWorker._handle_failed_recv"],
        "NIXL's transfers": ["NixlPullConnectorWorker._read_blocks", "NixlPullConnectorWorker.get_transfer_results"],
        "compiled kernels": [],
    }


@pytest.mark.parametrize("version", ["0.32.0", "0.26.0"])
def test_the_async_scheduler_goes_through_the_hooked_methods(version: str) -> None:
    """AsyncScheduler inherits `schedule` and `update_from_output`: what is wrapped on Scheduler is what runs."""
    text = (packages_of(version) / "vllm" / "v1" / "core" / "sched" / "async_scheduler.py").read_text()
    assert "class AsyncScheduler(Scheduler)" in text
    assert "def schedule(" not in text
    assert "def update_from_output(" not in text
