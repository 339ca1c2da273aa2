"""Engine models as files: the coefficients of an engine, what they rest on, and the link between two of them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from runners.errors import RunnerError
from runners.simulator.engine import EngineModel

FOLDER = Path(__file__).with_name("engines")


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How KV moves from one engine to another: latency_s + bytes / bytes_per_s, one transfer at a time at each end."""

    latency_s: float
    bytes_per_s: float
    kv_bytes_per_token: int
    abort_s: float = 480.0
    """An engine frees blocks that no other has pulled after it (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)."""
    failure_share: float = 0.0
    """Share of transfers: no KV comes. The router tries again, or has the target compute."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0 and self.bytes_per_s > 0):
            raise ValueError("latency_s must be 0 or more, and bytes_per_s above 0")
        if self.kv_bytes_per_token < 1:
            raise ValueError("kv_bytes_per_token must be at least 1")
        if not (self.abort_s > 0 and 0 <= self.failure_share <= 1):
            raise ValueError("abort_s must be above 0, and failure_share from 0 to 1")

    def transfer_s(self, tokens: int) -> float:
        return self.latency_s + tokens * self.kv_bytes_per_token / self.bytes_per_s


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


def engine_names() -> tuple[str, ...]:
    """The engine models that come with Tracon."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def read_engine(name_or_path: str) -> EngineFile:
    """Raises RunnerError naming the file and the wrong key."""
    path = FOLDER / f"{name_or_path}.toml"
    if name_or_path not in engine_names():
        path = Path(name_or_path)
    try:
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        return decode(path.read_bytes(), type=EngineFile)
    except FileNotFoundError as error:
        raise RunnerError(
            f"there is no engine model {name_or_path!r}",
            remedy=f"there are {', '.join(engine_names())}; or give the path of a file (docs/simulator.md)",
        ) from error
    except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RunnerError(f"{path}: {error}", remedy="docs/simulator.md lists the keys of an engine model") from error
