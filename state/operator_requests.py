"""Operator requests to a run: recorded by any process, answered by the run process."""

from __future__ import annotations

import getpass
import os
from difflib import get_close_matches

from results.records.events import RequestAnswered, RequestSubmitted
from results.records.plan import RunPlan
from state.errors import RequestRefused
from state.lease import read_lease_state
from state.model import RequestView
from state.store import RunStore

ACTIONS = ("pause", "resume", "stop", "stop_now", "skip", "retry")
_TARGETED = ("skip", "retry")


def submit(store: RunStore, action: str, target: str = "", reason: str = "", by: str = "") -> int:
    """Record a request; returns its number.

    Raises RequestRefused for an action or target that does not exist, and where no process runs the run.
    """
    check_request(store.plan, action, target)
    _require_runner(store)
    with store.transaction() as transaction:
        (number,) = transaction.connection.execute("SELECT coalesce(max(request), 0) + 1 FROM requests").fetchone()
        transaction.append(RequestSubmitted(number, action, target, reason, by))
    return int(number)


def find_user_name() -> str:
    """The login name, or `uid N` for a user without an account, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12, OSError from 3.13 on
        return f"uid {os.getuid()}"


def _require_runner(store: RunStore) -> None:
    lease = read_lease_state(store)
    if lease.live:
        return
    died = f" (process {lease.pid} on {lease.host} is gone)" if lease.state == "dead" else ""
    raise RequestRefused(f"no process runs {store.run}{died}", remedy=f"`tracon resume {store.run}` starts one")


def pending(store: RunStore) -> tuple[RequestView, ...]:
    """The open requests, oldest first."""
    return tuple(row for row in store.list_request_rows() if row.open)


def answer(store: RunStore, request: int, accepted: bool, detail: str = "") -> bool:
    """Answer a request; returns False where it was already answered, and keeps that answer.

    Raises RequestRefused where there is no such request.
    """
    with store.transaction() as transaction:
        row = transaction.connection.execute("SELECT accepted FROM requests WHERE request = ?", (request,)).fetchone()
        if row is None:
            remedy = f"`tracon status {store.run}` lists them"
            raise RequestRefused(f"{store.run} has no request {request}", remedy=remedy)
        if row[0] is not None:
            return False
        transaction.append(RequestAnswered(request, accepted, detail))
    return True


def check_request(plan: RunPlan, action: str, target: str) -> None:
    """Raises RequestRefused for an action or target that does not exist, with the nearest that do."""
    if action not in ACTIONS:
        raise RequestRefused(f"no such request: {action!r}", remedy=f"ask for one of {', '.join(ACTIONS)}")
    if action not in _TARGETED:
        if target:
            raise RequestRefused(f"{action} takes no target ({target!r})", remedy=f"use `tracon {action} RUN` alone")
        return
    if not target and action == "skip":
        raise RequestRefused("skip needs a target", remedy="name cell:ID, config:NAME or stage:ID")
    if target:
        _check_target(plan, target)


def _check_target(plan: RunPlan, target: str) -> None:
    kind, _, name = target.partition(":")
    names = {
        "cell": [cell.cell for cell in plan.cells],
        "config": list(plan.configs),
        "stage": [stage.stage for stage in plan.stages],
    }.get(kind)
    if names is None:
        raise RequestRefused(f"no such target: {target!r}", remedy="name cell:ID, config:NAME or stage:ID")
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names[:5]
        raise RequestRefused(f"the plan has no {kind} {name!r}", remedy=f"did you mean {', '.join(near)}?")
