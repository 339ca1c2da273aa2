"""Engine models as files: the coefficients of an engine, what they rest on, and the link between two of them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from results.records.simulation_spec import EngineModel, Link
from runners.errors import RunnerError

FOLDER = Path(__file__).with_name("engines")


class EngineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine model with its provenance."""

    title: str
    model: EngineModel
    calibrated: bool = False
    """Fitted to the step times of a real engine."""
    sources: tuple[str, ...] = ()
    """Where each number comes from."""
    residuals: tuple[tuple[float, ...], ...] = ()
    """For each cell that gave the fit: what its steps took over what the model gives them, in their order. Used where a
    simulation asks."""
    link: Link | None = None
    """None = no KV can be moved."""

    def __post_init__(self) -> None:
        if not all(cell and all(math.isfinite(one) and one > 0 for one in cell) for cell in self.residuals):
            raise ValueError("each list of residuals must have numbers above 0, at least one")


def list_engine_names() -> tuple[str, ...]:
    """The engine models that come with Tracon."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def read_engine(name_or_path: str) -> EngineFile:
    """Raises RunnerError naming the file and the wrong key."""
    path = FOLDER / f"{name_or_path}.toml"
    if name_or_path not in list_engine_names():
        path = Path(name_or_path)
    try:
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        return decode(path.read_bytes(), type=EngineFile)
    except FileNotFoundError as error:
        raise RunnerError(
            f"there is no engine model {name_or_path!r}",
            remedy=f"there are {', '.join(list_engine_names())}; or give the path of a file (docs/simulator.md)",
        ) from error
    except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RunnerError(f"{path}: {error}", remedy="docs/simulator.md lists the keys of an engine model") from error
