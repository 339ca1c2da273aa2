"""Rows of `tracon doctor` about the host: C library, ports, disks, memory, CPU."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import read_cpu_model
from launch.host import read_host
from launch.instruction_sets import NAMED, Part
from launch.ports import is_free

PORTS_LOOKED_AT = 32
"""From the port base on; an engine takes one to four."""
ENGINE_MEMORY_BYTES: Mapping[str, int] = {"cpu": 3_000_000_000, "cuda": 32_000_000_000}
"""Memory that should be available on the host for one engine."""
LEAST_GLIBC = (2, 31)
"""Needed by llguidance; no other wheel in the CUDA lock needs a later one."""


def check_libc() -> Row:
    """Whether the wheels of the CUDA lock can be installed: by the version of glibc."""
    name, version = platform.libc_ver()
    least = ".".join(map(str, LEAST_GLIBC))
    shown = f"{name} {version}".strip() or "no glibc"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name == "glibc" and numbers >= LEAST_GLIBC:
        return Row("glibc", OK, version)
    detail = f"{shown}: some wheels of `tracon engine install cuda` need glibc {least} or later"
    remedy = f"use a system with glibc {least} (Ubuntu 20.04, Debian 11, RHEL 9) or a container image of one"
    return Row("glibc", MISSING, detail, remedy)


def check_ports(port_base: int) -> Row:
    ports = range(port_base, min(port_base + PORTS_LOOKED_AT, 65536))
    taken = [port for port in ports if not is_free(port)]
    if not taken:
        return Row("ports", OK, f"{ports.start}-{ports.stop - 1} free")
    listed = ", ".join(map(str, taken))
    remedy = "see who holds them with `ss -ltnp`, or set another launch.port_base in the profile"
    state = WARN if len(taken) < len(ports) else MISSING
    return Row("ports", state, f"in use among {ports.start}-{ports.stop - 1}: {listed}", remedy)


def describe_mooncake_ports() -> Row:
    detail = "its bootstrap server and transfer engine listen on all interfaces and have no setting for an address"
    return Row("mooncake ports", WARN, detail, "keep this host behind a firewall while engines of such configs run")


def check_disk(what: str, folder: Path, needed_bytes: int) -> Row:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 1e9:.1f} GB free at {folder}"
    if not os.access(existing, os.W_OK):
        remedy = "choose another folder (TRACON_HOME, --workspace)"
        return Row(what, MISSING, f"{detail}, but {existing} cannot be written", remedy)
    if free < needed_bytes:
        needed = f"{detail}, {needed_bytes / 1e9:.0f} GB needed"
        return Row(what, MISSING, needed, "free space, or choose another folder")
    return Row(what, OK, detail)


def check_memory(kind: str) -> Row:
    host = read_host()
    detail = f"{host.available_bytes / 1e9:.1f} of {host.memory_bytes / 1e9:.1f} GB available"
    remedy = "end other programs"
    if host.limits.memory_bytes is not None:
        detail += ", by the limit of this cgroup (memory.max)"
        remedy = "raise the container's or service's memory limit"
    needed = ENGINE_MEMORY_BYTES[kind]
    if host.memory_bytes < needed and host.limits.memory_bytes is None:
        remedy = "use a host with more memory"
    if host.available_bytes < needed:
        return Row("memory", WARN, f"{detail}, one engine needs about {needed / 1e9:.0f} GB", remedy)
    return Row("memory", OK, detail)


def check_cpu() -> Row:
    host = read_host()
    detail = f"{read_cpu_model()}, {host.cores} cores"
    if host.cores < host.host_cores:
        detail += f" of {host.host_cores}"
    if platform.machine() != "x86_64":
        return Row("CPU", MISSING, f"{detail}: {platform.machine()}", "use a host with an x86-64 CPU")
    if host.limits.cores is not None and host.limits.cores < host.cores:
        detail += f", limited to the time of {host.limits.cores:g} cores by this cgroup's quota (cpu.max)"
        remedy = "raise the container's or service's CPU limit: a quota pauses all its processes for up to 0.1 s"
        return Row("CPU", WARN, detail, remedy)
    return Row("CPU", OK, detail)


def check_instruction_set(flags: frozenset[str]) -> Row:
    here = ", ".join(name for name in NAMED if name in flags) or "none that an engine asks about"
    absent = ", ".join(name for name in NAMED if name not in flags)
    return Row("instruction sets", OK, here + (f"; absent: {absent}" if absent else ""))


def describe_part(part: Part) -> Row:
    if part.problem:
        return Row(part.part, MISSING, part.problem, part.remedy)
    lacking = f"; this CPU has no {', '.join(part.lacking)}" if part.lacking else ""
    return Row(part.part, OK, f"{part.picks} (fastest with {', '.join(part.needs)}{lacking})")
