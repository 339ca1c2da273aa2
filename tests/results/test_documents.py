"""The JSON Schemas hold for what runs wrote and for what is written now, and refuse what a reader refuses; what an
analysis writes is declared."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.capacity.documents import CapacityManifestRow
from results.capacity.search import Search, Size
from results.capacity.write import build_aggregate, build_verdicts
from results.documents import format_json_schemas, list_declared, make_records_page
from results.records.decisions import DecisionRecord, Gate
from results.records.declaration import list_record_fields
from results.records.instance_events import InstanceEvent
from results.records.load_specs import LoadSpec, ReplaySpec
from results.records.router_spec import InstanceSpec, KvEndpoint, Prewarm, RouterSpec
from results.records.simulation_spec import EngineModel, Link, SimulationSpec, StepTime
from results.records.trace_lines import TraceLine
from results.registry import list_all_results
from state.events import KINDS
from tests.goldens.fixture import ARCHIVE, HERE, STATE, unpack
from tests.results.capacity.test_report import HOLDS, MISSES, analysis, policy
from tests.results.declared_schemas import RECORDS, check_files, find_faults, find_faults_of_header
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import Truth, World, write_cell

LAUNCHED = {"RunPlan", "PreflightRecord", "LaunchConfig", "LaunchRecord"}
LOADED = LAUNCHED | {"CellRecord", "RequestRecord", "StepRecord", "MetricsRecord", "ReferenceRates"}
REPLAYED = {
    "TurnRecord", "EngineSample", "RoutingCell", "RoutingConfig", "RoutingNumbers", "RoutingBreakdown", "CounterSpan",
    "DecisionRecord",
}  # fmt: skip
HELD: Mapping[str, set[str]] = {
    "connector-tax": LOADED,
    "connector-tax-confirm": LOADED,
    "routing": LAUNCHED
    | REPLAYED
    | {"TraceRecord", "TraceHeader", "TraceLine", "InterferenceRecord", "MetricsRecord", "ProbeEvent"},
    "pd-lifecycle": LAUNCHED
    | {"LifecycleRecord", "MeasuredCell", "LifecycleRequest", "DecisionRecord", "LinkRecord", "ProbeEvent"}
    | {"RouterSpec"},
    "capacity": {"RunPlan", "TraceRecord", "TraceHeader", "TraceLine", "PointRecord"},
}
"""By golden run: records that its JSON files hold."""
DECLARED = list_declared()
URL = "http://127.0.0.1:8000"


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


@pytest.mark.parametrize(
    "spec",
    [
        LoadSpec(url=URL, model="m", requests_path="r", rate_per_s=1.0, input_tokens=1, output_tokens=1),
        ReplaySpec(url=URL, model="m", requests_path="r", trace_path="t"),
        RouterSpec((InstanceSpec("a", URL, transfer=KvEndpoint("nixl")),), prewarm=Prewarm("m", (1, 2))),
        SimulationSpec(
            router=RouterSpec((InstanceSpec("a", URL),)),
            replay=ReplaySpec(url=URL, model="m", requests_path="r", trace_path="t"),
            models={"a": EngineModel(StepTime(0.01, 1e-5, 1e-4), 1000)},
            link=Link(1e-3, 1e9, 1000),
            samples_path="s",
            residuals=((1.0, 1.1),),
        ),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_a_spec_satisfies_its_schema(spec: object) -> None:
    assert list(find_faults(read_back(spec), RECORDS[type(spec).__name__])) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ({"session": "a", "turns": [], "more": 1}, "$ has more"),
        ({"end": {"sessions": -1, "requests": 0}}, "$.end is none of its options"),
    ],
)
def test_a_schema_refuses_what_the_reader_of_traces_refuses(line: dict[str, Any], fault: str) -> None:
    assert fault in list(find_faults(line, RECORDS["TraceLine"]))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(line, TraceLine)


@pytest.mark.parametrize("record", [one.record for one in DECLARED], ids=lambda record: record.__name__)
def test_a_schema_states_what_its_declaration_states(record: type) -> None:
    schema, fields = RECORDS[record.__name__], list_record_fields(record)
    properties = schema["properties"]
    assert set(properties) == {one.name for one in fields}
    assert set(schema["required"]) == {one.name for one in fields if one.required}
    nullable = {name for name, each in properties.items() if not any(find_faults(None, each))}
    assert nullable == {one.name for one in fields if one.nullable}
    assert all(properties[one.name]["description"].startswith(one.sentence) for one in fields)


@pytest.mark.parametrize("record", [one.record for one in DECLARED], ids=lambda record: record.__name__)
def test_every_field_of_every_record_has_a_sentence(record: type) -> None:
    lacking = [one.name for one in list_record_fields(record) if not one.sentence]
    assert lacking == []


@pytest.mark.parametrize(
    ("name", "make", "option"),
    [("records.md", make_records_page, ""), ("records.schema.json", format_json_schemas, "--json-schema ")],
)
def test_the_page_and_the_schemas_of_records_are_made_from_the_declarations(
    name: str, make: Callable[[], str], option: str
) -> None:
    committed = Path(__file__).parents[2] / "docs" / name
    assert committed.read_text(encoding="utf-8") == make(), f"python -m results.documents {option}> docs/{name}"


def test_every_row_of_the_page_has_the_columns_of_its_table() -> None:
    """A field's type has pipes of its own, as `Mapping[str, float | None]`."""
    rows = [line for line in make_records_page().splitlines() if line.startswith("| `")]
    wrong = [row for row in rows if len(re.split(r"(?<!\\)\|", row)) - 2 not in (2, 4)]
    assert wrong == []


def test_every_record_has_a_name_of_its_own_and_declares_what_it_holds() -> None:
    names = Counter(one.record.__name__ for one in DECLARED)
    assert [name for name, count in names.items() if count > 1] == []
    inside = {name for name, schema in RECORDS.items() if "properties" in schema}
    assert inside == set(names)


def test_every_experiment_declares_its_documents() -> None:
    for results in list_all_results():
        files = {where for one in results.declared() for where in one.where}
        assert {"aggregate.json", "aggregate.csv", "verdicts.json"} <= files, results.name


def test_the_documents_of_a_search_satisfy_their_schemas() -> None:
    """No golden run is a search."""
    whole = analysis(policy(Search(1, 8), {Size(1): MISSES, Size(3, 1): HOLDS}))
    for name, document in (("CapacityAggregate", build_aggregate(whole)), ("CapacityVerdicts", build_verdicts(whole))):
        assert list(find_faults(read_back(document), RECORDS[name])) == []


def test_a_table_that_is_not_as_declared_is_seen() -> None:
    columns = [one.name for one in list_record_fields(CapacityManifestRow)]
    assert list(find_faults_of_header(columns, CapacityManifestRow)) == []
    assert list(find_faults_of_header([*columns[1:], "more"], CapacityManifestRow)) == [
        "more is not declared",
        "there is no column label",
    ]
    assert list(find_faults_of_header([*columns[1:], "label"], CapacityManifestRow)) != [], "their order"


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
