"""The step probe: one record per engine step from the engine process, one per step from each worker with a connector.

Connectors are wrapped as instances where vLLM's factory hands them out, which covers subclasses, connectors loaded from
a module path and MultiConnector alike. The step's id travels to the workers on the connector's metadata.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from . import hooks
from .engine_steps import EngineSteps, time_scheduler_connector, wrap_init, wrap_schedule, wrap_update
from .hooks import HookCheck, check_hooks, load
from .worker_steps import WorkerSteps, time_worker_connector

_MARK = "_tracon_wrapped"


class Role(Protocol):
    """vLLM's KVConnectorRole: SCHEDULER or WORKER."""

    name: str


def install(log_path: str) -> HookCheck:
    """Wrap what fits the installed vLLM; the rest stays untouched and its fields are null with a reason. Idempotent."""
    check = check_hooks()
    engine = EngineSteps(log_path, check)
    _wrap(hooks.SCHEDULER_INIT, check, lambda original: wrap_init(original, engine))
    _wrap(hooks.SCHEDULE, check, lambda original: wrap_schedule(original, engine))
    _wrap(hooks.UPDATE, check, lambda original: wrap_update(original, engine))
    _wrap(
        hooks.CREATE_CONNECTOR,
        check,
        lambda original: classmethod(
            wrap_create_connector(original.__func__, engine, lambda: WorkerSteps(log_path, check))
        ),
    )
    return check


def wrap_create_connector(
    original: Callable[..., object], engine: EngineSteps, worker: Callable[[], WorkerSteps]
) -> Callable[..., object]:
    """Instrument each connector as it is made; one that cannot be is handed out as it is."""

    @functools.wraps(original)
    def create_connector(cls: type, config: object, role: Role, kv_cache_config: object) -> object:
        connector = original(cls, config, role, kv_cache_config)
        try:
            if role.name == "SCHEDULER":
                time_scheduler_connector(connector, engine)
            else:
                time_worker_connector(connector, worker())
        except Exception as error:  # noqa: BLE001 - the connector works without being timed
            engine.note_misfit(type(connector).__name__, f"{type(error).__name__}: {error}")
        return connector

    return create_connector


def _wrap(hook: hooks.Method, check: HookCheck, wrap: Callable[[Any], Any]) -> None:
    if not check.fits(hook):
        return
    owner = getattr(load(hook.module), hook.owner)
    original = getattr(owner, hook.method)
    if hasattr(original, _MARK):
        return
    wrapped = wrap(original)
    setattr(getattr(wrapped, "__func__", wrapped), _MARK, True)
    setattr(owner, hook.method, wrapped)
