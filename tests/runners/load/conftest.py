from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.truth_server import TruthServer


@pytest.fixture(scope="package")
def running_server() -> Iterator[TruthServer]:
    with TruthServer() as server:
        yield server


@pytest.fixture
def server(running_server: TruthServer) -> TruthServer:
    """The truth server, with nothing left over from the test before."""
    running_server.take_rows()
    return running_server
