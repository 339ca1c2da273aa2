"""Where the sources of a vLLM release are on this host. None of them is part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.environment import environments, home

SOURCES = "TRACON_VLLM_SOURCES"
"""Folder with `vllm-<version>/` folders, each an unpacked wheel: `unzip vllm-0.26.0-*.whl -d vllm-0.26.0`."""


def packages_of(version: str) -> Path:
    """The folder that holds `vllm/` of this release: below $TRACON_VLLM_SOURCES, else an environment built here."""
    unpacked = Path(os.environ.get(SOURCES) or home() / "sources") / f"vllm-{version}"
    if (unpacked / "vllm").is_dir():
        return unpacked
    for engine in environments():
        if engine.versions.get("vllm") == version:
            return engine.site_packages
    pytest.skip(f"no sources of vLLM {version} here: unpack its wheel below ${SOURCES}")
