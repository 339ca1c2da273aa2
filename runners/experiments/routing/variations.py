"""Every policy of a simulated run again, with one coefficient of the engine model, or one trait of the load, changed.

A variation is `COEFFICIENT*FACTOR`, `trace=NAME` for one of the preset's `traces`, or `engine=NAME` for another model.
A policy that a variation cannot change is not simulated again: its cells at the model's own values stand for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import UNSET

from results.records.simulation_spec import Link
from runners.errors import RunnerError
from runners.experiments.routing.engine_model import OTHER_ENGINE, read_model, shape_model
from runners.experiments.routing.grid import POOLED, Grid, PolicyChoice
from runners.simulator.engine_file import EngineFile, list_engine_names

OTHER_TRACE = "trace="
ARRIVALS = "arrival_rate"
THRESHOLDS = ("hot_tokens", "cooldown_s")
REMEDY = "correct `sensitivity` of the preset; docs/simulator.md lists what can be varied"
_Part = TypeVar("_Part", bound=msgspec.Struct)


def expand_variations(grid: Grid) -> Grid:
    """The grid with each policy again for each variation that changes it. Raises RunnerError for a coefficient that the
    engine model does not have, has as 0, or has replaced by a setting of the grid."""
    if not grid.sensitivity:
        return grid
    if grid.simulation is None:
        raise RunnerError("only a simulated run has coefficients to vary", remedy="add --simulated")
    unknown = [name for name in grid.further_engines if name not in list_engine_names()]
    if unknown:
        known = ", ".join(list_engine_names())
        raise RunnerError(f"sensitivity.engines: {unknown[0]} does not come with Tracon", remedy=f"there are {known}")
    varied = tuple(
        _vary_policy(grid, policy, variation)
        for variation in _list_variations(grid)
        for policy in _list_changed(grid, variation)
    )
    return msgspec.structs.replace(grid, policies=(*grid.policies, *varied))


def _list_variations(grid: Grid) -> Iterator[str]:
    assert grid.sensitivity
    for coefficient in dict.fromkeys(grid.sensitivity.coefficients):
        for factor in (1 - grid.sensitivity.by, 1 + grid.sensitivity.by):
            yield f"{coefficient}*{factor:g}"
    for name in grid.further_traces:
        yield f"{OTHER_TRACE}{name}"
    for name in grid.further_engines:
        yield f"{OTHER_ENGINE}{name}"


def _varies_coefficient(variation: str) -> bool:
    """Others vary the policy or its load, or name another engine model."""
    if not variation or variation.startswith((OTHER_TRACE, OTHER_ENGINE)):
        return False
    return _split(variation)[0] not in (ARRIVALS, *THRESHOLDS)


def _list_changed(grid: Grid, variation: str) -> tuple[PolicyChoice, ...]:
    """The policies whose cells it can change: a threshold those that have it, the link those that move KV."""
    name = variation.partition("*")[0]
    if name in THRESHOLDS:
        return _list_with_threshold(grid, name)
    if not _varies_coefficient(variation):
        return grid.policies
    own = read_model(grid)
    varied = vary_engine(own, variation)
    changed = tuple(policy for policy in grid.policies if _changes_engines(grid, policy, own, varied))
    if not changed and name not in Link.__struct_fields__:
        raise RunnerError(f"{name} changes nothing: a setting of the preset's engines replaces it", remedy=REMEDY)
    return changed


def _list_with_threshold(grid: Grid, name: str) -> tuple[PolicyChoice, ...]:
    """The policies that have it, above 0. Raises RunnerError where there is none: nothing would be planned."""
    having = tuple(policy for policy in grid.policies if policy.parameters.get(name))
    if not having:
        labels = ", ".join(grid.label(policy) for policy in grid.policies)
        raise RunnerError(
            f"sensitivity.coefficients: no policy of this plan has {name} above 0, so it cannot be varied: {labels}",
            remedy=f"add a policy that has it, such as EAR, or leave {name} out of sensitivity.coefficients",
        )
    return having


def _changes_engines(grid: Grid, policy: PolicyChoice, own: EngineFile, varied: EngineFile) -> bool:
    size = None if policy.kv_cache_memory_bytes is UNSET else policy.kv_cache_memory_bytes
    roles = set(grid.roles(policy))
    if any(shape_model(grid, own, role, size) != shape_model(grid, varied, role, size) for role in roles):
        return True
    return own.link != varied.link and _may_move_kv(policy)


def _may_move_kv(policy: PolicyChoice) -> bool:
    """By a handover to a decode instance, or by a migration."""
    from runners.router.policies import make_policy, may_migrate

    hands_over = policy.prefill_instances > 0 or policy.name == POOLED
    return policy.moves_kv and (hands_over or may_migrate(make_policy(policy.name, policy.parameters)))


def _split(variation: str) -> tuple[str, float]:
    name, _, factor = variation.partition("*")
    return name, float(factor)


def _vary_policy(grid: Grid, policy: PolicyChoice, variation: str) -> PolicyChoice:
    varied = msgspec.structs.replace(policy, label=f"{grid.label(policy)} vary={variation}", variation=variation)
    if variation.startswith(OTHER_TRACE):
        return msgspec.structs.replace(varied, trace=variation.removeprefix(OTHER_TRACE))
    if variation.startswith(OTHER_ENGINE):
        return varied
    name, factor = _split(variation)
    if name == ARRIVALS:
        return msgspec.structs.replace(varied, time_scale=grid.time_scale(policy) / factor)
    if name in THRESHOLDS:
        changed = policy.parameters[name] * factor
        whole = round(changed) if isinstance(policy.parameters[name], int) else changed
        return msgspec.structs.replace(varied, parameters=policy.parameters | {name: whole})
    return varied


def vary_engine(engine: EngineFile, variation: str) -> EngineFile:
    """The engine model with one of its coefficients changed. Raises RunnerError where it has none such, or 0."""
    if not _varies_coefficient(variation):
        return engine
    name, factor = _split(variation)
    model, link = engine.model, engine.link
    if name in model.step.__struct_fields__:
        model = msgspec.structs.replace(model, step=_scale_field(model.step, name, factor))
        return msgspec.structs.replace(engine, model=model)
    if name in model.__struct_fields__ and type(getattr(model, name)) in (int, float):
        return msgspec.structs.replace(engine, model=_scale_field(model, name, factor))
    if link is not None and name in link.__struct_fields__:
        return msgspec.structs.replace(engine, link=_scale_field(link, name, factor))
    raise RunnerError(f"the engine model has no coefficient {name!r}", remedy=REMEDY)


def _scale_field(part: _Part, name: str, factor: float) -> _Part:
    value = getattr(part, name)
    if not value:
        raise RunnerError(f"{name} of the engine model is 0: no factor changes it", remedy=REMEDY)
    return msgspec.structs.replace(part, **{name: round(value * factor) if isinstance(value, int) else value * factor})
