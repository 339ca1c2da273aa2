"""The fit of an engine model: it finds what made the steps, refuses what says nothing, and compares like with like."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from results.measures.requests import collect_latency_samples
from results.records.schemas import CellRecord
from results.records.simulation_spec import EngineModel, StepTime
from runners.cli import app
from runners.cli.simulate import make_calibration_tables
from runners.errors import RunnerError
from runners.simulator.calibrate import (
    STEEP,
    BusySteps,
    Calibration,
    Cell,
    CellComparison,
    calibrate,
    compare_cell,
    compare_cells,
    fit_steps,
    join_steps,
    list_busy_steps,
    mark_near_saturation,
    read_cells,
    read_settings,
    simulate_cell,
)
from runners.simulator.check import _join_loads
from runners.simulator.engine_file import EngineFile, read_engine
from runners.simulator.step_time import Noise, ResidualNoise, StepWork, draw_residuals, predict_step_s
from tests.goldens.fixture import ARCHIVE, HERE, unpack


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real run of connector-tax."""
    return unpack(HERE / "connector-tax" / ARCHIVE, tmp_path_factory.mktemp("run"))


@pytest.fixture
def run_twice(tmp_path: Path) -> Path:
    """A small real run that launched its engine without a connector under both names."""
    return unpack(HERE / "connector-tax-confirm" / ARCHIVE, tmp_path)


def short(prefill: np.ndarray, decode: np.ndarray, step_s: np.ndarray) -> BusySteps:
    """Steps of prompts and answers so short that no context counts."""
    return BusySteps(prefill, decode, np.zeros_like(step_s), np.zeros_like(step_s), step_s)


def test_the_fit_finds_the_coefficients_that_made_the_steps() -> None:
    draw = np.random.default_rng(7)
    prefill = np.where(draw.random(4000) < 0.3, draw.integers(1, 2000, 4000), 0).astype(float)
    decode = draw.integers(0, 60, 4000).astype(float)
    true = StepTime(0.002, 3e-5, 1e-4)
    exact_s = np.array(
        [predict_step_s(true, StepWork(int(p), 0.0, int(d), 0)) for p, d in zip(prefill, decode, strict=True)]
    )
    step, count, mape = fit_steps(short(prefill, decode, exact_s * draw.lognormal(0.0, 0.05, 4000)))
    assert step.base_s == pytest.approx(true.base_s, rel=0.03)
    assert step.prefill_token_s == pytest.approx(true.prefill_token_s, rel=0.03)
    assert step.decode_sequence_s == pytest.approx(true.decode_sequence_s, rel=0.03)
    assert count == pytest.approx(3960, abs=1)
    assert 0.02 < mape < 0.06


def test_steps_that_vary_are_fitted_by_their_mean() -> None:
    """An answer of many steps takes their sum; a fit of the errors over the measured times was 22 % too fast here."""
    draw = np.random.default_rng(11)
    prefill, decode = np.tile([0.0, 0.0, 0.0, 500.0], 5000), draw.integers(1, 20, 20_000).astype(float)
    exact_s = 0.002 + 1e-5 * prefill + 1e-4 * decode
    step, _, _ = fit_steps(short(prefill, decode, exact_s * draw.lognormal(-(0.4**2) / 2, 0.4, 20_000)))
    fitted_s = step.base_s + step.prefill_token_s * prefill + step.decode_sequence_s * decode
    assert fitted_s.sum() == pytest.approx(exact_s.sum(), rel=0.04)
    assert step.prefill_token_s == pytest.approx(1e-5, rel=0.06)


def test_a_few_steps_that_the_host_held_up_do_not_bend_the_fit() -> None:
    prefill, decode = np.tile([0.0, 500.0], 1000), np.ones(2000)
    step_s = 0.002 + 1e-5 * prefill + 1e-4 * decode
    step_s[::250] += 5.0
    step, _, _ = fit_steps(short(prefill, decode, step_s))
    assert step.prefill_token_s == pytest.approx(1e-5, rel=0.01)


