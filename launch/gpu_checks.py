"""The doctor's checks of a host for CUDA engines: driver, CUDA, attention backends, memory, RDMA, samples."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import Engine
from launch.gpu_devices import (
    DRIVER,
    PART,
    VISIBLE,
    ask_nvidia_smi,
    has_free,
    list_gpus,
    list_visible_devices,
    query_gpus,
)
from launch.gpu_fit import estimate_engine_bytes, find_fitting_settings
from launch.gpu_modes import check_modes
from launch.install_plan import PYTHON, read_locked_versions
from launch.profile import Profile, list_profile_names
from launch.rdma_checks import check_rdma
from results.records.percent import format_percent

LEAST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}
"""Major CUDA version to the oldest driver branch that runs it (NVIDIA, "CUDA Compatibility")."""
COMPAT_ROOT = Path("/usr/local")
"""NVIDIA's packages `cuda-compat-*` put a newer libcuda into cuda-<version>/compat below it."""
LIBRARY_PATH = "LD_LIBRARY_PATH"
LEAST_CAPABILITY = 7.5
"""The CUDA 13 build of torch has kernels for this one and later ones."""
GPU_FIELDS = ("compute_cap", "memory.total", "memory.used")
"""Fields of GpuFacts, as nvidia-smi names them."""
QUERY_TIMEOUT_S = 30.0
COMPILERS = ("gcc", "clang", "cc")
_INCLUDE = "import sysconfig; print(sysconfig.get_path('include'))"
SMALL_PROFILE = "h200-qwen3-0.6b-dummy"
"""The profile for GPUs with the smallest model."""
STOP_HOLDER = "stop the process that holds it (`nvidia-smi` lists it), or wait for its end"
NO_VERSION = "no NVIDIA driver in this kernel, and nvidia-smi states no version"
NO_DRIVER = "install NVIDIA's driver; in a container, start it with the GPUs passed through (`--gpus all`)"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as nvidia-smi reports it."""

    index: str
    capability: float
    total_mib: int
    used_mib: int


def check_cuda_host(engine: Engine | None, infiniband: Path, profile: Profile) -> tuple[Row, ...]:
    gpus = read_gpus()
    return (
        check_driver(engine),
        *(() if engine is None else (_check_attention(engine, gpus),)),
        check_compiler(engine),
        check_modes(),
        _check_memory(gpus, profile),
        check_rdma(infiniband, {**os.environ, **profile.engine.env}),
        _check_samples(),
    )


def read_gpus() -> tuple[GpuFacts, ...]:
    """Those that engines may use; empty where there are none, or nvidia-smi does not answer."""
    rows = query_gpus(GPU_FIELDS, list_visible_devices()) or ()
    try:
        return tuple(
            GpuFacts(index, float(capability), int(total), int(used)) for index, capability, total, used in rows
        )
    except ValueError:
        return ()


def read_driver() -> str | None:
    """The driver's version, as the kernel has it; where it does not state one (WSL, some containers), nvidia-smi's."""
    try:
        match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", DRIVER.read_text())
    except OSError:
        match = None
    if match:
        return match.group(1)
    rows = ask_nvidia_smi("gpu", ("driver_version",)) or ()
    return next((version for version, *_ in rows if re.fullmatch(r"\d+\.\d+(?:\.\d+)?", version)), None)


def read_torch_cuda(site_packages: Path) -> str | None:
    """The CUDA version that torch was built for; empty = a build without CUDA, None = not known."""
    try:
        text = (site_packages / "torch" / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*(?:'([\d.]+)'|None)", text, re.MULTILINE)
    return None if match is None else match.group(1) or ""


def read_locked_cuda() -> str | None:
    """The CUDA version of the locked environment's torch: that of the runtime locked beside it; None = not known."""
    runtime = read_locked_versions("cuda").get("nvidia_cuda_runtime")
    return None if runtime is None else ".".join(runtime.split(".")[:2])


