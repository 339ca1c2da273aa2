"""When, of which commit and on what host a benchmark ran: the head of its output, and of a table in the docs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from launch.environment import read_cpu_model
from runners.campaign.provenance import commit_of
from runners.samplers.rest import read_rest


@dataclass(frozen=True, slots=True)
class Conditions:
    """Measured beside the benchmark. None = this host does not report it."""

    date: str
    """UTC."""
    commit: str
    """Empty = the code is no git work tree."""
    commit_note: str
    """That the work tree has uncommitted changes, or why there is no commit."""
    cpu: str
    cores: int
    load_1m: float | None
    work_us: float | None
    """As `work_us` of host.csv: a fixed piece of work, which takes longer on a slower or shared core."""


def read_conditions() -> Conditions:
    """Takes half a second, in which the host should do nothing."""
    commit, rest = commit_of(), read_rest()
    return Conditions(
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        commit=(commit.sha or "")[:8],
        commit_note=commit.reason,
        cpu=read_cpu_model(),
        cores=rest.cores,
        load_1m=rest.load_1m,
        work_us=rest.work_us,
    )


def describe_conditions(conditions: Conditions) -> str:
    """In a line."""
    commit = f"commit {conditions.commit}" if conditions.commit else "no commit"
    note = f" ({conditions.commit_note})" if conditions.commit_note else ""
    load = "not known" if conditions.load_1m is None else f"{conditions.load_1m:.2f}"
    work = "not known" if conditions.work_us is None else f"{conditions.work_us:.0f}"
    return (
        f"{conditions.date}, {commit}{note}, {conditions.cores} cores of {conditions.cpu}, load average {load}, "
        f"work_us {work}"
    )
