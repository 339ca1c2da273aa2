"""Differences in how two runs were made, by their folders: plans, hosts, packages, launches.

A run's own folder, ports and clock are masked: they are no difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from results.records.code import digest_code
from results.records.errors import DAMAGED_JSON
from results.records.host import read_host
from results.records.layout import ConfigLayout, RunLayout
from results.report.path_masks import list_masks, mask_paths

PLAN = "plan"
"""`Difference.where` of what the plan states."""
_ANALYSIS = Path(__file__).parents[1]
_PLAN = ("profile", "preset", "seed", "configs", "inputs")
_SHAPES_NO_NUMBER = frozenset({"title", "why", "description", "port_base"})
"""Keys of the plan."""
_HOST_NOW = re.compile(r"^(load|captured)\b")
_Pair = tuple[str | None, str | None]
_OF_LAUNCH = frozenset({"AGENTIC_STEP_LOG_PATH", "TRACON_TRANSFER_LOG"})
_OF_ENGINE = re.compile(
    r"(VLLM|LMCACHE|MOONCAKE|MC|NIXL|UCX|TORCH|PYTORCH|TRITON|CUDA|NVIDIA|NCCL|OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC"
    r"|TOKENIZERS|TRACON)_|LD_PRELOAD$|PYTHONHASHSEED$"
)
"""Environment variables that shape an engine. The others say where a run was started from; they may name a host, a user
or a network, which must not leave it with an exported folder."""


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
    """By config, `section/name` to value: of its environment and its last launch."""
    work_us: float | None = None
    """Median time of the fixed piece of work in host.csv; None = not timed, as in exports of an older version."""
    code: str = ""
    """Digest of the code that computed the numbers; empty = an export of an older version, which does not state it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference of the two runs; None = a run does not state it."""

    where: str
    """`plan`, or a section of the environment capture or of the launch, with the configs concerned."""
    what: str
    first: str | None
    second: str | None


def read_origin(root: Path) -> Origin:
    """What a run's folder does not state is empty. Paths are masked as in an export, which states the same."""
    known = [one.work_us for one in read_host(RunLayout(root).host_csv) if one.work_us is not None]
    work_us = median(known) if known else None
    origin = Origin(_read_plan(root), _read_launches(root), work_us, digest_code(_ANALYSIS))
    return msgspec.json.decode(mask_paths(msgspec.json.encode(origin), list_masks(root)), type=Origin)


def list_differences(first: Origin, second: Origin) -> tuple[Difference, ...]:
    """Differences of two runs: plan by dotted key, then environment and launch of the configs that both have."""
    unlike = [
        Difference(PLAN, name, *each)
        for what, pair in _find_unlike(first.plan, second.plan)
        for name, each in _split_by_label(what, pair)
    ]
    common = sorted(set(first.launches) & set(second.launches))
    by_item: dict[tuple[str, str, str | None, str | None], list[str]] = defaultdict(list)
    for config in common:
        for what, pair in _find_unlike(first.launches[config], second.launches[config]):
            section, _, name = what.partition("/")
            by_item[section, name, *pair].append(config)
    for (section, name, before, after), configs in by_item.items():
        whose = "" if len(configs) == len(common) else f" ({', '.join(configs)})"
        unlike.append(Difference(f"{section}{whose}", name, before, after))
    return tuple(unlike)


def _find_unlike(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[tuple[str, _Pair]]:
    for key in dict.fromkeys((*first, *second)):
        if first.get(key) != second.get(key):
            yield key, (first.get(key), second.get(key))


def _split_by_label(what: str, pair: _Pair) -> list[tuple[str, _Pair]]:
    """A list of labeled objects, such as the policies, as its objects that differ; anything else as it is."""
    firsts, seconds = map(_read_labeled, pair)
    unlike = [(f"{what}.{label}", each) for label, each in _find_unlike(firsts, seconds)] if firsts and seconds else []
    return unlike or [(what, pair)]


def _read_labeled(text: str | None) -> dict[str, str]:
    """By label; empty where the text is no JSON list of objects that each have a label of their own."""
    try:
        rows = msgspec.json.decode(text or "", type=list[dict[str, Any]])
    except DAMAGED_JSON:
        return {}
    labeled = {str(row["label"]): msgspec.json.encode(row).decode() for row in rows if row.get("label")}
    return labeled if len(labeled) == len(rows) else {}


def _read_plan(root: Path) -> dict[str, str]:
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes())
        chosen = {key: plan[key] for key in _PLAN if plan.get(key) is not None} if isinstance(plan, dict) else {}
        if isinstance(chosen.get("configs"), list):
            chosen["configs"] = sorted(map(str, chosen["configs"]))
        items = list(_flatten_keys(chosen))
    except (OSError, *DAMAGED_JSON):  # a gap of the run's own analysis
        return {}
    return {
        name.removeprefix("inputs."): text for name, text in items if name.rsplit(".", 1)[-1] not in _SHAPES_NO_NUMBER
    }


def _flatten_keys(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flatten_keys(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()


def _read_launches(root: Path) -> dict[str, dict[str, str]]:
    """By config, `section/name` to value."""
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
    """Arguments and environment of the last launch, with this run's folder and ports masked."""
    try:
        launch = msgspec.json.decode(layout.config_json.read_bytes(), type=_Launch)
    except (OSError, *DAMAGED_JSON):  # a gap of the run's own analysis
        return {}
    folder = str(Path(launch.cwd).parent.parent) if launch.cwd else "\0"
    ports = {str(port) for port in launch.ports.values()}

    def mask(value: str) -> str:
        return "(its port)" if value in ports else value.replace(folder, "RUN")

    stated = {"launch/started_by": launch.started_by}
    argv = launch.argv
    for index, word in enumerate(argv):
        if word.startswith("--"):
            value = argv[index + 1] if index + 1 < len(argv) and not argv[index + 1].startswith("--") else ""
            stated[f"launch/{word}"] = mask(value)
    variables = {f"launch/{name}": mask(value) for name, value in launch.env.items() if name not in _OF_LAUNCH}
    return stated | variables
