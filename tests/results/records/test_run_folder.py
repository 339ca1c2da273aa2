"""What a run folder states of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.records.layout import RunLayout
from results.records.run_folder import run_facts

CPU, CUDA = ({"profile": {"engine": {"kind": kind}}} for kind in ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("inputs", "shares_cores"),
    [
        (CPU, True),
        (CUDA, False),
        (CPU | {"simulated": "a model", "grid": {"simulation": {"step_noise": 0.05}}}, False),
        (CUDA | {"simulated": "a model", "grid": {"simulation": {"contention": 0.0}}}, False),
        (CUDA | {"simulated": "a model", "grid": {"simulation": {"contention": 0.1}}}, True),
    ],
)
def test_simulated_engines_share_cores_only_with_contention(
    inputs: dict[str, Any], shares_cores: bool, tmp_path: Path
) -> None:
    """Then no claim about a fleet is made of them, as of CPU builds on one host."""
    RunLayout(tmp_path).plan.write_bytes(msgspec.json.encode({"inputs": inputs}))
    facts, gaps = run_facts(tmp_path)
    assert (facts.shares_cores, gaps) == (shares_cores, ())
