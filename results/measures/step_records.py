"""Cuts a cell's step records out of the raw rings: engine and worker joined by step id, as JSONL and Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from results.records.errors import RingError
from results.records.frames import STEP_SCHEMA, write_parquet
from results.records.percent import format_percent
from results.records.rings import MISSING, Records, RingHeader, RingReader, list_ring_paths
from results.records.schemas import CHILD_FIELDS_US, SAVE_FIELD_US, STEP_COUNTS, STEP_FIELDS_US, WORKER_FIELDS_US

JOIN_RATIO = 0.99
"""Below this share of joined steps the worker's fields are not available."""

_WORKER_SLACK_NS = 60_000_000_000  # a worker may report a step that the engine scheduled up to this long before
_CLOCK_SLACK_NS = 1_000_000_000
_ROWS_PER_WRITE = 1 << 16

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepCut:
    """What became of a cell's step timing."""

    available: bool
    reason: str | None
    """Why it is not available; with `available` a remark on what was left out."""
    unavailable_fields: Mapping[str, str] = field(default_factory=dict)
    """Column of STEP_COLUMNS to why it was not measured."""
    records: int = 0
    """Engine steps written, empty ones included."""
    records_lost: int = 0
    """Records overwritten before they were read that may lie in the window: an upper bound."""
    worker_join_ratio: float | None = None
    """Share of non-empty engine steps that have a worker record; None where no connector callback was seen."""
    batch_queue: bool | None = None
    """Whether a step may begin before the one before it has ended; None = the probe does not say."""
    children: tuple[str, ...] = ()
    """Classes of the connectors inside a MultiConnector, in the order of CHILD_FIELDS_US."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What vLLM settled on for the engine (patches/engine_settings.py)."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """The records of one ring inside a window."""

    header: RingHeader
    rows: Records
    lost: int

    def column(self, name: str) -> Column:
        index = self.header.index(name)
        return self.rows[:, index] if index is not None else np.full(len(self.rows), MISSING, dtype=np.int64)


def cut_steps(rings_dir: Path, t0_ns: int, t1_ns: int, jsonl_path: Path) -> StepCut:
    """Writes the steps scheduled in [t0_ns, t1_ns) to `jsonl_path` (rows of STEP_COLUMNS) and Parquet beside it.

    Reads every ring below `rings_dir`; processes that ran at other times drop out by the clock. Nothing is written
    where step timing is not available, and the reason says why. Raises OSError where the output cannot be written.
    """
    engines, broken = _read_role(rings_dir, "engine", t0_ns, t1_ns)
    mute = next((ring for ring in engines if not ring.header.step_timing_available), None)
    engines = [ring for ring in engines if ring.header.step_timing_available and len(ring.rows)]
    if not engines:
        return StepCut(available=False, reason=_explain_no_records(rings_dir, mute, broken))
    workers, broken_workers = _read_role(rings_dir, "worker", t0_ns, t1_ns + _WORKER_SLACK_NS)
    table, ratio = _join_rings(engines, workers)
    write_steps(table, jsonl_path)
    stated = engines[-1].header.info
    return StepCut(
        available=True,
        reason="; ".join((*broken, *broken_workers)) or None,
        unavailable_fields=_find_blind(table, engines, workers, ratio),
        records=table.num_rows,
        records_lost=sum(ring.lost for ring in engines),
        worker_join_ratio=ratio,
        batch_queue=stated.get("batch_queue"),
        children=tuple(stated.get("children") or ()),
        settings=stated.get("settings") or {},
    )


def _read_role(folder: Path, role: str, t0_ns: int, t1_ns: int) -> tuple[list[_Ring], list[str]]:
    """The rings of one role cut to the window, and why others could not be read."""
    rings, broken = [], []
    for path in list_ring_paths(folder, role):
        try:
            rings.append(_read_window(path, t0_ns, t1_ns))
        except RingError as error:
            broken.append(str(error))
    return rings, broken


def _read_window(path: Path, t0_ns: int, t1_ns: int) -> _Ring:
    """Raises RingError."""
    chunks: list[Records] = []
    oldest: int | None = None
    with RingReader(path) as reader:
        clock = reader.header.index("t_ns")
        if clock is None or reader.header.index("step_id") is None:
            raise RingError(f"step ring {path.name} has no columns t_ns and step_id", remedy="update Tracon")
        for rows in reader.chunks():
            if oldest is None and len(rows):
                oldest = int(rows[0, clock])
            inside = (rows[:, clock] >= t0_ns) & (rows[:, clock] < t1_ns)
            chunks.append(rows[inside])
        lost = reader.lost if oldest is not None and oldest > t0_ns else 0
        empty = np.empty((0, reader.header.columns), dtype=np.int64)
        return _Ring(reader.header, np.concatenate(chunks) if chunks else empty, lost)


def _explain_no_records(folder: Path, mute: _Ring | None, broken: list[str]) -> str:
    if mute is not None:
        return mute.header.reason or "the probe says that step timing is not available"
    if broken:
        return "; ".join(broken)
    if not list_ring_paths(folder, "engine"):
        return "no step ring: the probe did not run in the engine process"
    return "no engine step was recorded in the cell's window"


def _join_rings(engines: list[_Ring], workers: list[_Ring]) -> tuple[pa.Table, float | None]:
    """One table over all engines in order of time, and the share of non-empty steps joined to a worker record."""
    parts = [_join_one(engine, workers, {other.header.pid for other in engines}) for engine in engines]
    table = pa.concat_tables([part for part, _, _ in parts])
    if len(parts) > 1:
        table = table.sort_by([("t_ns", "ascending"), ("step_id", "ascending")])
    seen = any(callbacks for _, _, callbacks in parts)
    tokens = pc.add(pc.fill_null(table["prefill_tokens"], 0), pc.fill_null(table["decode_tokens"], 0))
    busy = pc.greater(tokens, 0).to_numpy()
    joined = np.concatenate([hits for _, hits, _ in parts])
    total = int(busy.sum())
    return table, (float(joined.sum()) / total if seen and total else None)


def _join_one(
    engine: _Ring, workers: list[_Ring], engine_pids: set[int]
) -> tuple[pa.Table, npt.NDArray[np.bool_], bool]:
    """The engine's table, which of its non-empty steps have a worker record, and whether any callback was seen.

    A process with both roles (uni executor) is joined with its own worker ring only, else with every worker ring whose
    process is no engine; a step id matches where the clocks agree too. Of several workers of one step, each field is
    the slowest.
    """
    same_process = [worker for worker in workers if worker.header.pid == engine.header.pid]
    candidates = same_process or [worker for worker in workers if worker.header.pid not in engine_pids]
    slowest = {name: np.full(len(engine.rows), np.nan) for name in WORKER_FIELDS_US}
    hit = np.zeros(len(engine.rows), dtype=np.bool_)
    for worker in candidates:
        at, matches = _match_steps(engine, worker)
        hit |= matches
        for name, values in slowest.items():
            measured = _convert_to_us(worker.column(_name_in_ring(name)))
            values[matches] = np.fmax(values[matches], measured[at[matches]])
    tokens = _zero_missing(engine.column("prefill_tokens")) + _zero_missing(engine.column("decode_tokens"))
    callbacks = bool(hit.any()) or bool((engine.column("build_meta_ns") != MISSING).any())
    return _build_table(engine, slowest), hit & (tokens > 0), callbacks


def _match_steps(engine: _Ring, worker: _Ring) -> tuple[Column, npt.NDArray[np.bool_]]:
    """For each engine step a row of the worker ring, and whether that row is of the same step."""
    if not len(worker.rows):
        return np.zeros(len(engine.rows), dtype=np.int64), np.zeros(len(engine.rows), dtype=np.bool_)
    order = np.argsort(worker.column("step_id"), kind="stable")
    steps = worker.column("step_id")[order]
    nearest = np.minimum(np.searchsorted(steps, engine.column("step_id")), len(steps) - 1)
    at = order[nearest]
    apart = np.abs(worker.column("t_ns")[at] - engine.column("t_ns"))
    allowed = _zero_missing(engine.column("engine_step_ns")) + _CLOCK_SLACK_NS
    return at, (steps[nearest] == engine.column("step_id")) & (apart <= allowed)


def _build_table(engine: _Ring, worker_us: Mapping[str, npt.NDArray[np.float64]]) -> pa.Table:
    columns = [
        pa.array(engine.column("t_ns")),
        pa.array(engine.column("step_id")),
        pa.array(np.full(len(engine.rows), "engine")),
    ]
    for name in STEP_FIELDS_US:
        values = worker_us[name] if name in worker_us else _convert_to_us(engine.column(_name_in_ring(name)))
        if name in CHILD_FIELDS_US:  # both sides call it: what the engine measured and what the worker did
            values = values + _convert_to_us(engine.column(_name_in_ring(name)))
        columns.append(pa.array(values, from_pandas=True))
    for name in STEP_COUNTS:
        counts = engine.column(name)
        columns.append(pa.array(counts, mask=counts == MISSING))
    return pa.Table.from_arrays(columns, schema=pa.schema([pa.field(f.name, f.type) for f in STEP_SCHEMA]))


def _find_blind(table: pa.Table, engines: list[_Ring], workers: list[_Ring], ratio: float | None) -> dict[str, str]:
    """Every measured column that is empty or not reliable, and why."""
    reasons = {
        _name_in_table(name): why for ring in (*workers, *engines) for name, why in ring.header.unavailable.items()
    }
    unavailable: dict[str, str] = {}
    children = {name for engine in engines for name in CHILD_FIELDS_US[: len(engine.header.info.get("children") or ())]}
    for name in (*STEP_FIELDS_US, *STEP_COUNTS):
        if name in CHILD_FIELDS_US and name not in children:
            continue  # there is no such connector
        if table[name].null_count == table.num_rows:
            if name == SAVE_FIELD_US and name not in reasons and _are_joined(table):
                continue  # the worker was recorded: no step called it
            unavailable[name] = reasons.get(name, "not recorded in this window")
        elif name in WORKER_FIELDS_US and ratio is not None and ratio < JOIN_RATIO:
            unavailable[name] = (
                f"only {format_percent(ratio, 1)} of the steps have a worker record "
                f"(needs {format_percent(JOIN_RATIO)})"
            )
    return unavailable


def _are_joined(table: pa.Table) -> bool:
    """Whether the worker's part of some step is known."""
    return any(table[name].null_count < table.num_rows for name in WORKER_FIELDS_US)


