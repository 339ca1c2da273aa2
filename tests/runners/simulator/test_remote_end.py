"""What a task of a cluster sends back, without one: the files and outcome of this host, with or without a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.records.simulation_spec import SimulationSpec
from runners.simulator.messages import SimulationError
from runners.simulator.on_ray import RemoteEnd, digest_folder, digest_source, simulate_remotely, take_end
from runners.simulator.simulate import simulate
from runners.trace.formats.tracon import write_trace
from runners.trace.synth import synthesize_trace
from tests.runners.simulator.test_simulate import make_spec

FILES = ("metrics.jsonl", "decisions.jsonl", "engines.jsonl")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = synthesize_trace(10, 3, {"span_s": 20})
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    write_trace(path, made.facts, made.sessions)
    return path


def make_task(trace: Path, folder: Path, *, logs: bool) -> SimulationSpec:
    spec = make_spec(trace, "unified", folder)
    return spec if logs else replace(spec, router=replace(spec.router, decisions_path=""))


@pytest.mark.parametrize("logs", [True, False])
def test_a_task_writes_what_a_process_of_this_host_writes(logs: bool, trace: Path, tmp_path: Path) -> None:
    here = simulate(make_task(trace, tmp_path / "here", logs=logs), lambda _: None)
    spec = make_task(trace, tmp_path / "there", logs=logs)
    end = simulate_remotely(msgspec.json.encode(spec), trace.read_bytes(), digest_source())
    assert msgspec.json.encode(take_end(RemoteEnd(*end), spec)) == msgspec.json.encode(here)
    written = {path.name for path in (tmp_path / "there").iterdir()}
    assert written == set(FILES if logs else (FILES[0], FILES[2]))
    for name in written:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_node_with_other_source_simulates_nothing(trace: Path, tmp_path: Path) -> None:
    spec = make_task(trace, tmp_path, logs=True)
    end = simulate_remotely(msgspec.json.encode(spec), trace.read_bytes(), "of another commit")
    with pytest.raises(SimulationError, match="other source of Tracon"):
        take_end(RemoteEnd(*end), spec)
    assert not list(tmp_path.iterdir())


def test_the_source_is_another_after_an_edit_of_a_module_and_not_after_one_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "simulator").mkdir()
    module = tmp_path / "simulator" / "engine.py"
    module.write_text("STEP_S = 1\n")
    digests = [digest_folder(tmp_path)]
    module.write_text("STEP_S = 2\n")
    digests.append(digest_folder(tmp_path))
    module.rename(tmp_path / "simulator" / "steps.py")
    digests.append(digest_folder(tmp_path))
    assert len(set(digests)) == 3
    (tmp_path / "simulator" / "engine.cpython-311.pyc").write_bytes(b"compiled")
    (tmp_path / "mine.toml").write_text("base_s = 1.0\n")
    assert digest_folder(tmp_path) == digests[-1]
