"""One form of a percentage everywhere a person reads one: a number, a space, the sign."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from results.records.percent import format_percent

ROOT = Path(__file__).parents[3]
ROOMS = ("console", "launch", "patches", "results", "runners", "state")
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md"), ROOT / "README.md"]
CLOSE_UP = re.compile(r"[0-9]%(?!;)|:[-+,.0-9]*%\}")
"""A number with its sign close up, or a format that writes one; `100%;` is CSS."""


@pytest.mark.parametrize(
    ("fraction", "more", "shown"),
    [(0.1, {}, "10 %"), (0.1234, {"digits": 1}, "12.3 %"), (0.5, {"signed": True}, "+50 %"), (-0.021, {}, "-2 %")],
)
def test_a_fraction_is_shown_with_a_space(fraction: float, more: dict[str, int], shown: str) -> None:
    assert format_percent(fraction, **more) == shown  # type: ignore[arg-type]


def test_no_text_has_another_form() -> None:
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    lines = (
        (path.relative_to(ROOT), number, line)
        for path in (*sources, *PAGES)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    )
    allowed = ("form=", "How a number is formatted")  # `Column.show` puts the space in
    assert [
        f"{path}:{number}"
        for path, number, line in lines
        if CLOSE_UP.search(line) and not any(text in line for text in allowed)
    ] == []
