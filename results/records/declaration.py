"""What the declaration of a record states of each field, and how rows of text become records.

A record is declared once, as a frozen dataclass or msgspec Struct. The annotation is a field's type, the end of its
name its unit, and the string below it its description. `results.records.frames.make_arrow_schema` derives the Arrow
schema, `results.documents.make_json_schemas` the JSON Schemas.
"""

from __future__ import annotations

import ast
import csv
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, reduce
from itertools import pairwise
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

_Record = TypeVar("_Record")
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""From the JSON object of one version to that of the next."""

UNITS: Mapping[str, str] = {
    "bytes_per_s": "B/s",
    "per_s": "1/s",
    "gbps": "Gbit/s",
    "percent": "%",
    "mib": "MiB",
    "bytes": "B",
    "tokens": "tokens",
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
}
"""End of a number's name to its unit; a number with none of them is a count, an index or a share."""
COMMON_SENTENCES: Mapping[str, str] = {
    "attempt": "From 1.",
    "cell": "As the plan names it.",
    "config": "The engine configuration.",
    "format": "Format of this document.",
    "label": "The policy with its parameters in short.",
    "new_tokens": "N.",
    "output_length": "O.",
    "prior_context": "C.",
    "trial": "From 0.",
    "version": "Version of this record.",
}
"""What a field of this name means, in every record that has no sentence of its own below the field."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One record."""

    record: type
    where: tuple[str, ...]
    """The files whose rows it is, below the run's folder; or the record that holds it, or where in a file it is."""
    by_name: bool = False
    """A file of it is one JSON object: the name of a config or an instance to its record."""
    experiment: str = ""
    """Whose runs alone have it; empty = any experiment's may."""


@dataclass(frozen=True, slots=True)
class OtherFile:
    """Files that are no records of ours: logs, pictures, copies."""

    where: str
    """Below the run's folder."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a declared record."""

    name: str
    """In JSON."""
    kind: Any
    """Its type without None, and without UNSET of a field that a row may leave out."""
    nullable: bool
    """It can be None."""
    required: bool
    """A row without it is damaged; else the default stands in, as in rows of an older version."""
    unit: str
    """`1` for a count, an index or a share; empty for what is no number."""
    sentence: str


@cache
def list_record_fields(record: type) -> tuple[Field, ...]:
    """The fields of a record in their order, those of its bases first. Raises TypeError where it is no record."""
    info = msgspec.inspect.type_info(record)
    if not isinstance(info, msgspec.inspect.DataclassType | msgspec.inspect.StructType):
        raise TypeError(f"{record.__name__} is no dataclass and no Struct")
    hints, sentences = get_type_hints(record), _read_sentences(record)
    by_name = {one.name: one for one in info.fields}
    return tuple(
        _make_field(by_name[name].encode_name, hints[name], by_name[name].required, sentences.get(name))
        for name in hints
        if name in by_name
    )


def list_records_inside(record: type) -> tuple[type, ...]:
    """The records in the fields of a record, each once, in the order of the fields."""
    return tuple(dict.fromkeys(each for one in list_record_fields(record) for each in _find_records(one.kind)))


def pick_fields(source: object, record: type) -> dict[str, Any]:
    """The values in `source` of the fields that a dataclass declares, by name."""
    return {one.name: getattr(source, one.name) for one in fields(record)}


