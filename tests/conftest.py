"""Which tests may run side by side (`make test`), and what all tests of real engines share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import settings

from launch import patching
from launch.environment import find_engine
from launch.errors import EngineMissing
from launch.local import LocalBackend
from tests.engine_home import linked_home
from tests.examples import HYPOTHESIS_DEFAULT, examples
from tests.ports import worker_number
from tests.unsynchronized import no_wait_for_the_disk

HERE = Path(__file__).parent
RUNS = {f"e2e/test_{name}.py" for name in ("chaos", "connector_tax", "gpu_host", "pd_lifecycle", "routing")}
"""Tests of runs on real engines: they take about as long as all other tests of real engines together."""
TIMED = "running_server"
"""Fixture of the tests that compare stamps with a server's: another test on the other core would disturb them."""
TIMED_FOLDERS = ("benchmarks", "launch", "patches", "runners/load")
"""Of every test marked `timing`: `make test` collects no others where it runs these."""

# Without hypothesis' limit of 0.2 s an example: a busy host is no counterexample.
settings.register_profile("tracon", max_examples=examples(HYPOTHESIS_DEFAULT), deadline=None)
settings.load_profile("tracon")

_at_end = contextlib.ExitStack()
"""What this process removes when its tests have ended."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real engines come first, in two groups, so that at most two workers have engines. Every other file is a
    group of its own. Tests with the fixture TIMED are marked `timing`, tests that draw their cases `property`."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(find_group(item)))
        if TIMED in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timing)
        if item.get_closest_marker("timing") is not None:
            _require_timed_folder(item)
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            item.add_marker(pytest.mark.property)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test of real engines has the engine environment of its worker: tests apply the patches and remove them."""
    home = _make_home() if worker_number() and item.get_closest_marker("engine") else None
    with pytest.MonkeyPatch.context() as patch:
        if home is not None:
            patch.setenv("TRACON_HOME", str(home))
        return (yield)


def _require_timed_folder(item: pytest.Item) -> None:
    """Raises UsageError for a test that `make test` would not find."""
    if not any(item.path.is_relative_to(HERE / folder) for folder in TIMED_FOLDERS):
        raise pytest.UsageError(f"{item.nodeid} is marked `timing` and is in none of {', '.join(TIMED_FOLDERS)}")


def find_group(item: pytest.Item) -> str:
    """The tests that one worker runs, in their order."""
    file = str(item.path.relative_to(HERE))
    if item.get_closest_marker("engine") is None:
        return file
    return "engines of runs" if file in RUNS else "engines"


@functools.cache
def _make_home() -> Path | None:
    """A home for this worker; None where no engine environment is installed, as the test itself will report."""
    with contextlib.suppress(EngineMissing):
        return _at_end.enter_context(linked_home())
    return None


def pytest_unconfigure() -> None:
    _at_end.close()


@pytest.fixture(scope="session", autouse=True)
def unsynchronized() -> Iterator[None]:
    with no_wait_for_the_disk():
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backend() -> AsyncIterator[LocalBackend]:
    """Starts engines of the CPU environment. All tests of a process share it: its fork server imports vLLM once."""
    async with LocalBackend(find_engine("cpu")) as made:
        yield made


@pytest.fixture(scope="module")
def patches() -> None:
    """Applied for the engines of a module. A run that ended since has removed them."""
    patching.apply(find_engine("cpu"))
