"""The engine process's side of the transfer probe: what the scheduler does with requests of a transfer.

Events: `scheduled`, `prefill_done`, `blocks_allocated`, `promoted`, `steps`.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import perf_counter_ns as now
from typing import Any, Protocol

from . import hooks
from .hooks import HookCheck, Method, Shape, replace_on_instance, surround
from .transfer_log import Line, Report, TransferLog

SCHEDULED, PREFILL_DONE, ALLOCATED = "scheduled", "prefill_done", "blocks_allocated"
PROMOTED, STEPS = "promoted", "steps"
EVENTS = (SCHEDULED, PREFILL_DONE, ALLOCATED, PROMOTED, STEPS)

SCHEDULE = replace(hooks.SCHEDULE, feeds=(SCHEDULED, STEPS))
SCHEDULER_OUTPUT = Shape(hooks.OUTPUT, "SchedulerOutput", ("scheduled_new_reqs",), (SCHEDULED,))
NEW_REQUEST = Shape(hooks.OUTPUT, "NewRequestData", ("req_id", "num_computed_tokens"), (SCHEDULED,))
PROMOTE = Method(
    hooks.SCHEDULER, "Scheduler", "_update_waiting_for_remote_kv", (("self", "request"),), (PROMOTED, STEPS)
)  # fmt: skip
CREATE_CONNECTOR = replace(hooks.CREATE_CONNECTOR, feeds=(PREFILL_DONE, ALLOCATED))
HOOKS: tuple[Method | Shape, ...] = (
    SCHEDULE, SCHEDULER_OUTPUT, NEW_REQUEST, PROMOTE, hooks.SCHEDULER_INIT, CREATE_CONNECTOR,
)  # fmt: skip

FINISHED = ("request_finished_all_groups", "request_finished")
"""The connector's method that the scheduler calls at a request's end: the first of these that exists."""
KEPT_STEPS = 256
"""Steps whose begin is kept; at a thousand a second, those of the last quarter of a second."""
_WAITING = 4096
"""Requests kept that wait for their blocks; more means that some never came."""


class Request(Protocol):
    """What is read of vLLM's Request."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    kv_transfer_params: Mapping[str, Any] | None


class NewRequest(Protocol):
    req_id: str
    num_computed_tokens: int


class Output(Protocol):
    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]: ...


class EngineTransfers:
    """The requests that wait for their blocks in this engine, and its latest steps."""

    def __init__(self, log: TransferLog, check: HookCheck) -> None:
        self.report = Report(log, "engine", EVENTS, check)
        for hook in HOOKS:
            if not check.fits(hook):
                self.report.mark_unavailable(hook.feeds, f"{hook.name}: {check.misfits[hook.name]}")
        self.steps: deque[int] = deque(maxlen=KEPT_STEPS)
        """When the latest steps began."""
        self._allocated_ns: dict[str, int] = {}

    def note_constructed(self) -> None:
        """The scheduler exists, last of all that matters here."""
        if self.report.connector is None:
            self.report.mark_unavailable((PREFILL_DONE, ALLOCATED, PROMOTED, STEPS), "no KV connector in this engine")
        self.report.declare()

    def make_scheduled_lines(
        self,
        scheduler: Any,  # noqa: ANN401 - vLLM's Scheduler
        output: Output,
        t_ns: int,
    ) -> list[Line]:
        """Requests that have left the queue for the first time; those that come back after a preemption have not."""
        lines: list[Line] = []
        for new in output.scheduled_new_reqs:
            request = scheduler.requests[new.req_id]
            if getattr(request, "num_preemptions", 0) == 0:
                lines.append(
                    {
                        "t_ns": t_ns,
                        **read_ids(request),
                        "part": find_part_in_transfer(request),
                        "prompt_tokens": request.num_prompt_tokens,
                        "cached_tokens": new.num_computed_tokens,
                    }
                )
        return lines

    def make_finished_lines(
        self, request: Request, blocks: Sequence[Any], result: Sequence[Any], t_ns: int
    ) -> list[Line]:
        """A prefill request is over; `ok` says whether its blocks wait to be fetched."""
        self._allocated_ns.pop(request.request_id, None)
        if find_part_in_transfer(request) != "prefill":
            return []
        groups = blocks if blocks and not isinstance(blocks[0], int) else [blocks]
        status = getattr(getattr(request, "status", None), "name", None)
        count = sum(len(group) for group in groups)
        return [{"t_ns": t_ns, **read_ids(request), "blocks": count, "ok": bool(result[0]), "status": status}]

    def make_allocated_lines(self, request: Request, blocks: object, external_tokens: int, t_ns: int) -> list[Line]:
        """A decode request has its blocks; those without a hash are to be filled from the other engine."""
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return []  # no decode request, or this one again after its promotion
        if len(self._allocated_ns) >= _WAITING:
            self._allocated_ns.clear()
        self._allocated_ns[request.request_id] = t_ns
        unhashed = getattr(blocks, "get_unhashed_block_ids_all_groups", None)
        missing = None if unhashed is None else sum(len(group) for group in unhashed())
        return [
            {
                "t_ns": t_ns,
                **read_ids(request),
                "prompt_tokens": request.num_prompt_tokens,
                "external_tokens": external_tokens,
                "local_tokens": getattr(getattr(request, "prefill_stats", None), "num_local_cached_tokens", None),
                "blocks": missing if external_tokens else 0,
            }
        ]

    def make_promoted_lines(self, request: Request, failed: bool | None, t_ns: int) -> list[Line]:
        """The request's blocks have arrived: it can be scheduled."""
        ok = None if failed is None else not failed
        return [{"t_ns": t_ns, **read_ids(request), "ok": ok, "num_computed": request.num_computed_tokens}]

    def make_step_lines(self, request: Request, t_ns: int) -> list[Line]:
        """Periods between starts of consecutive steps while this request waited, from the step that gave it blocks."""
        allocated_ns = self._allocated_ns.pop(request.request_id, None)
        if allocated_ns is None:
            return []
        begins = list(self.steps)
        begins = begins[max(bisect_right(begins, allocated_ns) - 1, 0) :]
        periods = [after - before for before, after in pairwise(begins)]
        if not periods:
            return []
        p50_us = median(periods) / 1000
        return [{"t_ns": t_ns, **read_ids(request), "steps": len(periods), "step_p50_us": p50_us}]


