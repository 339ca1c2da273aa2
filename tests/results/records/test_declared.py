"""The JSON Schemas hold for what runs wrote and for what is written now, and refuse what a reader refuses."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import pytest

from results.records.decisions import DecisionRecord, Gate
from results.records.declaration import fields_of
from results.records.declared import DECLARED, json_schemas
from results.records.instance_events import InstanceEvent
from state.events import KINDS
from tests.goldens.fixture import ARCHIVE, HERE, STATE, unpack
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import Truth, World, write_cell

Schema = Mapping[str, Any]
DOCUMENT = json_schemas()
RECORDS: Mapping[str, Schema] = DOCUMENT["$defs"]
FILES: Mapping[re.Pattern[str], Schema] = {
    re.compile(re.sub(r"<\w+>", "[^/]+", re.escape(name))): schema for name, schema in DOCUMENT["files"].items()
}
LAUNCHED = {"RunPlan", "PreflightRecord", "LaunchConfig", "LaunchRecord"}
LOADED = LAUNCHED | {"CellRecord", "RequestRecord", "StepRecord", "MetricsRecord", "ReferenceRates"}
REPLAYED = {
    "TurnRecord", "EngineSample", "RoutingCell", "RoutingConfig", "RoutingNumbers", "RoutingBreakdown", "CounterSpan",
    "DecisionRecord",
}  # fmt: skip
HELD: Mapping[str, set[str]] = {
    "connector-tax": LOADED,
    "connector-tax-confirm": LOADED,
    "routing": LAUNCHED | REPLAYED | {"TraceRecord", "InterferenceRecord", "MetricsRecord", "ProbeEvent"},
    "pd-lifecycle": LAUNCHED
    | {"LifecycleRecord", "MeasuredCell", "LifecycleRequest", "DecisionRecord", "LinkRecord", "ProbeEvent"},
}
"""By golden run: records that its JSON files hold."""

ANNOTATIONS = {"$comment", "title", "description", "default"}
CHECKED = {"$ref", "anyOf", "enum", "type", "required", "properties", "additionalProperties", "items"}
"""The keywords that the declarations give rise to."""
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
    elif isinstance(value, dict):
        yield from find_faults_of_object(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from find_faults(item, schema["items"], f"{path}[{position}]")


def find_faults_of_object(value: Mapping[str, object], schema: Schema, path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path} has no {name}"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name, item in value.items():
        yield from find_faults(item, properties.get(name, others), f"{path}.{name}")


def is_of_type(value: object, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def check_files(run: Path) -> set[str]:
    """Hold every JSON file of a run that has a schema against it; returns the names of their records."""
    held: set[str] = set()
    for path in sorted(run.rglob("*.json*")):
        name = str(path.relative_to(run))
        schema = next((schema for pattern, schema in FILES.items() if pattern.fullmatch(name)), None)
        if schema is None:
            continue
        raw = path.read_bytes()
        lines = raw.splitlines() if path.suffix == ".jsonl" else [raw]
        assert [fault for line in lines for fault in find_faults(msgspec.json.decode(line), schema)] == [], name
        held |= set(re.findall(r"#/\$defs/(\w+)", str(schema)))
    return held


def read_back(record: object) -> Any:  # noqa: ANN401  # a JSON value
    """The JSON value that Tracon writes of the record."""
    return msgspec.json.decode(msgspec.json.encode(record))


@pytest.mark.parametrize("experiment", HELD)
def test_every_json_file_of_a_run_satisfies_its_schema(experiment: str, tmp_path: Path) -> None:
    assert check_files(unpack(HERE / experiment / ARCHIVE, tmp_path)) >= HELD[experiment]


@pytest.mark.parametrize("experiment", HELD)
def test_every_event_of_a_journal_satisfies_its_schema(experiment: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(unpack(HERE / experiment / ARCHIVE, tmp_path) / STATE)
    rows = connection.execute("SELECT kind, body FROM journal").fetchall()
    connection.close()
    assert rows
    for kind, body in rows:
        assert list(find_faults(msgspec.json.decode(body), RECORDS[KINDS[kind].__name__])) == [], kind


def test_records_of_the_present_version_satisfy_their_schemas(tmp_path: Path) -> None:
    write_cell(tmp_path, World(), Truth("EAR", moves=1), 0)
    assert check_files(tmp_path) >= REPLAYED
    event = read_back(InstanceEvent("e0", "added"))
    assert event == {"instance": "e0", "what": "added"}
    assert list(find_faults(event, RECORDS["InstanceEvent"])) == []


@pytest.mark.parametrize("record", [one.record for one in DECLARED], ids=lambda record: record.__name__)
def test_a_schema_states_what_its_declaration_states(record: type) -> None:
    schema, fields = RECORDS[record.__name__], fields_of(record)
    properties = schema["properties"]
    assert set(properties) == {one.name for one in fields}
    assert set(schema["required"]) == {one.name for one in fields if one.required}
    nullable = {name for name, each in properties.items() if not any(find_faults(None, each))}
    assert nullable == {one.name for one in fields if one.nullable}
    assert all(properties[one.name]["description"].startswith(one.sentence) for one in fields)


def test_a_field_has_its_unit_and_its_default() -> None:
    assert RECORDS["CellPlan"]["properties"]["estimated_s"] == {
        "type": "number",
        "default": 0.0,
        "description": "Duration. Unit: s.",
    }
    assert RECORDS["InterferenceRecord"]["properties"]["worst_gap_before_s"] == {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "default": None,
        "description": "The longest gap of any decode before. Unit: s.",
    }
    assert RECORDS["TurnRecord"]["properties"]["chunks"] == {
        "type": "integer",
        "description": "Chunks that carried at least one token.",
    }
    assert set(RECORDS["LinkRecord"]["properties"]) >= {"from", "gbps"}, "as in JSON"
    assert "default" not in RECORDS["DecisionRecord"]["properties"]["version"], "a row without one is of version 1"


def make_pick() -> dict[str, Any]:
    """A row of `decisions.jsonl`."""
    log = Log()
    log.pick(0, "s0", "b", source="a", gates=(Gate("hot", 2.0, 1.0, True, "2 > 1"),), transfer=moved("a", "b"))
    row: dict[str, Any] = read_back(log.records[0])
    return row


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seq": "0"}, "$.seq is no integer"),
        ({"seq": True}, "$.seq is no integer"),
        ({"decide_us": None}, "$.decide_us is no number"),
        ({"request": []}, "$.request is no object"),
        ({"outcome": {}}, "$.outcome is none of its options"),
        ({"cluster": {"instances": []}}, "$.cluster has no picks"),
        (
            {"cluster": {"instances": [{"instance": "a", "role": "router"}], "picks": 0}},
            "$.cluster.instances[0].role is 'router'",
        ),
    ],
)
def test_a_schema_refuses_what_the_reader_refuses(change: dict[str, Any], fault: str) -> None:
    row = make_pick() | change
    assert fault in list(find_faults(row, RECORDS["DecisionRecord"]))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(row, DecisionRecord)


def test_a_schema_takes_what_the_reader_takes() -> None:
    row = make_pick()
    assert list(find_faults(row, RECORDS["DecisionRecord"])) == []
    later = row | {"of_a_later_version": 1}
    later["request"] = row["request"] | {"of_a_later_version": None}
    del later["outcome"], later["t_dispatch_ns"]
    assert list(find_faults(later, RECORDS["DecisionRecord"])) == []
    assert msgspec.convert(later, DecisionRecord).outcome is None
