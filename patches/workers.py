"""The workers of vLLM, which run the model: each is handed out as soon as it is made, in whatever process that is."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

MODULE = "vllm.v1.worker.worker_base"


def change_each_worker(change: Callable[[Any], None], mark: str) -> None:
    """Call `change(worker)` with every worker made from now on; once per `mark`. `change` must not raise."""
    base = importlib.import_module(MODULE).WorkerBase
    original = base.__init__
    if hasattr(base, mark):
        return

    @functools.wraps(original)
    def __init__(self: object, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        change(self)

    base.__init__ = __init__
    setattr(base, mark, True)
