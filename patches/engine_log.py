"""Lines for the log of this process of the engine."""

from __future__ import annotations

import contextlib
import os


def write_line(text: str) -> None:
    """One write to the descriptor: no prefix of vLLM's, and no other process's text in the middle. Never raises.

    Not through sys.stderr, whose lock another thread of a forking process may hold.
    """
    with contextlib.suppress(OSError):  # stderr may be closed, or its reader gone
        os.write(2, f"[tracon] {text}\n".encode(errors="backslashreplace"))
