"""The GPUs of this host: whether there is one, which an engine takes, and what nvidia-smi states of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from launch.errors import LaunchError
from launch.profile import Profile

DRIVER = Path("/proc/driver/nvidia/version")
"""Exists where the kernel has NVIDIA's driver."""
QUERY_TIMEOUT_S = 30.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
PART = "MIG-"
"""Begins the name of a part of a GPU. Tracon does not query which GPU it is a part of."""


class NoGpu(LaunchError):
    """A CUDA engine has no GPU to run on."""


def list_gpus() -> list[str] | str:
    """The GPUs nvidia-smi lists, a line each, or why there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no nvidia-smi"
    try:
        run = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if run.returncode:
        return (run.stdout + run.stderr).strip() or f"nvidia-smi ended with {run.returncode}"
    return [line for line in run.stdout.splitlines() if line.startswith("GPU ")]


def query_gpus(fields: Sequence[str], devices: Sequence[str] | None, path: str | None = None) -> list[list[str]] | None:
    """Index and fields of these GPUs (None = every one of the host), a row each; None where nvidia-smi does not answer.

    nvidia-smi itself ignores CUDA_VISIBLE_DEVICES. `path`: where to look for it, in place of this process's PATH.
    """
    rows = ask_nvidia_smi("gpu", ("index", "uuid", *fields), path)
    try:
        return rows and [[index, *values] for index, uuid, *values in rows if is_among(devices, index, uuid)]
    except ValueError:
        return None


def ask_nvidia_smi(subject: str, fields: Sequence[str], path: str | None = None) -> list[list[str]] | None:
    """A row of these fields for each `gpu` or `compute-apps` of the host; None where nvidia-smi does not answer."""
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return None
    argv = [program, f"--query-{subject}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.strip()]


def is_among(devices: Sequence[str] | None, index: str, uuid: str) -> bool:
    """Whether the GPU is one of these devices (None = every one); a part of a GPU may be one of any."""
    return devices is None or any(device.startswith(PART) or names_gpu(device, index, uuid) for device in devices)


def names_gpu(device: str, index: str, uuid: str) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES is this GPU: its index, or the beginning of its UUID."""
    return device == index or (device.startswith("GPU-") and uuid.startswith(device))


def has_free(total_mib: int, used_mib: int, share: float) -> bool:
    """Whether a GPU has this share of its memory free, without which vLLM refuses to start."""
    return total_mib - used_mib >= share * total_mib


def list_visible_devices(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names; None where it is not set: every one of the host."""
    named = environ.get(VISIBLE)
    return None if named is None else [device.strip() for device in named.split(",") if device.strip()]


def list_engine_devices(size: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that an engine of `size` GPUs uses in this environment: the first ones that it may use."""
    visible = list_visible_devices(environ)
    return tuple(map(str, range(size))) if visible is None else tuple(visible[:size])


def explain_no_gpu() -> str:
    """Why this host has no GPU; empty where the kernel or nvidia-smi knows of one.

    Either is enough: a container may lack nvidia-smi, and a kernel may have another driver's file (WSL).
    """
    if DRIVER.exists():
        return ""
    listed = list_gpus()
    if listed and not isinstance(listed, str):
        return ""
    return f"no NVIDIA driver in this kernel; {listed or 'nvidia-smi lists none'}"


def require_gpu(profile: Profile) -> None:
    """Raises NoGpu where engines of this profile need a GPU and this host has none."""
    if profile.engine.kind == "cuda" and (why := explain_no_gpu()):
        raise NoGpu(
            f"the engines of profile {profile.name} need an NVIDIA GPU, and this host has none: {why}",
            remedy=f"run on a host with a GPU (`tracon doctor --profile {profile.name}` names all that is missing), or "
            "use a CPU profile: --profile cpu-tiny",
        )


def choose_second_devices(size: int, environ: Mapping[str, str] = os.environ, full: Collection[str] = ()) -> str:
    """`CUDA_VISIBLE_DEVICES` of a second engine of `size` GPUs beside one on the first; empty = there are too few.

    `full`: GPUs without room for it, which it skips.
    """
    beside = [device for device in _list_devices(environ)[size:] if device not in full]
    return ",".join(beside[:size]) if len(beside) >= size else ""


def name_devices(indexes: Sequence[int], environ: Mapping[str, str] = os.environ) -> str:
    """`CUDA_VISIBLE_DEVICES` for the GPUs at these indexes of those that this process may use.

    Raises LaunchError where it may use fewer.
    """
    devices, named = _list_devices(environ), environ.get(VISIBLE)
    if named is None and not devices:  # nvidia-smi does not answer: the engine finds out
        return ",".join(map(str, indexes))
    if max(indexes) >= len(devices):
        whose = "this host has" if named is None else f"CUDA_VISIBLE_DEVICES={named} names"
        raise LaunchError(
            f"{whose} {len(devices)} GPUs, and an engine wants number {max(indexes) + 1}",
            remedy="use a host with more, name more in CUDA_VISIBLE_DEVICES, or let engines share them: `gpus` of the "
            "preset (`--set gpus=1`)",
        )
    return ",".join(devices[index] for index in indexes)


def _list_devices(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; empty where that is not known."""
    visible = list_visible_devices(environ)
    if visible is not None:
        return visible
    return [index for (index,) in query_gpus((), None, environ.get("PATH", "")) or ()]
