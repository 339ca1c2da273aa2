"""What the processes that run a model on a CPU build lack before their first request: AMX tiles, and a first run.

Linux lets a process use AMX tiles only after it has asked for them; the first tile instruction of one that has not ends
it with SIGILL. vLLM's attention kernel uses tiles and asks for nothing: oneDNN asks, at the first bf16 product of a
prefill. An engine whose first work is a decode on pulled KV computes no such product before.

The first call of the attention kernel and of the sampler takes some 25 ms each on an idle host, and hundreds where
their pages must come from disk. vLLM runs a model before it serves only to compile it or to measure its memory, so an
eager CPU engine with a fixed KV cache pays in its first request.
"""

from __future__ import annotations

import os
from typing import Any

from .cpu_connectors import is_cpu_build
from .engine_log import write_line
from .hooks import replace_on_instance, surround
from .workers import change_each_worker

WARM_TOKENS = 16


def request_amx_here_and_in_forks() -> None:
    """Ask here and in every process forked from here, none of which vLLM lets load its plugins again.

    The outcome of each process is a line in the engine's log.
    """
    if is_cpu_build():
        os.register_at_fork(after_in_child=_request_and_log)
        _request_and_log()


def request_amx() -> str:
    """Ask the kernel for AMX tiles in this process; returns the outcome in words, whatever happens."""
    try:
        import torch

        if torch.cpu._init_amx():
            return "granted"
        if torch.cpu._is_amx_tile_supported():
            return "refused by the kernel: a decode on pulled KV may end this engine with SIGILL"
    except Exception as error:  # noqa: BLE001 - the engine must start; without AMX it needs nothing
        return f"not requested: {type(error).__name__}: {error}"
    return "none in this CPU"


def _request_and_log() -> None:
    _write_line(f"AMX tiles: {request_amx()}")


def warm_each_worker() -> None:
    """Run the model once at the end of every worker's start, before the engine serves."""
    if is_cpu_build():
        change_each_worker(_warm_at_end_of_start, "_tracon_warms")


def _warm_at_end_of_start(worker: Any) -> None:  # noqa: ANN401 - a class of vLLM's
    # The method wrapped resets the random seed, which the run uses.
    run_first = surround(before=lambda: run_model_once(worker.model_runner))
    why = replace_on_instance(worker, "compile_or_warm_up_model", 0, run_first)
    if why is not None:
        _write_line(f"the model will not be run before the first request: compile_or_warm_up_model is {why}")


def run_model_once(runner: Any) -> None:  # noqa: ANN401 - a class of vLLM's
    """Forward pass, attention and sampler on made-up tokens, as vLLM itself does on a GPU. It writes no KV."""
    try:
        _, last_hidden_states = runner._dummy_run(WARM_TOKENS, force_attention=True, skip_eplb=True)
        runner._dummy_sampler_run(last_hidden_states)
        _write_line("the model has run once before the first request")
    except Exception as error:  # noqa: BLE001 - the engine must start; its first request is then slower
        _write_line(f"the model was not run before the first request: {type(error).__name__}: {error}")


def _write_line(text: str) -> None:
    write_line(f"{text} (pid {os.getpid()})")
