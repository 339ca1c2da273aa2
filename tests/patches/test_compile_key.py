"""The hash that vLLM stores compiled kernels below: the same for engines that differ in ports alone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from launch.environment import find_engine
from patches import plugin
from patches.compile_key import COMPILE_FACTORS, LEFT_OUT
from tests.launch.vllm_sources import packages_of

from .conftest import PutModules

BOOTSTRAP, SIDE_CHANNEL, _ = LEFT_OUT
SETTING = "VLLM_USE_FLASHINFER_SAMPLER"
"""A variable on which compiled code may depend."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = (
        *LEFT_OUT, plugin.STEP_LOG_VARIABLE, plugin.TRANSFER_LOG_VARIABLE, plugin.CPU_CONNECTORS_VARIABLE,
        plugin.RUN_FIRST_VARIABLE, plugin.NAME_DEATHS_VARIABLE, plugin.REPAIRS_VARIABLE,
    )  # fmt: skip
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(SETTING, "0")


@pytest.fixture
def envs(put_modules: PutModules) -> ModuleType:
    """vLLM's module of variables, as far as it is asked here."""
    module = ModuleType("vllm.envs")

    def compile_factors() -> dict[str, object]:
        return {name: os.environ.get(name, "default") for name in (*LEFT_OUT, SETTING)}

    vars(module).update(compile_factors=compile_factors)
    package = ModuleType("vllm")
    vars(package).update(envs=module, __path__=[])
    put_modules({"vllm": package, "vllm.envs": module})
    return module


def test_engines_on_other_ports_have_the_same_key(envs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for port in ("18101", "18102"):
        monkeypatch.setenv(BOOTSTRAP, port)
        plugin.register()
        keys.append(envs.compile_factors())
    assert keys[0] == keys[1]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_everything_else_stays_in_the_key(name: str, envs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    plugin.register()
    assert envs.compile_factors() == {SETTING: "0"}
    monkeypatch.setenv(SETTING, "1")
    assert envs.compile_factors() == {SETTING: "1"}


def test_where_none_of_them_is_set_vllm_stays_as_it_is(envs: ModuleType) -> None:
    shipped = envs.compile_factors
    plugin.register()
    assert envs.compile_factors is shipped


def test_registered_twice_it_is_wrapped_once(envs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIDE_CHANNEL, "18103")
    plugin.register()
    once = envs.compile_factors
    plugin.register()
    assert envs.compile_factors is once


@pytest.mark.parametrize(
    ("shipped", "why"),
    [(None, "missing"), (lambda config: {BOOTSTRAP: config}, "unknown signature (config)")],
    ids=["without it", "with another signature"],
)
def test_a_vllm_with_another_function_is_left_alone_and_the_log_says_so(
    shipped: object,
    why: str,
    envs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(envs, "compile_factors", shipped)
    monkeypatch.setenv(BOOTSTRAP, "18101")
    plugin.register()
    assert envs.compile_factors is shipped
    line = f"[tracon] engines on other ports compile again: compile_factors: {why} (pid {os.getpid()})"
    assert line in capfd.readouterr().err


def test_a_key_of_another_kind_is_returned_as_it_is(envs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ["VLLM_MOONCAKE_BOOTSTRAP_PORT=18101"]
    vars(envs).update(compile_factors=lambda: key)
    monkeypatch.setenv(BOOTSTRAP, "18101")
    plugin.register()
    assert envs.compile_factors() is key


def test_the_locked_release_hashes_these_variables_and_asks_the_module_for_the_hash() -> None:
    """Else the hook would be of no use: vLLM might leave them out itself, or hold the function under another name."""
    vllm = packages_of("0.32.0") / "vllm"
    text = (vllm / "envs.py").read_text()
    ignored = re.search(r"ignored_factors: set\[str\] = \{(.*?)\n    \}", text, re.DOTALL)
    assert ignored is not None
    for name in LEFT_OUT:
        assert f'    "{name}": lambda: ' in text, "one of vLLM's own"
        assert f'"{name}"' not in ignored.group(1)
    for caller in ("caching", "backends"):
        code = (vllm / "compilation" / f"{caller}.py").read_text()
        assert "import vllm.envs as envs" in code
        assert f"envs.{COMPILE_FACTORS.method}()" in code


HASHES = """
import os
from vllm import envs
from vllm.config.utils import hash_factors
from patches import compile_key
hashes = []
for ask in (lambda: None, compile_key.leave_out_ports):
    assert ask() is None
    for port in ("18101", "18102"):
        os.environ["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = port
        hashes.append(hash_factors(envs.compile_factors()))
print(*hashes)
"""


@pytest.mark.engine
def test_in_an_engines_environment_the_hash_is_the_same_on_every_port() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), BOOTSTRAP: "18101"}
    command = [str(find_engine("cpu").python), "-c", HASHES]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, *hooked = done.stdout.splitlines()[-1].split()
    assert first != second, "as vLLM is shipped"
    assert len(hooked) == 2
    assert hooked[0] == hooked[1]
