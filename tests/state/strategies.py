"""Events of every kind, made from their field types: a new kind of event is covered without a word here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from hypothesis import strategies as st

from results.records import events as ev
from results.records.gpu import GpuSample
from results.records.live import LiveLatency
from results.records.plan import CellPlan, RunPlan, StagePlan
from state.events import KINDS, Unknown
from tests.state.plans import CELLS, STAGES

numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)

st.register_type_strategy(StagePlan, st.builds(StagePlan, stage=st.text(max_size=8), title=st.text(max_size=8)))
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    int: st.integers(-(2**53), 2**53),
    float: numbers,
    bool: st.booleans(),
    int | None: st.none() | st.integers(0, 2**31),
    float | None: st.none() | numbers,
    str | None: st.none() | st.text(max_size=8),
    Mapping[str, Any]: json_objects,
    Mapping[str, str]: st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    Mapping[str, float | None]: st.dictionaries(st.text(max_size=8), st.none() | numbers, max_size=4),
    Mapping[str, int]: st.dictionaries(st.text(max_size=8), st.integers(0, 2**31), max_size=4),
    tuple[int, ...]: st.lists(st.integers(0, 1000), max_size=22).map(tuple),
    tuple[str, ...]: st.lists(st.text(max_size=6), max_size=3).map(tuple),
}


def built(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a frozen dataclass from its annotations."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: _of(hints[f.name]) for f in fields(cls)})


def _of(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - an annotation may be anything
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    return built(hint) if hint is RunPlan else st.from_type(hint)


_BY_TYPE[tuple[StagePlan, ...]] = st.lists(built(StagePlan), max_size=2).map(tuple)
_BY_TYPE[LiveLatency] = built(LiveLatency)
_BY_TYPE[tuple[ev.RoutedLoad, ...]] = st.lists(built(ev.RoutedLoad), max_size=3).map(tuple)
_BY_TYPE[tuple[ev.RoutedLine, ...]] = st.lists(built(ev.RoutedLine), max_size=3).map(tuple)
_BY_TYPE[tuple[GpuSample, ...]] = st.lists(built(GpuSample), max_size=2).map(tuple)
_BY_TYPE[tuple[CellPlan, ...]] = st.lists(built(CellPlan), max_size=2).map(tuple)

any_event: st.SearchStrategy[ev.Event] = st.one_of([built(cls) for cls in KINDS.values()])
"""Any event at all, sense or nonsense."""

_cells = st.sampled_from([cell.cell for cell in CELLS])
_instances = st.sampled_from(["plain-1", "plain-2", "noop-1"])
_routers = st.sampled_from(["", "e0", "e1"])
_reasons = st.sampled_from(["", "because"])
_pids = st.none() | st.integers(1, 99)


def _with(cls: type[Any], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: fixed.get(f.name, _of(hints[f.name])) for f in fields(cls)})


run_events: st.SearchStrategy[ev.Event] = st.one_of(
    _with(ev.RunChanged, reason=_reasons, pid=_pids),
    _with(ev.RunTaken, last_heartbeat_unix_s=st.floats(900, 1100)),
    _with(ev.StageChanged, stage=st.sampled_from([stage.stage for stage in STAGES]), reason=_reasons),
    _with(ev.CellChanged, cell=_cells, attempt=st.integers(0, 4), reason=_reasons),
    _with(ev.CellChanged, cell=_cells, attempt=st.integers(0, 4), reason=_reasons),
    _with(ev.CellProgressed, cell=_cells, fraction=st.floats(-0.5, 1.5)),
    _with(ev.InstanceChanged, instance=_instances, reason=_reasons, pid=_pids, pgid=_pids),
    _with(ev.InstanceSampled, instance=_instances, cell=_cells),
    _with(ev.RouterSampled, cell=_cells),
    built(ev.GpusSampled),
    _with(
        ev.MigrationChanged,
        cell=_cells,
        migration=st.sampled_from(["r-1", "r-2", "r-3"]),
        session=st.sampled_from(["s-1", "s-2"]),
        source=_routers,
        target=_routers,
        phase=st.sampled_from(["started", "done", "failed", "refused"]),
        t_unix_s=st.floats(900, 1100),
    ),
    _with(ev.LifecycleMeasured, cell=_cells),
    _with(ev.RequestSubmitted, request=st.integers(1, 5)),
    _with(ev.RequestAnswered, request=st.integers(1, 5)),
    built(ev.Noted),
    st.just(Unknown("of_tomorrow", {"a": 1})),
)
"""Events about one run of `a_plan()`: many are legal, many are not."""
