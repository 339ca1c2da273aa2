"""Artifacts to frames: JSONL is read once and copied to Parquet; a file that cannot be read becomes a named gap.

A Parquet file carries the size, modification time and SHA-256 of the JSONL it came from. It is used only where these
still hold; a JSONL that differs from the checksum in its cell record is not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_origin

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from results.records.declaration import UnknownVersion, Upgrade, decode_versioned, list_record_fields
from results.records.errors import DAMAGED_JSON
from results.records.layout import name_parquet_beside, open_atomically, sha256
from results.records.schemas import CELL_VERSION, CellRecord, MetricsRecord, RequestRecord, StepRecord
from results.records.turns import TurnRecord

_SOURCE = b"tracon.source"
_Record = TypeVar("_Record")


def make_arrow_schema(record: type) -> pa.Schema:
    """The Arrow schema of a declared record whose fields are numbers, texts and truth values.

    A field with a default may be missing: rows of an older version do not have it. Raises KeyError for another type.
    """
    return pa.schema(
        [
            pa.field(one.name, _ARROW[_find_plain_type(one.kind)], nullable=one.nullable or not one.required)
            for one in list_record_fields(record)
        ]
    )


def _find_plain_type(kind: object) -> object:
    """The JSON type of a field's type."""
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, str)):
        return str
    return kind


_ARROW: Mapping[object, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
REQUEST_SCHEMA = make_arrow_schema(RequestRecord)
STEP_SCHEMA = make_arrow_schema(StepRecord)
TURN_SCHEMA = make_arrow_schema(TurnRecord)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is missing or cannot be used."""

    artifact: str
    """Path below the run's folder, or the name of the cell or config."""
    reason: str
    """Why it is missing or damaged, or what a number lacks."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A frame, or None, and what is wrong with its file."""

    frame: pd.DataFrame | None
    gaps: tuple[Gap, ...] = ()


class _Source(msgspec.Struct, frozen=True):
    """The JSONL that a Parquet file was made from."""

    size: int
    mtime_ns: int
    sha256: str


def name_artifact(path: Path) -> str:
    """How gaps name a file: its path below the run's folder, e.g. `results/2026-01-31_plain/requests_A_r4.jsonl`."""
    deepest = (("results", 4),) if path.parent.name.startswith("trial_") else ()  # a cell of the routing experiment
    for folder, depth in (("results", 3), ("preflight", 2), *deepest):
        if path.parts[-depth : -depth + 1] == (folder,):
            return "/".join(path.parts[-depth:])
    return path.name


def read_requests(path: Path, checksum: str | None = None) -> Loaded:
    """The request records at `path`, Arrow-backed (integers stay exact beside nulls), in the order of the schedule.

    `checksum`: SHA-256 of the JSONL as the finished cell recorded it.
    """
    loaded = read_table(path, REQUEST_SCHEMA, checksum, None)
    if isinstance(loaded, Gap):
        return Loaded(None, (loaded,))
    table, gaps = loaded
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    index = table["index"].to_numpy()
    if not (index[1:] > index[:-1]).all():  # the client writes requests as they end
        frame = frame.sort_values("index", kind="stable", ignore_index=True)
    return Loaded(frame, gaps)


def read_steps(path: Path, checksum: str | None = None, columns: Sequence[str] | None = None) -> Loaded:
    """The step records at `path` (all columns, or `columns`), numpy-backed, NaN for missing, in the order written."""
    loaded = read_table(path, STEP_SCHEMA, checksum, columns)
    if isinstance(loaded, Gap):
        return Loaded(None, (loaded,))
    return Loaded(loaded[0].to_pandas(), loaded[1])


def read_metrics(path: Path, names: Iterable[str], checksum: str | None = None) -> Loaded:
    """The scrapes at `path`: column t_ns, and a float column per name of `names` (NaN = absent)."""
    raw = read_verified_bytes(path, checksum)
    if isinstance(raw, Gap):
        return Loaded(None, (raw,))
    try:
        scrapes = msgspec.json.Decoder(MetricsRecord).decode_lines(raw)
    except DAMAGED_JSON as error:
        return Loaded(None, (Gap(name_artifact(path), f"is damaged: {error}"),))
    frame = pd.DataFrame(
        {
            "t_ns": pd.Series([scrape.t_ns for scrape in scrapes], dtype="int64"),
            **{
                name: pd.Series([scrape.values.get(name, float("nan")) for scrape in scrapes], dtype="float64")
                for name in names
            },
        }
    )
    return Loaded(frame.sort_values("t_ns", kind="stable", ignore_index=True))


def read_cell(path: Path) -> CellRecord | Gap:
    return read_record(path, CellRecord, CELL_VERSION)


def read_record(
    path: Path, record: type[_Record], version: int, upgrades: Mapping[int, Upgrade] | None = None
) -> _Record | Gap:
    """The versioned record in the JSON file at `path`; each of `upgrades` converts one version to the next."""
    try:
        return decode_versioned(path.read_bytes(), record, version, upgrades)
    except OSError as error:
        return Gap(name_artifact(path), f"cannot be read: {error.strerror}")
    except UnknownVersion as error:
        return Gap(name_artifact(path), str(error))
    except DAMAGED_JSON as error:
        return Gap(name_artifact(path), f"is damaged: {error}")


def read_each_row(path: Path, kind: type[_Record]) -> Iterator[_Record | Gap]:
    """The rows of a JSONL file, in order, with a gap for each that is damaged; none where a run has no such file."""
    decoder = msgspec.json.Decoder(kind)
    try:
        rows = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        yield Gap(path.name, f"cannot be read: {error.strerror}")
        return
    for number, row in enumerate(rows, 1):
        try:
            yield decoder.decode(row)
        except DAMAGED_JSON as error:
            yield Gap(path.name, f"line {number} is damaged: {error}")


def write_parquet(table: pa.Table, jsonl: Path, digest: str) -> None:
    """Write `table` beside the JSONL it was read from or written to; a folder that cannot be written is no error."""
    stat = jsonl.stat()
    source = msgspec.json.encode(_Source(stat.st_size, stat.st_mtime_ns, digest))
    target = name_parquet_beside(jsonl)
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]  # numbers rarely repeat
    try:
        stamped = table.replace_schema_metadata({_SOURCE: source})
        with open_atomically(target, durable=False) as file:  # else every cell costs two waits for the disk
            pq.write_table(stamped, file, compression="zstd", use_dictionary=texts)
    except OSError:  # a read-only or full disk only costs the next reader some time
        return


