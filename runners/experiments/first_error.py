"""What the request records of a cell's attempt say where the cell failed."""

from __future__ import annotations

from pathlib import Path

import msgspec


def first_error(requests: Path) -> str:
    """The first error among the records of a JSONL file."""
    with requests.open("rb") as file:
        errors = (msgspec.json.decode(line).get("error") for line in file)
        return next((error for error in errors if error), "none was recorded")
