"""The doctor's check of RDMA adapters: which ones engines may use, and whether these reach a GPU's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launch.doctor_rows import MISSING, OK, WARN, Row

RDMA = "RDMA"
PEER_MEMORY = Path("/sys/module/nvidia_peermem")
"""Exists where RDMA adapters may reach a GPU's memory directly."""
DEVICE_NODES = Path("/dev/infiniband")
"""A program opens an adapter by its node here, `uverbs<N>`. A container may see the adapters and have no node."""
DMA_BUF = "WITH_NVIDIA_PEERMEM"
"""Mooncake registers GPU memory as DMA-BUF, without nvidia_peermem, where this is off."""
FORCE_TCP = "MC_FORCE_TCP"
"""Where it is set, whatever its value, Mooncake leaves adapters alone."""
OFF = frozenset({"0", "false", "off", "no"})


def check_rdma(infiniband: Path, environ: Mapping[str, str] = os.environ) -> Row:
    """Adapters with their ports, and whether they reach a GPU's memory; `environ`: an engine's.

    Missing where they do not: Mooncake takes an active adapter whenever it can open one.
    """
    devices = sorted(infiniband.iterdir()) if infiniband.is_dir() else []
    if not devices:
        remedy = "load the adapter's driver; in a container, pass /dev/infiniband through"
        return Row(RDMA, WARN, f"no device in {infiniband}: transfers fall back to TCP", remedy)
    detail = ", ".join(f"{path.name} ({_read_ports(path)})" for path in devices)
    usable = [path for path in devices if _can_open(path)]
    if not usable:
        why = f"no {DEVICE_NODES}/uverbs<N> of theirs can be opened: transfers fall back to TCP"
        remedy = f"in a container, pass {DEVICE_NODES} through; else let this user read and write its files"
        return Row(RDMA, WARN, f"{detail}; {why}", remedy)
    if not any("ACTIVE" in _read_ports(path) for path in usable):
        return Row(RDMA, WARN, f"{detail}: no port is active", "connect and configure the adapter: `rdma link`")
    if PEER_MEMORY.is_dir():
        return Row(RDMA, OK, f"{detail}; nvidia_peermem is loaded")
    return _judge_without_peer_memory(detail, environ)


def _judge_without_peer_memory(detail: str, environ: Mapping[str, str]) -> Row:
    absent = f"{detail}; nvidia_peermem is not loaded"
    if FORCE_TCP in environ:
        return Row(RDMA, WARN, f"{absent}, and {FORCE_TCP} is set: Mooncake uses TCP", f"unset {FORCE_TCP} to use RDMA")
    if environ.get(DMA_BUF, "").strip().lower() in OFF:
        how = f"{DMA_BUF}={environ[DMA_BUF]}: Mooncake registers GPU memory as DMA-BUF, which the doctor does not check"
        remedy = f"if Mooncake cannot register memory, `modprobe nvidia_peermem` as root and unset {DMA_BUF}"
        return Row(RDMA, WARN, f"{absent}, and {how}", remedy)
    remedy = (
        f"`modprobe nvidia_peermem` as root; or `export {DMA_BUF}=0`, if kernel and driver have DMA-BUF; or "
        f"`export {FORCE_TCP}=1`, for transfers over TCP; or measure configs without Mooncake: "
        '`make gpu GPU_CONFIGS="plain noop_connector nixl_both lmcache_only"` (`--config`, `doctor --only`)'
    )
    why = "Mooncake registers GPU memory with the adapter and cannot; NIXL copies through the host"
    return Row(RDMA, MISSING, f"{absent}: {why}", remedy)


def _can_open(device: Path) -> bool:
    """Whether this user may open the adapter: read and write one of its nodes."""
    return any(os.access(DEVICE_NODES / node, os.R_OK | os.W_OK) for node in _list_nodes(device))


def _list_nodes(device: Path) -> list[str]:
    """The names of the adapter's nodes, by /sys/class/infiniband_verbs, else by what the adapter's own folder has."""
    verbs = device.parent.with_name("infiniband_verbs")
    named = [file.parent.name for file in sorted(verbs.glob("uverbs*/ibdev")) if _read_line(file) == device.name]
    return named or sorted(path.name for path in device.glob("device/infiniband_verbs/uverbs*"))


def _read_line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _read_ports(device: Path) -> str:
    lines = map(_read_line, sorted(device.glob("ports/*/state")))
    return ", ".join(line.partition(":")[2].strip() or "state unknown" for line in lines) or "no port"
