from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from state.store import RunStore
from tests.state.plans import a_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A planned run in the folder `run`, opened again."""
    a_run(tmp_path / "run").close()
    with RunStore.open(tmp_path / "run") as store:
        yield store
