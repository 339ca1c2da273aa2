"""The gates of a simulated run's engine model in its report: shown with their numbers, or why none counts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.records.engine_gates import EngineGate, EngineGates
from results.records.estimate import Estimate
from results.records.layout import RunLayout, digest_cells, list_trial_layouts, write_indented_json
from results.report.engine_gates import KNOWN_ANSWERS, describe_gates
from results.routing.analyze import analyze
from results.routing.page import build_page
from results.routing.write import build_verdicts
from tests.results.routing.synthetic import Truth, World, report_text, write_run

WORLD = World(sessions=6, turns=3)
TITLE = "## Gates of the engine model"
PARITY = EngineGate("parity", "same picks", "all equal", "holds", "9 of 9 decisions are equal", Estimate(None))
APC = EngineGate(
    "APC", "the APC of real runs", "within 2 points", "undecided", "maybe 3 points off", Estimate(0.03, 0.01, 0.05)
)  # fmt: skip


def make_run(folder: Path, simulated: str = "a model") -> Path:
    root = write_run(folder / "20260131-120000-simulated", WORLD, (Truth("unified"), Truth("sticky")))
    plan: dict[str, Any] = json.loads(RunLayout(root).plan.read_bytes())
    plan["inputs"]["simulated"] = simulated
    RunLayout(root).plan.write_bytes(msgspec.json.encode(plan))
    return root


def record_gates(root: Path, *gates: EngineGate) -> None:
    record = EngineGates((root.name, "live-run"), "a model", digest_cells(root), "0.1.0", gates, ("Two turn round.",))
    write_indented_json(RunLayout(root).engine_gates, record)


def list_setting(root: Path) -> str:
    return " ".join(build_page(analyze(root)).setting)


def test_a_run_of_real_engines_has_no_gates(tmp_path: Path) -> None:
    root = make_run(tmp_path, simulated="")
    analysis = analyze(root)
    assert analysis.engine_gates is None
    assert TITLE not in report_text(analysis)
    assert "Gates of the engine model" not in list_setting(root)


def test_a_simulated_run_that_was_not_checked_says_so_and_names_the_command(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    section = report_text(analyze(root)).partition(TITLE)[2]
    for text in (section, list_setting(root)):
        assert f"no gate was checked for this engine model; `tracon simulate check LIVE_RUN {root.name}" in text


def test_what_a_check_found_is_shown_with_its_numbers_and_summed_up_on_the_first_page(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    record_gates(root, PARITY, APC)
    analysis = analyze(root)
    section = report_text(analysis).partition(TITLE)[2].partition("\n##")[0]
    for text in ("9 of 9 decisions are equal", "maybe 3 points off", "live-run", "Two turn round."):
        assert text in section, text
    assert "Gates of the engine model: parity holds; APC is undecided." in list_setting(root)
    stored = msgspec.to_builtins(build_verdicts(analysis))["engine_gates"]
    assert [gate["outcome"] for gate in stored["judgements"]] == ["holds", "undecided"]
    assert stored["judgements"][1]["measured"]["high"] == 0.05


@pytest.mark.parametrize("is_checked", [False, True])
def test_the_section_names_the_tests_of_the_known_answers(is_checked: bool, tmp_path: Path) -> None:
    root = make_run(tmp_path)
    if is_checked:
        record_gates(root, PARITY)
    section = report_text(analyze(root)).partition(TITLE)[2].partition("\n##")[0]
    assert KNOWN_ANSWERS in section
    tests = Path(__file__).parents[3] / "tests/runners/simulator/test_engine.py"
    defined = set(re.findall(r"^def (test_\w+)", tests.read_text(), re.MULTILINE))
    named = set(re.findall(r"\(`(test_\w+)`\)", KNOWN_ANSWERS))
    assert len(named) == 3
    assert named <= defined


def test_gates_of_cells_that_changed_since_do_not_count(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    record_gates(root, PARITY)
    cell = list_trial_layouts(root)[0].cell
    cell.write_bytes(cell.read_bytes() + b"\n")
    section = report_text(analyze(root)).partition(TITLE)[2]
    assert "cells of this run changed after it was checked" in section
    assert f"`tracon simulate check {root.name} live-run`" in section
    assert "9 of 9" not in section


@pytest.mark.parametrize("content", [b"{", b'{"version": 9}', b'{"version": 1, "runs": 7}'])
def test_a_damaged_record_is_named_and_breaks_nothing(tmp_path: Path, content: bytes) -> None:
    root = make_run(tmp_path)
    RunLayout(root).engine_gates.write_bytes(content)
    analysis = analyze(root)
    assert analysis.engine_gates is not None
    assert analysis.engine_gates.judgements == ()
    assert "engine_gates.json" in describe_gates(analysis.engine_gates)
    assert "check it again" in report_text(analysis)
