from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

PutModules = Callable[[Mapping[str, ModuleType]], None]


@pytest.fixture
def put_modules(monkeypatch: pytest.MonkeyPatch) -> PutModules:
    """Makes modules importable until the test ends."""

    def put(modules: Mapping[str, ModuleType]) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return put