def rename_fields(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A row with new names of those of its fields that `names` has, in the same order."""
    return {names.get(name, name): value for name, value in row.items()}


def decode_csv(lines: Iterable[str], record: type[_Record]) -> tuple[_Record, ...]:
    """The rows of a CSV whose header names fields of the record; an empty cell is None. A damaged row is left out."""
    records, rows = [], csv.DictReader(lines)
    while True:
        try:
            row = next(rows)
            records.append(msgspec.convert({name: row[name] or None for name in row if name}, record, strict=False))
        except StopIteration:
            return tuple(records)
        except (msgspec.ValidationError, csv.Error):  # the writer died in the middle of the row, or it was damaged
            continue


def decode_versioned(
    raw: bytes,
    record: type[_Record],
    version: int,
    upgrades: Mapping[int, Upgrade] | None = None,
    unstated: int | None = None,
    key: str = "version",
) -> _Record:
    """The record in `raw`, brought to `version` by one upgrade per older version.

    `unstated`: of a record without a version; None = it has the present one. `key`: of the version in the record.
    Raises msgspec.DecodeError (also msgspec.ValidationError) for a damaged one, UnknownVersion for another version.
    """
    return msgspec.convert(upgrade_row(raw, version, upgrades, unstated, key), record)


def upgrade_row(
    raw: bytes,
    version: int,
    upgrades: Mapping[int, Upgrade] | None = None,
    unstated: int | None = None,
    key: str = "version",
) -> dict[str, Any]:
    """The JSON object in `raw`, brought to `version`; arguments and errors as in `decode_versioned`."""
    try:
        row = msgspec.json.decode(raw, type=dict[str, Any])
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    written = row.setdefault(key, version if unstated is None else unstated)
    while row[key] != version:
        upgrade = (upgrades or {}).get(row[key]) if isinstance(row[key], int) else None
        if upgrade is None:
            known = " and ".join(map(str, (*sorted(upgrades or ()), version)))
            raise UnknownVersion(f"has {key} {written}; this Tracon reads {key}{'s' * bool(upgrades)} {known}")
        try:
            row = upgrade(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise msgspec.DecodeError(f"{key} {written} without or with another {error}") from error
    return row


def explain_unknown_field(row: object, known: object, where: str = "it") -> str:
    """The first field of a JSON value that its record does not have, in a sentence; empty = the record has them all.

    `known`: the record that was read from it, as builtin objects with every field. Raises RecursionError.
    """
    if isinstance(row, dict) and isinstance(known, dict):
        for name in row:
            if name not in known:
                return f"{where} has no field {name}; it has {', '.join(known)}"
        inside = [(row[name], known[name], name if where == "it" else f"{where}.{name}") for name in row]
    elif isinstance(row, list) and isinstance(known, list | tuple):
        inside = [(one, other, f"{where}[{index}]") for index, (one, other) in enumerate(zip(row, known, strict=True))]
    else:
        return ""
    return next((text for part in inside if (text := explain_unknown_field(*part))), "")


class UnknownVersion(Exception):
    """A record of a version that this Tracon does not read."""


def find_unit(name: str) -> str:
    """The unit that the end of a number's name states."""
    return next((unit for end, unit in UNITS.items() if name == end or name.endswith(f"_{end}")), "1")


def _make_field(name: str, hint: object, required: bool, sentence: str | None) -> Field:
    parts = get_args(hint)
    nullable, omitted = NoneType in parts, msgspec.UnsetType in parts
    kind: Any = hint
    if nullable or omitted:
        kind = reduce(operator.or_, (part for part in parts if part not in (NoneType, msgspec.UnsetType)))
    unit = find_unit(name) if kind in (int, float) else ""
    return Field(name, kind, nullable, required, unit, sentence or COMMON_SENTENCES.get(name, ""))


def _find_records(kind: object) -> Iterator[type]:
    """The records that a type is made of, e.g. that of a mapping's values."""
    if get_origin(kind) is not None:
        for part in get_args(kind):
            yield from _find_records(part)
    elif isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        yield kind


def _read_sentences(record: type) -> dict[str, str]:
    """Field to the string below it, of the record and its bases."""
    sentences: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base.__module__.startswith(("builtins", "msgspec", "typing")):
            continue
        body = _find_class_body(base)
        for declared, below in pairwise(body):
            if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name):
                text = _read_docstring(below)
                if text:
                    sentences[declared.target.id] = text
    return sentences


def _find_class_body(record: type) -> list[ast.stmt]:
    for node in ast.walk(_parse_module(record.__module__)):
        if isinstance(node, ast.ClassDef) and node.name == record.__name__:
            return node.body
    return []


@cache
def _parse_module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


def _read_docstring(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""
