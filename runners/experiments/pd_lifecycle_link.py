"""What the link between the two engines carries, measured without them: a yardstick for the transfers' bandwidth.

On a CPU both connectors move KV over the host's own network or memory. One TCP stream between two processes over the
loopback device, with as many bytes as the largest transfer of the grid, is what one could expect of it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import msgspec

from launch.environment import home
from launch.ports import LOOPBACK
from launch.profile import TINY_MODEL, Profile
from launch.tiny_model import MODEL_ID
from results.layout import write_atomic
from runners.experiments.pd_lifecycle_grid import Grid
from runners.experiments.routing_transfers import kv_bytes_per_token

ROUNDS, WARMUP_ROUNDS = 20, 5
WITHIN_S = 60.0
METHOD = (
    "one TCP stream over loopback between two processes, {size} bytes at a time until the receiver has confirmed them; "
    "median, lowest and highest of {rounds} rounds after {warmup} more"
)


class Link(msgspec.Struct, frozen=True):
    """What was found: `results/lifecycle/link.json`. In 10^9 bits per second; None = not known, `reason` says why."""

    gbps: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""
    known_from: str = msgspec.field(default="", name="from")
    """`measured` here, or `given` by the profile."""
    reason: str = ""


def find_link(grid: Grid, profile: Profile) -> Link:
    """The link that the profile gives; else, between engines on CPUs, as it is measured now."""
    given = grid.analysis.link_gbps
    if given is not None:
        return Link(given, method="analysis.link_gbps of the preset", known_from="given")
    if profile.engine.kind != "cpu":
        return Link(reason="between GPUs nothing but the connector can measure it: give analysis.link_gbps")
    source = profile.model.source
    folder = home() / "models" / MODEL_ID if source == TINY_MODEL else Path(source)
    bytes_per_token = kv_bytes_per_token(folder)
    if bytes_per_token is None:
        return Link(reason=f"the model's folder {folder.name} does not say how many bytes the KV of a token takes")
    try:
        return measured_link(max(grid.new_tokens) * bytes_per_token)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Link(reason=f"it could not be measured: {type(error).__name__}: {error}")


def measured_link(size: int) -> Link:
    """Send `size` bytes again and again to a process of its own. Raises OSError or ValueError where it cannot."""
    child = subprocess.Popen(
        [sys.executable, "-m", "runners.experiments.pd_lifecycle_link", str(size)], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with socket.create_connection((LOOPBACK, port), timeout=WITHIN_S) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rounds = [_round_gbps(stream, bytes(size)) for _ in range(WARMUP_ROUNDS + ROUNDS)]
    finally:
        child.kill()
        child.wait()
    found, method = rounds[WARMUP_ROUNDS:], METHOD.format(size=size, rounds=ROUNDS, warmup=WARMUP_ROUNDS)
    return Link(median(found), min(found), max(found), method, "measured")


def write_link(path: Path, link: Link) -> None:
    """Raises OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(link), indent=2) + b"\n")


def _round_gbps(stream: socket.socket, data: bytes) -> float:
    t_ns = perf_counter_ns()
    stream.sendall(data)
    if not stream.recv(1):
        raise OSError("the receiver is gone")
    return 8 * len(data) / (perf_counter_ns() - t_ns)


def _receive(size: int) -> None:
    """Take `size` bytes and confirm them, until the other end closes."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(WITHIN_S)
        print(server.getsockname()[1], flush=True)
        stream, _ = server.accept()
    buffer = memoryview(bytearray(size))
    with stream:
        stream.settimeout(WITHIN_S)
        while True:
            taken = 0
            while taken < size:
                count = stream.recv_into(buffer[taken:])
                if not count:
                    return
                taken += count
            stream.sendall(b"k")


if __name__ == "__main__":
    _receive(int(sys.argv[1]))
