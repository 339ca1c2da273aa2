"""What router and engines wrote down about the requests of one cell, read while they write it.

The decision log and the probe's files go on for as long as router and engines live; a cell keeps the part that is its
own, so that its folder can be analysed again without the rest. It also shows whether C was what it claimed to be in a
request that was measured (specs/pd_lifecycle, "D-Side Cache Verification"): both caches are asked before each request,
and what the engines did with the request itself is held against it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import msgspec

from results.decisions import DecisionRecord, KvTransfer
from results.lifecycle.join import events_of, movement_of
from results.lifecycle.record import RequestConfig, Verification
from results.transfer_probe import ProbeEvent, ProbeLog, read_probe
from runners.experiments.pd_lifecycle_caches import Held
from runners.experiments.pd_lifecycle_grid import Shape

POLL_S = 0.05
PROBE_FILES = "transfer.*.jsonl"
SIDES = ("prefill", "decode")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "prefill": ("scheduled", "prefill_done"),
    "decode": ("blocks_allocated", "received", "promoted", "scheduled"),
}
"""Events of a request that was handed over, by side: once they and a write are there, no other is still to come."""
ALONE = "scheduled"
"""All that the decode engine's probe says of a request that it served alone."""
WRITE = "write"
"""By the engine that moves the blocks, whichever that is."""

_decode_decision = msgspec.json.Decoder(DecisionRecord).decode


class Tail:
    """Whole lines that a file gained since this was made, or since they were last asked for."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._offset = 0
        if not from_start:
            self.lines()

    def lines(self) -> list[bytes]:
        """New whole lines, each with its end; a line that is still being written waits."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines(keepends=True)


@dataclass(slots=True)
class _Slice:
    """The part of one engine's probe files that belongs to a cell."""

    source: Path
    target: Path
    tails: dict[Path, Tail] = field(default_factory=dict)

    def begin(self) -> None:
        """What is in the files now is not the cell's, but for the lines at their head that say what the probe sees."""
        self.target.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.source.glob(PROBE_FILES)):
            with path.open("rb") as file:
                self._keep(path, list(takewhile(_is_status, file)))
            self.tails[path] = Tail(path)

    def poll(self) -> None:
        for path in sorted(self.source.glob(PROBE_FILES)):
            tail = self.tails.setdefault(path, Tail(path, from_start=True))
            self._keep(path, tail.lines())

    def _keep(self, path: Path, lines: list[bytes]) -> None:
        if not lines:
            return
        with (self.target / path.name).open("ab") as file:
            file.write(b"".join(lines))


class Evidence:
    """Of one cell: begun before its first request, in `folder`."""

    def __init__(self, decisions: Path, probes: Mapping[str, Path], folder: Path) -> None:
        """`probes`: for each of SIDES the folder that its engine writes to."""
        self.folder = folder
        self._tail = Tail(decisions)
        self._decisions: dict[str, DecisionRecord] = {}
        self._slices = {side: _Slice(probes[side], folder / "probe" / side) for side in SIDES}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "decisions.jsonl").touch()
        for part in self._slices.values():
            part.begin()

    def poll(self) -> None:
        """Keep what was written since."""
        lines = self._tail.lines()
        if lines:
            with (self.folder / "decisions.jsonl").open("ab") as file:
                file.write(b"".join(lines))
        for line in lines:
            record = _decode_decision(line)
            self._decisions[record.request.request] = record
        for part in self._slices.values():
            part.poll()

    def decision(self, request: str) -> DecisionRecord | None:
        """The last pick of a request; None = the router has not written it yet."""
        return self._decisions.get(request)

    def probe(self, side: str) -> ProbeLog:
        """What one engine's probe wrote during the cell."""
        return read_probe(self.folder / "probe" / side)

    def missing(self, request: str) -> str:
        """What is still to come about a request; empty = all that can come is there."""
        record = self.decision(request)
        if record is None:
            return "the router's decision"
        moved = movement_of(record)
        if moved is None and record.decision.instance and not record.decision.prefill:
            log = self.probe("decode")
            seen_alone = any(event.event == ALONE for event in log.of("", [request]))
            return "" if seen_alone or log.blind(ALONE) else f"{ALONE} of the decode engine"
        if moved is None or moved.status != "transferred":
            return ""
        logs = {side: self.probe(side) for side in SIDES}
        found = dict(zip(SIDES, events_of(record, *logs.values()), strict=True))
        seen = {side: {event.event for event in events} for side, events in found.items()}
        for side, needed in NEEDED.items():
            for event in needed:
                if event not in seen[side] and not logs[side].blind(event):
                    return f"{event} of the {side} engine"
        written = any(WRITE in events for events in seen.values())
        return "" if written or all(log.blind(WRITE) for log in logs.values()) else WRITE

    async def wait(self, request: str, limit_s: float) -> None:
        """Until nothing is missing about the request, or the time is up."""
        deadline = time.monotonic() + limit_s
        self.poll()
        while self.missing(request) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            self.poll()


def asked(shape: Shape) -> RequestConfig:
    """A cell's C, N and O as its records have them."""
    return RequestConfig(shape.prior_context, shape.new_tokens, shape.output_length)


def verification(
    shape: Shape,
    before: Held,
    moved: KvTransfer | None,
    prefill: Iterable[ProbeEvent],
    decode: Iterable[ProbeEvent],
    at_decode: int | None = None,
) -> Verification:
    """What both engines held of the prompt when they first scheduled it; `before` where nothing else says.

    prefill, decode: what their probes wrote about the request. at_decode: tokens that came out of the decode engine's
    cache while it was served, by its counters, where its probe is blind. `counted_tokens` is the decode engine's; the
    prefill engine's is in the reason where it is another one.
    """
    seen_decode, at_prefill = _decode_held(shape, decode), _prefill_held(moved, prefill)
    at_decode = at_decode if seen_decode is None else seen_decode
    held = Held(
        before.prefill if at_prefill is None else at_prefill,
        before.decode if at_decode is None else at_decode,
    )
    wrong = [
        f"the {side} engine held {count} tokens of the prompt, not {shape.prior_context}"
        for side, count in (("decode", held.decode), ("prefill", held.prefill))
        if count != shape.prior_context
    ]
    silent = [side for side, count in (("decode", at_decode), ("prefill", at_prefill)) if count is None]
    asked = (
        f"asked just before the request: {' and '.join(silent)} engine did not count at scheduling" if silent else ""
    )
    return Verification(shape.prior_context, held.decode, not wrong, "; ".join(wrong) or asked)


def _decode_held(shape: Shape, events: Iterable[ProbeEvent]) -> int | None:
    """By its own count; else the prompt less what it waits for."""
    for event in events:
        if event.event == "blocks_allocated":
            if event.local_tokens is not None:
                return event.local_tokens
            if event.external_tokens is not None:
                return shape.input_tokens - event.external_tokens
    return None


def _prefill_held(moved: KvTransfer | None, events: Iterable[ProbeEvent]) -> int | None:
    for event in events:
        if event.event == "scheduled" and event.cached_tokens is not None:
            return event.cached_tokens
    return None if moved is None else moved.source_cached_tokens


def _is_status(line: bytes) -> bool:
    return line.endswith(b"\n") and line.startswith(b'{"event":"status"')
