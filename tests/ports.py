"""Ports of their own for every test process: two that look for a free one at the same time would find the same."""

from __future__ import annotations

import os

from launch.ports import free_port

APART = 250
"""Ports between two pytest-xdist workers."""


def own_port(base: int, count: int = 1) -> int:
    """The first of `count` free ports in a row, from `base` on for the first worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return free_port(base + APART * worker, count)
