"""A thread that samples once a second while a cell is measured."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

PERIOD_S = 1.0


class CellSampler(ABC):
    """Samples while `cell` is not empty, for the length of a `with` block."""

    def __init__(self, path: Path, *, period_s: float = PERIOD_S) -> None:
        self.cell = ""
        """The cell that is measured now."""
        self._path = path
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def _sample(self) -> None:
        """Write rows to the file until `_ended` is set."""
