"""What a cell says of the code that measured it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runners.campaign.provenance import commit_of


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
    assert commit_of(tmp_path, ignored="code.py") == clean
    (tmp_path / "other.py").touch()
    git(tmp_path, "add", "other.py")
    assert "uncommitted" in commit_of(tmp_path, ignored="code.py").reason


def test_a_copy_without_a_work_tree_has_no_commit_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path).sha is None
    assert commit_of(tmp_path).reason
