"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from launch.environment import find_engine
from launch.local import LocalBackend
from tests.e2e.engine_pair import Pair


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engines(
    backend: LocalBackend, patches: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """A pair of engines; a test says which transport they run with."""
    pair = Pair(backend, find_engine("cpu"), tmp_path_factory.mktemp("engines"))
    yield pair
    await pair.stop()
