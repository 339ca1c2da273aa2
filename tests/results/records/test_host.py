"""Cells that a disturbed host has measured are named; a quiet host is said to have been quiet."""

from __future__ import annotations

from pathlib import Path

from results.records.host import (
    HEADER,
    Disturbed,
    HostSample,
    compute_slow_share,
    find_disturbed,
    host_notes,
    read_host,
)


def sample(cell: str, *, late_s: float = 0.0, stolen: float | None = 0.0) -> HostSample:
    return HostSample(cell, 1.0, late_s, 0.5, stolen, 0.1)


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([",".join(HEADER), *rows]) + "\n")
    return path


def test_a_stolen_core_and_a_late_waking_are_disturbances_and_the_worst_cell_comes_first() -> None:
    samples = [
        sample("quiet"), sample("a", stolen=0.3), sample("a", stolen=0.2), sample("a"), sample("b", late_s=5.0),
        sample("silent", stolen=None),
    ]  # fmt: skip
    assert find_disturbed(samples) == (Disturbed("b", 1, 1, 5.0, 0.0), Disturbed("a", 2, 3, 0.0, 0.3))


def test_what_the_host_does_not_tell_is_not_known(tmp_path: Path) -> None:
    path = write(tmp_path / "host.csv", "load/plain/r4,10.5,0.001,0.5,,", "load/plain/r4,11.5,0.001,0.5,0.25,0.1")
    first, second = read_host(path)
    assert (first.stolen, first.waiting) == (None, None)
    assert second == HostSample("load/plain/r4", 11.5, 0.001, 0.5, 0.25, 0.1)


def test_a_line_cut_short_by_a_dead_run_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "host.csv", "a,10.5,0.001,0.5,0.0,0.1", "a,11.")
    assert len(read_host(path)) == 1


def test_a_report_says_whether_the_host_was_quiet_or_not_looked_at(tmp_path: Path) -> None:
    assert host_notes(tmp_path / "none.csv") == ()
    (quiet,) = host_notes(write(tmp_path / "host.csv", "a,10.5,0.001,0.5,0.0,0.1"))
    assert "no core was taken away" in quiet
    (note,) = host_notes(write(tmp_path / "host.csv", "a,10.5,14.5,0.5,0.0,0.1", "b,11.5,0.0,0.5,0.0,0.1"))
    assert "`a` (1 of 1 s; woken 14.50 s late, 0 % of a core taken away)" in note
    assert "`b`" not in note


def test_seconds_in_which_no_counter_shows_why_a_core_was_slow_are_counted(tmp_path: Path) -> None:
    rows = [f"a,{second},0.0,0.5,0.0,0.1,{work_us}" for second, work_us in enumerate([100.0] * 15 + [190.0] * 5)]
    path = write(tmp_path / "host.csv", *rows, "a,21,0.0,0.5,0.0,0.1")
    _, slow = host_notes(path)
    assert compute_slow_share(read_host(path)) == 0.25
    assert compute_slow_share([sample("a")]) is None, "an older run did not time the work"
    assert "slow in 25.0 % of the seconds: a fixed piece of work, otherwise 100 us" in slow
    assert "took 190 us at p99" in slow
    assert len(host_notes(write(tmp_path / "even.csv", *rows[:15]))) == 1
