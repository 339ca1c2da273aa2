"""Which tests may run side by side: all but those that read a clock closely."""

from __future__ import annotations

from pathlib import Path

import pytest

TIMED = ("runners/load", "runners/router")
"""Folders whose tests compare stamps with known times: another test on the machine's other core would disturb them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of those folders `timing`, wherever a test is added there."""
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / folder) for folder in TIMED):
            item.add_marker(pytest.mark.timing)
