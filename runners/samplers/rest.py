"""Whether the host is at rest before a run starts, and what it costs where it is not."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from launch.profile import Kind
from results.records.events import InstanceChanged
from results.records.host import SLOW, find_usual_us, read_host
from results.records.layout import RunLayout
from results.records.percent import format_percent
from runners.samplers.host import compute_shares_between, read_clock, time_work
from state.errors import StateError
from state.store import RunStore
from state.workspace import Workspace

SAMPLE_S = 0.5
BURST_S = 0.05
"""Duration of the fixed piece of work: long enough for a core that was idle to raise its clock."""
BUSY = 0.2
"""Share of all cores' time that others may take from a host at rest."""
STOLEN = 0.02
LOAD_PER_CORE = 0.5
SEARCHED_RUNS = 20
"""The newest runs that are searched for what the fixed piece of work takes: a workspace may hold hundreds."""
SIGMA_AT_REST = (0.04, 0.12)
SIGMA_BUSY = (0.25, 0.37)
"""Sigma of log TTFT p90 between launches of one config: both measured on two cores (docs/analysis.md, "Noise between
launches"). What a busy host costs an engine on a GPU is not measured."""


@dataclass(frozen=True, slots=True)
class HostRest:
    """The host just before a run. None = this host does not report it."""

    load_1m: float | None
    """Mean number of tasks that ran or were ready over the last minute."""
    cores: int
    """All of the host, as its load average counts tasks on all of them."""
    busy: float | None
    """0..1: the share of all cores' time in which they worked."""
    stolen: float | None
    """0..1: the largest share of one core's time that a hypervisor gave to others."""
    work_us: float | None = None
    """The least of a core's time that a fixed piece of work took, as `work_us` of host.csv."""


def read_rest(sample_s: float = SAMPLE_S) -> HostRest:
    """Measures the host over `sample_s`, while this process sleeps."""
    before = read_clock()
    time.sleep(sample_s)
    shares = compute_shares_between(before, read_clock())
    load_1m = None
    with suppress(OSError):
        load_1m = os.getloadavg()[0]
    return HostRest(load_1m, os.cpu_count() or 1, shares.busy, shares.stolen, _time_fastest_work())


def _time_fastest_work() -> float:
    """Time of the fastest fixed piece of work in a burst."""
    end_s, fastest_us = time.monotonic() + BURST_S, time_work()
    while time.monotonic() < end_s:
        fastest_us = min(fastest_us, time_work())
    return fastest_us


def find_usual_work_us(workspace: Workspace) -> float | None:
    """What the fixed piece of work takes on this host, by the newest run that timed it here.

    None = none of the SEARCHED_RUNS newest did.
    """
    for folder in workspace.list_newest(SEARCHED_RUNS):
        usual_us = find_usual_us(read_host(RunLayout(folder).host_csv))
        if usual_us is not None and _ran_here(folder):
            return usual_us
    return None


def _ran_here(folder: Path) -> bool:
    """Whether this host started the run's first engine: the folder may be a copy of another host's run."""
    here = platform.node()
    with suppress(StateError, OSError), RunStore.open(folder, read_only=True) as store:
        events = (recorded.event for recorded in store.events())
        hosts = (event.host for event in events if isinstance(event, InstanceChanged) and event.host)
        return next(hosts, "") == here
    return False


def explain_unrest(rest: HostRest, kind: Kind, usual_us: float | None = None) -> str:
    """Why the host is not at rest and what that costs engines of this kind, in sentences; empty where it is at rest.

    `usual_us`: as `find_usual_work_us`.
    """
    signs = []
    if rest.load_1m is not None and rest.load_1m > LOAD_PER_CORE * rest.cores:
        signs.append(f"load average {rest.load_1m:.1f} on {rest.cores} cores")
    if rest.busy is not None and rest.busy > BUSY:
        signs.append(f"{format_percent(rest.busy)} of its cores' time is taken")
    if rest.stolen is not None and rest.stolen > STOLEN:
        signs.append(f"a hypervisor takes {format_percent(rest.stolen)} of a core")
    if usual_us is not None and rest.work_us is not None and rest.work_us > SLOW * usual_us:
        signs.append(
            f"its cores are slow, which no counter shows: a fixed piece of work takes {rest.work_us:.0f} us, in the "
            f"newest run on this host {usual_us:.0f} us"
        )
    if not signs:
        return ""
    cost = _describe_cost() if kind == "cpu" else "by how much is not measured for engines on a GPU"
    return (
        f"This host is not at rest: {', '.join(signs)}. Launches of one config then differ more: {cost}. The run does "
        "not wait for rest."
    )


def _describe_cost() -> str:
    """What a busy host costs where engines share its cores."""
    rest_low, rest_high = SIGMA_AT_REST
    busy_low, busy_high = SIGMA_BUSY
    times = round((fmean(SIGMA_BUSY) / fmean(SIGMA_AT_REST)) ** 2)
    return (
        f"sigma of log TTFT p90 between launches was {rest_low:g} to {rest_high:g} on a host at rest and {busy_low:g} "
        f"to {busy_high:g} on a busy one, so that the same tax takes about {times} times as many launches"
    )
