"""The load's process takes as many connections as its limit of open files allows, and says what it lacks."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from runners.load.messages import LoadError
from runners.load.process_settings import allow_connections

RAISED = """
import resource
from runners.load.process_settings import allow_connections

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
allow_connections(236, "lower inflight_cap")
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised_to_what_is_needed() -> None:
    made = subprocess.run([sys.executable, "-c", RAISED], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["300", "300"]


def test_a_hard_limit_that_is_too_low_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 300))
    with pytest.raises(LoadError, match="237 connections need 301 open files, the limit is 300") as refused:
        allow_connections(237, "lower inflight_cap")
    assert refused.value.remedy == "Raise it (ulimit -Hn) or lower inflight_cap."
