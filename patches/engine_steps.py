"""The engine process's side of the step probe: `Scheduler.schedule` and `update_from_output` bracket a step.

The SchedulerOutput that leaves the first comes back to the second and so names the step, also when steps overlap
(asynchronous scheduling, pipeline parallelism).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import not_
from time import perf_counter_ns as now
from typing import Any, Protocol

from . import hooks
from .engine_settings import Setting, read_settings
from .hooks import HookCheck, replace_on_instance
from .ring import MISSING, Ring

STAMP = "_tracon_step_id"
"""Attribute of the connector metadata that carries the step id; it is pickled to the workers with it."""
_UNKNOWN = (MISSING, MISSING)
_NO_CHILDREN = (MISSING,) * len(hooks.CHILD_FIELDS)
_OPEN_STEPS = 64
"""Steps kept open; vLLM has a handful in flight, more means that some never came back."""


class Scheduler(Protocol):
    """What is called of vLLM's Scheduler."""

    def get_request_counts(self) -> tuple[int, int]: ...
    def has_requests(self) -> bool: ...


class NewRequest(Protocol):
    @property
    def req_id(self) -> str: ...


class CachedRequests(Protocol):
    @property
    def req_ids(self) -> Sequence[str]: ...
    @property
    def num_output_tokens(self) -> Sequence[int]: ...


class StepOutput(Protocol):
    """What is read of vLLM's SchedulerOutput."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]: ...
    @property
    def scheduled_cached_reqs(self) -> CachedRequests: ...
    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...
    @property
    def total_num_scheduled_tokens(self) -> int: ...


class EngineSteps:
    """What is known of the steps under way, and the ring they end in. An error of its own stops it, never the step."""

    def __init__(self, log_path: str, check: HookCheck) -> None:
        self.check = check
        self.ring = Ring(log_path, "engine", hooks.ENGINE_FIELDS, self.describe)
        self.step_id = 0
        self.build_meta_ns = MISSING
        self.connector: str | None = None
        self.connector_misfits: dict[str, str] = {}
        self.batch_queue: bool | None = None
        self.settings: dict[str, Setting] = {}
        self.children: tuple[str, ...] = ()
        """Classes of a MultiConnector's connectors."""
        self.children_ns = [MISSING] * len(hooks.CHILD_FIELDS)
        """What `build_connector_meta` of each took in this step."""
        self._stopped = False
        self._closed_step = 0
        self._open: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
        self._last_exit_ns = MISSING
        self._closes_at_update = check.fits(hooks.UPDATE)
        self._scheduled_known = check.fits(hooks.SCHEDULER_OUTPUT)
        self._tokens_known = self._scheduled_known and check.fits(hooks.CACHED_REQUESTS)
        self._counts_known = check.fits(hooks.REQUEST_COUNTS)
        self._busy_known = check.fits(hooks.HAS_REQUESTS)

    def note_constructed(self, scheduler: object) -> None:
        """The scheduler exists, last of all that matters here: open the ring with the complete status."""
        try:
            vllm_config = getattr(scheduler, "vllm_config", None)
            self.settings = read_settings(vllm_config)
            batches = getattr(vllm_config, "max_concurrent_batches", None)
            self.batch_queue = batches > 1 if isinstance(batches, int) else None
            self.ring.open()
        except Exception as error:  # noqa: BLE001 - the engine must come up
            self._stop(error)

    def note_scheduled(self, scheduler: Scheduler, output: StepOutput, t_enter: int, t_exit: int) -> None:
        """`schedule()` returned `output`."""
        if self._stopped:
            return
        try:
            running, waiting = scheduler.get_request_counts() if self._counts_known else _UNKNOWN
            prefill, decode = count_tokens(output) if self._tokens_known else _UNKNOWN
            requests = len(output.num_scheduled_tokens) if self._scheduled_known else MISSING
            step_ns = t_exit - t_enter
            step = (t_enter, self.step_id, step_ns, self.build_meta_ns, running, waiting, prefill, decode, requests)
            children = tuple(self.children_ns)
            if not self._closes_at_update:
                self.ring.put((*step, MISSING, MISSING, MISSING, MISSING, *children))
                return
            if len(self._open) >= _OPEN_STEPS:
                self._open.clear()
            self._open[id(output)] = (t_exit, step, children)
        except Exception as error:  # noqa: BLE001 - the engine's step must go on
            self._stop(error)

    def note_updated(self, scheduler: Scheduler, output: StepOutput, t_enter: int, t_exit: int) -> None:
        """`update_from_output(output, ...)` returned: the step is over."""
        opened = self._open.pop(id(output), None)
        if opened is None:
            return
        try:
            t_scheduled, step, children = opened
            self._closed_step = step[1]
            last = self._last_exit_ns
            self._last_exit_ns = t_exit if self._busy_known and scheduler.has_requests() else MISSING
            period = MISSING if last == MISSING else t_exit - last
            self.ring.put((*step, t_enter - t_scheduled, t_exit - t_enter, t_exit - step[0], period, *children))
        except Exception as error:  # noqa: BLE001 - the engine's step must go on
            self._stop(error)

    def open_step(self, scheduler: Scheduler) -> int | None:
        """The newest step that has begun and not ended; None while the engine is idle, and where that is not known."""
        if self._stopped or not (self._closes_at_update and self._busy_known) or self.step_id == self._closed_step:
            return None
        return self.step_id if scheduler.has_requests() else None

    def note_misfit(self, name: str, why: str) -> None:
        """Something about the connector cannot be measured: say so in the header, once per thing."""
        if name not in self.connector_misfits:
            self.connector_misfits[name] = why
            self.ring.write_status()

    def describe(self) -> Mapping[str, Any]:
        """The part of the ring's status that only this side knows."""
        unavailable = self.check.unavailable()
        if self.connector is None:
            unavailable.setdefault("build_meta_ns", "no KV connector in this engine")
        elif "build_connector_meta" in self.connector_misfits:
            unavailable["build_meta_ns"] = f"build_connector_meta: {self.connector_misfits['build_connector_meta']}"
        status = self.check.status(self.check.timing_reason, unavailable, self.connector_misfits)
        return status | {
            "batch_queue": self.batch_queue,
            "connector": self.connector,
            "children": list(self.children),
            "settings": self.settings,
        }

    def _stop(self, error: Exception) -> None:
        self._stopped = True
        self._open.clear()
        self.ring.fail(f"probe stopped at step {self.step_id}: {type(error).__name__}: {error}")


