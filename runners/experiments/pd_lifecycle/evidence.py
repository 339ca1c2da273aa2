"""Collects the lines that router and engines write about the requests of one cell.

The decision log and the probe's files grow as long as router and engines live. A cell copies its own part, so that its
folder can be analyzed alone. It also verifies C for each measured request (specs/pd_lifecycle, "D-Side Cache
Verification"): the cell checks both caches before the request, and compares the result with the request's own events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import msgspec

from results.pd_lifecycle.join import select_request_events, transfer_of
from results.records.decisions import DecisionRecord, KvTransfer
from results.records.layout import TRANSFER_LOGS, AttemptLayout
from results.records.lifecycle import RequestConfig, Verification
from results.records.transfer_log import ProbeEvent, ProbeLog, read_probe
from runners.experiments.pd_lifecycle.static_pd_or_combined import PLAIN

POLL_S = 0.05
SIDES = ("prefill", "decode")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "prefill": ("scheduled", "prefill_done"),
    "decode": ("blocks_allocated", "received", "promoted", "scheduled"),
}
"""Events of a handover request, by side: after all of them and a write, no further event follows."""
ALONE = "scheduled"
"""The only event of the decode engine's probe for a request that it served alone."""
WRITE = "write"
"""Recorded by the engine that moves the blocks."""

_decode_decision = msgspec.json.Decoder(DecisionRecord).decode


class Tail:
    """Reads the complete lines that a file gained since the last read, or since the creation of this object."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._offset = 0
        if not from_start:
            self.read_new_lines()

    def read_new_lines(self) -> list[bytes]:
        """New complete lines with their line ends; an incomplete line waits."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines(keepends=True)


@dataclass(slots=True)
class _Slice:
    """Copies the part of one engine's probe files that belongs to a cell."""

    source: Path
    target: Path
    tails: dict[Path, Tail] = field(default_factory=dict)

    def start_copy(self) -> None:
        """Skip the current lines, except the status lines at the head of each file."""
        self.target.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.source.glob(TRANSFER_LOGS)):
            with path.open("rb") as file:
                self._append_lines(path, list(takewhile(_is_status, file)))
            self.tails[path] = Tail(path)

    def copy_new_lines(self) -> None:
        for path in sorted(self.source.glob(TRANSFER_LOGS)):
            tail = self.tails.setdefault(path, Tail(path, from_start=True))
            self._append_lines(path, tail.read_new_lines())

    def _append_lines(self, path: Path, lines: list[bytes]) -> None:
        if not lines:
            return
        with (self.target / path.name).open("ab") as file:
            file.write(b"".join(lines))


class Evidence:
    """The evidence of one cell in `folder`; create it before the first request."""

    def __init__(self, decisions: Path, probes: Mapping[str, Path], folder: Path) -> None:
        """probes: side to the folder to which its engine writes."""
        self.folder = folder
        self._tail = Tail(decisions)
        self._decisions: dict[str, DecisionRecord] = {}
        self._slices = {side: _Slice(probes[side], AttemptLayout(folder).probe(side)) for side in SIDES}
        folder.mkdir(parents=True, exist_ok=True)
        AttemptLayout(folder).decisions.touch()
        for part in self._slices.values():
            part.start_copy()

    def collect_lines(self) -> None:
        """Copy the new lines of all files."""
        lines = self._tail.read_new_lines()
        if lines:
            with AttemptLayout(self.folder).decisions.open("ab") as file:
                file.write(b"".join(lines))
        for line in lines:
            record = _decode_decision(line)
            self._decisions[record.request.request] = record
        for part in self._slices.values():
            part.copy_new_lines()

    def find_decision(self, request: str) -> DecisionRecord | None:
        """The last decision about a request; None = not written yet."""
        return self._decisions.get(request)

    def read_probe_log(self, side: str) -> ProbeLog:
        return read_probe(AttemptLayout(self.folder).probe(side))

    def find_missing(self, request: str) -> str:
        """The evidence of a request that is still missing; empty = complete."""
        record = self.find_decision(request)
        if record is None:
            return "the router's decision"
        if record.decision.instance == PLAIN:
            return ""
        moved = transfer_of(record)
        if moved is None and record.decision.instance and not record.decision.prefill:
            log = self.read_probe_log("decode")
            seen_alone = any(event.event == ALONE for event in log.of("", [request]))
            return "" if seen_alone or log.blind(ALONE) else f"{ALONE} of the decode engine"
        if moved is None or moved.status != "transferred":
            return ""
        logs = {side: self.read_probe_log(side) for side in SIDES}
        events_by_side = dict(zip(SIDES, select_request_events(record, *logs.values()), strict=True))
        seen = {side: {event.event for event in events} for side, events in events_by_side.items()}
        for side, needed in NEEDED.items():
            for event in needed:
                if event not in seen[side] and not logs[side].blind(event):
                    return f"{event} of the {side} engine"
        written = any(WRITE in events for events in seen.values())
        return "" if written or all(log.blind(WRITE) for log in logs.values()) else WRITE

    async def wait_until_complete(self, request: str, limit_s: float) -> None:
        """Wait until no evidence of the request is missing, at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        self.collect_lines()
        while self.find_missing(request) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            self.collect_lines()


def verify_context(
    shape: RequestConfig,
    moved: KvTransfer | None,
    prefill: Iterable[ProbeEvent],
    decode: Iterable[ProbeEvent],
    at_decode: int | None = None,
) -> Verification:
    """Verify the prompt tokens that both engines held at scheduling; an engine that does not report them held C just
    before the request.

    prefill, decode: the probe events of the request. at_decode: tokens from the decode engine's cache during the
    request, by its counters, where its probe is blind. `counted_tokens` is the decode engine's count; the reason has
    the prefill engine's where it differs.
    """
    seen_decode = _decode_held(shape, decode)
    at_decode = at_decode if seen_decode is None else seen_decode
    counts = {"decode": at_decode, "prefill": _find_prefill_held(moved, prefill)}
    wrong = [
        f"the {side} engine held {count} tokens of the prompt, not {shape.prior_context}"
        for side, count in counts.items()
        if count not in (None, shape.prior_context)
    ]
    silent = [side for side, count in counts.items() if count is None]
    caution = f"counted just before the request: the {' and '.join(silent)} engine did not count at scheduling"
    reason = "; ".join(wrong) or (caution if silent else "")
    return Verification(shape.prior_context, shape.prior_context if at_decode is None else at_decode, not wrong, reason)


def _decode_held(shape: RequestConfig, events: Iterable[ProbeEvent]) -> int | None:
    """By its own count; else the prompt minus the tokens for which it waits."""
    for event in events:
        if event.event == "blocks_allocated":
            if event.local_tokens is not None:
                return event.local_tokens
            if event.external_tokens is not None:
                return shape.total_input_length - event.external_tokens
    return None


def _find_prefill_held(moved: KvTransfer | None, events: Iterable[ProbeEvent]) -> int | None:
    for event in events:
        if event.event == "scheduled" and event.cached_tokens is not None:
            return event.cached_tokens
    return None if moved is None else moved.source_cached_tokens


def _is_status(line: bytes) -> bool:
    return line.endswith(b"\n") and line.startswith(b'{"event":"status"')
