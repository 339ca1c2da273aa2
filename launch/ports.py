"""Free ports, and the processes that hold the others."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

import psutil

from launch.errors import HostObstacle

LOOPBACK = "127.0.0.1"
SEARCHED = 2000
"""How many ports above the base are tried."""


class PortTaken(HostObstacle):
    """Another server listens on a port that an engine needs."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port; pid None where this user may not see it."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})" if self.pid is not None else "a process that this user cannot see"


def is_free(port: int) -> bool:
    """Whether a server could listen there now (connections of an ended one do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(base: int, count: int = 1) -> int:
    """The first port from `base` on that begins `count` free ones in a row."""
    port = base
    while port < min(base + SEARCHED, 65536 - count):
        taken = next((port + i for i in reversed(range(count)) if not is_free(port + i)), None)
        if taken is None:
            return port
        port = taken + 1
    raise PortTaken(
        f"no {count} free ports in a row between {base} and {base + SEARCHED}",
        remedy="end the servers that hold them (`ss -ltnp`), or set another launch.port_base in the profile",
    )


def find_holders(port: int) -> tuple[Holder, ...]:
    """Every process that listens on `port`; empty where none does."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return () if is_free(port) else (Holder(None, ""),)
    listening = [c for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port]
    return tuple(Holder(connection.pid, _read_command(connection.pid)) for connection in listening)


def _read_command(pid: int | None) -> str:
    if pid is None:
        return ""
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:160]
    return ""


def require_free(ports: dict[str, int]) -> None:
    """Raise PortTaken naming port, purpose and holder unless all of `ports` (purpose -> port) are free."""
    for purpose, port in ports.items():
        if is_free(port):
            continue
        holder = next(iter(find_holders(port)), Holder(None, ""))
        kill = f"end it (`kill {holder.pid}`)" if holder.pid not in (None, os.getpid()) else "end that server"
        raise PortTaken(
            f"port {port} ({purpose}) is taken by {holder}: a stale server would be measured instead of the engine",
            remedy=f"{kill}, or use another port (launch.port_base in the profile)",
        )
