"""Evidence of the OOM killer: the kernel's log where it can be read, and this cgroup's counter. Never blocks."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path

from launch.host import CGROUP_ROOT, OWN_CGROUP, read_cgroups

KERNEL_LOG = Path("/dev/kmsg")
READ_S = 0.5
"""The kernel's log is a ring of a few MiB at most: a read of it ends by itself, and after this in any case."""
_RECORD_BYTES = 8192
_KILLED = re.compile(r"(?:Memory cgroup out of memory|Out of memory).*?: Killed process (\d+) \([^)]*\).*")
CLOCK_SLACK_S = 60.0
"""The clock of the kernel's log is not the one that stamps launches: over weeks of uptime they drift apart."""


def explain_kill(pid: int | None, since_s: float, kills_before: int | None) -> str:
    """What is known about a SIGKILL: the OOM killer's line, its counter, or why neither could be read.

    `since_s`: CLOCK_MONOTONIC of the launch; `kills_before`: `count_oom_kills` then.
    """
    lines, unreadable = read_oom_lines(since_s)
    return judge_kill(pid, lines, unreadable, kills_before, count_oom_kills())


def judge_kill(
    pid: int | None, lines: tuple[str, ...], unreadable: str, kills_before: int | None, kills_now: int | None
) -> str:
    """`explain_kill` on given inputs; `lines`: the OOM killer's since the launch; `unreadable`: why there are none."""
    own = [line for line in lines if (match := _KILLED.search(line)) and pid is not None and int(match[1]) == pid]
    if own:
        return f"the kernel's log: {own[-1]}"
    if kills_before is not None and kills_now is not None and kills_now > kills_before:
        shown = f"; the kernel's log: {lines[-1]}" if lines else ""
        return f"the OOM killer ended {kills_now - kills_before} processes of this cgroup since the launch{shown}"
    if lines:  # in another pid namespace a process has another number there
        return f"the OOM killer ended a process since the launch, perhaps another one: {lines[-1]}"
    if unreadable:
        return f"whether the OOM killer ended it is not known ({unreadable}): `dmesg` as root shows it"
    return "the kernel's log has no line of the OOM killer since the launch: another process sent the signal"


def read_oom_lines(since_s: float, path: Path = KERNEL_LOG) -> tuple[tuple[str, ...], str]:
    """Lines of the OOM killer since then, and why the kernel's log could not be read (empty = it was)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return (), f"{path}: {error.strerror}"
    lines: list[str] = []
    until = time.monotonic() + READ_S
    try:
        while time.monotonic() < until:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while it was read: the next read goes on behind it
                    continue
                return tuple(lines), "" if error.errno == errno.EAGAIN else f"{path}: {error.strerror}"
            if not record:
                return tuple(lines), ""
            line = _parse_oom_line(record, since_s)
            if line:
                lines.append(line)
    finally:
        os.close(descriptor)
    return tuple(lines), f"{path} could not be read within {READ_S} s"


def _parse_oom_line(record: bytes, since_s: float) -> str:
    """The text of a record `priority,sequence,microseconds,flags;text` where it is the OOM killer's; else empty."""
    head, _, text = record.decode("utf-8", "replace").partition(";")
    parts = head.split(",")
    killed = _KILLED.search(text.partition("\n")[0])
    if killed is None or len(parts) < 3 or not parts[2].isdigit() or int(parts[2]) / 1e6 < since_s - CLOCK_SLACK_S:
        return ""
    return killed[0]


def count_oom_kills(own: Path = OWN_CGROUP, root: Path = CGROUP_ROOT) -> int | None:
    """Processes that the OOM killer has ended in this process's cgroup; None where it does not say."""
    paths = read_cgroups(own)
    for controller, folder, name in (("memory", root / "memory", "memory.oom_control"), ("", root, "memory.events")):
        if controller not in paths:
            continue
        # A container that sees the host's path of its cgroup has the cgroup itself at the root.
        for cgroup in (folder / paths[controller].lstrip("/"), folder):
            with contextlib.suppress(OSError, KeyError, ValueError):
                counts = dict(line.split() for line in (cgroup / name).read_text().splitlines())
                return int(counts["oom_kill"])
    return None
