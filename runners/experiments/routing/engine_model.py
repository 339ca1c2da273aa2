"""The engines of a simulated run: the model that the grid names, with what the grid changes of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from results.records.simulation_spec import EngineModel
from runners.errors import RunnerError
from runners.experiments.routing.grid import Grid
from runners.simulator.engine_file import EngineFile, read_engine

OTHER_ENGINE = "engine="
"""Begins the variation under which another engine model stands in for the grid's."""


def read_model(grid: Grid, variation: str = "") -> EngineFile:
    """The engine model of a grid that is simulated, or the one that a variation names.

    Raises RunnerError naming the file and the wrong key.
    """
    assert grid.simulation is not None
    other = variation.startswith(OTHER_ENGINE)
    name = variation.removeprefix(OTHER_ENGINE) if other else grid.simulation.engine
    engine = read_engine(name)
    if grid.simulation.residual_noise is True and not engine.residuals:
        raise RunnerError(
            f"{name} has no residuals: simulation.residual_noise cannot be had",
            remedy="name a model of `tracon simulate calibrate`, or set simulation.step_noise",
        )
    return engine


def read_models(grid: Grid) -> Mapping[str, EngineFile]:
    """The models of a grid that is simulated, each by the variation that names it; "" is the grid's own.

    A run reads them once: a file that is edited meanwhile changes none of its cells.
    """
    if grid.simulation is None:
        return {}
    others = (f"{OTHER_ENGINE}{name}" for name in grid.further_engines)
    return {variation: read_model(grid, variation) for variation in ("", *others)}


def find_model(models: Mapping[str, EngineFile], variation: str) -> EngineFile:
    """The model of a cell under its variation, of those that `read_models` has read."""
    return models.get(variation, models[""])


def shape_model(grid: Grid, engine: EngineFile, role: str, kv_cache_bytes: int | None) -> EngineModel:
    """One instance's model with the grid's limits and scheduling, and its KV cache where the model knows bytes.

    `kv_cache_bytes`: the policy's own KV cache; None = the grid's.
    """
    choice = grid.engine
    size = choice.kv_cache_memory_bytes if kv_cache_bytes is None else kv_cache_bytes
    if role == "decode" and grid.decode_kv_cache_memory_bytes is not None:
        size = grid.decode_kv_cache_memory_bytes
    chosen = {
        "max_batched_tokens": choice.max_num_batched_tokens,
        "max_sequences": None if choice.max_num_seqs is UNSET else choice.max_num_seqs,
        "scheduling": choice.scheduling,
        "kv_capacity_tokens": None if size is None or engine.link is None else size // engine.link.kv_bytes_per_token,
    }
    return msgspec.structs.replace(engine.model, **{name: own for name, own in chosen.items() if own is not None})


def describe_model(grid: Grid) -> str:
    """What stands in for the engines of a planned run; empty where they are real."""
    return "" if grid.simulation is None else describe_engine_file(read_model(grid))


def describe_engine_file(engine: EngineFile) -> str:
    """The model's title, and whether it is fitted to a real engine."""
    fitted = "fitted to the step times of a real engine" if engine.calibrated else "UNCALIBRATED"
    return f"{engine.title} ({fitted})"
