"""Keeps NIXL from taking the cores of a host that computes on them: seen with nixl 1.5 under vLLM 0.32.

Its progress thread polls without a pause, and its worker pins the engine's thread to the last core. On accelerators
both are sensible. On a CPU they take cores from the model: reads between two engines waited for seconds behind a
thread that only polled (docs/transfer.md, "NIXL on a CPU build").
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from .engine_log import write_line
from .hooks import FACTORY, load, replace_once, surround

DELAY_US = 1000
"""How long NIXL's progress thread may sleep in its poll; 0, as its Python agent sets it, spins on a core for ever."""
_MARK = "_tracon_calmed"


def calm_when_made() -> None:
    """Change both as soon as vLLM looks up a NIXL connector; until then NIXL is not imported."""

    def calm(connector: type, *_: object) -> None:
        if ".nixl." in f"{connector.__module__}.":
            _free_cores(connector)

    def wrap(original: Any) -> object:  # noqa: ANN401 - a class method
        return classmethod(surround(after=calm)(original.__func__))

    replace_once(load(FACTORY).KVConnectorFactory, "get_connector_class", wrap, _MARK)


def _free_cores(connector: type) -> None:
    try:
        keep_cores(connector)
        sleep_between_polls()
    except Exception as error:  # noqa: BLE001 - NIXL works without these changes too
        write_line(f"NIXL keeps its cores: {type(error).__name__}: {error}")


def sleep_between_polls() -> None:
    """Let the progress threads of agents made from now on sleep in their poll: incoming work still wakes them."""
    agent = load("nixl._api").nixl_agent
    bindings: Any = sys.modules[agent.__module__].nixlBind  # the package that `nixl` chose
    real = bindings.nixlAgentConfig
    if hasattr(real, _MARK):
        return
    real().pthrDelay  # noqa: B018 - raises where this NIXL has no such setting

    class Config(real):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, DELAY_US if name == "pthrDelay" else value)

    setattr(Config, _MARK, True)
    bindings.nixlAgentConfig = Config


def keep_cores(connector: type) -> None:
    """Undo the pinning of the thread that makes a connector: its worker pins it to the host's last core.

    Where the engine core is in the same process, that thread computes, and all engines of a host share that one core.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(self: object, *args: Any, **kwargs: Any) -> None:
            cores = os.sched_getaffinity(0)
            original(self, *args, **kwargs)
            os.sched_setaffinity(0, cores)

        return __init__

    replace_once(connector, "__init__", wrap, _MARK)
