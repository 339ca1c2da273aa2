from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.trace.session import Trace
from tests.runners.load.cells import Measure, Measured, measure_on, short_spec
from tests.runners.load.traces import Replay, Replayed, replay_on, replay_spec
from tests.servers.truth_server import TruthServer

AT_ONCE: Mapping[str, float] = {"itl_ms": 1}


@pytest.fixture(scope="package")
def running_server() -> Iterator[TruthServer]:
    with TruthServer() as server:
        yield server


@pytest.fixture
def server(running_server: TruthServer) -> TruthServer:
    """The truth server, with nothing left over from the test before."""
    running_server.take_rows()
    return running_server


@pytest.fixture
def measure(server: TruthServer, tmp_path: Path) -> Measure:
    def run(served: Mapping[str, float] = AT_ONCE, *, cut_once_sent: bool = False, **changes: Any) -> Measured:
        return measure_on(server, short_spec(server.url(**served), tmp_path, **changes), cut_once_sent=cut_once_sent)

    return run


@pytest.fixture
def replay(server: TruthServer, tmp_path: Path) -> Replay:
    def run(trace: Trace, served: Mapping[str, float] = AT_ONCE, *, cut_once_sent: int = 0, **changes: Any) -> Replayed:
        spec = replay_spec(server.url(**served), trace, tmp_path, **changes)
        return replay_on(server, spec, cut_once_sent=cut_once_sent)

    return run
