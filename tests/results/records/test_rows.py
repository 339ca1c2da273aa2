"""Rows and plans that an older version wrote are read by the names of this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from results.records.decisions import DecisionRecord
from results.records.declaration import UnknownVersion
from results.records.lifecycle_cells import decode_cell
from results.records.plan import CellPlan, RunPlan, upgrade_plan
from results.records.rows import decode_row, decode_rows
from results.records.samples import InterferenceRecord
from results.records.turns import CELL_UPGRADES, upgrade_cell_from_1
from tests.results.routing.logs import Log

ENCODE = msgspec.json.encode
DECISIONS = msgspec.json.Decoder(DecisionRecord)


def write_old(record: DecisionRecord) -> bytes:
    """As version 1 wrote it."""
    row: dict[str, Any] = msgspec.to_builtins(record)
    del row["version"]
    row["outcome"]["ttft_s"] = row["outcome"].pop("first_byte_s")
    row["outcome"]["e2e_s"] = row["outcome"].pop("last_byte_s")
    for load in row["cluster"]["instances"]:
        load["kept_tokens"] = load.pop("retained_tokens")
    return ENCODE(row)


def test_a_decision_of_version_1_is_the_same_pick() -> None:
    log = Log()
    log.pick(0, "s0", "b", source="a", first_byte_s=0.25)
    (record,) = log.records
    old = write_old(record)
    assert b"first_byte_s" not in old
    assert decode_row(old, DECISIONS) == record
    assert decode_rows(old + b"\n" + ENCODE(record) + b"\n", DecisionRecord) == (record, record), "of one file"


def test_a_pick_without_an_outcome_is_read_as_well() -> None:
    log = Log()
    log.pick(0, "s0", "b")
    row: dict[str, Any] = msgspec.to_builtins(log.records[0]) | {"outcome": None, "version": 1}
    assert decode_row(ENCODE(row), DECISIONS).outcome is None


def test_a_pick_of_version_2_does_not_say_when_it_was_made_and_how_long_it_waited() -> None:
    log = Log()
    log.pick(0, "s0", "b")
    row: dict[str, Any] = msgspec.to_builtins(log.records[0]) | {"version": 2}
    del row["t_dispatch_ns"], row["outcome"]["kv_wait_s"]
    record = decode_row(ENCODE(row), DECISIONS)
    assert (record.version, record.t_dispatch_ns) == (3, 0)
    assert record.outcome is not None
    assert record.outcome.kv_wait_s is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"version": 4}', "has version 4; this Tracon reads versions 1 and 2 and 3"),
        (b'{"seq": 0}', "version 1 without or with another 'cluster'"),
        (b'{"seq": 0', "truncated"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(line: bytes, why: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=why):
        decode_row(line, DECISIONS)


def test_interference_rows_of_version_1_call_the_gaps_tpot() -> None:
    row = {"instance": "e0", "prefill_tokens": 64, "decodes": 2, "tpot_before_s": 0.01, "tpot_during_s": None}
    (record,) = decode_rows(ENCODE(row), InterferenceRecord)
    assert (record.itl_before_s, record.itl_during_s, record.itl_after_s) == (0.01, None, None)


RULES = {"leg_priority": -1, "timeout_s": 10.0}


def test_a_plan_of_an_older_version_has_the_present_names() -> None:
    plan = RunPlan(
        "routing", "cpu-tiny", "full", ("mooncake_both",), 1, (),
        (CellPlan("trials/ear/t0", "trials", "replay", None, "ear", {"transfer": RULES}),), 1.0,
        {
            "grid": {"router": {"transfer": RULES}, "policies": [{"transfer": RULES}]},
            "settings": ["router.transfer.leg_priority=-1", "EAR.transfer.leg_priority=0", "seed=3"],
            "configs": {"mooncake_producer": {"preflight": {"proofs": ["prefill_leg"]}}},
        },
        "f",
    )  # fmt: skip
    new = upgrade_plan(plan)
    rules = {"priority": -1, "timeout_s": 10.0}
    assert new.cells[0].params == {"transfer": rules}
    assert new.inputs == {
        "grid": {"router": {"transfer": rules}, "policies": [{"transfer": rules}]},
        "settings": ["router.transfer.priority=-1", "EAR.transfer.priority=0", "seed=3"],
        "configs": {"mooncake_producer": {"preflight": {"proofs": ["prefill_request"]}}},
    }
    assert upgrade_plan(new) == new


def test_a_plan_that_leaves_out_what_its_version_could_not_state_has_it_as_that_version_did() -> None:
    load = CellPlan("a", "phase-a", "load", "plain", "a", {"rate_per_s": 4.0})
    preflight = replace(load, cell="b", kind="preflight")
    plan = RunPlan(
        "connector-tax", "cpu-tiny", "smoke", ("plain",), 1, (), (load, preflight), 1.0, {"grid": {"seed": 1}}, "f"
    )
    new = upgrade_plan(plan)
    assert [cell.params for cell in new.cells] == [{"drain_s": 30.0, "rate_per_s": 4.0}, {"rate_per_s": 4.0}]
    assert new.inputs == {"grid": {"drain_s": 30.0, "slo": {"ttft_s": None, "tpot_s": None}, "seed": 1}}
    assert upgrade_plan(new) == new
    stated = replace(plan, inputs={"grid": {"drain_s": 300.0}}, cells=(replace(load, params={"drain_s": 300.0}),))
    assert upgrade_plan(stated).cells == stated.cells
    assert upgrade_plan(stated).inputs["grid"]["drain_s"] == 300.0
    assert upgrade_plan(replace(plan, experiment="routing")).inputs == plan.inputs


def test_a_cell_of_version_1_has_the_present_names_of_its_transfer_rules() -> None:
    row = {"cell": "a", "router": {"picks": 1, "transfer": RULES}, "version": 1}
    assert upgrade_cell_from_1(row)["router"] == {"picks": 1, "transfer": {"priority": -1, "timeout_s": 10.0}}
    assert upgrade_cell_from_1({"router": {}})["router"] == {}


def test_a_cell_of_version_2_has_the_present_names_of_its_position_and_seed() -> None:
    row = {"cell": "a", "place": 3, "seed": 5, "parameters": {"place": "ring"}, "version": 2}
    assert CELL_UPGRADES[2](row) == {
        "cell": "a",
        "position": 3,
        "replay_seed": 5,
        "parameters": {"place": "ring"},
        "version": 3,
    }


def test_a_plan_has_the_present_name_of_a_position() -> None:
    """A parameter of the old name stays if it is a policy's own, or another experiment's."""
    params = {"place": 3, "parameters": {"place": "ring"}}
    cell = CellPlan("trials/sticky/t0", "trials", "replay", None, "sticky", params)
    plan = RunPlan("routing", "cpu-tiny", "full", (), 1, (), (cell,), 1.0, {}, "f")
    assert upgrade_plan(plan).cells[0].params == {"position": 3, "parameters": {"place": "ring"}}
    assert upgrade_plan(replace(plan, experiment="start-time")).cells[0].params == params


def test_a_lifecycle_cell_of_an_older_version_has_the_present_names() -> None:
    row = {
        "cell": "sweep/C0_N1_O1",
        "place": 2,
        "aged": {"requests": 1, "tokens": 7, "seconds": 0.5, "reason": ""},
        "seedings": [
            {"prior_context": 0, "emptied": "", "tries": 4, "held": {"prefill": 0, "decode": 0}, "t_unix_s": 1.0}
        ],
    }
    for version in ({}, {"version": 1}, {"version": 2}):
        cell = decode_cell(msgspec.json.encode(row | version))
        assert (cell.position, cell.aged.duration_s, cell.seedings[0].attempts, cell.version) == (2, 0.5, 4, 3)
    with pytest.raises(UnknownVersion):
        decode_cell(msgspec.json.encode(row | {"version": 4}))
