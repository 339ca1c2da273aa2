"""What each part of a CPU engine does with a CPU's flags; the same choices as vLLM's own code makes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launch import doctor
from launch.doctor import examine, to_json
from launch.doctor_rows import MISSING, OK
from launch.environment import find_engine
from launch.instruction_sets import Part, describe_parts, read_flags
from launch.profile import load_profile
from tests.fake_gpus import cuda_profile

HASWELL = frozenset({"avx2", "fma", "f16c"})
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
ZEN5 = SKYLAKE | {"avx512_vnni", "avx512_bf16"}
SAPPHIRE_RAPIDS = ZEN5 | {"amx_tile", "amx_bf16", "amx_int8"}


NEEDS = {
    "vLLM kernels": ("avx2", "fma", "f16c", "avx512f", "avx512_bf16"),
    "CPU attention": ("amx_tile", "amx_bf16"),
    "matrix products": ("avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16"),
}


def parts(flags: frozenset[str], grants_amx: bool = True) -> dict[str, Part]:
    return {part.part: part for part in describe_parts(flags, grants_amx)}


@pytest.mark.parametrize(
    ("flags", "kernels", "attention"),
    [
        (HASWELL, "_C_AVX2", "vector"),
        (SKYLAKE, "_C_AVX512", "vector"),
        (ZEN5, "(_C)", "vector"),
        (SAPPHIRE_RAPIDS, "(_C)", "AMX tiles"),
    ],
    ids=["Haswell", "Skylake-SP", "Zen 5", "Sapphire Rapids"],
)
def test_a_part_says_what_it_picks_and_what_it_lacks(flags: frozenset[str], kernels: str, attention: str) -> None:
    described = parts(flags)
    assert kernels in described["vLLM kernels"].picks
    assert described["CPU attention"].picks.startswith(attention)
    assert not [part for part in described.values() if part.problem]
    for part in described.values():
        assert part.needs == NEEDS[part.part]
        assert set(part.lacking) == set(part.needs) - flags


def test_without_avx2_no_build_fits_and_the_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "read_flags", lambda: frozenset({"sse4_2", "avx", "f16c"}))
    report = examine(load_profile("cpu-tiny"), {})
    row = next(row for row in report.rows if row.what == "vLLM kernels")
    assert row.state == MISSING
    assert "avx2, fma" in row.detail
    assert "AVX2" in row.remedy
    assert not report.ok
    on_gpu = [row.what for row in examine(cuda_profile(), {}).rows]
    assert "vLLM kernels" not in on_gpu, "a GPU's kernels are others"


def test_amx_that_the_kernel_gives_to_nobody_is_named_before_an_engine_dies_of_it() -> None:
    attention = parts(SAPPHIRE_RAPIDS, grants_amx=False)["CPU attention"]
    assert "SIGILL" in attention.problem
    assert "5.16" in attention.remedy
    assert not parts(ZEN5, grants_amx=False)["CPU attention"].problem


def test_the_doctor_names_the_sets_in_words_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "read_flags", lambda: SKYLAKE)
    monkeypatch.setattr(doctor, "kernel_grants_amx", lambda: False)
    report = examine(load_profile("cpu-tiny"), {})
    row = next(row for row in report.rows if row.what == "instruction sets")
    assert row.state == OK
    here, absent = row.detail.split("; absent: ")
    assert {"avx2", "avx512f"} <= set(here.split(", "))
    assert {"avx512_bf16", "amx_tile", "amx_bf16"} <= set(absent.split(", "))
    document = json.loads(json.dumps(to_json(report)))
    assert document["instruction_sets"]["avx512f"] is True
    assert document["instruction_sets"]["amx_tile"] is False
    shown = next(row.detail for row in report.rows if row.what == "CPU attention")
    assert "fastest with amx_tile, amx_bf16; this CPU has no amx_tile, amx_bf16" in shown
    kernels = next(part for part in document["parts"] if part["part"] == "vLLM kernels")
    assert kernels["lacking"] == ["avx512_bf16"]
    assert {"picks", "needs", "problem", "remedy"} <= set(kernels)


def test_flags_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvmx flags\t: vnmi\nflags\t\t: fpu avx2 amx_tile\n\nflags\t\t: fpu\n")
    assert read_flags(cpuinfo) == {"fpu", "avx2", "amx_tile"}
    assert read_flags(tmp_path / "absent") == frozenset()


@pytest.mark.engine
def test_the_engines_torch_sees_the_same_sets() -> None:
    """vLLM picks by torch's answer, the doctor by the kernel's: they must be the same on every host."""
    code = "import json, torch; print(json.dumps(dict(torch.cpu.get_capabilities()), default=str))"
    output = subprocess.run(
        [str(find_engine("cpu").python), "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    capabilities = json.loads(output.splitlines()[-1])
    flags = read_flags()
    for torch_name, flag in {"avx2": "avx2", "avx512_f": "avx512f", "avx512_bf16": "avx512_bf16"}.items():
        assert capabilities[torch_name] == (flag in flags), flag
    if capabilities["amx_tile"]:  # a kernel may hide what the CPU has
        assert "amx_tile" in flags
