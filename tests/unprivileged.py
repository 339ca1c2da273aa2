"""A child process without root's rights, for tests that run as root: permission bits then bind it like anybody else."""

from __future__ import annotations

import ctypes
import os

_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24


def drop_capabilities() -> None:
    """For `preexec_fn`. The next program keeps its user and loses every capability. Raises OSError where it may not."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1 and libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot drop a capability")
