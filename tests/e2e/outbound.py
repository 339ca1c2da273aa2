"""Which connections the processes of a run open to other hosts: sampled from the kernel's tables while it runs.

A connection that lasts less than SAMPLE_S may be missed. What Python itself connects to or resolves is recorded as it
happens, by `gpu_host/sitecustomize.py`.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Self

import psutil

SAMPLE_S = 0.05
PROCESSES_EVERY = 20
"""Samples between two looks at which processes the run has."""
TABLES = ("tcp", "tcp6", "udp", "udp6")
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Connection:
    """A socket that is connected, or is about to be."""

    protocol: str
    remote: Address
    port: int
    inode: int
    """0 = no process holds it any more."""

    def __str__(self) -> str:
        return f"{self.protocol} {self.remote} port {self.port}"


def read_connections(tables: Path = Path("/proc/net")) -> Iterator[Connection]:
    """Every one of this host, whatever its state; what only listens has no remote address and is left out."""
    for protocol in TABLES:
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in (tables / protocol).read_text().splitlines()[1:]:
                words = line.split()
                remote, _, port = words[2].partition(":")
                address = parse_address(remote)
                if not address.is_unspecified:
                    yield Connection(protocol, address, int(port, 16), int(words[9]))


@functools.lru_cache(4096)
def parse_address(text: str) -> Address:
    """Of /proc/net: words of four bytes, each written as a number of this little-endian host."""
    data = bytes.fromhex(text)
    address = ip_address(b"".join(data[start : start + 4][::-1] for start in range(0, len(data), 4)))
    return getattr(address, "ipv4_mapped", None) or address


@functools.cache
def own_addresses() -> frozenset[Address]:
    """Of this host's interfaces."""
    addresses: set[Address] = set()
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            with contextlib.suppress(ValueError):  # a hardware address
                addresses.add(ip_address(each.address.partition("%")[0]))
    return frozenset(addresses)


def is_own(address: Address) -> bool:
    """Whether it is the loopback or an address of this host."""
    return address.is_loopback or address in own_addresses()


def is_of_run(pid: int, workspace: Path) -> bool:
    """Whether a process belongs to a run of this workspace: it works or writes there, or has it in its environment.

    An engine's processes give themselves a title in place of what was their environment; all write to the run's folder.
    """
    folder = Path(f"/proc/{pid}")
    for link in ("cwd", "fd/1", "fd/2"):
        with contextlib.suppress(OSError):
            if (folder / link).readlink().is_relative_to(workspace):
                return True
    with contextlib.suppress(OSError):
        return f"TRACON_WORKSPACE={workspace}".encode() in (folder / "environ").read_bytes().split(b"\0")
    return False


def sockets_of(pid: int) -> set[int]:
    """Inodes of the process's sockets."""
    inodes = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(int(target[len("socket:[") : -1]))
    return inodes


@dataclass
class Outbound:
    """Watches the runs of a workspace from entering to leaving the context."""

    workspace: Path
    is_own: Callable[[Address], bool] = is_own
    samples: int = 0
    pids: set[int] = field(default_factory=set)
    """Processes of the runs that were seen."""
    beyond: set[str] = field(default_factory=set)
    """Protocol, remote address and process of each connection of theirs to another host."""
    failure: BaseException | None = None
    """What ended the watch before its time."""

    def __post_init__(self) -> None:
        self._judged: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_over, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample_until_over(self) -> None:
        try:
            while not self._over.wait(SAMPLE_S):
                self._sample()
        except BaseException as error:  # noqa: BLE001  (for the test: no one sees what a thread raises)
            self.failure = error

    def _sample(self) -> None:
        if self.samples % PROCESSES_EVERY == 0:
            self.pids.update(pid for pid in psutil.pids() if is_of_run(pid, self.workspace))
        self.samples += 1
        outside = {each.inode: each for each in read_connections() if each.inode and not self.is_own(each.remote)}
        new = set(outside) - self._judged
        self._judged = set(outside)
        for pid in psutil.pids() if new else ():
            held = sockets_of(pid) & new
            if held and is_of_run(pid, self.workspace):
                self.beyond.update(f"{outside[inode]}: pid {pid}, {_read_command(pid)}" for inode in held)


def _read_command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:120]
    return ""


def reached_by_python(record: Path) -> list[str]:
    """Lines of what `gpu_host/sitecustomize.py` recorded that name another host."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [line for line in lines if not _names_this_host(line.split()[-1])]


def _names_this_host(name: str) -> bool:
    try:
        return is_own(ip_address(name.partition("%")[0]))
    except ValueError:
        return name == socket.gethostname()
