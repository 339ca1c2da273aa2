"""Profiles, configs, presets, router specs and engine models: read, or refused with the file and a remedy."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launch.errors import LaunchError
from launch.profile import load_config, load_profile
from results.records.router_spec import InstanceSpec, RouterSpec
from runners.campaign.experiment import RunOptions
from runners.errors import RunnerError
from runners.experiments.registry import experiments
from runners.experiments.settings import parse_setting
from runners.router.messages import read_router_spec
from runners.simulator.engine_file import FOLDER as ENGINES
from runners.simulator.engine_file import read_engine
from tests.examples import examples
from tests.fuzz.mutations import mutated

ROOT = Path(__file__).resolve().parents[2]
PROFILE = (ROOT / "launch" / "profiles" / "cpu-tiny.toml").read_bytes()
CONFIGS = [path.read_bytes() for path in sorted((ROOT / "launch" / "configs").glob("*.toml"))]
SPEC = msgspec.json.encode(RouterSpec((InstanceSpec("a", "http://127.0.0.1:8000"),)))

LONG_NUMBER = b"title = " + b"9" * 5000
"""Python converts no text of more than 4300 digits."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


@given(mutated([PROFILE]), st.integers(0, 2))
@settings(max_examples=examples(60))
@example(b"a = " + b"[" * 3000, 0)
@example(LONG_NUMBER, 0)
def test_a_profile_and_its_presets(folder: Path, text: bytes, number: int) -> None:
    path = folder / "mine.toml"
    path.write_bytes(text)
    try:
        profile = load_profile(path)
    except LaunchError as error:
        assert path.name in str(error)
        assert error.remedy
        return
    experiment = experiments()[number]
    for preset in sorted(profile.experiments.get(experiment.name, {})):
        try:
            plan = experiment.draft_plan(RunOptions(experiment.name, profile=str(path), preset=preset), profile)
        except (RunnerError, LaunchError) as error:
            assert error.remedy
        else:
            assert all(math.isfinite(cell.estimated_s) and cell.estimated_s >= 0 for cell in plan.cells)


@given(mutated(CONFIGS))
@settings(max_examples=examples(100))
@example(LONG_NUMBER)
def test_a_config(folder: Path, text: bytes) -> None:
    path = folder / "mine.toml"
    path.write_bytes(text)
    try:
        load_config(path)
    except LaunchError as error:
        assert path.name in str(error)
        assert error.remedy


@given(mutated([b"trace.sessions=50", b"new_tokens=[512,2048]", b"a.b = {c = 1979-05-27, d = 'e'}"]))
@settings(max_examples=examples(100))
@example(LONG_NUMBER)
@example(b"a = " + b"[" * 3000)
def test_a_setting_of_the_command_line(text: bytes) -> None:
    try:
        key, _ = parse_setting(text.decode("utf-8", "replace"), "a=1")
    except RunnerError as error:
        assert error.remedy
    else:
        assert key


@given(mutated([SPEC, b'{"instances":[{"instance":"a","url":"http://[::1]:8000"}],"transfer":{"timeout_s":1}}']))
@settings(max_examples=examples(200))
@example(b'{"instances":[' + b"[" * 100_000)
@example(b"\xff")
def test_a_router_spec(folder: Path, text: bytes) -> None:
    path = folder / "spec.json"
    path.write_bytes(text)
    try:
        read_router_spec(path)
    except RunnerError as error:
        assert error.remedy


@given(mutated([path.read_bytes() for path in sorted(ENGINES.glob("*.toml"))]), st.sampled_from(["toml", "json"]))
@settings(max_examples=examples(100))
@example(LONG_NUMBER, "toml")
def test_an_engine_model(folder: Path, text: bytes, suffix: str) -> None:
    path = folder / f"engine.{suffix}"
    path.write_bytes(text)
    try:
        read_engine(str(path))
    except RunnerError as error:
        assert path.name in str(error)
        assert error.remedy
