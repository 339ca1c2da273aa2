"""Which Tracon measured: the commit of its own source tree."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

GIT_TIMEOUT_S = 10.0
SOURCE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str | None
    """None = not known, see `reason`."""
    reason: str = ""
    """Why it is not known, or that the tree differs from it."""


def commit_of(folder: Path = SOURCE, *, ignored: str = "") -> Commit:
    """The commit of the work tree that `folder` is in; an installed copy has none.

    `ignored`: a file below `folder` whose changes do not count.
    """
    pathspec = ("--", ".", f":(exclude){ignored}") if ignored else ()
    try:
        sha = _call_git(folder, "rev-parse", "HEAD")
        changed = _call_git(folder, "status", "--porcelain", "--untracked-files=no", *pathspec)
    except (OSError, subprocess.SubprocessError):
        return Commit(None, "Tracon does not run from a git work tree")
    return Commit(sha, "the work tree has uncommitted changes" if changed else "")


def _call_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
    )
    return done.stdout.strip()
