"""Which GPUs have room for an engine, by what others hold of their memory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from launch.gpu_choice import GpuChoice, choose_gpus
from launch.profile import load_profile
from tests.fake_gpus import FakeGpu, FakeHost, make_host

SMALL = load_profile("h200-qwen3-0.6b-dummy")
FREE, HELD = FakeGpu(used=1 << 30), FakeGpu(used=60 << 30)
"""An engine of SMALL takes 90 % of a GPU: of the second 57 % are free."""


def choose() -> GpuChoice:
    choice = choose_gpus(SMALL)
    assert choice is not None
    return choice


def test_engines_skip_gpus_that_others_hold_and_keep_the_order_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, HELD, FREE, HELD, FREE)
    choice = choose()
    assert (choice.free, choice.full) == (("1", "3"), ("0", "2"))
    assert choice.name_free(1) == {"CUDA_VISIBLE_DEVICES": "1,3"}
    assert choice.explain_skipped(1) == (
        "Other processes hold memory of GPU 0, 2: 80.0 of 140.0 GiB, 80.0 of 140.0 GiB free, and engines take 90 % of "
        "all. The engines take GPU 1."
    )
    assert choice.name_free(3) == {}, "there are too few: vLLM says why"


def test_a_choice_of_the_user_is_kept_in_its_names_and_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, HELD, FREE, FREE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{FakeHost.uuid(2)},0,1")
    choice = choose()
    assert (choice.free, choice.full) == ((FakeHost.uuid(2), "1"), ("0",))
    assert choice.name_free(1) == {}, "engines begin with a free one"
    assert choice.name_free(2) == {"CUDA_VISIBLE_DEVICES": f"{FakeHost.uuid(2)},1"}


def test_engines_that_share_a_gpu_need_room_for_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=80 << 30), FREE)
    settings = msgspec.structs.replace(SMALL.engine, gpu_memory_utilization=0.4)
    profile = msgspec.structs.replace(SMALL, engine=settings)
    for engines, full in ((1, ""), (2, "0"), (3, "")):  # three do not run at once on a GPU: 120 %
        choice = choose_gpus(profile, engines)
        assert choice is not None
        assert "".join(choice.full) == full


@pytest.mark.parametrize("case", ["CPU", "MIG", "no nvidia-smi", "no numbers"])
def test_where_memory_is_not_known_nothing_is_chosen(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, HELD, FREE)
    assert choose_gpus(SMALL) is not None
    if case == "MIG":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,0")
    elif case == "no nvidia-smi":
        (host.folder / "nvidia-smi").unlink()
    elif case == "no numbers":
        (host.folder / "nvidia-smi").write_text("#!/bin/sh\necho '0, GPU-0, [N/A], [N/A]'\n")
    assert choose_gpus(load_profile("cpu-tiny") if case == "CPU" else SMALL) is None
