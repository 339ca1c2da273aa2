"""Whether Tracon's probes fit the vLLM of an environment, by the signatures in its source files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from launch.doctor_rows import OK, WARN, Row
from launch.errors import LaunchError

KNOWN = "0.18.1, 0.22.0, 0.26.0 and 0.32.0"
"""Releases whose sources the hooks were compared with; 0.32.0 was run."""
CHECK_TIMEOUT_S = 60.0


class VllmDoesNotFit(LaunchError):
    """The steps of this vLLM cannot be timed."""


class SourceCheck(msgspec.Struct, frozen=True):
    """What `patches/source_check.py` prints."""

    vllm: str | None
    misfits: dict[str, dict[str, str]] | None
    """By probe and hook, why it does not fit; None = the environment has no sources of vLLM."""
    essential: tuple[str, ...]
    """Hooks without which no step is timed."""

    @property
    def blocking(self) -> list[str]:
        lost = {hook: why for own in (self.misfits or {}).values() for hook, why in own.items()}
        return [f"{hook}: {lost[hook]}" for hook in self.essential if hook in lost]


def check_vllm(site_packages: Path) -> SourceCheck:
    """Look at the sources; nothing of the environment is run. Raises LaunchError where the check itself fails."""
    argv = [sys.executable, "-m", "patches.source_check", str(site_packages)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=CHECK_TIMEOUT_S, check=True)
        return msgspec.json.decode(done.stdout, type=SourceCheck)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise LaunchError(f"the sources of vLLM in {site_packages} cannot be checked: {error}") from error


def require_fit(site_packages: Path, kind: str) -> None:
    """Raises VllmDoesNotFit with version, hooks and remedy where no step could be timed."""
    check = check_vllm(site_packages)
    if check.blocking:
        raise VllmDoesNotFit(
            f"vLLM {check.vllm} in {site_packages} does not fit the step probe: {'; '.join(check.blocking)}",
            remedy=f"name an environment with a vLLM that fits (known: {KNOWN}), or build one with "
            f"`tracon engine install {kind}`",
        )


def describe_fit(site_packages: Path, kind: str) -> Row:
    """The doctor's row."""
    what = "hooks"
    try:
        check = check_vllm(site_packages)
    except LaunchError as error:
        return Row(what, WARN, str(error), error.remedy)
    if check.misfits is None:
        return Row(what, WARN, "there are no sources of vLLM to compare signatures with; a launch compares them", "")
    remedy = f"measure with it as it is, or build one that every hook fits with `tracon engine install {kind}`"
    lacking = [f"{probe} lack {', '.join(own)}" for probe, own in check.misfits.items() if own]
    if lacking:
        detail = f"vLLM {check.vllm}: {'; '.join(lacking)}; what they would show is null with the reason"
        return Row(what, WARN, detail, remedy)
    return Row(what, OK, f"all fit the signatures of vLLM {check.vllm}")
