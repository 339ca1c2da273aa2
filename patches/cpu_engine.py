"""AMX tiles for the processes that run a model on a CPU build.

Linux lets a process use AMX tiles only after it has asked for them; the first tile instruction of one that has not ends
it with SIGILL. vLLM's attention kernel uses tiles and asks for nothing: oneDNN asks, at the first bf16 product of a
prefill. An engine whose first work is a decode on pulled KV computes no such product before.
"""

from __future__ import annotations

import contextlib
import os

from .cpu_connectors import is_cpu_build


def request_amx_here_and_in_forks() -> None:
    """Ask here and in every process forked from here, none of which vLLM lets load its plugins again.

    The outcome of each process is a line in the engine's log.
    """
    if is_cpu_build():
        os.register_at_fork(after_in_child=_request_and_log)
        _request_and_log()


def request_amx() -> str:
    """Ask the kernel for AMX tiles in this process; returns the outcome in words, whatever happens."""
    try:
        import torch

        if torch.cpu._init_amx():
            return "granted"
        if torch.cpu._is_amx_tile_supported():
            return "refused by the kernel: a decode on pulled KV may end this engine with SIGILL"
    except Exception as error:  # noqa: BLE001 - the engine must start; without AMX it needs nothing
        return f"not requested: {type(error).__name__}: {error}"
    return "none in this CPU"


def _request_and_log() -> None:
    outcome = request_amx()
    with contextlib.suppress(OSError):  # the log cannot be written
        # Not through sys.stderr: another thread of the forking process may hold its lock.
        os.write(2, f"[tracon] AMX tiles: {outcome} (pid {os.getpid()})\n".encode())