def write_steps(table: pa.Table, jsonl_path: Path) -> None:
    """Writes a table of STEP_SCHEMA as JSONL and Parquet beside it. Raises OSError."""
    digest = hashlib.sha256()
    with jsonl_path.open("wb") as file:
        for lines in _format_json_lines(table):
            digest.update(lines)
            file.write(lines)
    write_parquet(table, jsonl_path, digest.hexdigest())


def _format_json_lines(table: pa.Table) -> Iterator[bytes]:
    """The table as JSONL, assembled a column at a time."""
    for batch in table.to_batches(max_chunksize=_ROWS_PER_WRITE):
        pieces: list[Any] = []
        for number, name in enumerate(batch.schema.names):
            text = pc.fill_null(pc.cast(batch.column(name), pa.string()), "null")
            quote = '"' if pa.types.is_string(batch.schema.field(name).type) else ""
            pieces += [(',"' if number else '{"') + f'{name}":{quote}', text, quote]
        lines = pc.binary_join_element_wise(*pieces, "}\n", "")
        _validity, offsets, characters = lines.buffers()  # a string array's characters are contiguous
        ends = np.frombuffer(offsets, dtype=np.int32)
        yield characters.slice(0, int(ends[len(lines)])).to_pybytes()


def _convert_to_us(ns: Column) -> npt.NDArray[np.float64]:
    return np.where(ns == MISSING, np.nan, ns / 1000)


def _zero_missing(values: Column) -> Column:
    return np.where(values == MISSING, 0, values)


def _name_in_ring(name: str) -> str:
    return f"{name.removesuffix('_us')}_ns" if name.endswith("_us") else name


def _name_in_table(name: str) -> str:
    return f"{name.removesuffix('_ns')}_us" if name.endswith("_ns") and name != "t_ns" else name
