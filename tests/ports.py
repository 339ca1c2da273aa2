"""Ports of their own for every test process: two that look for a free one at the same time would find the same."""

from __future__ import annotations

import os

from launch.ports import free_port

WORKER = "PYTEST_XDIST_WORKER"
"""Environment variable: the name of a pytest-xdist worker, `gw0` and on."""
OFFSETS = (0, 5_500, -5_500)
"""Of the ports of each pytest-xdist worker. Bases are between 18,600 and 24,100, a module takes some hundreds from one
on, and the kernel gives ports from 32,768 on to clients."""


def worker_number() -> int:
    """Of this pytest-xdist worker; 0 for the first, and without pytest-xdist."""
    return int(os.environ.get(WORKER, "gw0").removeprefix("gw"))


def own_port(base: int, count: int = 1) -> int:
    """The first of `count` free ports in a row, from `base` on for the first worker."""
    return free_port(base + OFFSETS[worker_number() % len(OFFSETS)], count)