def find_part_in_transfer(request: Request) -> str:
    """Which request of a transfer this is to its engine: `prefill`, `decode` or `none`."""
    params = request.kv_transfer_params
    if not params:
        return "none"
    if params.get("do_remote_decode"):
        return "prefill"
    # vLLM resets do_remote_prefill once the blocks are asked for; the other engine's name stays.
    return "decode" if params.get("do_remote_prefill") or params.get("remote_engine_id") else "none"


def read_ids(request: Request) -> dict[str, Any]:
    """What joins a request's lines: Mooncake has a transfer id, NIXL names the other engine's request."""
    params = request.kv_transfer_params or {}
    return {
        "request": request.request_id,
        "transfer": params.get("transfer_id"),
        "remote_request": params.get("remote_request_id"),
    }


def wrap_schedule(original: Callable[..., Output], engine: EngineTransfers) -> Callable[..., Output]:
    begins, report = engine.steps, engine.report
    sees_new = report.offers(SCHEDULED)

    @functools.wraps(original)
    def schedule(self: object, *args: Any, **kwargs: Any) -> Output:
        begins.append(now())
        output = original(self, *args, **kwargs)
        if sees_new and output.scheduled_new_reqs:
            report.note(SCHEDULED, engine.make_scheduled_lines, self, output, now())
        return output

    return schedule


def wrap_promote(original: Callable[..., object], engine: EngineTransfers) -> Callable[..., object]:
    @functools.wraps(original)
    def _update_waiting_for_remote_kv(self: object, request: Request) -> object:
        failed = _has_load_failed(self, request)
        result = original(self, request)
        t_ns = now()
        engine.report.note(PROMOTED, engine.make_promoted_lines, request, failed, t_ns)
        engine.report.note(STEPS, engine.make_step_lines, request, t_ns)
        return result

    return _update_waiting_for_remote_kv


def _has_load_failed(scheduler: object, request: Request) -> bool | None:
    """Asked before the promotion, which forgets it; None where this vLLM does not report it."""
    try:
        failed: set[str] = scheduler.failed_recving_kv_req_ids  # type: ignore[attr-defined]
        return request.request_id in failed
    except Exception:  # noqa: BLE001 - the promotion must go on; None says that it is unknown
        return None


def watch_scheduler_connector(connector: object, engine: EngineTransfers) -> None:
    """Observe the scheduler's calls to this connector; a method that cannot be observed stays as it is."""
    engine.report.connector = type(connector).__name__
    finished = next((name for name in FINISHED if hasattr(connector, name)), FINISHED[-1])
    note = engine.report.note
    for method, arguments, event, wrap in (
        (finished, 2, PREFILL_DONE, functools.partial(_wrap_finished, engine)),
        ("update_state_after_alloc", 3, ALLOCATED,
         surround(before=lambda *called: note(ALLOCATED, engine.make_allocated_lines, *called, now()))),
    ):  # fmt: skip
        why = replace_on_instance(connector, method, arguments, wrap)
        if why is not None:
            engine.report.mark_unavailable((event,), f"{engine.report.connector}.{method}: {why}")


def _wrap_finished(engine: EngineTransfers, original: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    @functools.wraps(original)
    def request_finished(request: Request, block_ids: Sequence[Any]) -> Sequence[Any]:
        t_ns = now()
        result = original(request, block_ids)
        engine.report.note(PREFILL_DONE, engine.make_finished_lines, request, block_ids, result, t_ns)
        return result

    return request_finished
