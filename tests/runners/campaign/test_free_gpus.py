"""What a run does on a host whose GPUs others hold: it takes other ones, or is refused before it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.profile import load_profile
from results.records.events import InstanceChanged, InstanceState, Noted
from runners.campaign import run_process
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.gpus import explain_skipped_gpus, require_free_gpus, take_free_gpus
from runners.campaign.start import Prepared
from runners.errors import ExitCode, RunnerError
from runners.experiments.registry import select_experiment
from state.store import RunStore
from tests.fake_gpus import FakeGpu, make_host
from tests.runners.campaign.scripted import scripted_plan

SMALL = "h200-qwen3-0.6b-dummy"
FREE, HELD, HALF = (FakeGpu(used=gib << 30) for gib in (1, 120, 60))


def draft_of(experiment: str, preset: str, *, simulated: bool = False) -> DraftPlan:
    asked = RunOptions(experiment=experiment, profile=SMALL, preset=preset, simulated=simulated)
    return select_experiment(experiment).draft_plan(asked, load_profile(SMALL))


SKIPPED = (
    "Other processes hold memory of GPU 0: 20.0 of 140.0 GiB free, and engines take 90 % of all."
    " The engines take GPU 1."
)
TAKES: dict[str, tuple[tuple[FakeGpu, ...], tuple[str, ...], str, str | None]] = {
    "once for all of its engines": ((HELD, FREE, FREE), (), SKIPPED, "1,2"),
    "free ones change and note nothing": ((FREE, HELD), (), "", None),
    "a small one is not taken because it is free": (
        (FakeGpu(total=2 << 30, used=0), FREE), (),
        "An engine does not fit into GPU 0, by an estimate. The engines take GPU 1.", "1",
    ),
    "resumed where it was": ((FREE, FREE), ("0",), "", None),
    "resumed, the second one was NIXL's counterpart": ((FREE, FREE), ("0", "1"), "", None),
    "resumed on another": (
        (FREE, FREE), ("1",), "The run's engines were on GPU 1 before, and are on GPU 0 now.", None
    ),
    "resumed on another, its own is held": (
        (HELD, FREE), ("0",), f"{SKIPPED} The run's engines were on GPU 0 before, and are on GPU 1 now.", "1"
    ),
}  # fmt: skip
"""The host's GPUs, those that the run's engines had, the note, and the GPUs that they see from then on."""


@pytest.mark.parametrize("case", TAKES)
def test_a_run_takes_free_gpus_and_notes_what_is_new(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, used, note, devices = TAKES[case]
    make_host(tmp_path, monkeypatch, *gpus)
    environ = {"PATH": os.environ["PATH"]}
    assert take_free_gpus(draft_of("connector-tax", "gpu-demo"), used, environ) == note
    assert environ.get("CUDA_VISIBLE_DEVICES") == devices


def test_the_gpus_that_a_run_will_skip_are_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, HELD, FREE, FREE)
    draft = draft_of("connector-tax", "gpu-demo")
    assert explain_skipped_gpus(draft) == SKIPPED
    require_free_gpus(draft)


@pytest.mark.parametrize(
    ("gpus", "experiment", "preset", "refused"),
    [
        ((HELD,), "connector-tax", "gpu-demo", True),
        ((HELD, FREE), "connector-tax", "gpu-demo", False),
        ((HELD, FREE), "routing", "two-gpus", True),
        ((HELD, FREE, FREE), "routing", "two-gpus", False),
        ((HALF,), "routing", "two", True),  # 57 % are free: enough for one of its engines, and it has two
        ((FREE,), "routing", "two", False),
        ((FREE,), "routing", "two-gpus", False),  # the host has too few, and no process holds any
    ],
)
def test_a_run_is_refused_that_finds_too_few_gpus_with_room(
    gpus: tuple[FakeGpu, ...],
    experiment: str,
    preset: str,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_host(tmp_path, monkeypatch, *gpus)
    draft = draft_of(experiment, preset)
    if not refused:
        require_free_gpus(draft)
        return
    with pytest.raises(RunnerError, match=r"other processes hold memory of GPU 0: .* GiB free") as caught:
        require_free_gpus(draft)
    assert caught.value.exit_code == 2
    assert "stop the process" in caught.value.remedy
    assert caught.value.remedy.endswith("--accept-small-gpus")


def test_simulated_engines_need_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, HELD)
    require_free_gpus(draft_of("routing", "two", simulated=True))


def test_the_run_process_takes_them_before_its_first_engine_and_journals_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, HELD, FREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan, folder, seen = scripted_plan(), tmp_path / "run", []
    with RunStore.create(folder, "run", plan, "test") as store:
        store.append(InstanceChanged("plain-1", "plain", InstanceState.STARTING, devices=("0",)))
    prepared = Prepared(draft_of("connector-tax", "gpu-demo"), None, plan)

    async def run_cells(*_: object) -> ExitCode:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return ExitCode.DONE

    monkeypatch.setattr(run_process, "rebuild_options", lambda plan: None)
    monkeypatch.setattr(run_process, "prepare_run", lambda *_, **__: prepared)
    monkeypatch.setattr(run_process, "_run_cells", run_cells)
    code = run_process.work(folder, lambda name: select_experiment("connector-tax"), accept_changes=False)
    assert (code, seen) == (ExitCode.DONE, ["1"])
    with RunStore.open(folder) as store:
        texts = [stored.event.text for stored in store.events() if isinstance(stored.event, Noted)]
    assert len(texts) == 1
    assert texts[0].endswith("The engines take GPU 1. The run's engines were on GPU 0 before, and are on GPU 1 now.")
