"""The step probe: one record per engine step from the engine process, one per step from each worker with a connector.

Connectors are wrapped as instances where vLLM's factory hands them out, which covers subclasses, connectors loaded from
a module path and MultiConnector alike. The step's id travels to the workers on the connector's metadata.
"""

from __future__ import annotations

from typing import Protocol

from . import hooks
from .engine_steps import EngineSteps, Scheduler, time_scheduler_connector, wrap_schedule, wrap_update
from .hooks import HookCheck, check_hooks, replace_on_class, surround
from .stalls import begin_watch
from .worker_steps import WorkerSteps, time_worker_connector

_MARK = "_tracon_wrapped"


class Role(Protocol):
    """vLLM's KVConnectorRole: SCHEDULER or WORKER."""

    name: str


def install(log_path: str) -> HookCheck:
    """Wrap what fits the installed vLLM; the rest stays untouched and its fields are null with a reason. Idempotent."""
    check = check_hooks()
    engine = EngineSteps(log_path, check)

    def note_constructed(_: None, scheduler: Scheduler, *__: object) -> None:
        engine.note_constructed(scheduler)
        begin_watch(lambda: engine.open_step(scheduler))

    def time_created(connector: object, _: type, __: object, role: Role, *___: object) -> None:
        """A connector that cannot be timed is handed out as it is."""
        try:
            if role.name == "SCHEDULER":
                time_scheduler_connector(connector, engine)
            else:
                time_worker_connector(connector, WorkerSteps(log_path, check))
        except Exception as error:  # noqa: BLE001 - the connector works without being timed
            engine.note_misfit(type(connector).__name__, f"{type(error).__name__}: {error}")

    replace_on_class(hooks.SCHEDULER_INIT, check, surround(after=note_constructed), _MARK)
    replace_on_class(hooks.SCHEDULE, check, lambda original: wrap_schedule(original, engine), _MARK)
    replace_on_class(hooks.UPDATE, check, lambda original: wrap_update(original, engine), _MARK)
    replace_on_class(
        hooks.CREATE_CONNECTOR,
        check,
        lambda original: classmethod(surround(after=time_created)(original.__func__)),
        _MARK,
    )
    return check