def find_compat_library(least: int) -> Path | None:
    """A libcuda of driver branch `least` or later, for forward compatibility: on LD_LIBRARY_PATH, else below
    COMPAT_ROOT; None = there is none."""
    named = (Path(folder) for folder in os.environ.get(LIBRARY_PATH, "").split(os.pathsep) if folder)
    for folder in (*named, *sorted(COMPAT_ROOT.glob("cuda*/compat"))):
        for path in sorted(folder.glob("libcuda.so.*")):
            branch = path.name.removeprefix("libcuda.so.").partition(".")[0]
            if branch.isdecimal() and int(branch) >= least:
                return path
    return None


def check_driver(engine: Engine | None) -> Row:
    """Whether the driver runs the CUDA of the engine's torch; without an engine, of the one that would be installed."""
    what = "driver and CUDA"
    driver = read_driver()
    cuda = read_locked_cuda() if engine is None else read_torch_cuda(engine.site_packages)
    if cuda == "":
        assert engine is not None
        remedy = "install a CUDA build of torch there, or build an environment with `tracon engine install cuda`"
        return Row(what, MISSING, f"torch {engine.versions.get('torch')} was built without CUDA", remedy)
    built = "the torch of `tracon engine install cuda` is" if engine is None else "torch was"
    wants = "" if cuda is None else f"{built} built for CUDA {cuda}"
    if driver is None:
        return Row(what, MISSING, "; ".join(filter(None, (NO_VERSION, wants))), NO_DRIVER)
    least = None if cuda is None else LEAST_DRIVER.get(int(cuda.partition(".")[0]))
    if least is not None and int(driver.partition(".")[0]) < least:
        needs = f"{wants}, which needs {least} or later"
        compat = find_compat_library(least)
        if compat is not None:
            detail = f"driver {driver} is too old by itself: {needs}; {compat} replaces its libcuda on data center GPUs"
            return Row(what, WARN, detail, _explain_compat(compat, least))
        remedy = (
            f"update the driver to {least} or later, or name an environment whose torch was built for an older CUDA: "
            "`make gpu ENGINE_PYTHON=...`, --engine-python"
        )
        return Row(what, MISSING, f"driver {driver} is too old: {needs}", remedy)
    return Row(what, OK, "; ".join(filter(None, (f"driver {driver}", wants))))


def _explain_compat(library: Path, least: int) -> str:
    """How to make engines load this libcuda, and what to do if it does not work."""
    update = f"if engines do not start, update the driver to {least} or later"
    inherited = os.environ.get(LIBRARY_PATH, "")
    if str(library.parent) in inherited.split(os.pathsep):
        return update
    # Written out, not `:$LD_LIBRARY_PATH`: an empty entry of that list is the working directory.
    value = os.pathsep.join(filter(None, (str(library.parent), inherited)))
    return f"`export {LIBRARY_PATH}={value}`; {update}"


def _check_attention(engine: Engine, gpus: Sequence[GpuFacts]) -> Row:
    """The backend that vLLM 0.32 takes by itself for a model with grouped-query attention in bfloat16."""
    what = "attention"
    folder = engine.site_packages / "vllm" / "vllm_flash_attn"
    built = {number for number in (2, 3) if (folder / f"_vllm_fa{number}_C.abi3.so").exists()}
    if not gpus:
        return Row(what, WARN, f"{_list_builds(built)}; which one is taken depends on the GPU, and none is known", "")
    lowest = min(gpu.capability for gpu in gpus)
    if lowest < LEAST_CAPABILITY:
        remedy = f"use a GPU of compute capability {LEAST_CAPABILITY:g} or more, or hide this one: CUDA_VISIBLE_DEVICES"
        return Row(what, MISSING, f"compute capability {lowest:g}: vLLM has no kernels for it", remedy)
    if lowest >= 10:
        return Row(what, OK, f"compute capability {lowest:g}: FlashInfer (compiles kernels at its first start)")
    wanted = 3 if lowest >= 9 else 2
    if lowest < 8:
        return Row(what, OK, f"compute capability {lowest:g}: Triton or FlashInfer; FlashAttention needs 8.0")
    if wanted not in built:
        remedy = "reinstall vLLM from its CUDA wheel, or see `tracon engine install cuda`"
        detail = f"{_list_builds(built)}; compute capability {lowest:g} needs FlashAttention {wanted}"
        return Row(what, WARN, detail, remedy)
    return Row(what, OK, f"compute capability {lowest:g}: FlashAttention {wanted}")


