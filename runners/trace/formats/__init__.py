"""Reads trace files of the formats Mooncake, Bailian, agentic and tracon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runners.errors import RunnerError
from runners.trace.formats.agentic import open_agentic
from runners.trace.formats.bailian import open_bailian
from runners.trace.formats.mooncake import open_mooncake
from runners.trace.formats.tracon import open_tracon
from runners.trace.session import Session, Trace, TraceFacts
from runners.trace.source import OnProgress, TraceError, read_beginning

Reader = Callable[[Path, OnProgress | None], tuple[TraceFacts, Iterator[Session]]]

FORMATS: Mapping[str, Reader] = {
    "mooncake": open_mooncake,
    "bailian": open_bailian,
    "agentic": open_agentic,
    "tracon": open_tracon,
}
MAX_HASHES = 1 << 30
"""Hashes of a trace in memory: 8 GiB where turns share them, 40 GiB where the file states each."""
_MARKS = {"tracon": b'"tracon_trace"', "bailian": b'"chat_id"', "agentic": b'"requests"', "mooncake": b'"hash_ids"'}
"""A word in the first line that identifies the format, in the order of the checks."""


def open_trace(
    path: Path | str, format: str | None = None, on_progress: OnProgress | None = None
) -> tuple[TraceFacts, Iterator[Session]]:
    """(facts, sessions in the order of arrival, read lazily).

    `format`: a name in FORMATS; None = by the first line. `on_progress` gets the share (0 to 1) that has been read.
    Raises TraceError (file, line, rule) here and during the iteration, OSError, and RunnerError for an unknown format.
    """
    path = Path(path)
    name = format or detect_format(path)
    if name not in FORMATS:
        raise RunnerError(f"there is no trace format {name!r}", remedy=f"choose one of {', '.join(FORMATS)}")
    return FORMATS[name](path, on_progress)


def read_trace(path: Path | str, format: str | None = None) -> Trace:
    """Read the trace into memory: about 8 bytes per block hash that turns share in the file, 40 per other one, and 200
    per turn. Raises as `open_trace` does, and RunnerError for more than MAX_HASHES.
    """
    facts, sessions = open_trace(path, format)
    whole: list[Session] = []
    hashes = 0
    for session in sessions:
        hashes += sum(len(turn.hashes) for turn in session.turns)
        if hashes > MAX_HASHES:
            raise RunnerError(
                f"{facts.source} has more than {MAX_HASHES} block hashes, too many for the memory",
                remedy="take a part of it: `tracon trace sample`",
            )
        whole.append(session)
    return Trace(facts, tuple(whole))


def detect_format(path: Path) -> str:
    """The format's name, by the first line. Raises TraceError for an unknown format."""
    name, head = read_beginning(path)
    for format, mark in _MARKS.items():
        if mark in head:
            return format
    raise TraceError(name, 1, f"the first line matches none of the formats {', '.join(FORMATS)}")
