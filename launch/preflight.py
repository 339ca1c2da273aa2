"""Pre-flight gates: does a config really work here, before anything is measured with it?

Each gate is one numbered check on a ready instance. What cannot be observed does not pass: an absent metric, or a
connector that left no trace, is a failed check with its reason. The first numbers are the specification's; if all of
them pass, the config's proofs follow (launch/preflight_proofs.py).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from launch.dummy_bootstrap import DummyBootstrap
from launch.errors import HostObstacle, LaunchError
from launch.instance import Served, make_http_client
from launch.preflight_checks import (
    Counterpart,
    Gate,
    GateFailed,
    Subject,
    check_connector_launched,
    check_dummy_bootstrap,
    check_engine_survived,
    check_model_served,
    check_requests,
    check_requests_answered,
    check_requests_in_time,
)
from launch.preflight_proofs import PROOFS
from launch.profile import ConnectorConfig, Profile
from launch.transfer_request import BOOTSTRAP_PORT
from results.records.preflight import PreflightCheck


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a config may be measured here."""

    config: str
    passed: bool
    checks: tuple[PreflightCheck, ...]
    reason: str
    """The first check that failed, in words; empty when all passed."""


async def verify(
    instance: Served, config: ConnectorConfig, profile: Profile, log: Path, counterpart: Counterpart | None = None
) -> GateResult:
    """Run every gate of `config` on a ready instance, one launched for pre-flight; each step goes to `log`, timed.

    `counterpart` launches a second engine for proofs that need one; None where none fits beside the first. Raises
    HostObstacle where another process listens on one of its ports, or where it is not visible whether it has ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:

        def note(text: str) -> None:
            file.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")
            file.flush()

        note(f"pre-flight of {config.name}: {instance.name} at {instance.url}, pid {instance.pid}")
        async with make_http_client(instance.url) as client, _run_bootstrap(instance, config, note) as bootstrap:
            subject = Subject(instance, config, profile, client, instance.pid, note, counterpart, bootstrap)
            checks = await _run_checks(subject, gates(config), 1)
            if all(check.passed for check in checks) and config.preflight.proofs:
                checks += await _run_checks(subject, proofs(config), len(checks) + 1)
        failed = next((check for check in checks if not check.passed), None)
        reason = "" if failed is None else f"check {failed.number} ({failed.name}): {failed.detail}"
        note(f"{'PASS' if failed is None else 'FAIL: ' + reason}")
    return GateResult(config.name, failed is None, checks, reason)


def gates(config: ConnectorConfig) -> dict[str, Gate]:
    """The specification's checks of a config, by name, in the order of their numbers."""
    launched = "launched with its connector" if config.connectors else "launched without a connector"
    if _needs_bootstrap(config):
        return {
            "dummy bootstrap answers": check_dummy_bootstrap,
            launched: check_connector_launched,
            "model is served": check_model_served,
            "short request completes": check_requests,
            "engine did not crash": check_engine_survived,
        }
    return {
        launched: check_connector_launched,
        "requests are answered": check_requests_answered,
        "requests are in time": check_requests_in_time,
        "engine did not crash": check_engine_survived,
    }


def proofs(config: ConnectorConfig) -> dict[str, Gate]:
    """The checks that the config's connector works, and that the engine survives them."""
    named = {f"proof: {name.replace('_', ' ')}": PROOFS[name] for name in config.preflight.proofs}
    return {**named, "engine outlived the proofs": check_engine_survived}


async def _run_checks(subject: Subject, named: Mapping[str, Gate], first: int) -> tuple[PreflightCheck, ...]:
    numbered = enumerate(named.items(), first)
    return tuple([await _run_check(number, name, gate, subject) for number, (name, gate) in numbered])


async def _run_check(number: int, name: str, gate: Gate, subject: Subject) -> PreflightCheck:
    began = time.perf_counter()
    try:
        passed, detail = True, await gate(subject)
    except GateFailed as error:
        passed, detail = False, str(error)
    except HostObstacle:
        raise
    except LaunchError as error:
        passed, detail = False, f"{error} {error.remedy}"
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        passed, detail = False, f"the server gave no usable answer: {type(error).__name__} {error}".rstrip()
    check = PreflightCheck(number, name, passed, detail, time.perf_counter() - began)
    subject.note(f"{number} {name}: {'PASS' if passed else 'FAIL'} in {check.duration_s:.3f} s: {detail}")
    return check


def _needs_bootstrap(config: ConnectorConfig) -> bool:
    return "bootstrap_query" in config.preflight.proofs


@asynccontextmanager
async def _run_bootstrap(
    instance: Served, config: ConnectorConfig, note: Callable[[str], None]
) -> AsyncIterator[DummyBootstrap | None]:
    """The dummy bootstrap of a config that needs one, on its engine's bootstrap port, which a consumer leaves free."""
    if not _needs_bootstrap(config):
        yield None
        return
    async with AsyncExitStack() as stack:
        bootstrap: DummyBootstrap | None = None
        try:
            bootstrap = await stack.enter_async_context(DummyBootstrap(instance.ports.get(BOOTSTRAP_PORT, 0)))
        except OSError as error:
            note(f"the dummy bootstrap cannot be started: {error}")
        yield bootstrap
