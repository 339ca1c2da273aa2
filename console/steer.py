"""Carries out an operator's action: a request in the journal of a live run, or a command of the CLI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from state import operator_requests
from state.errors import StateError
from state.store import RunStore

_Printed = TypeVar("_Printed")
COMMAND_S = 60.0
"""A detached start or resume returns within seconds; this bounds one that hangs."""


@dataclass(frozen=True, slots=True)
class Result:
    """Whether it worked, with a text for the operator."""

    done: bool
    text: str


def submit_request(folder: Path, action: str, target: str = "", reason: str = "") -> Result:
    """Put a request into a live run's journal; the run answers in its own time, visible in the feed."""
    try:
        with RunStore.open(folder) as store:
            number = operator_requests.submit(
                store, action, target, reason, f"{operator_requests.find_user_name()}/console {os.getpid()}"
            )
    except StateError as error:
        return Result(False, f"{error}. {error.remedy}")
    return Result(True, f"request {number} sent: {action.replace('_', ' ')}{f' {target}' if target else ''}")


def run_tracon(words: Sequence[str]) -> Result:
    """Run a `tracon` command to its end (it must not need a terminal) and return its outcome."""
    code, out, err = _run_command(words)
    if code == 0:
        return Result(True, (out or err).strip().splitlines()[-1] if (out or err).strip() else "done")
    return Result(False, _make_refusal(words, code, err))


class ProfileOffer(msgspec.Struct, frozen=True):
    """One profile of `tracon profiles --json`."""

    name: str
    description: str = ""
    presets: dict[str, list[str]] = {}
    """Preset names by experiment."""


class _Profiles(msgspec.Struct, frozen=True):
    profiles: list[ProfileOffer]


class PlanPreview(msgspec.Struct, frozen=True):
    """What of `tracon plan --json` a preview shows."""

    configs: list[str]
    stages: list[msgspec.Raw]
    cells: list[msgspec.Raw]
    estimated_s: float


def list_profiles() -> tuple[ProfileOffer, ...] | str:
    """The installed profiles, or why they cannot be listed."""
    listed = _read_json(("profiles",), _Profiles)
    return listed if isinstance(listed, str) else tuple(listed.profiles)


def preview_plan(experiment: str, profile: str, preset: str) -> PlanPreview | str:
    """The plan of a run that was not started, or why there is none."""
    return _read_json(("plan", experiment, "--profile", profile, "--preset", preset), PlanPreview)


def _read_json(words: Sequence[str], kind: type[_Printed]) -> _Printed | str:
    """What a command prints with `--json`, or why it cannot be read."""
    code, out, err = _run_command((*words, "--json"))
    if code != 0:
        return _make_refusal(words, code, err)
    try:
        return msgspec.json.decode(out, type=kind)
    except msgspec.DecodeError as error:
        return f"tracon {words[0]} printed something unexpected: {error}"


def _make_refusal(words: Sequence[str], code: int, err: str) -> str:
    """The message of a failed command: its paragraph, or the last line of a traceback."""
    lines = [line for line in err.splitlines() if line.strip()]
    if not lines:
        return f"tracon {words[0]} ended with exit code {code}"
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else " ".join(lines)


def _run_command(words: Sequence[str]) -> tuple[int, str, str]:
    """A command of the CLI in a session of its own, so that nothing that happens to this terminal reaches it."""
    argv = [sys.executable, "-m", "runners.cli", *words]
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "400"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            start_new_session=True,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"tracon {' '.join(words)} did not return within {COMMAND_S:.0f} s"
    return done.returncode, done.stdout, done.stderr