def read_table(
    path: Path, schema: pa.Schema, checksum: str | None = None, columns: Sequence[str] | None = None
) -> tuple[pa.Table, tuple[Gap, ...]] | Gap:
    """The rows of a JSONL file under `schema`, from its Parquet copy where that is current; or what is wrong."""
    copied = _read_parquet(path, schema, checksum, columns)
    if copied is not None:
        missing = () if path.exists() else (Gap(name_artifact(path), "is missing; read from its Parquet copy"),)
        return copied, missing
    raw = read_verified_bytes(path, checksum)
    if isinstance(raw, Gap):
        return raw
    try:
        table = _parse_jsonl(raw, schema)
    except (pa.ArrowInvalid, ValueError) as error:
        return Gap(name_artifact(path), f"is damaged: {str(error).splitlines()[0]}")
    write_parquet(table, path, checksum or sha256(path))
    return (table.select(list(columns)) if columns else table), ()


def _parse_jsonl(raw: bytes, schema: pa.Schema) -> pa.Table:
    """Raises ArrowInvalid or ValueError."""
    options = pa_json.ParseOptions(
        explicit_schema=pa.schema([pa.field(field.name, field.type) for field in schema]),
        unexpected_field_behavior="ignore",
    )
    table = pa_json.read_json(pa.BufferReader(raw), parse_options=options).select(schema.names)
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{table.column(field.name).null_count} rows have no {field.name}")
    return table


def read_verified_bytes(path: Path, checksum: str | None = None) -> bytes | Gap:
    """The file's content, verified against the SHA-256 in its cell record; or what is wrong."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Gap(name_artifact(path), "is missing")
    except OSError as error:
        return Gap(name_artifact(path), f"cannot be read: {error.strerror}")
    if not raw:
        return Gap(name_artifact(path), "is empty")
    if checksum is not None and hashlib.sha256(raw).hexdigest() != checksum:
        return Gap(name_artifact(path), "differs from the checksum its cell was finished with")
    return raw


def _read_parquet(
    path: Path, schema: pa.Schema, checksum: str | None, columns: Sequence[str] | None
) -> pa.Table | None:
    """The Parquet copy of `path`; None where there is none, or it is not current."""
    try:
        file = pq.ParquetFile(name_parquet_beside(path))
        written = set(file.schema_arrow.names)
        if any(not field.nullable and field.name not in written for field in schema):
            return None
        source = msgspec.json.decode((file.schema_arrow.metadata or {}).get(_SOURCE, b"null"), type=_Source)
        if not _is_same_source(path, source, checksum):
            return None
        known = [name for name in columns or schema.names if name in written]
        return _conform_to(file.read(columns=known), schema, columns)
    except (OSError, pa.ArrowException, *DAMAGED_JSON):  # damaged
        return None


def _conform_to(table: pa.Table, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    """The table with the schema's columns in its order; one that an older version did not write is null."""
    names = list(columns or schema.names)
    for name in names:
        if name not in table.schema.names:
            table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
    return table.select(names)


def _is_same_source(path: Path, source: _Source, checksum: str | None) -> bool:
    if checksum is not None and source.sha256 != checksum:
        return False
    try:
        stat = path.stat()
    except OSError:
        return checksum is not None  # the checksum proves that it was made from the cell's own records
    if (stat.st_size, stat.st_mtime_ns) == (source.size, source.mtime_ns):
        return True
    return stat.st_size == source.size and sha256(path) == source.sha256
