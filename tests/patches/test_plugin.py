from __future__ import annotations

import subprocess
import sys
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
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.STEP_LOG_VARIABLE, raising=False)
    monkeypatch.delenv(plugin.CPU_CONNECTORS_VARIABLE, raising=False)


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