def test_a_step_after_an_idle_moment_counts_where_steps_overlap() -> None:
    """Under async scheduling a step is begun before the last one ends; prompts of a low rate come to an idle engine."""
    steps = pd.DataFrame(
        {
            "prefill_tokens": [512, 0, 0],
            "decode_tokens": [0, 1, 1],
            "engine_step_us": [9000.0, 3500.0, 3500.0],
            "period_us": [math.nan, 2000.0, 2000.0],
        }
    )
    work = list_busy_steps(steps, 512, 16)
    assert work.prefill_tokens.tolist() == [512, 0, 0]
    assert work.step_s.tolist() == pytest.approx([0.009, 0.002, 0.002])
    assert work.prefill_context.tolist() == [512 * 513 / 2, 0, 0], "each token attends to those before it and itself"
    assert work.decode_context.tolist() == [0, 520, 520]


def test_long_prompts_and_answers_take_longer_than_their_tokens_alone() -> None:
    true = StepTime(0.001, 5e-6, 1e-4, 3e-9, 2e-8)
    draw = np.random.default_rng(5)
    works = []
    for length in (128, 512, 2048):
        prefill, decode = np.tile([0.0, float(length)], 500), draw.integers(1, 30, 1000).astype(float)
        context, read = prefill * (length + 1) / 2, decode * (length + 16)
        exact_s = np.array(
            [
                predict_step_s(true, StepWork(int(p), c, int(d), int(r)))
                for p, c, d, r in zip(prefill, context, decode, read, strict=True)
            ]
        )
        works.append(BusySteps(prefill, decode, context, read, exact_s * draw.lognormal(0.0, 0.02, 1000)))
    step, _, _ = fit_steps(join_steps(works))
    for name in true.__struct_fields__:
        assert getattr(step, name) == pytest.approx(getattr(true, name), rel=0.1), name


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (np.zeros(500), np.ones(500)),
        (np.ones(500), np.zeros(500)),
        (np.ones(20), np.ones(20)),
        (np.zeros(0), np.zeros(0)),
    ],
    ids=["no prompts", "no answers", "few", "none"],
)
def test_steps_that_do_not_give_a_model_are_refused(prefill: np.ndarray, decode: np.ndarray) -> None:
    with pytest.raises(RunnerError, match="do not give a model"):
        fit_steps(short(prefill, decode, np.full(prefill.size, 0.01)))


def test_work_that_never_varies_is_time_of_the_step_and_not_of_what_it_happens_to_be_proportional_to() -> None:
    """At a low rate every decode has one sequence of one length; the fit took its time for that of the KV it reads."""
    prefill = np.tile([128.0, *[0.0] * 15], 12)
    decode = (prefill == 0).astype(float)
    step_s = np.where(prefill > 0, 0.0067, 0.0039) * np.random.default_rng(3).lognormal(0.0, 0.2, prefill.size)
    step, _, _ = fit_steps(BusySteps(prefill, decode, prefill / 128 * 8256, decode * 136, step_s))
    assert step.base_s == pytest.approx(0.0039, rel=0.1)
    assert step.prefill_token_s == pytest.approx((0.0067 - 0.0039) / 128, rel=0.3)
    assert (step.decode_sequence_s, step.prefill_context_s, step.decode_context_s) == (0.0, 0.0, 0.0)


def test_the_command_names_coefficients_that_the_steps_do_not_tell_apart(run: Path) -> None:
    calibration = replace(calibrate(run), not_told_apart=("decode_context_s",))
    console = Console(width=200, record=True, file=StringIO())
    console.print(make_calibration_tables(calibration))
    assert "The steps do not tell decode_context_s apart from the others: 0." in console.export_text()


def test_a_run_is_fitted_on_every_second_cell_and_compared_on_the_others(run: Path) -> None:
    made = calibrate(run)
    assert [cell.fitted for cell in made.cells] == [index % 2 == 0 for index in range(len(made.cells))]
    assert made.engine.calibrated
    assert made.engine.model.step.base_s > 0
    assert made.engine.model.frontend_s > 0
    assert made.steps >= 100
    held_out = sum(not cell.fitted for cell in made.cells)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        loads = [load for near in (False, True) for load in made.list_loads(metric, near_saturation=near).values()]
        assert made.list_loads(metric)
        assert sum(len(load.cells) for load in loads) == held_out
    unsaturated = [cell.error for load in made.list_loads("e2e_s").values() for cell in load.cells]
    assert abs(statistics.median(unsaturated)) < 0.5, "the model is of the right size, on a run of a busy machine"


