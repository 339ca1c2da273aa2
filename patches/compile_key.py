"""Lets engines that differ only in their connector's ports share compiled kernels.

vLLM stores torch.compile's output below a hash of its own environment variables, except those on an ignore list. The
connectors' ports and timeouts are not on that list: an engine on another port would compile again what is on disk.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from . import hooks
from .hooks import Method, replace_once

LEFT_OUT = ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT")
"""What Tracon sets per engine or for pre-flight alone. No compiled code depends on it."""
COMPILE_FACTORS = Method("vllm.envs", "", "compile_factors", ((),), ())
_MARK = "_tracon_leaves_out_ports"


def leave_out_ports() -> str | None:
    """Where any of LEFT_OUT is set, leave all of them out of the hash; returns why that is not possible, else None."""
    if not any(name in os.environ for name in LEFT_OUT):
        return None
    why = hooks.misfit(COMPILE_FACTORS)
    if why is None:
        # vLLM's callers look the function up on the module at each call.
        replace_once(hooks.load(COMPILE_FACTORS.module), COMPILE_FACTORS.method, _wrap, _MARK)
    return why


def _wrap(original: Callable[[], object]) -> Callable[[], object]:
    @functools.wraps(original)
    def compile_factors() -> object:
        factors = original()
        if not isinstance(factors, dict):
            return factors
        return {name: value for name, value in factors.items() if name not in LEFT_OUT}

    return compile_factors
