"""How many examples a property test draws: as written under `make test`, a multiple of it under `make test-long`."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("TRACON_TEST_EXAMPLES", "1"))
HYPOTHESIS_DEFAULT = 100


def examples(count: int) -> int:
    """`count`, times the environment's TRACON_TEST_EXAMPLES."""
    return count * FACTOR
