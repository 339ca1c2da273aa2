"""What the link between the two engines is: its bandwidth, for comparison with the transfers', and its transport.

On a CPU both connectors move KV over the host's own network or memory. The reference is one TCP stream between two
processes over loopback, with as many bytes as the largest transfer of the grid.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from launch.builtin_models import find_builtin_folder
from launch.ports import LOOPBACK
from launch.profile import Profile
from results.records.layout import ConfigLayout
from results.records.link import LinkRecord
from runners.experiments.kv_endpoints import kv_bytes_per_token
from runners.experiments.pd_lifecycle.grid import Grid

ROUNDS, WARMUP_ROUNDS = 20, 5
WITHIN_S = 60.0
METHOD = (
    "one TCP stream over loopback between two processes, {size} bytes at a time until the receiver has confirmed them; "
    "median, lowest and highest of {rounds} rounds after {warmup} more"
)
TRANSPORT = re.compile(
    r"The Mooncake Transfer Engine is using \S+ as its protocol"
    r"|Topology discovery complete\. Found \d+ HCAs"
    r"|RDMA device: .*"
    r"|Using [\w -]+ transport \([^)\n]*\)"
    r"|MC_FORCE_TCP is set, using TCP transport only"
    r"|TcpTransport: listen"
)
"""Lines that Mooncake 0.3.13 logs when it starts. It falls back to TCP where it finds no adapter (HCA). Its
wheel without CUDA logs no `Using ... transport`."""


def read_transport(layout: ConfigLayout) -> tuple[str, ...]:
    """What the logs of an engine tell about its connector's transport, each text once; empty where they are missing."""
    logs = (path for path in (layout.stdout, layout.stderr) if path.exists())
    texts = (match.group() for path in logs for match in TRANSPORT.finditer(path.read_text(errors="replace")))
    return tuple(dict.fromkeys(texts))


def find_link(grid: Grid, profile: Profile) -> LinkRecord:
    """The bandwidth stated in the profile; else, between CPU engines, a measurement."""
    stated = grid.analysis.link_gbps
    if stated is not None:
        return LinkRecord(stated, method="analysis.link_gbps of the preset", known_from="given")
    if profile.engine.kind != "cpu":
        return LinkRecord(reason="only the connector can measure it between GPUs: set analysis.link_gbps")
    source = profile.model.source
    folder = find_builtin_folder(source) or Path(source)
    bytes_per_token = kv_bytes_per_token(folder)
    if bytes_per_token is None:
        return LinkRecord(reason=f"the model's folder {folder.name} does not state the KV bytes of a token")
    try:
        return measure_link(max(grid.new_tokens) * bytes_per_token)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return LinkRecord(reason=f"it could not be measured: {type(error).__name__}: {error}")


def measure_link(size: int) -> LinkRecord:
    """Send `size` bytes repeatedly to a child process. Raises OSError or ValueError."""
    child = subprocess.Popen(
        [sys.executable, "-m", "runners.experiments.pd_lifecycle.link_bandwidth", str(size)], stdout=subprocess.PIPE
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
    measured, method = rounds[WARMUP_ROUNDS:], METHOD.format(size=size, rounds=ROUNDS, warmup=WARMUP_ROUNDS)
    return LinkRecord(median(measured), min(measured), max(measured), method, "measured")


def _round_gbps(stream: socket.socket, data: bytes) -> float:
    t_ns = perf_counter_ns()
    stream.sendall(data)
    if not stream.recv(1):
        raise OSError("the receiver closed the connection")
    return 8 * len(data) / (perf_counter_ns() - t_ns)


def _receive_bytes(size: int) -> None:
    """Receive `size` bytes and confirm them, until the peer closes."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(WITHIN_S)
        print(server.getsockname()[1], flush=True)
        stream, _ = server.accept()
    buffer = memoryview(bytearray(size))
    with stream:
        stream.settimeout(WITHIN_S)
        while True:
            received = 0
            while received < size:
                count = stream.recv_into(buffer[received:])
                if not count:
                    return
                received += count
            stream.sendall(b"k")


if __name__ == "__main__":
    _receive_bytes(int(sys.argv[1]))