def _list_builds(built: set[int]) -> str:
    if not built:
        return "this vLLM has no FlashAttention"
    return f"this vLLM has FlashAttention {' and '.join(map(str, sorted(built)))}"


def check_compiler(engine: Engine | None) -> Row:
    """Triton compiles its launchers when an engine starts, with a C compiler and the headers of the engine's Python.

    Without an engine the compiler alone is checked: an environment brings its own Python.
    """
    what = "C compiler"
    version = PYTHON if engine is None else engine.versions.get("python", PYTHON)
    headers = f"python{'.'.join(version.split('.')[:2])}-dev"
    named = os.environ.get("CC")
    compiler = shutil.which(named) if named else next(filter(None, map(shutil.which, COMPILERS)), None)
    remedy = f"`apt-get install gcc {headers}`, or name a compiler in CC"
    if compiler is None:
        looked = f"CC names {named}, which is not on PATH" if named else f"none of {', '.join(COMPILERS)} is on PATH"
        return Row(what, MISSING, f"{looked}: Triton compiles with one when an engine starts", remedy)
    header = None if engine is None else _find_header(engine)
    if header is not None and not header.is_file():
        return Row(what, MISSING, f"{compiler}, but {header} is missing: the engine's Python has no headers", remedy)
    return Row(what, OK, compiler)


