from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server
