from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from patches import plugin

from . import fake_vllm
from .conftest import PutModules
from .fake_vllm import decode_step, make_factory, make_scheduler
from .ring_file import only_ring

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def after_fork(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the plugin wants done in forked processes; its variables are unset."""
    callbacks: list[Callable[[], None]] = []
    monkeypatch.setattr(os, "register_at_fork", lambda after_in_child: callbacks.append(after_in_child))
    monkeypatch.delenv(plugin.STEP_LOG_VARIABLE, raising=False)
    monkeypatch.delenv(plugin.CPU_CONNECTORS_VARIABLE, raising=False)
    return callbacks


def put_vllm(put_modules: PutModules) -> type:
    scheduler = make_scheduler()
    put_modules(fake_vllm.modules(scheduler, make_factory(fake_vllm.Connector)))
    return scheduler


def test_without_its_variables_nothing_is_touched(put_modules: PutModules) -> None:
    scheduler = put_vllm(put_modules)
    before = dict(vars(scheduler))
    plugin.register()
    assert dict(vars(scheduler)) == before


def test_the_log_path_turns_the_probe_on(
    tmp_path: Path, put_modules: PutModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = put_vllm(put_modules)
    monkeypatch.setenv(plugin.STEP_LOG_VARIABLE, str(tmp_path / "rings" / "engine_step.jsonl"))
    plugin.register()
    engine = scheduler(fake_vllm.config())
    engine.next_output = decode_step(1)
    engine.update_from_output(engine.schedule(), None)
    assert only_ring(tmp_path / "rings").count == 1


def test_importing_the_package_needs_and_imports_no_vllm() -> None:
    code = "import sys; from patches import plugin, step_probe, cpu_connectors; plugin.register(); " + (
        "print(sorted(m for m in sys.modules if m.split('.')[0] in {'vllm', 'torch', 'numpy', 'results', 'state'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_engine_without_a_fitting_vllm_still_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_modules: PutModules, capfd: pytest.CaptureFixture[str]
) -> None:
    put_modules({"vllm": ModuleType("vllm")})
    monkeypatch.setenv(plugin.STEP_LOG_VARIABLE, str(tmp_path / "engine_step.jsonl"))
    plugin.register()
    assert list(tmp_path.iterdir()) == []
    assert "step timing off: " in capfd.readouterr().err


def torch(built_for_cuda: bool, available: bool, index: object) -> ModuleType:
    module = ModuleType("torch")

    def current_device_index() -> object:
        if isinstance(index, Exception):
            raise index
        return index

    vars(module).update(
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: built_for_cuda)),
        accelerator=SimpleNamespace(is_available=lambda: available, current_device_index=current_device_index),
    )
    return module


NO_ACCELERATOR = RuntimeError("Cannot access accelerator device when none is available.")


@pytest.mark.parametrize(
    ("made", "answer"),
    [(torch(False, False, NO_ACCELERATOR), 0), (torch(True, True, 3), 3), (torch(False, False, 5), 5)],
    ids=["CPU build", "CUDA build", "CPU build that answers"],
)
def test_the_device_index_is_answered_only_where_torch_cannot(
    put_modules: PutModules, monkeypatch: pytest.MonkeyPatch, made: ModuleType, answer: int
) -> None:
    put_modules({"torch": made})
    monkeypatch.setenv(plugin.CPU_CONNECTORS_VARIABLE, "1")
    plugin.register()
    assert made.accelerator.current_device_index() == answer


def test_the_shims_stay_off_unless_asked_for(put_modules: PutModules) -> None:
    made = torch(False, False, NO_ACCELERATOR)
    put_modules({"torch": made})
    plugin.register()
    with pytest.raises(RuntimeError):
        made.accelerator.current_device_index()


def test_a_shim_that_fails_is_said_and_harms_nothing(
    put_modules: PutModules, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put_modules({"torch": ModuleType("torch")})
    monkeypatch.setenv(plugin.CPU_CONNECTORS_VARIABLE, "1")
    plugin.register()
    assert "CPU shim for mooncake not applied" in capfd.readouterr().err


class Amx:
    """`torch.cpu` of a CPU that has AMX tiles or not, under a kernel that grants them or not."""

    def __init__(self, has_tiles: bool, granted: bool | Exception) -> None:
        self.has_tiles, self.granted, self.requests = has_tiles, granted, 0

    def _init_amx(self) -> bool:
        self.requests += 1
        if isinstance(self.granted, Exception):
            raise self.granted
        return self.granted

    def _is_amx_tile_supported(self) -> bool:
        return self.has_tiles


def torch_with(amx: object, built_for_cuda: bool = False) -> ModuleType:
    made = torch(built_for_cuda, built_for_cuda, 0)
    vars(made).update(cpu=amx)
    return made


@pytest.mark.parametrize(
    ("amx", "outcome"),
    [
        (Amx(has_tiles=True, granted=True), "granted"),
        (Amx(has_tiles=True, granted=False), "refused by the kernel"),
        (Amx(has_tiles=False, granted=False), "none in this CPU"),
        (Amx(has_tiles=True, granted=OSError("no")), "not requested: OSError: no"),
    ],
    ids=["granted", "refused", "a CPU without tiles", "an error"],
)
def test_amx_is_requested_in_the_process_and_in_each_of_its_forks_and_the_log_says_so(
    put_modules: PutModules,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    after_fork: list[Callable[[], None]],
    amx: Amx,
    outcome: str,
) -> None:
    put_modules({"torch": torch_with(amx)})
    monkeypatch.setenv(plugin.CPU_CONNECTORS_VARIABLE, "1")
    plugin.register()
    assert amx.requests == 1
    assert f"[tracon] AMX tiles: {outcome}" in capfd.readouterr().err
    (in_child,) = after_fork
    in_child()
    assert amx.requests == 2
    assert f"[tracon] AMX tiles: {outcome}" in (line := capfd.readouterr().err)
    assert f"(pid {os.getpid()})" in line


def test_a_torch_that_knows_no_amx_is_logged_and_harms_nothing(
    put_modules: PutModules, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put_modules({"torch": torch_with(SimpleNamespace())})
    monkeypatch.setenv(plugin.CPU_CONNECTORS_VARIABLE, "1")
    plugin.register()
    assert "[tracon] AMX tiles: not requested: AttributeError" in capfd.readouterr().err


@pytest.mark.parametrize(("variable", "built_for_cuda"), [("1", True), ("0", False)], ids=["CUDA build", "not asked"])
def test_amx_is_requested_on_cpu_builds_that_are_asked_to(
    put_modules: PutModules,
    monkeypatch: pytest.MonkeyPatch,
    after_fork: list[Callable[[], None]],
    variable: str,
    built_for_cuda: bool,
) -> None:
    amx = Amx(has_tiles=True, granted=True)
    put_modules({"torch": torch_with(amx, built_for_cuda)})
    monkeypatch.setenv(plugin.CPU_CONNECTORS_VARIABLE, variable)
    plugin.register()
    assert (amx.requests, after_fork) == (0, [])
