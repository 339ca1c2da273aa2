"""Operator requests from the command line: submitted to a live run, applied directly to one without a process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.records.events import Event
from runners.campaign.steering import record_skips, retry_failed, skip_pending, withdraw_skips
from runners.errors import RunnerError
from state import operator_requests
from state.lease import lease_state
from state.model import RequestView
from state.store import RunStore

ANSWER_S = 10.0
POLL_S = 0.1


def ask_run(folder: Path, action: str, target: str, reason: str) -> dict[str, Any]:
    """The answer of the run (`accepted`, `detail`).

    A live run answers within a second. On a run without a process, `skip` and `retry` are applied at once; `pause` and
    `stop` are refused with the remedy. Raises RequestRefused for a target that the plan does not have.
    """
    asked: dict[str, Any] = {"run": folder.name, "action": action, "target": target}
    with RunStore.open(folder) as store:
        operator_requests.check_request(store.plan, action, target)
        if not lease_state(store).live:
            return asked | _apply_request(store, folder, action, target, reason)
        sender = f"{operator_requests.user_name()}/{os.getpid()}"
        request = operator_requests.submit(store, action, target, reason, sender)
        answer = _await_answer(store, request)
    accepted = bool(answer.accepted) if answer else True
    detail = answer.detail if answer else "asked; the run process has not answered yet"
    return {**asked, "request": request, "accepted": accepted, "detail": detail}


def skip_stages(folder: Path, stages: Sequence[str]) -> None:
    """Skip every pending cell of the stages, given by id or number (from 0), before the run begins.

    Raises RunnerError naming the existing stages.
    """
    with RunStore.open(folder) as store:
        known = [stage.stage for stage in store.plan.stages]
        for text in stages:
            name = known[int(text)] if text.isdigit() and int(text) < len(known) else text
            if name not in known:
                numbered = ", ".join(f"{number} {stage}" for number, stage in enumerate(known))
                raise RunnerError(f"there is no stage {text!r}", remedy=f"stages: {numbered}")
            _apply_request(store, folder, "skip", f"stage:{name}", "asked for with --skip-stage")


def _await_answer(store: RunStore, request: int) -> RequestView | None:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        row = next(row for row in store.request_rows() if row.request == request)
        if not row.open:
            return row
        if not lease_state(store).live:
            return None
        time.sleep(POLL_S)
    return None


def _apply_request(store: RunStore, folder: Path, action: str, target: str, reason: str) -> dict[str, Any]:
    view = store.view()
    events: tuple[Event, ...]
    if action == "retry":
        retries = tuple(retry_failed(view, target))
        withdraw_skips(folder, view, retries)
        events = retries
    elif action == "skip":
        skips = tuple(skip_pending(view, target, reason or "skipped by the operator"))
        record_skips(folder, [one.cell for one in skips], reason)
        events = skips
    else:
        verb = action.replace("_", " ")
        raise RunnerError(
            f"run {folder.name} is {view.state}: no process works on it, so there is nothing to {verb}",
            remedy=f"`tracon resume {folder.name}` continues it",
        )
    if not events:
        lack = "no cell is pending" if action == "skip" else "no cell has failed"
        return {"accepted": False, "detail": f"{lack} in {target}" if target else lack}
    store.append(*events)
    return {"accepted": True, "detail": f"{len(events)} cells; `tracon resume {folder.name}` continues"}
