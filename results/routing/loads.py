"""Under what load a policy was measured: arrival rate, trace, KV cache. Only policies under one load are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from results.records.turns import RoutingCell
from results.routing.read import LoadedCell
from results.routing.scale import sort_sessions
from results.statistics.judgement import Judgement

MIB = 1 << 20
AS_PRESET = "as the preset"
"""The load of a policy that states none of its own."""
TOP_SESSIONS = 0.01
_AXES = ("time_scale", "kv_cache_memory_bytes", "trace")
"""What a preset may vary beside policies; a swept label ends with `AXIS=VALUE`."""


@dataclass(frozen=True, slots=True)
class Load:
    labels: tuple[str, ...]
    """Measured under it, in the order of tables."""
    text: str = ""
    """What distinguishes it from the run's other loads; empty where there is one load."""
    top_share: float | None = None
    """Share of all input tokens in the TOP_SESSIONS with the most input."""
    id: str = ""
    """Identifies it in every run: the whole load, whatever the run varies. `text` depends on the run's other loads."""


@dataclass(frozen=True, slots=True)
class LoadJudgement:
    """A judgement under one of a run's loads. `what` and `labels` identify it; its name is for readers."""

    what: str
    """The claim or decision point, by an id without a load that no wording of its name changes."""
    labels: tuple[str, ...]
    """Measured under its load; empty = it is of the whole run."""
    judgement: Judgement
    """With the load in its name, where the run has several."""
    over: str = ""
    """The arms, baselines or swept loads that it is judged over, where neither `what` nor the load says them."""


def judge_under_load(
    what: str, judgement: Judgement, labels: Iterable[str], load: str, over: str = ""
) -> LoadJudgement:
    """Named after the load, where the run has several; `load`: `Load.text`."""
    name = f"{judgement.name}, {load}" if load else judgement.name
    return LoadJudgement(what, tuple(labels), replace(judgement, name=name), over)


def judge_whole_run(what: str, judgement: Judgement, over: str = "") -> LoadJudgement:
    return LoadJudgement(what, (), judgement, over)


def group_by_load(cells: Sequence[LoadedCell], labels: Sequence[str]) -> tuple[Load, ...]:
    """Labels that replayed one trace at one rate on engines with one KV cache; in the order of labels."""
    first = {cell.record.label: cell for cell in reversed(cells)}
    groups = group_labels({label: name_load(first[label].record) for label in labels})
    return tuple(
        Load(tuple(own), text, _compute_top_share(first[own[0]]), _identify_load(first[own[0]].record))
        for text, own in groups
        if own
    )


def _identify_load(record: RoutingCell) -> str:
    values = (f"{value:.12g}" if isinstance(value, int | float) else value for value in load_of(record))
    return " ".join(f"{axis}={value or ''}" for axis, value in zip(_AXES, values, strict=True))


def load_of(record: RoutingCell) -> tuple[object, ...]:
    """Its time scale, the bytes of its KV cache and the name of its trace, in the order of _AXES."""
    return record.replay.get("time_scale"), record.kv_cache_memory_bytes, record.trace.get("name") or ""


def name_load(record: RoutingCell) -> dict[str, object]:
    """`load_of` by the names of its parts."""
    return dict(zip(_AXES, load_of(record), strict=True))


def describe_difference(loads: Mapping[str, Mapping[str, object]]) -> str:
    """Which labels were under which load; empty where all were under one. `loads`: as in `group_labels`."""
    groups = group_labels(loads)
    return "; ".join(f"{', '.join(labels)} ({text})" for text, labels in groups) if len(groups) > 1 else ""


def group_labels(loads: Mapping[str, Mapping[str, object]]) -> list[tuple[str, list[str]]]:
    """Each load, by what differs from the others, and its labels; the text is empty where there is one load.

    `loads`: label to `name_load`.
    """
    grouped: dict[tuple[object, ...], list[str]] = {}
    for label, load in loads.items():
        grouped.setdefault(tuple(load.values()), []).append(label)
    if len(grouped) < 2:
        return [("", list(loads))]
    varied = [len(set(values)) > 1 for values in zip(*grouped, strict=True)]
    return [(_describe_load(key, varied), labels) for key, labels in grouped.items()]


def _describe_load(key: tuple[object, ...], varied: Sequence[bool]) -> str:
    """Only what the run varies."""
    time_scale, size, trace = key
    parts = [f"time_scale {time_scale}"] if varied[0] else []
    parts += [f"KV cache {size / MIB:g} MiB"] if varied[1] and isinstance(size, int) else []
    parts += [f"trace {trace}"] if varied[2] and trace else []
    return ", ".join(parts) or (AS_PRESET if any(varied) else "")


def _compute_top_share(cell: LoadedCell) -> float | None:
    if cell.turns is None or not cell.turns.index.size:
        return None
    tokens, _ = sort_sessions(cell.turns)
    return float(tokens[: max(1, round(TOP_SESSIONS * tokens.size))].sum() / tokens.sum())


def strip_load(label: str) -> str:
    """The label without its load: the same text for one policy under every load."""
    return " ".join(word for word in label.split() if word.partition("=")[0] not in _AXES)


def list_arms(labels: Iterable[str]) -> str:
    """The labels without their load, each once, in the same order in every run."""
    return ", ".join(sorted({strip_load(label) for label in labels}))


def join_load(text: str, load: str) -> str:
    """The text, with the load where a run has several."""
    return f"{text} ({load})" if load else text