def wrap_schedule(original: Callable[..., StepOutput], engine: EngineSteps) -> Callable[..., StepOutput]:
    @functools.wraps(original)
    def schedule(self: Scheduler, *args: Any, **kwargs: Any) -> StepOutput:
        engine.step_id += 1
        engine.build_meta_ns = MISSING
        engine.children_ns[:] = _NO_CHILDREN
        t_enter = now()
        output = original(self, *args, **kwargs)
        engine.note_scheduled(self, output, t_enter, now())
        return output

    return schedule


def wrap_update(original: Callable[..., object], engine: EngineSteps) -> Callable[..., object]:
    @functools.wraps(original)
    def update_from_output(self: Scheduler, scheduler_output: StepOutput, model_runner_output: object) -> object:
        t_enter = now()
        result = original(self, scheduler_output, model_runner_output)
        engine.note_updated(self, scheduler_output, t_enter, now())
        return result

    return update_from_output


def time_scheduler_connector(connector: object, engine: EngineSteps) -> None:
    """Time `build_connector_meta` of this instance and stamp what it builds with the step's id."""

    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def build_connector_meta(scheduler_output: object) -> object:
            t_enter = now()
            metadata = original(scheduler_output)
            engine.build_meta_ns = now() - t_enter
            try:
                setattr(metadata, STAMP, engine.step_id)
            except (AttributeError, TypeError) as error:  # the workers cannot join their records then
                engine.note_misfit(f"{type(metadata).__name__}.{STAMP}", f"{type(error).__name__}: {error}")
            return metadata

        return build_connector_meta

    engine.connector = type(connector).__name__
    why = replace_on_instance(connector, "build_connector_meta", 1, wrap)
    if why is not None:
        engine.note_misfit("build_connector_meta", why)
    _time_children(connector, engine)


def _time_children(connector: object, engine: EngineSteps) -> None:
    """Time `build_connector_meta` of each connector inside a MultiConnector."""
    children = hooks.list_connector_children(connector)
    engine.children = tuple(type(child).__name__ for child in children)
    for index, child in enumerate(children):
        why = replace_on_instance(child, "build_connector_meta", 1, functools.partial(_wrap_child, engine, index))
        if why is not None:
            engine.note_misfit(f"{type(child).__name__}.build_connector_meta", why)


def _wrap_child(engine: EngineSteps, index: int, original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def build_connector_meta(scheduler_output: object) -> object:
        t_enter = now()
        metadata = original(scheduler_output)
        engine.children_ns[index] = now() - t_enter
        return metadata

    return build_connector_meta


def count_tokens(output: StepOutput) -> tuple[int, int]:
    """Prefill and decode tokens scheduled in this step.

    Tokens of a request that has produced none yet are prefill, and so are those of one resumed after a preemption, in
    the step that resumes it (it computes its prompt again). All others are decode, speculative drafts included.
    """
    scheduled = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    prefill = 0
    for request in output.scheduled_new_reqs:
        prefill += scheduled[request.req_id]
    produced = cached.num_output_tokens
    if not all(produced):
        prefill += sum(map(scheduled.__getitem__, compress(cached.req_ids, map(not_, produced))))
    resumed = getattr(cached, "resumed_req_ids", None)
    if resumed:
        before = dict(zip(cached.req_ids, produced, strict=False))
        prefill += sum(scheduled[request] for request in resumed if before.get(request))
    return prefill, output.total_num_scheduled_tokens - prefill