def _find_header(engine: Engine) -> Path | None:
    """Where the engine's Python has its header; None where it does not answer."""
    try:
        done = subprocess.run(
            [str(engine.python), "-c", _INCLUDE], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(done.stdout.strip()) / "Python.h"


def _check_memory(gpus: Sequence[GpuFacts], profile: Profile) -> Row:
    what, share = "GPU memory", profile.engine.gpu_memory_utilization
    if not gpus:
        return Row(what, MISSING, *_explain_no_memory())
    shown = ", ".join(f"{(gpu.total_mib - gpu.used_mib) / 1024:.1f} of {gpu.total_mib / 1024:.1f}" for gpu in gpus)
    detail = f"{shown} GiB free"
    if share is None:
        return Row(what, OK, detail)
    taken = f"{detail}; an engine takes {format_percent(share)} of all"
    if small := _find_small_gpus(gpus, share, profile):
        why = f"about {max(small.values()) / 2**30:.0f} GiB for weights, the KV of its longest request and the rest"
        others = ",".join(gpu.index for gpu in gpus if gpu.index not in small)
        export = f"use the other GPUs alone: `export {VISIBLE}={others}`"
        remedy = export if others else _suggest_settings(profile, gpus)
        return Row(what, MISSING, f"{taken}, and GPU {', '.join(small)} has too little: {why}", remedy)
    full = [gpu.index for gpu in gpus if not has_free(gpu.total_mib, gpu.used_mib, share)]
    if not full:
        return Row(what, OK, taken)
    others_have_room = len(gpus) - len(full) >= profile.engine.tensor_parallel_size
    return _judge_full(f"{taken}, more than GPU {', '.join(full)} has free", others_have_room)


def _judge_full(detail: str, others_have_room: bool) -> Row:
    """The row where other processes hold too much of some GPUs: missing where vLLM would refuse to start."""
    what = "GPU memory"
    if any(device.startswith(PART) for device in list_visible_devices() or ()):
        return Row(what, WARN, f"{detail}; what a part of it (MIG) has free is not known", STOP_HOLDER)
    if others_have_room:
        return Row(what, WARN, f"{detail}: engines take the others", STOP_HOLDER)
    remedy = f"{STOP_HOLDER}; or lower engine.gpu_memory_utilization of the profile"
    return Row(what, MISSING, f"{detail}: vLLM refuses to start there", remedy)


def _explain_no_memory() -> tuple[str, str]:
    """Why the memory of no GPU is known, and the remedy."""
    listed, named = list_gpus(), list_visible_devices()
    if isinstance(listed, str) or not listed:
        return "nvidia-smi reports no memory", NO_DRIVER
    if named is not None and query_gpus((), named) == []:
        return f"{VISIBLE}={','.join(named)} names no GPU", "name GPUs by index or UUID: `nvidia-smi -L` lists them"
    fields = ",".join(GPU_FIELDS)
    remedy = f"update the driver if it is an old one; see `nvidia-smi --query-gpu={fields} --format=csv`"
    return "nvidia-smi lists GPUs but does not state their compute capability and memory as numbers", remedy


def _find_small_gpus(gpus: Sequence[GpuFacts], share: float, profile: Profile) -> dict[str, int]:
    """Bytes that an engine of the profile needs, by index of each GPU of which this share is too small for it."""
    needed = {gpu.index: estimate_engine_bytes(profile, gpu.total_mib << 20) for gpu in gpus}
    shares = {gpu.index: share * (gpu.total_mib << 20) for gpu in gpus}
    return {index: size for index, size in needed.items() if size is not None and size > shares[index]}


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """Which GPUs of this host an engine fits into, by the doctor's estimate."""

    fitting: int
    """GPUs that it fits into, of those that it may take."""
    small: tuple[str, ...]
    """Indices of the others."""
    sizes: str
    """What it needs and what it would have there; empty where it fits everywhere."""


def judge_room(profile: Profile) -> GpuRoom | None:
    """None where nothing is known: no CUDA engine, no `gpu_memory_utilization`, or no GPU that nvidia-smi states."""
    share = profile.engine.gpu_memory_utilization
    if profile.engine.kind != "cuda" or share is None:
        return None
    gpus = read_gpus()
    if not gpus:
        return None
    small = _find_small_gpus(gpus, share, profile)
    if not small:
        return GpuRoom(len(gpus), (), "")
    has = min(share * gpu.total_mib / 1024 for gpu in gpus if gpu.index in small)
    sizes = (
        f"it needs about {max(small.values()) / 2**30:.1f} GiB, and {format_percent(share)} of the GPU's memory are "
        f"{has:.1f} GiB"
    )
    return GpuRoom(len(gpus) - len(small), tuple(small), sizes)


def explain_small_gpus(profile: Profile) -> str:
    """Which GPUs an engine of the profile does not fit into, by the doctor's estimate, and what to change.

    Empty where it fits, or where no GPU or no estimate is known.
    """
    room = judge_room(profile)
    if room is None or not room.small:
        return ""
    return (
        f"An engine of this run does not fit into GPU {', '.join(room.small)}, by an estimate: {room.sizes}. An engine "
        "that does not fit fails at its start: use another preset, a shorter engine.max_model_len or a smaller model."
    )


def _suggest_settings(profile: Profile, gpus: Sequence[GpuFacts]) -> str:
    """What to measure on GPUs that the profile's model does not fit into, as commands."""
    small = f"take the small model: `make gpu GPU_PROFILE={SMALL_PROFILE}`"
    if profile.name == SMALL_PROFILE:
        small = "use a GPU with more memory"
    fitting = find_fitting_settings(profile, min(gpu.total_mib for gpu in gpus) << 20, len(gpus))
    if fitting is None:
        return small
    changed = [
        (name, getattr(profile.engine, name), getattr(fitting, name))
        for name in ("max_model_len", "tensor_parallel_size")
        if getattr(profile.engine, name) != getattr(fitting, name)
    ]
    settings = " and ".join(f"engine.{name} = {new}" for name, _, new in changed)
    if profile.name not in list_profile_names():
        return f"{small}; or write {settings} into the profile"
    # Of the first such line alone: a preset may state the same.
    edits = " ".join(f"-e '0,/^{name} = {old}/s//{name} = {new}/'" for name, old, new in changed)
    copy = f"sed {edits} launch/profiles/{profile.name}.toml >smaller.toml && make gpu GPU_PROFILE=./smaller.toml"
    return f"measure with {settings}: `{copy}`; or {small}"


def _check_samples() -> Row:
    what = "GPU samples"
    if importlib.util.find_spec("pynvml") is None:
        remedy = "`pip install nvidia-ml-py` into Tracon's environment (`make gpu` does)"
        return Row(what, WARN, "nvidia-ml-py is not installed: clocks, power and temperature are not recorded", remedy)
    return Row(what, OK, "clocks, power, temperature, memory and throttling, by nvidia-ml-py")
