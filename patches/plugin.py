"""The entry point vLLM calls in each of its processes: `tracon = tracon_patches.plugin:register`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .engine_log import write_line

STEP_LOG_VARIABLE = "AGENTIC_STEP_LOG_PATH"
"""Turns the step probe on; `<dir>/engine_step.jsonl` puts the rings at `<dir>/engine_step.<role>.<pid>.ring`."""
TRANSFER_LOG_VARIABLE = "TRACON_TRANSFER_LOG"
"""Turns the transfer probe on; the folder of its `transfer.<pid>.jsonl`."""
CPU_CONNECTORS_VARIABLE = "TRACON_CPU_CONNECTORS"
"""`1` lets connectors written for accelerators run on a CPU build, and asks the kernel for AMX tiles there."""
RUN_FIRST_VARIABLE = "TRACON_RUN_FIRST"
"""`1` runs the model once on a CPU build before it serves."""
NAME_DEATHS_VARIABLE = "TRACON_NAME_DEATHS"
"""`1` writes the signal that ended a process of vLLM's to the log of the process that had started it."""
REPAIRS_VARIABLE = "TRACON_REPAIRS"
"""`1` repairs what would end an engine during a proof of transfer; set for pre-flight launches only."""


def register() -> None:
    """Install what the environment asks for. Never raises: the engine must start."""
    step_log = os.environ.get(STEP_LOG_VARIABLE)
    transfer_log = os.environ.get(TRANSFER_LOG_VARIABLE)
    if os.environ.get(NAME_DEATHS_VARIABLE) == "1":
        with _guard("names of deaths"):
            from . import child_deaths, stalls

            child_deaths.name_child_deaths()
            stalls.claim_fault_handler()
    if os.environ.get(CPU_CONNECTORS_VARIABLE) == "1":
        _make_fit_for_a_cpu()
    if os.environ.get(RUN_FIRST_VARIABLE) == "1":
        with _guard("run of the model before the first request"):
            from . import cpu_engine

            cpu_engine.warm_each_worker()
    if os.environ.get(REPAIRS_VARIABLE) == "1":
        with _guard("repair of MultiConnector's metrics"):
            from . import repairs

            repairs.skip_unregistered_metrics()
    with _guard("compiled kernels for engines on other ports"):
        from . import compile_key

        why_not = compile_key.leave_out_ports()
        if why_not is not None:
            write_line(f"engines on other ports compile again: compile_factors: {why_not} (pid {os.getpid()})")
    if step_log:
        with _guard("step probe"):
            from . import stalls, step_probe

            reason = step_probe.install(step_log).timing_reason
            if reason is not None:
                write_line(f"step timing off: {reason} (pid {os.getpid()})")
            stalls.watch_each_worker()
    if transfer_log:
        with _guard("transfer probe"):
            from . import transfer_probe

            for hook, why in transfer_probe.install(transfer_log).misfits.items():
                write_line(f"transfer probe lacks {hook}: {why} (pid {os.getpid()})")


def _make_fit_for_a_cpu() -> None:
    from . import cpu_connectors, cpu_engine

    with _guard("AMX tiles"):
        cpu_engine.request_amx_here_and_in_forks()
    with _guard("CPU connector shims"):
        for name, why in cpu_connectors.apply().items():
            write_line(f"CPU shim for {name} not applied: {why}")


@contextlib.contextmanager
def _guard(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in here, the engine must come up
        write_line(f"{what} off in pid {os.getpid()}: {type(error).__name__}: {error}")
