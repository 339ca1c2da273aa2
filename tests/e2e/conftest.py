"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from launch import patching
from launch.environment import find_engine
from launch.local import LocalBackend
from tests.e2e.engine_pair import Pair


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """A pair of engines; a test says which transport they run with."""
    engine = find_engine("cpu")
    patching.apply(engine)
    async with LocalBackend(engine) as backend:
        yield Pair(backend, engine, tmp_path_factory.mktemp("engines"))
