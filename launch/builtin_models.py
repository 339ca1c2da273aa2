"""The models that Tracon writes itself, by the `model.source` of a profile: no hub is needed for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launch.dummy_model import QWEN3_0_6B, QWEN3_CODER_30B_A3B, write_dummy_model
from launch.environment import home
from launch.errors import LaunchError
from launch.tiny_model import MODEL_ID, write_tiny_model

PREFIX = "builtin:"


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    folder: str
    """Its name below the folder of models."""
    write: Callable[[Path], Path]
    """Writes it into a folder; idempotent."""
    weight_bytes: int
    """In GPU memory, bfloat16."""
    kv_bytes_per_token: int


MODELS: Mapping[str, BuiltinModel] = {
    "builtin:tiny": BuiltinModel(MODEL_ID, write_tiny_model, 263_000, 512),
    "builtin:qwen3-coder-30b-a3b": BuiltinModel(
        "qwen3-coder-30b-a3b-dummy", partial(write_dummy_model, QWEN3_CODER_30B_A3B), 61_060_000_000, 98_304
    ),
    "builtin:qwen3-0.6b": BuiltinModel(
        "qwen3-0.6b-dummy", partial(write_dummy_model, QWEN3_0_6B), 1_192_000_000, 114_688
    ),
}


def builtin_folder(source: str) -> Path | None:
    """The folder of the model of this `model.source`, which need not exist yet; None where Tracon does not write it.

    Raises LaunchError for an unknown `builtin:` name.
    """
    if not source.startswith(PREFIX):
        return None
    model = MODELS.get(source)
    if model is None:
        raise LaunchError(f"Tracon writes no model {source!r}", remedy=f"write one of: {', '.join(MODELS)}")
    return home() / "models" / model.folder


def write_builtin(folder: Path) -> None:
    """Write the model whose folder has this name. Raises OSError."""
    next(model for model in MODELS.values() if model.folder == folder.name).write(folder)
