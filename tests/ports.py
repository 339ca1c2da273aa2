"""Ports of their own for every test process: two that look for a free one at the same time would find the same."""

from __future__ import annotations

import os

from launch.ports import free_port

WORKER = "PYTEST_XDIST_WORKER"
"""Environment variable: the name of a pytest-xdist worker, `gw0` and on."""
FIRST, LAST = 18_600, 24_100
"""Bases of a module's ports: it takes some hundreds from one on."""
OFFSETS = (0, 5_500, -5_500)
"""Of the ports of each pytest-xdist worker. The kernel gives ports from 32,768 on to clients."""


def worker_number() -> int:
    """Of this pytest-xdist worker; 0 for the first, and without pytest-xdist."""
    return int(os.environ.get(WORKER, "gw0").removeprefix("gw"))


def own_port(base: int, count: int = 1) -> int:
    """The first of `count` free ports in a row, from `base` on for the first worker."""
    assert FIRST <= base <= LAST, "another worker's ports, or the kernel's"
    return free_port(base + OFFSETS[worker_number() % len(OFFSETS)], count)
