"""Processes of real runs are killed, stopped and starved at random moments: nothing finished is lost, nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import DISK, KINDS
from tests.chaos.table import LONG_JOURNAL, read_lines

pytestmark = [pytest.mark.engine, pytest.mark.fault]
SHORT = ("kill load", "kill engine", "kill guard", "stop run", "descriptors of run")


def play(journal: Path, *options: str, kinds: tuple[str, ...]) -> None:
    """The campaigns that are left of the batch, in a process of its own: it ends whatever is below it."""
    before = len(read_lines(journal))
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    argv = [sys.executable, "-m", "tests.benchmarks.chaos", *options, *chosen, "--journal", str(journal)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    played = read_lines(journal)[before:]
    assert [sentence for entry in played for sentence in entry.findings] == [], done.stderr[-6000:]
    assert done.returncode == 0, done.stderr[-6000:]
    assert played


@pytest.mark.timeout(420)
def test_a_run_that_meets_five_faults_loses_and_leaves_nothing(tmp_path: Path) -> None:
    """A minute. This seed draws one campaign of connector-tax."""
    play(tmp_path / "journal.jsonl", "--seed", "16", "--batch", "5", kinds=SHORT)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_runs_that_meet_many_faults_lose_and_leave_nothing() -> None:
    """Two faults of each kind. A batch that was interrupted goes on; one that is done is followed by the next seed."""
    kinds = KINDS if os.geteuid() == 0 else tuple(kind for kind in KINDS if kind != DISK)
    options = ("--seed", "5", "--next-seed", "--batch", str(2 * len(kinds)), "--seconds", "3000")
    play(LONG_JOURNAL, *options, kinds=kinds)
