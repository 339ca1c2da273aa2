"""A worker's side of the step probe: the connector's callbacks between binding and clearing a step's metadata."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from time import perf_counter_ns as now
from typing import Any

from .engine_steps import STAMP
from .hooks import CHILD_FIELDS, WORKER_FIELDS, HookCheck, list_connector_children, replace_on_instance
from .ring import MISSING, Ring

TRANSFER_RESULTS = ("get_transfer_results", "get_finished")
"""What the model runner asks a connector for at the end of a step, newest name first (0.32 calls the first)."""
_GET_FINISHED, _START_LOAD, _WAIT_FOR_SAVE = 2, 3, 4
_FIRST_CHILD = WORKER_FIELDS.index(CHILD_FIELDS[0])
"""Indexes in WORKER_FIELDS."""
_UNTIMED = (MISSING,) * (len(WORKER_FIELDS) - _GET_FINISHED)


class WorkerSteps:
    """The step under way in this worker and the ring it ends in."""

    def __init__(self, log_path: str, check: HookCheck) -> None:
        self.check = check
        self.ring = Ring(log_path, "worker", WORKER_FIELDS, self.describe)
        self.connector: str | None = None
        self.misfits: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.values = [MISSING] * len(WORKER_FIELDS)
        """Its record so far; a callback that is called twice in a step adds up."""

    def describe(self) -> Mapping[str, Any]:
        """The part of the ring's status that only this side knows."""
        brackets = [name for name in ("bind_connector_metadata", "clear_connector_metadata") if name in self.misfits]
        reason = "; ".join(f"{name}: {self.misfits[name]}" for name in brackets) or None
        unavailable = self.unavailable if reason is None else dict.fromkeys(WORKER_FIELDS, reason)
        status = self.check.status(reason, unavailable, self.misfits)
        return status | {"batch_queue": None, "connector": self.connector}


def time_worker_connector(connector: object, worker: WorkerSteps) -> None:
    """Time this instance's callbacks; what cannot be timed stays as it is and its field null."""
    worker.connector = type(connector).__name__
    results = _find_results(connector)
    for column, method, arguments in (
        (_GET_FINISHED, results, 1),
        (_START_LOAD, "start_load_kv", 1),
        (_WAIT_FOR_SAVE, "wait_for_save", 0),
    ):
        why = replace_on_instance(connector, method, arguments, functools.partial(_wrap_timed, worker, column))
        if why is not None:
            worker.misfits[method] = why
            worker.unavailable[WORKER_FIELDS[column]] = f"{method}: {why}"
    _time_children(connector, worker)
    for method, arguments, wrap in (
        ("clear_connector_metadata", 0, _wrap_clear),
        ("bind_connector_metadata", 1, _wrap_bind),
    ):
        why = replace_on_instance(connector, method, arguments, functools.partial(wrap, worker))
        if why is not None:
            worker.misfits[method] = why
    worker.ring.open()


def _find_results(connector: object) -> str:
    return next((name for name in TRANSFER_RESULTS if hasattr(connector, name)), TRANSFER_RESULTS[0])


def _time_children(connector: object, worker: WorkerSteps) -> None:
    """Time the callbacks of each connector inside a MultiConnector, added up by connector."""
    for column, child in enumerate(list_connector_children(connector), _FIRST_CHILD):
        for method in (_find_results(child), "start_load_kv"):
            why = replace_on_instance(child, method, 1, functools.partial(_wrap_timed, worker, column))
            if why is not None:
                worker.misfits[f"{type(child).__name__}.{method}"] = why
                worker.unavailable[WORKER_FIELDS[column]] = f"{method}: {why}"


def _wrap_timed(worker: WorkerSteps, column: int, original: Callable[..., object]) -> Callable[..., object]:
    values = worker.values

    @functools.wraps(original)
    def callback(*args: Any, **kwargs: Any) -> object:
        t_enter = now()
        result = original(*args, **kwargs)
        spent = now() - t_enter
        before = values[column]
        values[column] = spent if before == MISSING else before + spent
        return result

    return callback


def _wrap_bind(worker: WorkerSteps, original: Callable[..., object]) -> Callable[..., object]:
    values = worker.values

    @functools.wraps(original)
    def bind_connector_metadata(connector_metadata: object) -> object:
        values[:] = (now(), getattr(connector_metadata, STAMP, MISSING), *_UNTIMED)
        return original(connector_metadata)

    return bind_connector_metadata


def _wrap_clear(worker: WorkerSteps, original: Callable[..., object]) -> Callable[..., object]:
    values, ring = worker.values, worker.ring

    @functools.wraps(original)
    def clear_connector_metadata() -> object:
        result = original()
        if values[0] != MISSING:  # cleared without having been bound: a warm-up, not a step
            try:
                ring.put(values)
            except Exception as error:  # noqa: BLE001 - the worker's step must go on
                ring.fail(f"probe stopped: {type(error).__name__}: {error}")
            values[0] = MISSING
        return result

    return clear_connector_metadata