def with_settings(record: CellRecord, **settings: object) -> CellRecord:
    return replace(record, instance={**record.instance, "settings": settings})


def engine_of_settings(run: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> EngineFile:
    """The model of a run whose cells state these settings."""
    cells = [replace(cell, record=with_settings(cell.record, **settings)) for cell in read_cells(run, "plain")]
    monkeypatch.setattr(
        "runners.simulator.calibrate.read_cells",
        lambda _, config: (cell for cell in cells if cell.record.config == config),
    )
    return calibrate(run).engine


def test_a_model_has_the_settings_that_the_engine_ran_with(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of_settings(run, monkeypatch, max_num_batched_tokens=2048, max_num_seqs=64, async_scheduling=True)
    model = engine.model
    assert (model.max_batched_tokens, model.max_sequences, model.async_scheduling) == (2048, 64, True)
    assert "default" not in " ".join(engine.sources)


def test_a_setting_that_no_cell_states_is_the_default_and_the_model_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of_settings(run, monkeypatch, max_num_batched_tokens=2048)
    assert (engine.model.max_batched_tokens, engine.model.max_sequences) == (2048, 256)
    assert "max_sequences, async_scheduling: the default, because no cell has the engine's setting" in engine.sources


def test_cells_of_engines_with_two_settings_give_no_model(run: Path) -> None:
    record = next(read_cells(run, "plain")).record
    records = [with_settings(record, max_num_seqs=64), with_settings(record, max_num_seqs=128)]
    with pytest.raises(RunnerError, match="max_num_seqs 64 and 128"):
        read_settings(records)


def test_a_load_has_one_error_for_each_held_out_cell_and_the_repetitions_of_its_own_cells() -> None:
    def cell(name: str, ttft_s: float, *, fitted: bool, load: float = 1.0) -> CellComparison:
        return CellComparison(name, fitted, (load, 128, 16), {"ttft_s": ttft_s}, {"ttft_s": 0.3}, None)

    cells = (
        cell("a", 0.1, fitted=True), cell("b", 0.2, fitted=False), cell("c", 0.1, fitted=False),
        cell("d", 0.6, fitted=False, load=2.0), cell("e", 0.6, fitted=True, load=3.0),
    )  # fmt: skip
    engine = EngineFile("an engine", EngineModel(StepTime(1e-5, 1e-5, 1e-5), 100_000))
    first, second = Calibration(engine, 100, 0.1, cells).list_loads("ttft_s").values()
    assert [cell.error for cell in first.cells] == pytest.approx((0.5, 2.0))
    assert [cell.repetition for cell in first.repeated] == pytest.approx(((0.5 + 0.5) / 2, (0.0 + 1.0) / 2))
    assert [cell.error for cell in second.cells] == pytest.approx((-0.5,))
    assert second.repeated == ()
    twice = _join_loads([Calibration(engine, 100, 0.1, cells)] * 2, "ttft_s", near_saturation=False)
    assert [len(load.cells) for load in twice] == [4, 2], "two runs of a load are one sample"


def test_plain_again_gives_no_fit_and_each_of_its_cells_has_a_repetition(run_twice: Path) -> None:
    made = calibrate(run_twice)
    plain, again = ([cell for cell in made.cells if f"/{config}/" in cell.cell] for config in ("plain", "plain_again"))
    assert [cell.fitted for cell in plain] == [index % 2 == 0 for index in range(len(plain))]
    assert len(again) == 6
    assert not any(cell.fitted for cell in again)
    assert len({cell.launch for cell in again}) == 3
    assert not {cell.launch for cell in plain} & {cell.launch for cell in again}
    assert [cell.repetition for cell in again] == [cell.cell.replace("plain_again", "plain") for cell in again]
    by_name = {cell.cell: cell for cell in made.cells}
    assert all(by_name[cell.repetition].repetition == cell.cell for cell in again), "each repeats the other"
    shutil.rmtree(next(run_twice.glob("results/*_plain_again")))
    alone = calibrate(run_twice)
    assert alone.engine == made.engine, "the fit is that of a run without plain_again"
    assert [replace(cell, near_saturation=False) for cell in alone.cells] == [
        replace(cell, near_saturation=False, repetition="") for cell in plain
    ]


def test_a_held_out_cell_is_compared_with_its_own_repetition_alone() -> None:
    def cell(name: str, ttft_s: float, repetition: str, *, fitted: bool = False) -> CellComparison:
        measured, simulated = {"ttft_s": ttft_s}, {"ttft_s": 0.3}
        return CellComparison(name, fitted, (1.0, 128, 16), measured, simulated, None, repetition=repetition)

    cells = (
        cell("plain/t0", 0.1, "again/t0", fitted=True), cell("plain/t1", 0.2, "again/t1"),
        cell("again/t0", 0.4, "plain/t0"), cell("again/t1", 0.1, "plain/t1"), cell("again/t2", 0.2, ""),
    )  # fmt: skip
    engine = EngineFile("an engine", EngineModel(StepTime(1e-5, 1e-5, 1e-5), 100_000))
    (load,) = Calibration(engine, 100, 0.1, cells).list_loads("ttft_s").values()
    assert [cell.error for cell in load.cells] == pytest.approx((0.5, -0.25, 2.0, 0.5))
    every_other = (0.5 + 0.0 + 1.0 + 0.5) / 4
    assert [cell.repetition for cell in load.repeated] == pytest.approx((0.5, 0.75, 1.0, every_other))


def test_a_cell_of_the_same_launch_is_no_repetition() -> None:
    """A launch that is slow is slow in all of its cells: two of them differ by less than a run and its repetition."""

    def cell(name: str, ttft_s: float, launch: str) -> CellComparison:
        return CellComparison(name, False, (1.0, 128, 16), {"ttft_s": ttft_s}, {"ttft_s": 0.3}, None, launch=launch)

    cells = (
        cell("sweep/t0", 0.2, "run/plain-1"),
        cell("confirm/t0", 0.2, "run/plain-1"),
        cell("t1", 0.4, "run/plain-2"),
    )
    engine = EngineFile("an engine", EngineModel(StepTime(1e-5, 1e-5, 1e-5), 100_000))
    (load,) = Calibration(engine, 100, 0.1, cells).list_loads("ttft_s").values()
    assert [cell.launch for cell in load.cells] == ["run/plain-1", "run/plain-1", "run/plain-2"]
    assert [cell.repetition for cell in load.repeated] == pytest.approx((1.0, 1.0, 0.5))


def test_a_cell_whose_client_fell_behind_is_neither_fitted_nor_compared(run_twice: Path) -> None:
    cells = {cell.record.cell: cell for cell in read_cells(run_twice, "plain")}
    path = next(run_twice.glob("results/*_plain/cell_*.json"))
    record = json.loads(path.read_bytes())
    record["fidelity"] |= {"degraded": True, "reason": "the client fell behind"}
    path.write_text(json.dumps(record))
    assert {cell.record.cell for cell in read_cells(run_twice, "plain")} == set(cells) - {record["cell"]}


def test_a_cell_is_simulated_with_the_residuals_of_the_fitted_cell_before_it(
    run_twice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, again = (
        sorted(read_cells(run_twice, config), key=lambda cell: cell.order) for config in ("plain", "plain_again")
    )
    seen: dict[str, str] = {}

    def record(cell: Cell, _: EngineModel, residuals: Sequence[float], *, fitted: bool) -> CellComparison:
        seen[cell.record.cell] = plain[2 * int(residuals[0])].record.cell
        return CellComparison(cell.record.cell, fitted, cell.load, {}, {}, None)

    monkeypatch.setattr("runners.simulator.calibrate.compare_cell", record)
    model = EngineModel(StepTime(1e-5, 1e-5, 1e-5), 100_000)
    compare_cells(plain, again, model, [[float(number)] for number in range(len(plain[::2]))])
    names = [cell.record.cell for cell in plain]
    assert [seen[name] for name in names] == [names[index // 2 * 2] for index in range(len(names))]
    assert all(seen[name] == seen[name.replace("plain_again", "plain")] for name in seen)


def test_a_cell_whose_queue_grows_with_every_slow_step_is_near_saturation(run: Path) -> None:
    """The same arrivals before an engine that has time to spare, and before one that needs nearly all of it."""
    cell = next(read_cells(run, "plain"))
    rate, prompt, answer = cell.load
    spare_s, scarce_s = (share / rate / (prompt + answer) for share in (0.1, 0.97))
    compared = [
        compare_cell(cell, EngineModel(StepTime(1e-5, token_s, token_s), 100_000), [1.0], fitted=False)
        for token_s in (spare_s, scarce_s)
    ]
    assert compared[0].steepness == pytest.approx(1.0, abs=0.5)
    assert (compared[1].steepness or 0) > STEEP
    assert not mark_near_saturation(compared[:1])[0].near_saturation
    assert all(one.near_saturation for one in mark_near_saturation(compared)), "a load is, not a cell of it"


def test_an_engine_varies_as_one_cell_did(run: Path) -> None:
    """The residuals of all cells in a row would take every engine through every state of the host."""
    quiet, slow = (0.5,) * 10, (1.5,) * 10
    factors = {draw_residuals((quiet, slow), f"engine {number}").find_factor(40) for number in range(30)}
    assert factors == {0.5, 1.5}
    assert all(len(cell) >= 1 for cell in calibrate(run).engine.residuals)


def test_a_simulated_cell_keeps_its_sends_and_is_measured_as_the_real_one(run: Path) -> None:
    cell = next(read_cells(run, "plain"))
    model = EngineModel(StepTime(0.010, 0.0, 0.0), kv_capacity_tokens=100_000)
    simulated = simulate_cell(cell.requests, model)
    assert list(simulated["t_send_ns"]) == list(cell.requests["t_send_ns"])
    samples = collect_latency_samples(simulated, cell.record)
    assert samples["tpot_s"] == pytest.approx(np.full(samples["tpot_s"].size, 0.010), abs=1e-8)
    assert samples["ttft_s"].min() >= 0.010


def test_steps_of_a_simulation_vary_as_those_did_that_gave_the_fit(run: Path) -> None:
    """A host that is slow for seconds on end makes whole answers slow; independent draws would average that out."""
    cell = next(read_cells(run, "plain"))
    model = EngineModel(StepTime(0.010, 0.0, 0.0), kv_capacity_tokens=100_000)
    slow_for_a_while = (0.5,) * 40 + (1.5,) * 40
    simulated = simulate_cell(cell.requests, model, ResidualNoise(slow_for_a_while, "any seed"))
    tpot_s = collect_latency_samples(simulated, cell.record)["tpot_s"]
    assert (tpot_s.min(), tpot_s.max()) == (pytest.approx(0.005, rel=0.01), pytest.approx(0.015, rel=0.01))


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 9)), min_size=1, max_size=20),
)
def test_residuals_come_in_their_order_and_round_again_and_none_is_lost_where_steps_are_cut_short(
    residuals: list[float], strides: list[tuple[int, int]]
) -> None:
    single, together = ResidualNoise(residuals, "seed"), ResidualNoise(residuals, "seed")
    for steps, planned in strides:
        together.find_factor(steps + planned)
        one_by_one = sum(take_step(single) for _ in range(steps))
        assert together.find_factor(steps) * steps == pytest.approx(one_by_one)
        together.pass_steps(steps)


def take_step(noise: Noise) -> float:
    factor = noise.find_factor(1)
    noise.pass_steps(1)
    return factor


@pytest.mark.parametrize("residuals", [(1.0, 0.0), (1.0, -1.0), (math.inf,), ()])
def test_a_model_whose_steps_would_take_no_time_or_for_ever_is_refused(residuals: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="residuals"):
        EngineFile("mine", EngineModel(StepTime(0.01, 0.0, 0.0), 1000), residuals=((1.0,), residuals))


def test_another_config_or_a_run_without_cells_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="0 cells of nothing"):
        calibrate(run, "nothing")
    with pytest.raises(RunnerError, match="0 cells of plain"):
        calibrate(tmp_path)


def test_a_model_is_not_written_to_a_file_that_a_simulation_would_read_as_toml(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    refused = CliRunner().invoke(app, ["simulate", "calibrate", str(run), "--out", str(out)]).exception
    assert isinstance(refused, RunnerError)
    assert "ends in .json" in refused.remedy
    assert not out.exists()


def test_the_command_writes_a_model_that_a_simulation_reads(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    done = CliRunner().invoke(app, ["simulate", "calibrate", str(run), "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert "not fitted: bias" in done.stdout
    assert read_engine(str(out)).calibrated
    shown = CliRunner().invoke(app, ["simulate", "calibrate", str(run), "--json"])
    assert json.loads(shown.stdout)["engine"]["calibrated"] is True
