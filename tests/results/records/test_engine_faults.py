"""Deaths and stalls of engines as gaps of every report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from results.connector_tax.analyze import analyze
from results.pd_lifecycle.analyze import analyze as analyze_lifecycle
from results.records.engine_faults import list_engine_fault_gaps
from results.records.layout import RunLayout
from results.records.schemas import EngineFault
from results.routing.analyze import analyze as analyze_routing

DEATH = EngineFault(
    1.0, "e0-3", "plain", "death", "was ended by SIGILL", "vllm/x.py:1 in f", "SIGILL", ("one", "the last line")
)
STALL = EngineFault(2.0, "e1-1", "plain", "stall", "a step has run for 5 s: last Python frame vllm/y.py:2 in g")


def test_every_report_lists_the_deaths_and_stalls_of_its_run(tmp_path: Path) -> None:
    assert list_engine_fault_gaps(tmp_path) == ()
    RunLayout(tmp_path).engine_faults.write_bytes(msgspec.json.Encoder().encode_lines([DEATH, STALL]))
    gaps = list_engine_fault_gaps(tmp_path)
    assert [(gap.artifact, gap.reason) for gap in gaps] == [
        ("engine e0-3", "was ended by SIGILL. Its log ends: one | the last line"),
        ("engine e1-1", "a step has run for 5 s: last Python frame vllm/y.py:2 in g"),
    ]
    for analyzed in (analyze(tmp_path), analyze_routing(tmp_path), analyze_lifecycle(tmp_path)):
        assert set(gaps) < set(analyzed.gaps)


def test_a_damaged_line_is_a_gap_of_its_own(tmp_path: Path) -> None:
    RunLayout(tmp_path).engine_faults.write_bytes(b"{\n" + msgspec.json.encode(STALL))
    damaged, stall = list_engine_fault_gaps(tmp_path)
    assert damaged.reason.startswith("line 1 is damaged")
    assert stall.artifact == "engine e1-1"
