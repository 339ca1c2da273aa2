"""What two runs' folders say differently about how they were made: plans, hosts, packages, launches.

Where a run's own folder, its ports or its clock show in a value, that is no difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.layout import ConfigLayout, RunLayout

_PLAN = ("profile", "preset", "seed", "configs", "inputs")
_TEXTS = frozenset({"title", "why", "description", "port_base"})
"""Keys of the plan that shape no number."""
_HOST_NOW = re.compile(r"^(load|captured)\b")
_LAUNCH_OWN = frozenset({"AGENTIC_STEP_LOG_PATH", "TRACON_TRANSFER_LOG"})
_OF_ENGINE = re.compile(
    r"(VLLM|LMCACHE|MOONCAKE|MC|NIXL|UCX|TORCH|PYTORCH|TRITON|CUDA|NVIDIA|NCCL|OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC"
    r"|TOKENIZERS|TRACON)_|LD_PRELOAD$|PYTHONHASHSEED$"
)
"""Environment variables that shape an engine. The others tell where a run was started from, and may name a host, a user
or a network that is nobody's business where a folder is handed on."""


class _Launch(msgspec.Struct, frozen=True):
    started_by: str = ""
    cwd: str = ""
    ports: Mapping[str, int] = {}
    argv: Sequence[str] = ()
    env: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """How a run was made, as text by name."""

    plan: Mapping[str, str] = field(default_factory=dict)
    """By dotted key."""
    launches: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By config, of its environment and its last launch: `section/name` to what the config's folder says."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the two runs do not share; None = it does not say."""

    where: str
    """`plan`, or a section of the environment capture or of the launch, with the configs it holds for."""
    what: str
    first: str | None
    second: str | None


def read_origin(root: Path) -> Origin:
    """Of a run's folder; what it does not say is empty."""
    return Origin(_read_plan(root), _read_launches(root))


def list_differences(first: Origin, second: Origin) -> tuple[Difference, ...]:
    """Of two runs: plan by dotted key, then environment and launch of the configs that both have."""
    unlike = [Difference("plan", what, *pair) for what, pair in _find_unlike(first.plan, second.plan)]
    ours, theirs = first.launches, second.launches
    common = sorted(set(ours) & set(theirs))
    by_item: dict[tuple[str, str, str | None, str | None], list[str]] = defaultdict(list)
    for config in common:
        for what, pair in _find_unlike(ours[config], theirs[config]):
            section, _, name = what.partition("/")
            by_item[section, name, *pair].append(config)
    for (section, name, before, after), configs in by_item.items():
        whose = "" if len(configs) == len(common) else f" ({', '.join(configs)})"
        unlike.append(Difference(f"{section}{whose}", name, before, after))
    return tuple(unlike)


def _find_unlike(
    first: Mapping[str, str], second: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    for key in dict.fromkeys((*first, *second)):
        if first.get(key) != second.get(key):
            yield key, (first.get(key), second.get(key))


def _read_plan(root: Path) -> dict[str, str]:
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes())
    except (OSError, *DAMAGED_JSON):  # a gap of the run's own analysis
        return {}
    if not isinstance(plan, dict):
        return {}
    chosen = {key: sorted(plan[key]) if key == "configs" else plan[key] for key in _PLAN if plan.get(key) is not None}
    items = ((name, text) for name, text in _flatten_keys(chosen) if name.rsplit(".", 1)[-1] not in _TEXTS)
    return {name.removeprefix("inputs."): text for name, text in items}


def _flatten_keys(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flatten_keys(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()


def _read_launches(root: Path) -> dict[str, dict[str, str]]:
    """By config: `section/name` to what its folder says."""
    launches: dict[str, dict[str, str]] = {}
    for layout in RunLayout(root).configs():
        config = layout.root.name.partition("_")[2]
        launches[config] = {**_read_environment(layout), **_read_launch(layout)}
    return launches


def _read_environment(layout: ConfigLayout) -> dict[str, str]:
    """The lines of env.txt under their sections; packages by name."""
    try:
        text = layout.env_txt.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a gap of the run's own analysis
        return {}
    section, captured = "environment", {}
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line.strip() and not _HOST_NOW.match(line):
            name, _, value = line.partition({"packages": "==", "environment": "="}.get(section, ":"))
            if section != "environment" or (_OF_ENGINE.match(name) and name != "TRACON_WORKSPACE"):
                captured[f"{section}/{name.strip()}"] = value.strip()
    return captured


def _read_launch(layout: ConfigLayout) -> dict[str, str]:
    """Arguments and environment of the last launch, without what belongs to this run alone."""
    try:
        launch = msgspec.json.decode(layout.config_json.read_bytes(), type=_Launch)
    except (OSError, *DAMAGED_JSON):  # a gap of the run's own analysis
        return {}
    own = str(Path(launch.cwd).parent.parent) if launch.cwd else "\0"
    ports = {str(port) for port in launch.ports.values()}
    stated = {"launch/started_by": launch.started_by}
    argv = launch.argv
    for place, word in enumerate(argv):
        if word.startswith("--"):
            value = argv[place + 1] if place + 1 < len(argv) and not argv[place + 1].startswith("--") else ""
            stated[f"launch/{word}"] = "(its port)" if value in ports else value.replace(own, "RUN")
    for name, value in launch.env.items():
        if name not in _LAUNCH_OWN:
            stated[f"launch/{name}"] = "(its port)" if value in ports else value.replace(own, "RUN")
    return stated
