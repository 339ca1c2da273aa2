"""Which tests may run side by side (`make test`): real engines one after another, the others beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import HYPOTHESIS_DEFAULT, examples

HERE = Path(__file__).parent
TIMED = ("runners/load",)
"""Folders whose tests compare stamps with known times: another test on the machine's other core would disturb them."""

# Without hypothesis' limit of 0.2 s an example: a busy host is no counterexample.
settings.register_profile("tracon", max_examples=examples(HYPOTHESIS_DEFAULT), deadline=None)
settings.load_profile("tracon")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real engines come first and form one group: they share one engine environment, whose step probe some
    of them apply and remove. Every other file is a group of its own; the timed folders are marked `timing`, tests that
    draw their cases `property`."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)
    for item in items:
        engine = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engine" if engine else str(item.path.relative_to(HERE))))
        if not engine and any(item.path.is_relative_to(HERE / folder) for folder in TIMED):
            item.add_marker(pytest.mark.timing)
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            item.add_marker(pytest.mark.property)
