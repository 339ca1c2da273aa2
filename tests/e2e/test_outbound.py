"""What the watch on connections of a run sees: it is the measure of the runs on the fake GPU host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.outbound import Outbound, parse_address, reached_by_python
from tests.launch.programs import wait_until

GPU_HOST = Path(__file__).with_name("gpu_host")
CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    server.recv(1)
"""
"""Holds a connection until the server closes it."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def connect(
    server: socket.socket,
    name: str,
    *,
    workspace: str = "",
    stdout: IO[bytes] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CLIENT, str(server.getsockname()[1]), name]
    return subprocess.Popen(argv, env={**os.environ, "TRACON_WORKSPACE": workspace}, stdout=stdout, cwd=cwd)


def test_a_connection_beyond_this_host_is_seen_of_every_process_of_a_run_alone(
    server: socket.socket, tmp_path: Path
) -> None:
    """No address counts as this host's here, so that a connection over the loopback is one beyond it."""
    workspace, port = tmp_path / "runs", server.getsockname()[1]
    workspace.mkdir()
    with Outbound(workspace, is_own=lambda _address: False) as watch, (workspace / "log").open("wb") as log:
        clients = [
            connect(server, "by-environment", workspace=str(workspace)),
            connect(server, "by-output", stdout=log),
            connect(server, "by-folder", cwd=workspace),
            connect(server, "of-another-run", workspace=f"{workspace}-2"),
        ]
        accepted = [server.accept()[0] for _ in clients]
        expected = {client.pid for client in clients[:3]}
        seen = wait_until(lambda: len(watch.beyond) == 3 and watch.pids >= expected, 10.0)
        for connection in accepted:
            connection.close()
        for client in clients:
            client.wait(10.0)
    assert watch.failure is None
    assert seen, watch.beyond
    assert {text.partition(", ")[0] for text in watch.beyond} == {
        f"tcp 127.0.0.1 port {port}: pid {pid}" for pid in expected
    }
    assert clients[3].pid not in watch.pids


def test_connections_of_a_run_within_this_host_are_no_finding(server: socket.socket, tmp_path: Path) -> None:
    with Outbound(tmp_path) as watch:
        client = connect(server, "client", cwd=tmp_path)
        accepted, _ = server.accept()
        assert wait_until(lambda: client.pid in watch.pids, 10.0)
        accepted.close()
        client.wait(10.0)
    assert (watch.failure, watch.beyond) == (None, set())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("00000000000000000000000001000000", "::1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_addresses_are_read_as_the_kernel_writes_them(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


REACH = """
import contextlib, socket
with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
    for address in ("192.0.2.1", "127.0.0.1"):
        with contextlib.suppress(OSError):
            any_socket.connect((address, 9))
with contextlib.suppress(OSError):
    socket.getaddrinfo("hub.invalid", 443, flags=socket.AI_NUMERICHOST)
with socket.socket(socket.AF_UNIX) as local:
    with contextlib.suppress(OSError):
        local.connect("/no/such/socket")
"""
"""Sends nothing: a datagram socket that connects, and a lookup that takes numbers alone."""


def test_what_python_connects_to_or_resolves_on_the_fake_gpu_host_is_recorded(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(GPU_HOST), "TRACON_FAKE_GPU_HOST": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", REACH], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = reached_by_python(tmp_path / "reached")
    assert [line.split()[1:] for line in lines] == [
        ["socket.connect", "192.0.2.1"],
        ["socket.getaddrinfo", "hub.invalid"],
    ]
    (tmp_path / "reached").write_text(f"1 socket.getaddrinfo {socket.gethostname()}\n1 socket.connect 127.0.0.2\n")
    assert reached_by_python(tmp_path / "reached") == []
