"""Every record is declared once: each field has a type, a unit and a description; the Arrow schema derives from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.environment import Engine, capture
from results.records.decisions import DecisionRecord
from results.records.declaration import (
    Field,
    UnknownVersion,
    decode_versioned,
    explain_unknown_field,
    list_record_fields,
)
from results.records.declared import DECLARED
from results.records.environment import parse_environment
from results.records.frames import TURN_SCHEMA, Gap, make_arrow_schema, read_table
from results.records.layout import name_parquet_beside
from results.records.routing_cells import RoutingConfig
from results.records.turns import EngineSample, TurnRecord
from state.events import KINDS
from tests.fake_gpus import FakeGpu, make_host
from tests.results.records.declared_files import is_declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown(TurnRecord):
    """A turn of the version after this one."""

    preempted_s: float | None = None
    """How long the engine had it preempted."""


@pytest.mark.parametrize("record", [DecisionRecord, TurnRecord, EngineSample])
def test_a_row_of_real_engines_has_no_mark_of_a_simulation(record: type) -> None:
    (field,) = [one for one in list_record_fields(record) if one.name == "simulated"]
    assert (field.kind, field.nullable, field.required) == (bool, False, False)
    needed = {one.name: None for one in list_record_fields(record) if one.required}
    live = record(**needed)
    assert b"simulated" not in msgspec.json.encode(live)
    assert b'"simulated":true' in msgspec.json.encode(record(**needed, simulated=True))


def test_every_event_of_the_journal_is_declared() -> None:
    assert set(KINDS.values()) <= {one.record for one in DECLARED}


@pytest.mark.parametrize(
    ("path", "declared"),
    [
        ("results/20260131_plain/requests_A_r4.jsonl", True),
        ("results/20260131_EAR/trial_0/engines/e0/rings/8/transfer.8525.jsonl", True),
        ("results/20260131_plain/trial_0/requests_A_r4.jsonl", False),
        ("planXjson", False),
        ("results/20260131_plain/notes.json", False),
    ],
)
def test_a_file_that_no_declaration_names_is_seen(path: str, declared: bool) -> None:
    assert is_declared(path) is declared


def test_the_captured_environment_is_read_as_it_is_written(tmp_path: Path) -> None:
    engine = Engine(
        "cpu", tmp_path / "bin" / "python", tmp_path, tmp_path, {"vllm": "0.32.0"}, env={"HF_TOKEN": "x", "OMP": "2"}
    )
    captured = parse_environment(capture(engine, {"PATH": "/bin"}))
    assert captured.stated("vllm version") == "0.32.0"
    assert captured.stated("cores")
    assert captured.stated("none such") == ""
    assert captured.gpu
    assert "OMP=2" in captured.environment
    assert not any("HF_TOKEN=x" in line for line in captured.environment)


def test_the_environment_of_a_gpu_host_has_how_its_gpus_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("cuda", tmp_path / "bin" / "python", tmp_path, tmp_path, {"vllm": "0.32.0"})
    make_host(tmp_path, monkeypatch, FakeGpu(), FakeGpu())
    captured = parse_environment(capture(engine, {}))
    assert [line.split() for line in captured.topology] == [
        ["GPU0", "GPU1"], ["GPU0", "X", "NV18"], ["GPU1", "NV18", "X"],
    ]  # fmt: skip
    monkeypatch.setenv("PATH", "")
    assert parse_environment(capture(engine, {})).topology == ()


def test_a_field_states_type_unit_and_sentence() -> None:
    by_name = {one.name: one for one in list_record_fields(TurnRecord)}
    assert by_name["session_delay_s"] == Field(
        "session_delay_s", float, nullable=False, required=False, unit="s",
        sentence="How long max_inflight_sessions held its session back; the same for all turns of a session that "
        "began.",
    )  # fmt: skip
    assert (by_name["cached_tokens"].unit, by_name["cached_tokens"].nullable) == ("tokens", True)
    assert (by_name["chunks"].unit, by_name["session"].unit) == ("1", "")
    (several,) = [one for one in list_record_fields(RoutingConfig) if one.name == "reserved_output"]
    assert (several.kind, several.required) == (int | str, False)


def test_files_of_before_a_field_was_added_open_with_nulls(tmp_path: Path) -> None:
    row = {one.name: 1 for one in list_record_fields(TurnRecord) if one.unit} | {
        name: "x" for name in ("request", "session", "agent")
    }
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(msgspec.json.encode(row | {"status": "ok"}) + b"\n")
    assert not isinstance(read_table(path, TURN_SCHEMA), Gap)
    assert name_parquet_beside(path).exists()
    for _ in range(2):  # from the Parquet copy of the older version, then from the JSONL
        loaded = read_table(path, make_arrow_schema(Grown))
        assert not isinstance(loaded, Gap)
        assert loaded[0].schema.names == [*TURN_SCHEMA.names, "preempted_s"]
        assert loaded[0]["preempted_s"].to_pylist() == [None]
        name_parquet_beside(path).unlink(missing_ok=True)


def test_a_copy_with_columns_in_another_order_is_read(tmp_path: Path) -> None:
    """An older version wrote the columns of a turn in another order."""
    path = tmp_path / "metrics.jsonl"
    row = {one.name: 1 for one in list_record_fields(TurnRecord) if one.unit}
    path.write_bytes(msgspec.json.encode(row | dict.fromkeys(("request", "session", "agent", "status"), "ok")) + b"\n")
    first = read_table(path, TURN_SCHEMA)
    assert not isinstance(first, Gap)
    copy = pq.read_table(name_parquet_beside(path))
    pq.write_table(copy.select(sorted(copy.schema.names)), name_parquet_beside(path))
    again = read_table(path, TURN_SCHEMA)
    assert not isinstance(again, Gap)
    assert again[0].to_pylist() == first[0].to_pylist()


@dataclass(frozen=True)
class Third:
    width_s: float
    version: int = 3


UPGRADES = {
    1: lambda row: {"width_ms": row["width"], "version": 2},
    2: lambda row: {"width_s": row["width_ms"] / 1e3, "version": 3},
}


def test_each_old_version_has_one_upgrade_to_the_next() -> None:
    assert decode_versioned(b'{"width": 1500, "version": 1}', Third, 3, UPGRADES) == Third(1.5)
    assert decode_versioned(b'{"width_ms": 1500, "version": 2}', Third, 3, UPGRADES) == Third(1.5)
    assert decode_versioned(b'{"width_s": 1.5, "version": 3}', Third, 3, UPGRADES) == Third(1.5)
    with pytest.raises(UnknownVersion, match="has version 4; this Tracon reads versions 1 and 2 and 3"):
        decode_versioned(b'{"version": 4}', Third, 3, UPGRADES)
    with pytest.raises(msgspec.DecodeError, match="version 1 without"):
        decode_versioned(b'{"version": 1}', Third, 3, UPGRADES)
    with pytest.raises(msgspec.DecodeError):
        decode_versioned(b'{"width_s": "x", "version": 3}', Third, 3, UPGRADES)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"a": 1, "b": {"c": 2}, "d": [{"e": 3}, {}]}, ""),
        ({"b": {"x": {"y": 1}}}, "b has no field x; it has c"),
        ({"d": [{"e": 3}, {"f": 3}]}, "d[1] has no field f; it has e"),
        ({"z": 1, "y": 2}, "it has no field z; it has a, b, d"),
        ([1], ""),
    ],
)
def test_a_field_that_its_record_does_not_have_is_named_with_those_that_it_has(row: object, sentence: str) -> None:
    known = {"a": 0, "b": {"c": 0}, "d": ({"e": 0}, {"e": 0})}
    assert explain_unknown_field(row, known) == sentence


def test_a_type_that_no_column_holds_is_refused() -> None:
    with pytest.raises(TypeError):
        list_record_fields(int)
    assert make_arrow_schema(Third) == pa.schema(
        [pa.field("width_s", pa.float64(), nullable=False), pa.field("version", pa.int64())]
    )
