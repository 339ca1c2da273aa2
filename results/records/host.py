"""What the host did while cells were measured: time that a hypervisor took, and seconds in which threads woke late.

A cell on a stalled host looks like a slow engine. `runners/samplers/host.py` samples the host once a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

from results.records.declaration import decode_csv
from results.records.percent import format_percent

STOLEN = 0.1
"""Share of one core's second above which the second is disturbed."""
SLOW = 1.5
"""A core counts as slow when a fixed piece of work takes this many times as long as in the run's fastest tenth."""
LATE_S = 0.25
"""A thread that sleeps for a second wakes later than this only on a disturbed host."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """A row of `host.csv`: about the second or so before it."""

    cell: str
    """The cell that was measured."""
    t_unix_s: float
    """When the sampler woke."""
    late_s: float
    """How much later than it asked for the sampler was woken."""
    busy: float | None
    """0..1: the share of all cores' time in which they worked."""
    stolen: float | None
    """0..1: the largest share of one core's time that a hypervisor gave to others; None = this host does not say."""
    waiting: float | None
    """0..1: the share of the time in which some task was ready and had no core (pressure stall information)."""
    work_us: float | None = None
    """A core's time for a fixed piece of work. It grows where the core is shared in a way that no counter shows: as a
    hyperthread, or with a lower clock. None = a run of a version that did not measure it."""


HEADER = tuple(one.name for one in fields(HostSample))


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A cell with disturbed seconds."""

    cell: str
    seconds: int
    """Disturbed samples, out of `of`."""
    of: int
    worst_late_s: float
    worst_stolen: float | None


def read_host(path: Path) -> tuple[HostSample, ...]:
    """The samples of a run; empty where none were taken. A line that was cut short is left out."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            return decode_csv(file, HostSample)
    except OSError:
        return ()


def find_disturbed(samples: Iterable[HostSample]) -> tuple[Disturbed, ...]:
    """The cells that were measured on a disturbed host, worst first."""
    cells: dict[str, list[HostSample]] = {}
    for sample in samples:
        cells.setdefault(sample.cell, []).append(sample)
    rows = []
    for cell, taken in cells.items():
        bad = [one for one in taken if one.late_s > LATE_S or (one.stolen or 0.0) > STOLEN]
        if bad:
            stolen = [one.stolen for one in bad if one.stolen is not None]
            rows.append(
                Disturbed(cell, len(bad), len(taken), max(one.late_s for one in bad), max(stolen, default=None))
            )
    return tuple(sorted(rows, key=lambda one: (-one.worst_late_s, -(one.worst_stolen or 0.0), one.cell)))


def compute_mean_work_us(samples: Iterable[HostSample]) -> dict[str, float]:
    """By cell, the mean time of the fixed piece of work; a cell in which it was not timed is left out."""
    cells: dict[str, list[float]] = {}
    for sample in samples:
        if sample.work_us is not None:
            cells.setdefault(sample.cell, []).append(sample.work_us)
    return {cell: fmean(taken) for cell, taken in cells.items()}


def compute_slow_share(samples: Iterable[HostSample]) -> float | None:
    """0..1: the share of the seconds in which a core was SLOW; None = the work was not timed."""
    known = [one.work_us for one in samples if one.work_us is not None]
    if not known:
        return None
    limit_us = SLOW * _find_usual_us(known)
    return sum(value > limit_us for value in known) / len(known)


def find_usual_us(samples: Iterable[HostSample]) -> float | None:
    """What the fixed piece of work takes on a free core; None = it was not timed."""
    known = [one.work_us for one in samples if one.work_us is not None]
    return _find_usual_us(known) if known else None


def _find_usual_us(work_us: Sequence[float]) -> float:
    """What the fixed piece of work takes in the fastest tenth."""
    return sorted(work_us)[len(work_us) // 10]


def host_notes(path: Path) -> tuple[str, ...]:
    """Sentences for a report: which cells were measured on a disturbed host, or that none was; empty = no samples."""
    samples = read_host(path)
    if not samples:
        return ()
    cells = find_disturbed(samples)
    slow = _describe_slow(samples)
    if not cells:
        return (f"The host was looked at once a second ({len(samples)} times): no core was taken away for more than "
                f"{format_percent(STOLEN)} of a second, and a sleeping thread was never woken more than {LATE_S:g} s "
                "late.", *slow)  # fmt: skip
    named = "; ".join(_describe_cell(one) for one in cells[:5])
    more = f"; and {len(cells) - 5} more cells" if len(cells) > 5 else ""
    return (f"The host was disturbed in {sum(one.seconds for one in cells)} of the {len(samples)} seconds in which it "
            "was looked at: its cores were elsewhere, or too few for all that ran. Read these cells with care: what "
            f"they show may be that and not the policy or connector: {named}{more}.", *slow)  # fmt: skip


def _describe_slow(samples: Sequence[HostSample]) -> tuple[str, ...]:
    share = compute_slow_share(samples)
    if not share:
        return ()
    known = sorted(one.work_us for one in samples if one.work_us is not None)
    usual_us = _find_usual_us(known)
    longest_us = known[math.ceil(0.99 * len(known)) - 1]
    return (f"Its cores were slow in {format_percent(share, 1)} of the seconds: a fixed piece of work, otherwise "
            f"{usual_us:.0f} us of a core's time, took {longest_us:.0f} us at p99. On a virtual machine this is "
            "another tenant on the same physical core, or both cores on one; no counter of the kernel shows it. "
            "It slows whatever is measured meanwhile: over several launches that is noise, and no single number shows "
            "it.",)  # fmt: skip


def _describe_cell(one: Disturbed) -> str:
    stolen = "" if one.worst_stolen is None else f", {format_percent(one.worst_stolen)} of a core taken away"
    return f"`{one.cell}` ({one.seconds} of {one.of} s; woken {one.worst_late_s:.2f} s late{stolen})"
