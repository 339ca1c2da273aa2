"""What the faults of a run have left that must not be: read from its journal, its artifacts and the machine."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from launch.guard import SOCKETS
from launch.ports import find_holders, is_free
from results.records.decisions import DecisionRecord
from results.records.errors import DAMAGED_JSON
from results.records.events import CellChanged, CellState
from results.records.layout import AttemptLayout, LifecycleLayout, RunLayout, TrialLayout, is_complete, name_spec_beside
from results.records.load_specs import ReplaySpec
from results.records.turns import decode_cell
from runners.load.replay import read_plan
from state.store import RunStore
from tests.chaos.turns import SentTurn, Span, Traffic, list_lost

MEASURED = ("load", "replay", "lifecycle")
"""Kinds of cells whose record is a commit mark under `results/`."""
MEASUREMENTS = (
    "*/requests_*.jsonl", "*/metrics_*.jsonl", "*/engine_step_*.jsonl", "*/trial_*/*.jsonl", "lifecycle/C*_rep*.json",
)  # fmt: skip
"""Files below `results/` that a cell's record names, each with its checksum."""
SHARED_MEMORY = Path("/dev/shm")
SETTLED_S = 2.0
_RECORD = re.compile(r"cell.*\.json")
_decode_turn = msgspec.json.Decoder(SentTurn).decode
_decode_decision = msgspec.json.Decoder(DecisionRecord).decode

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


def check_sessions(folder: Path, findings: Findings, starved: Sequence[Span] = ()) -> int:
    """Every turn that was sent through a router got a whole answer or an error that its client saw: in finished cells,
    and in attempts that failed. Returns how many attempts there were.

    `starved`: when a router could not write, by `time.perf_counter_ns()`.
    """
    run = RunLayout(folder)
    for record in sorted((folder / "results").glob("*/trial_*/cell.json")):
        cell = decode_cell(record.read_bytes())
        layout, attempt = TrialLayout(record.parent), TrialLayout(run.attempt(cell.cell, cell.attempt))
        found = _read_replay(cell.cell, layout, attempt, run, starved, findings)
        found = replace(found, records_lost=found.records_lost + cell.router["records_lost"], is_log_closed=True)
        expected = cell.trace["requests"]
        if len(found.turns) != expected:
            findings.add("sessions_lost", f"{cell.cell}: {expected - len(found.turns)} of {expected} turns have no row")
        findings.add("sessions_lost", *(f"{cell.cell}: {one}" for one in list_lost(found)))
    attempts = 0
    for path in sorted((folder / "attempts").glob("*/*/")):
        layout, name = TrialLayout(path), f"attempt {path.name} at {path.parent.name}"
        if layout.metrics.exists() and name_spec_beside(layout.metrics).exists():  # of a replay, not an engine's
            found = _read_replay(name, layout, layout, run, starved, findings)
        elif AttemptLayout(path).requests.exists() and LifecycleLayout(folder).instances.is_dir():
            found = _read_lifecycle(name, AttemptLayout(path).requests, folder, starved, findings)
        else:
            continue
        attempts += 1
        findings.add("sessions_lost", *(f"{name}: {one}" for one in list_lost(found)))
    for path in sorted((folder / "results").glob("lifecycle/cells/*/requests.jsonl")):
        found = _read_lifecycle(path.parent.name, path, folder, starved, findings)
        findings.add("sessions_lost", *(f"{path.parent.name}: {one}" for one in list_lost(found)))
    return attempts


def _read_replay(
    name: str, layout: TrialLayout, attempt: TrialLayout, run: RunLayout, starved: Sequence[Span], findings: Findings
) -> Traffic:
    """`attempt`: its folder has the options of load and router."""
    turns = _read_turns(name, layout.metrics, findings)
    decisions, unreadable = _read_decisions([layout.decisions])
    spec, plan = None, None
    with contextlib.suppress(OSError, *DAMAGED_JSON):  # a full disk or a kill may have cut it
        spec = msgspec.json.decode(name_spec_beside(attempt.metrics).read_bytes(), type=ReplaySpec)
        trace = Path(spec.trace_path)
        plan, _ = read_plan(spec if trace.exists() else replace(spec, trace_path=str(run.trace)))  # the run was copied
    return Traffic(turns, decisions, spec, plan, starved, unreadable)


def _read_lifecycle(name: str, requests: Path, folder: Path, starved: Sequence[Span], findings: Findings) -> Traffic:
    """`pd-lifecycle` sends one request at a time. Its routers live longer than a cell: the logs are theirs, not what
    the cell copied."""
    turns = _read_turns(name, requests, findings)
    wanted = {turn.request for turn in turns}
    decisions, unreadable = _read_decisions(sorted(LifecycleLayout(folder).instances.glob("*/decisions.jsonl")))
    own = [decision for decision in decisions if decision.request.request in wanted]
    return Traffic(turns, own, starved=starved, records_lost=unreadable)


def _read_turns(name: str, path: Path, findings: Findings) -> list[SentTurn]:
    """The rows of a load. The last one may be cut: the process was killed, or the disk was full."""
    turns: list[SentTurn] = []
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            turns.append(_decode_turn(line))
        except DAMAGED_JSON as error:
            findings.add("sessions_lost", f"{name}: line {number} of {path.name} cannot be read: {error}")
    return turns


def _read_decisions(paths: Iterable[Path]) -> tuple[list[DecisionRecord], int]:
    """The records of router logs, and how many lines a full disk or a kill has cut."""
    decisions: list[DecisionRecord] = []
    unreadable = 0
    for path in paths:
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                if line:
                    decisions.append(_decode_decision(line))
            except DAMAGED_JSON:
                unreadable += 1
    return decisions, unreadable


def check_ports(first: int, count: int, findings: Findings) -> None:
    for port in range(first, first + count):
        if not is_free(port):
            findings.add("ports", f"port {port}: {', '.join(map(str, find_holders(port))) or 'no process shown'}")


def list_shared_memory() -> set[str]:
    """Names of the files there. A folder is no segment: programs use /dev/shm for temporary folders too."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path.name for path in SHARED_MEMORY.iterdir() if not path.is_dir()}


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
