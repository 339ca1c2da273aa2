"""Reports without their drawings, for tests that look at none: most of the time of `write_results` is drawing.

Every figure's numbers, caption and place in the report are written as always. tests/results/test_reports.py and
tests/results/report/test_page.py look at whole reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

SVG = "<svg></svg>"


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Within it, or within a function that it decorates, a figure is an empty image."""
    with (
        patch("results.report.output.draw", lambda *_: {"png": b"", "svg": SVG.encode()}),
        patch("results.report.output.draw_beside", lambda *_: SVG),
    ):
        yield
