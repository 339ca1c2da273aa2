"""Operator requests from the command line: submitted to a live run, applied directly to one without a process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.records.count import format_count
from runners.campaign.steering import retry_cells, skip_cells
from runners.errors import RunnerError
from state import operator_requests
from state.lease import read_lease_state
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
        if not read_lease_state(store).live:
            return asked | _apply_request(store, action, target, reason)
        sender = f"{operator_requests.find_user_name()}/{os.getpid()}"
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
            skip_cells(store, store.view(), f"stage:{name}", "asked for with --skip-stage")


def _await_answer(store: RunStore, request: int) -> RequestView | None:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        row = next(row for row in store.list_request_rows() if row.request == request)
        if not row.open:
            return row
        if not read_lease_state(store).live:
            return None
        time.sleep(POLL_S)
    return None


def _apply_request(store: RunStore, action: str, target: str, reason: str) -> dict[str, Any]:
    view, run = store.view(), store.folder.name
    if action == "retry":
        count = retry_cells(store, view, target)
    elif action == "skip":
        count = len(skip_cells(store, view, target, reason)[0])
    else:
        verb = action.replace("_", " ")
        raise RunnerError(
            f"run {run} is {view.state}: no process works on it, so there is nothing to {verb}",
            remedy=f"`tracon resume {run}` continues it",
        )
    if not count:
        lack = "no cell is pending" if action == "skip" else "no cell has failed"
        return {"accepted": False, "detail": f"{lack} in {target}" if target else lack}
    return {"accepted": True, "detail": f"{format_count(count, 'cell', 'cells')}; `tracon resume {run}` continues"}
