"""The entry point vLLM calls in each of its processes: `tracon = tracon_patches.plugin:register`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

STEP_LOG_VARIABLE = "AGENTIC_STEP_LOG_PATH"
"""Turns the step probe on; `<dir>/engine_step.jsonl` puts the rings at `<dir>/engine_step.<role>.<pid>.ring`."""
TRANSFER_LOG_VARIABLE = "TRACON_TRANSFER_LOG"
"""Turns the transfer probe on; the folder of its `transfer.<pid>.jsonl`."""
CPU_CONNECTORS_VARIABLE = "TRACON_CPU_CONNECTORS"
"""`1` lets connectors written for accelerators run on a CPU build, and asks the kernel for AMX tiles there."""
NAME_DEATHS_VARIABLE = "TRACON_NAME_DEATHS"
"""`1` writes the signal that ended a process of vLLM's to the log of the process that had started it."""
REPAIRS_VARIABLE = "TRACON_REPAIRS"
"""`1` repairs what would end an engine during a proof of transfer; set for pre-flight launches only."""


def register() -> None:
    """Install what the environment asks for, nothing otherwise; never raises, so that the engine starts in any case."""
    step_log = os.environ.get(STEP_LOG_VARIABLE)
    transfer_log = os.environ.get(TRANSFER_LOG_VARIABLE)
    if os.environ.get(NAME_DEATHS_VARIABLE) == "1":
        _run_guarded("names of deaths", _name_deaths)
    if os.environ.get(CPU_CONNECTORS_VARIABLE) == "1":
        _run_guarded("AMX tiles", _request_amx)
        _run_guarded("run of the model before the first request", _warm_workers)
        _run_guarded("CPU connector shims", _adapt_connectors)
    if os.environ.get(REPAIRS_VARIABLE) == "1":
        _run_guarded("repair of MultiConnector's metrics", _repair_faults)
    if step_log:
        _run_guarded("step probe", lambda: _install_probe(step_log))
        _run_guarded("watch of the workers", _watch_workers)
    if transfer_log:
        _run_guarded("transfer probe", lambda: _install_transfer_probe(transfer_log))


def _name_deaths() -> None:
    from . import child_deaths, stalls

    child_deaths.name_child_deaths()
    stalls.claim_fault_handler()


def _request_amx() -> None:
    from . import cpu_engine

    cpu_engine.request_amx_here_and_in_forks()


def _warm_workers() -> None:
    from . import cpu_engine

    cpu_engine.warm_each_worker()


def _adapt_connectors() -> None:
    from . import cpu_connectors

    for name, outcome in cpu_connectors.apply().items():
        if outcome.failed:
            print(f"[tracon] CPU shim for {name} not applied: {outcome.detail}", file=sys.stderr, flush=True)


def _repair_faults() -> None:
    from . import repairs

    repairs.skip_unregistered_metrics()


def _install_probe(step_log: str) -> None:
    from . import step_probe

    reason = step_probe.install(step_log).timing_reason
    if reason is not None:
        print(f"[tracon] step timing off: {reason} (pid {os.getpid()})", file=sys.stderr, flush=True)


def _watch_workers() -> None:
    from . import stalls

    stalls.watch_each_worker()


def _install_transfer_probe(folder: str) -> None:
    from . import transfer_probe

    for hook, why in transfer_probe.install(folder).misfits.items():
        print(f"[tracon] transfer probe lacks {hook}: {why} (pid {os.getpid()})", file=sys.stderr, flush=True)


def _run_guarded(what: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in here, the engine must come up
        print(f"[tracon] {what} off in pid {os.getpid()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
