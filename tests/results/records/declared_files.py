"""Whether a file of a run is among those that `results/documents.py` lists."""

from __future__ import annotations

import re
from functools import cache

from results.documents import list_declared
from results.records.declared import OTHER_FILES


def is_declared(path: str) -> bool:
    """`path`: below the run's folder."""
    return any(pattern.fullmatch(path) for pattern in _compile_patterns())


@cache
def _compile_patterns() -> tuple[re.Pattern[str], ...]:
    named = [where for one in list_declared() for where in one.where] + [one.where for one in OTHER_FILES]
    return tuple(re.compile(re.sub(r"<\w+>", "[^/]+", name.replace(".", r"\."))) for name in named)
