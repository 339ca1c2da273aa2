"""The transfer probe: when each step of a request's way from one engine to another happens, seen from inside both.

Scheduler methods are wrapped on their class. A connector is wrapped as an instance where vLLM's factory hands it out,
its worker's methods on `connector_worker`, also where it is a child of a MultiConnector. Each hook is compared with the
installed vLLM first; one that does not fit costs its own events, and the status says why. docs/probe.md has
the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import engine_transfers, hooks, mooncake_transfers, nixl_transfers
from .engine_transfers import EngineTransfers, watch_scheduler_connector, wrap_promote, wrap_schedule
from .hooks import HookCheck, Method, Wrap, check_hooks, find_method_misfit, replace_on_instance, surround
from .mooncake_transfers import MooncakeTransfers
from .nixl_transfers import NixlTransfers
from .step_probe import Role
from .transfer_log import Report, TransferLog

WORKER_EVENTS = (
    "send_ready", "load_started", "pull_sent", "metadata_received", "write", "write_submit", "response_sent",
    "received",
)  # fmt: skip
"""`write_submit` is no event: it names the field of `write` that no connector can fill."""
_MARK = "_tracon_transfers"


def install(folder: str) -> HookCheck:
    """Wrap what fits the installed vLLM; the rest stays untouched and its events are not available. Idempotent."""
    check = check_hooks(engine_transfers.HOOKS)
    log = TransferLog(folder)
    engine = EngineTransfers(log, check)

    def watch_created(connector: object, _: type, __: object, role: Role, *___: object) -> None:
        """A connector that cannot be watched is handed out as it is."""
        in_engine = getattr(role, "name", None) == "SCHEDULER"
        report = engine.report if in_engine else Report(log, "worker", WORKER_EVENTS, check)
        events = (engine_transfers.PREFILL_DONE, engine_transfers.ALLOCATED) if in_engine else WORKER_EVENTS
        try:
            if in_engine:
                watch_scheduler_connector(connector, engine)
            else:
                watch_worker_connector(connector, report)
        except Exception as error:  # noqa: BLE001 - the connector works without being watched
            report.stop(events, error)

    def wrap(hook: Method, make: Callable[[Any], Any]) -> None:
        hooks.replace_on_class(hook, check, make, _MARK)

    wrap(hooks.SCHEDULER_INIT, surround(after=lambda *_: engine.note_constructed()))
    wrap(engine_transfers.SCHEDULE, lambda original: wrap_schedule(original, engine))
    wrap(engine_transfers.PROMOTE, lambda original: wrap_promote(original, engine))
    wrap(
        engine_transfers.CREATE_CONNECTOR,
        lambda original: classmethod(surround(after=watch_created)(original.__func__)),
    )
    return check


def watch_worker_connector(connector: object, report: Report) -> None:
    """See what the first connector in it that moves KV between engines does; declares what can be seen."""
    report.connector = type(connector).__name__
    candidates = (_find_moving_part(part, report) for part in _list_parts(connector))
    moving = next((part for part in candidates if part is not None), None)
    if moving is None:
        report.mark_unavailable(WORKER_EVENTS, f"{report.connector} has no worker of Mooncake's or NIXL's")
    else:
        for event, why in moving.unseen.items():
            report.mark_unavailable((event,), why)
        targets = moving.targets()
        for instance, table, _ in targets:
            for hook in table:
                misfit = find_method_misfit(instance, hook)
                if misfit is not None:
                    report.mark_unavailable(hook.feeds, f"{hook.name}: {misfit}")
        for instance, table, wraps in targets:
            for hook, wrap in zip(table, wraps, strict=True):
                _replace(instance, hook, wrap, report)
    report.declare()


def _replace(instance: object, hook: Method, wrap: Wrap, report: Report) -> None:
    """Wrap a method of one instance if any of its events can be seen."""
    if not any(map(report.offers, hook.feeds)):
        return
    why = replace_on_instance(instance, hook.method, len(hook.signatures[0]), wrap)
    if why is not None:
        report.mark_unavailable(hook.feeds, f"{hook.name}: {why}")


def _list_parts(connector: object) -> Iterator[object]:
    """The connector, and what a MultiConnector is made of."""
    yield connector
    for part in getattr(connector, "_connectors", ()):
        yield from _list_parts(part)


def _find_moving_part(connector: object, report: Report) -> MooncakeTransfers | NixlTransfers | None:
    worker = getattr(connector, "connector_worker", None)
    kinds = {kind.__name__ for kind in type(worker).__mro__}
    if mooncake_transfers.WORKER in kinds:
        return MooncakeTransfers(worker, report)
    return NixlTransfers(worker, report) if nixl_transfers.WORKER in kinds else None
