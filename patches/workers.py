"""The workers of vLLM, which run the model: each is handed out as soon as it is made, in whatever process that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hooks import load, replace_once, surround

MODULE = "vllm.v1.worker.worker_base"


def change_each_worker(change: Callable[[Any], None], mark: str) -> None:
    """Call `change(worker)` with every worker made from now on; once per `mark`. `change` must not raise."""
    hand_out = surround(after=lambda _, worker, *__: change(worker))
    replace_once(load(MODULE).WorkerBase, "__init__", hand_out, mark)
