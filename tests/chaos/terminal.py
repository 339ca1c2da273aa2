"""A console on a pseudo-terminal, whose output is read and forgotten."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

KEPT_BYTES = 20_000


class Console:
    """`python -m console RUN` on a terminal of its own."""

    def __init__(self, run: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "console", str(run)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)
        self.drawn = b""
        """The end of what it drew."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        """Until the terminal's other side is closed: a terminal that nobody reads would stop the console."""
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                return
            self.drawn = (self.drawn + data)[-KEPT_BYTES:]
