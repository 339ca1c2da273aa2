"""What a cell says of the code that measured it and of the GPUs beside it; not measured is said, never 0."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from runners.campaign.provenance import commit_of
from runners.samplers.gpu import HEADER, GpuSampler


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_is_the_work_trees_and_changes_are_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("one = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = commit_of(tmp_path)
    assert clean.sha == git(tmp_path, "rev-parse", "HEAD")
    assert clean.reason == ""
    (tmp_path / "code.py").write_text("one = 2\n")
    assert "uncommitted" in commit_of(tmp_path).reason


def test_a_copy_without_a_work_tree_has_no_commit_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path).sha is None
    assert commit_of(tmp_path).reason


async def test_without_a_gpu_there_is_the_header_and_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with GpuSampler(tmp_path / "gpu_util.csv") as gpu:
        pass
    assert (tmp_path / "gpu_util.csv").read_text() == HEADER
    assert gpu.use.utilisation is None
    assert "nvidia-smi" in gpu.use.reason


async def test_gpus_are_sampled_as_they_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 40, 1000, 1500'\necho '1, 60, 2000, [N/A]'\necho '2, [N/A], [N/A], [N/A]'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with GpuSampler(tmp_path / "gpu_util.csv", period_s=0.01) as gpu:
        for _ in range(500):
            if gpu.use.utilisation is not None:
                break
            await asyncio.sleep(0.01)
    assert gpu.use.utilisation == pytest.approx(0.5)
    rows = [line.split(",")[1:] for line in (tmp_path / "gpu_util.csv").read_text().splitlines()[1:]]
    assert rows[:2] == [["0", "40", "1000", "1500"], ["1", "60", "2000", ""]]
    assert (gpu.use.memory_used_mib, gpu.use.clock_mhz) == (3000, 1500)
