"""What the faults of a run have left that must not be: read from its journal, its artifacts and the machine."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from launch.guard import SOCKETS
from launch.ports import holders, is_free
from results.records.decisions import DecisionRecord
from results.records.events import CellChanged, CellState
from results.records.layout import TrialLayout, is_complete
from results.records.schemas import RequestStatus
from results.records.turns import RoutingCell, TurnRecord
from state.store import RunStore

MEASURED = ("load", "replay", "lifecycle")
"""Kinds of cells whose record is a commit mark under `results/`."""
MEASUREMENTS = (
    "*/requests_*.jsonl", "*/metrics_*.jsonl", "*/engine_step_*.jsonl", "*/trial_*/*.jsonl", "lifecycle/C*_rep*.json",
)  # fmt: skip
"""Files below `results/` that a cell's record names, each with its checksum."""
SHARED_MEMORY = Path("/dev/shm")
SETTLED_S = 2.0
_RECORD = re.compile(r"cell.*\.json")

MEASURES = {
    "lost": "finished cells lost",
    "twice": "cells measured twice",
    "half_written": "artifacts half-written",
    "orphans": "orphan processes",
    "ports": "ports left",
    "shared_memory": "shared memory left",
    "sockets": "sockets left",
    "sessions_lost": "sessions lost by the router without an error event",
    "stuck": "runs that did not reach their end",
}
"""What is counted, each with its name in the table."""


class Findings:
    """Defects by measure, each one sentence."""

    def __init__(self) -> None:
        self.by_measure: dict[str, list[str]] = {measure: [] for measure in MEASURES}

    def add(self, measure: str, *defects: str) -> None:
        self.by_measure[measure].extend(defects)

    @property
    def counts(self) -> dict[str, int]:
        return {measure: len(defects) for measure, defects in self.by_measure.items()}

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(f"{MEASURES[m]}: {defect}" for m, defects in self.by_measure.items() for defect in defects)


def list_records(folder: Path) -> list[Path]:
    """The records of cells below `results/`; a folder that is removed meanwhile has none."""
    walked = os.walk(folder / "results")
    return sorted(Path(root, name) for root, _, names in walked for name in names if _RECORD.fullmatch(name))


def published_records(folder: Path) -> list[tuple[str, int]]:
    """Cell and attempt of each record that is in place with every file that it names."""
    published: list[tuple[str, int]] = []
    for record in list_records(folder):
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError, TypeError):
            written = msgspec.json.decode(record.read_bytes())
            if is_complete(record, written["cell"]):
                published.append((written["cell"], int(written["attempt"])))
    return published


def check_cells(folder: Path, seen: Mapping[str, int], findings: Findings) -> None:
    """`seen`: cells that were in place when an attempt or the run process had ended, and the attempt that made them."""
    records = published_records(folder)
    with RunStore.open(folder, read_only=True) as store:
        findings.add("half_written", *store.find_problems())
        view = store.view()
        events = [recorded.event for recorded in store.events()]
    done = [event for event in events if isinstance(event, CellChanged) and event.state is CellState.DONE]
    findings.add("twice", *_list_repeated(records, done, seen))
    done_cells, published = {event.cell for event in done}, {cell for cell, _ in records}
    for plan in view.plan.cells:
        state = view.cells[plan.cell].state
        if plan.cell in done_cells and state is not CellState.DONE:
            findings.add("lost", f"{plan.cell} was done and is {state}")
        if state is CellState.DONE and plan.kind in MEASURED and plan.cell not in published:
            findings.add("lost", f"{plan.cell} is done and its artifacts are not whole")


def _list_repeated(
    records: Sequence[tuple[str, int]], done: Sequence[CellChanged], seen: Mapping[str, int]
) -> Iterator[str]:
    """One sentence for each way in which a cell was measured, or would be counted, more than once."""
    published = dict(records)
    for cell, count in Counter(cell for cell, _ in records).items():
        if count > 1:
            yield f"{cell} has {count} whole records"
    for cell, count in Counter(event.cell for event in done).items():
        if count > 1:
            yield f"{cell} was done {count} times"
    for cell, attempt in ({event.cell: event.attempt for event in done} | dict(seen)).items():
        if published.get(cell, attempt) != attempt:
            yield f"{cell} was whole after attempt {attempt}, and its record is of attempt {published[cell]}"


