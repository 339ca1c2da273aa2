"""Whether files of a run satisfy what their records declare: JSON by its schema, a table by its columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import msgspec

from results.documents import list_declared, make_json_schemas
from results.records.declaration import Declared, Upgrade, list_record_fields
from results.records.lifecycle_cells import MeasuredCell, upgrade_cell_from_1, upgrade_cell_from_2
from results.records.router_spec import RouterSpec, upgrade_router_spec_from_1
from results.records.routing_cells import RoutingConfig, upgrade_config_from_1
from results.records.simulation_spec import SimulationSpec, upgrade_simulation_spec_from_1
from results.records.turns import CELL_UPGRADES, RoutingCell

Schema = Mapping[str, Any]
TABLES = (".csv", ".tsv")
DOCUMENT = make_json_schemas()
RECORDS: Mapping[str, Schema] = DOCUMENT["$defs"]
ANNOTATIONS = {"$comment", "title", "description", "default"}
CHECKED = {
    "$ref", "anyOf", "enum", "type", "required", "properties", "additionalProperties", "items", "prefixItems",
    "minItems", "maxItems", "minimum", "maximum",
}  # fmt: skip
"""The keywords that the declarations give rise to."""
UPGRADES: Mapping[type, Mapping[int, Upgrade]] = {
    RoutingCell: CELL_UPGRADES,
    RoutingConfig: {1: upgrade_config_from_1},
    MeasuredCell: {1: upgrade_cell_from_1, 2: upgrade_cell_from_2},
    RouterSpec: {1: upgrade_router_spec_from_1},
    SimulationSpec: {1: upgrade_simulation_spec_from_1},
}
"""Of records whose older versions lack a field: a file of one is held against the schema as it is read."""
TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (NoneType,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def find_faults(value: object, schema: Schema, path: str = "$") -> Iterator[str]:
    """Where a JSON value does not satisfy the schema. AssertionError for a keyword that is not checked here."""
    unknown = schema.keys() - ANNOTATIONS - CHECKED
    assert not unknown, f"{path}: {unknown}"
    if "$ref" in schema:
        yield from find_faults(value, RECORDS[schema["$ref"].removeprefix("#/$defs/")], path)
    options = schema.get("anyOf", ())
    if options and all(any(find_faults(value, option, path)) for option in options):
        yield f"{path} is none of its options"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value!r}"
    if "type" in schema and not is_of_type(value, schema["type"]):
        yield f"{path} is no {schema['type']}"
    elif isinstance(value, int | float):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{path} is {value}"
    elif isinstance(value, dict):
        yield from find_faults_of_object(value, schema, path)
    elif isinstance(value, list):
        yield from find_faults_of_array(value, schema, path)


def find_faults_of_object(value: Mapping[str, object], schema: Schema, path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path} has no {name}"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name, item in value.items():
        if name not in properties and others is False:
            yield f"{path} has {name}"
        else:
            yield from find_faults(item, properties.get(name, others), f"{path}.{name}")


def find_faults_of_array(value: Sequence[object], schema: Schema, path: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{path} has {len(value)} items"
    first = schema.get("prefixItems", ())
    others = schema.get("items") or {}
    for position, item in enumerate(value):
        own = first[position] if position < len(first) else others
        yield from find_faults(item, own, f"{path}[{position}]")


def is_of_type(value: object, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def check_files(run: Path, experiment: str = "") -> set[str]:
    """Hold every JSON file of a run that has a record against it; returns the names of the records.

    experiment: also hold the documents and tables of its analysis.
    """
    held: set[str] = set()
    for path in sorted(path for path in run.rglob("*") if path.suffix in (".json", ".jsonl", *TABLES)):
        name = str(path.relative_to(run))
        of = {experiment} - {""} if path.suffix in TABLES else {experiment, ""}
        records = [one for one in list_declared() if one.experiment in of and _names_file(one, name)]
        if records:
            assert _find_faults_of_file(path, records) == [], name
            held |= {one.record.__name__ for one in records}
    return held


def _names_file(one: Declared, name: str) -> bool:
    return any(re.fullmatch(re.sub(r"<\w+>", "[^/]+", re.escape(where)), name) for where in one.where)


def _find_faults_of_file(path: Path, records: Sequence[Declared]) -> list[str]:
    if path.suffix in TABLES:
        with path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
        (one,) = records
        return list(find_faults_of_header(header, one.record))
    references: list[Schema] = [{"$ref": f"#/$defs/{one.record.__name__}"} for one in records]
    if any(one.by_name for one in records):
        references = [{"type": "object", "additionalProperties": each} for each in references]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    raw = path.read_bytes()
    lines = raw.splitlines() if path.suffix == ".jsonl" else [raw]
    values = (upgrade_value(msgspec.json.decode(line), records[0].record) for line in lines)
    return [fault for value in values for fault in find_faults(value, schema)]


def upgrade_value(value: Any, record: type) -> Any:  # noqa: ANN401  # a JSON value
    """The value in the record's present version."""
    upgrades = UPGRADES.get(record, {})
    while upgrades and (upgrade := upgrades.get(value.get("version", 1))):
        value = upgrade(value)
    return value


def find_faults_of_header(header: Sequence[str], record: type) -> Iterator[str]:
    """Columns that the record does not declare, and fields without a column; a mapping may have any column."""
    fields = list_record_fields(record)
    open_ended = [one for one in fields if get_origin(one.kind) is not None]
    nested = [one for one in fields if is_dataclass(one.kind)]
    plain = {one.name: one.required for one in fields if one not in open_ended and one not in nested}
    declared = {*plain, *(inner.name for one in nested for inner in list_record_fields(one.kind))}
    if not open_ended:
        yield from (f"{name} is not declared" for name in header if name not in declared)
    yield from (f"there is no column {name}" for name, required in plain.items() if required and name not in header)
    known = [name for name in header if name in plain]
    if known != [name for name in plain if name in known]:
        yield f"the order of {', '.join(known)}"
