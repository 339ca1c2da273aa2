"""`tracon trace` as an operator uses it: any format in, the project's own out, data on stdout, faults by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from results.records.errors import Refusal
from runners.cli import app
from runners.trace.formats import FORMATS, open_trace, read_trace
from runners.trace.source import TraceError
from tests.runners.command import refusal_of
from tests.runners.trace import files


def tracon(*arguments: str | Path) -> Result:
    """The command in this process: what it needs takes a second to import."""
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def data(*arguments: str | Path) -> dict[str, Any]:
    done = tracon(*arguments, "--json")
    assert done.exit_code == 0, done.output
    described = json.loads(done.stdout)
    assert isinstance(described, dict)
    return described


def refusal(*arguments: str | Path) -> Refusal:
    return refusal_of(tracon(*arguments))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return files.write_all(tmp_path_factory.mktemp("traces"))


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_trace_of_any_format_is_described(format: str, made: dict[str, Path]) -> None:
    described = data("describe", made[format])
    named = {"requests", "sessions", "input_tokens", "output_tokens", "input_output_ratio", "apc_bound_any"}
    assert named | {"apc_bound_intra", "reuse", "skew", "lengths", "kv"} <= set(described)
    assert described["facts"]["format"] == format
    assert described["requests"] == read_trace(made[format]).requests


def test_a_description_is_readable_too_and_draws_its_figures(made: dict[str, Path], tmp_path: Path) -> None:
    done = tracon("describe", made["agentic"], "--figures", tmp_path / "figures")
    assert done.exit_code == 0, done.output
    assert "Reuse of prefixes" in done.stdout
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert drawn
    assert all(f"{stem}: in" in done.stderr for stem in drawn)


@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_what_is_converted_is_the_same_trace(format: str, ending: str, made: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / f"out{ending}"
    change = data("convert", made[format], out)
    before = read_trace(made[format])
    assert read_trace(out).sessions == before.sessions
    assert (change["file"], change["sessions"], change["requests"]) == (str(out), len(before.sessions), before.requests)
    assert (change["left_out_sessions"], change["left_out_requests"]) == (0, 0)


def test_without_json_stdout_stays_empty(made: dict[str, Path], tmp_path: Path) -> None:
    done = tracon("convert", made["mooncake"], tmp_path / "out.jsonl")
    assert done.stdout == ""
    assert "24 requests of 24 sessions" in done.stderr


def test_long_work_tells_how_far_it_is(made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.cli.trace.PROGRESS_LINE_S", 0.0)
    done = tracon("convert", made["mooncake"], tmp_path / "out.jsonl", "--json")
    assert "converting mooncake.jsonl: 100 %, 0 s left" in done.stderr
    assert json.loads(done.stdout)["requests"] == 24


def test_a_sample_says_what_it_left_out(made: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "few.jsonl"
    change = data("sample", made["mooncake"], out, "--sessions", "10", "--seed", "3")
    assert (change["sessions"], change["left_out_sessions"]) == (10, 14)
    assert [len(session.turns) for session in read_trace(out).sessions] == [1] * 10
    some = data("sample", made["mooncake"], tmp_path / "some.jsonl", "--share", "0.5")
    assert 0 < some["sessions"] < 24
    short = data("sample", made["agentic"], tmp_path / "short.jsonl", "--sessions", "2", "--turns", "3")
    assert (short["sessions"], short["requests"]) == (2, 6)


def test_a_trace_is_scaled_to_what_a_small_model_can_serve(made: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "small.jsonl"
    change = data(
        "scale",
        made["agentic"],
        out,
        "--tokens",
        "0.125",
        "--max-context",
        "90",
        "--time",
        "0.1",
        "--output-tokens",
        "0.1",
    )
    assert change["block_tokens"] == 8
    assert change["left_out_requests"] > 0
    small = read_trace(out)
    turns = [turn for session in small.sessions for turn in session.turns]
    assert all(turn.input_tokens + turn.output_tokens <= 90 for turn in turns)
    assert small.span_s <= 0.1 * read_trace(made["agentic"]).span_s


def test_sessions_without_a_recorded_beginning_can_be_given_one(made: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "spread.jsonl"
    data("scale", made["agentic"], out, "--sessions-per-s", "0.01", "--seed", "4")
    arrivals = [session.arrival_s for session in read_trace(out).sessions]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0 < arrivals[1]


def test_sessions_are_generated_from_statistics(tmp_path: Path) -> None:
    out = tmp_path / "synth.jsonl.gz"
    settings = ("--set", "input_output_ratio=30", "--set", "kv_footprint_gib=[[50, 0.2], [99, 1.0]]")
    change = data("synth", out, "--sessions", "40", "--seed", "7", *settings)
    assert change["sessions"] == 40
    assert change["input_tokens"] / change["output_tokens"] == pytest.approx(30, rel=0.02)
    facts, _ = open_trace(out)
    assert facts.block_tokens == change["block_tokens"] == 64
    first = out.read_bytes()
    data("synth", out, "--sessions", "40", "--seed", "7", *settings)
    assert out.read_bytes() == first


def test_a_fault_is_told_by_file_line_and_rule_and_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = files.mooncake_rows()
    rows[7]["input_length"] += 512
    path = tmp_path / "bad.jsonl"
    path.write_bytes(files.lines(rows))
    for command in (("describe", path), ("convert", path, tmp_path / "out.jsonl")):
        error = refusal(*command)
        assert isinstance(error, TraceError)
        assert (error.file, error.line) == ("bad.jsonl", 8)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.jsonl"]


def test_what_makes_no_sense_is_refused_by_name(made: dict[str, Path], tmp_path: Path) -> None:
    source, out = made["tracon"], tmp_path / "out.jsonl"
    assert "no name for a trace file" in str(refusal("convert", source, tmp_path / "out.csv"))
    assert "is what is read" in str(refusal("convert", source, source))
    assert "how many sessions" in str(refusal("sample", source, out))
    assert "how many sessions" in str(refusal("sample", source, out, "--sessions", "2", "--share", "0.5"))
    assert "a share cannot be 1.5" in str(refusal("sample", source, out, "--share", "1.5"))
    assert "nothing of tracon.jsonl is left" in str(refusal("scale", source, out, "--max-context", "5"))
    assert "factor on tokens cannot be" in str(refusal("scale", source, out, "--tokens", "0"))
    assert "no trace format" in str(refusal("describe", source, "--format", "csv"))
    assert "unknown field `ratio`" in str(refusal("synth", out, "--set", "ratio=3"))
    assert list(tmp_path.iterdir()) == []
    assert tracon("describe", tmp_path / "nowhere.jsonl").exit_code == 2
