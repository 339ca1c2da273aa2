"""How an engine was launched: `config.json` (the last launch) and `launches.jsonl` (all) of a config's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """`config.json`."""

    instance: str
    """Unique in the run, e.g. `plain-3`."""
    config: str
    profile: str
    """Model, hardware and scale."""
    launch: int
    """Counts the launches of this config, from 1."""
    url: str
    """Base URL."""
    model: str
    """As requests name it."""
    started_by: str
    """`spawn` or `fork_server`, with the executor."""
    argv: tuple[str, ...]
    """The command."""
    env: Mapping[str, str]
    """What is added to the environment; secrets are masked."""
    ports: Mapping[str, int]
    """Purpose to port."""
    cwd: str
    """Working directory."""
    rings: str
    """Folder of its step rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord(LaunchConfig):
    """A row of `launches.jsonl`."""

    t_unix_s: float
    """When the command was written, before the engine started."""