def check_files(folder: Path, findings: Findings) -> None:
    """Files outside `attempts/`: every JSON file and line can be read, and no file is left under a temporary name."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] == "attempts" or not path.is_file():
            continue
        if path.name.endswith(".partial"):
            findings.add("half_written", f"{name} has its temporary name")
        elif path.suffix in (".json", ".jsonl"):
            why = _why_unreadable(path)
            if why:
                findings.add("half_written", f"{name}: {why}")


def check_measurements(folder: Path, findings: Findings) -> None:
    """Every measurement is named by a cell's record; one that is not is left of an attempt that did not finish."""
    named: set[Path] = set()
    for record in list_records(folder):
        with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):  # `check_files` counts such a record
            checksums = msgspec.json.decode(record.read_bytes())["checksums"]
            named.update((record.parent / name).resolve() for name in checksums)
    for pattern in MEASUREMENTS:
        for path in sorted((folder / "results").glob(pattern)):
            if path.resolve() not in named:
                findings.add("half_written", f"{path.relative_to(folder)} belongs to no cell's record")


def _why_unreadable(path: Path) -> str:
    raw = path.read_bytes()
    try:
        if path.suffix == ".json":
            msgspec.json.decode(raw)
        else:
            msgspec.json.Decoder().decode_lines(raw)
    except msgspec.DecodeError as error:
        return str(error)
    if path.suffix == ".jsonl" and raw and not raw.endswith(b"\n"):
        return "its last line does not end"
    return ""


def check_sessions(folder: Path, findings: Findings) -> None:
    """Every turn of a finished replay has a decision of the router, and each that failed has an error somewhere."""
    for record in sorted((folder / "results").glob("*/trial_*/cell.json")):
        layout = TrialLayout(record.parent)
        cell = msgspec.json.decode(record.read_bytes(), type=RoutingCell)
        turns = msgspec.json.Decoder(TurnRecord).decode_lines(layout.metrics.read_bytes())
        decisions = msgspec.json.Decoder(DecisionRecord).decode_lines(layout.decisions.read_bytes())
        lost = list(lost_turns(turns, decisions, cell.router["records_lost"]))
        expected = cell.trace["requests"]
        if len(turns) != expected:
            lost.append(f"{expected - len(turns)} of {expected} turns have no row")
        findings.add("sessions_lost", *(f"{cell.cell}: {one}" for one in lost))


def lost_turns(turns: Sequence[TurnRecord], decisions: Sequence[DecisionRecord], uncounted: int) -> Iterator[str]:
    """Turns whose fate is written nowhere. `uncounted`: decisions that the router says it could not write."""
    decided: dict[str, list[DecisionRecord]] = {}
    for decision in decisions:
        decided.setdefault(decision.request.request, []).append(decision)
    undecided = [turn for turn in turns if turn.t_send_ns is not None and turn.request not in decided]
    for turn in undecided[uncounted:]:
        if turn.status is RequestStatus.OK:
            yield f"turn {turn.turn} of {turn.session} was sent and the router has no record of it"
    for turn in turns:
        outcomes = [decision.outcome for decision in decided.get(turn.request, [])]
        if turn.status is RequestStatus.ERROR and not turn.error:
            yield f"turn {turn.turn} of {turn.session} failed and its row does not say why"
        if turn.status is RequestStatus.OK and outcomes and outcomes[-1] is None:
            yield f"turn {turn.turn} of {turn.session} was answered and its last decision has no outcome"


def check_ports(first: int, count: int, findings: Findings) -> None:
    for port in range(first, first + count):
        if not is_free(port):
            findings.add("ports", f"port {port}: {', '.join(map(str, holders(port))) or 'no process shown'}")


def list_shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


def check_shared_memory(before: set[str], findings: Findings) -> None:
    """Segments that came since `before` and that no live process has mapped: a run beside this one maps its own.

    Looks again after SETTLED_S: that run may just have made a segment, or have one removed whose engine was killed.
    """
    unmapped = list_unmapped(before)
    if unmapped:
        time.sleep(SETTLED_S)
        unmapped &= list_unmapped(before)
    findings.add("shared_memory", *(f"{SHARED_MEMORY / name}" for name in sorted(unmapped)))


def list_unmapped(before: set[str]) -> set[str]:
    new = list_shared_memory() - before
    return new - mapped_names() if new else set()


def check_sockets(temporary: Path, findings: Findings) -> None:
    """What engines leave in the folder of a run's temporary files at its end: sockets, the files where their workers
    meet, and the folders that guards make for both."""
    names = (SOCKETS, "vllm_dist_")
    paths = (path for path in temporary.rglob("*") if path.is_socket() or path.name.startswith(names))
    findings.add("sockets", *(str(path.relative_to(temporary)) for path in sorted(paths)))


def mapped_names() -> set[str]:
    """Names under /dev/shm that a live process has mapped or open."""
    prefix = f"{SHARED_MEMORY}/"
    names: set[str] = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            names.update(line.partition(prefix)[2].split(" ")[0] for line in lines if prefix in line)
        with contextlib.suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            names.update(link.removeprefix(prefix) for link in links if link.startswith(prefix))
    return names
