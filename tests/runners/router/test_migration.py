"""Decisions to migrate on a real router: served where they say, recorded and counted as what they were."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from runners.router.decision_log import read_log
from runners.router.policies import make_policy
from runners.router.whatif import repeat_picks
from runners.router.why import explain_picks
from tests.runners.router.routers import Router, by, instances, router, until
from tests.servers.backend import Backend

EAR = {"hot_tokens": 16, "cooldown_s": 60.0}
LONG = list(range(40))
"""More than `hot_tokens`, and none of it cached anywhere."""
OWN = list(range(100, 116))
"""The prompt of session `s`, which no other session shares."""


@contextlib.asynccontextmanager
async def hot(routed: Router, both: tuple[Backend, ...]) -> AsyncIterator[tuple[Backend, Backend]]:
    """Session `s` on the first of the two, which has the prompt of another session pending; the second is idle."""
    homes = {"s": by(await routed.post("s", prompt=OWN))}
    homes |= {session: by(await routed.post(session)) for session in ("x0", "x1", "x2")}
    other = next(session for session, home in homes.items() if session != "s" and home == homes["s"])
    source, target = sorted(both, key=lambda one: one.name != homes["s"])
    source.hang = True
    pending = asyncio.create_task(routed.post(other, prompt=LONG))
    await until(lambda: len(source.seen) > source.served)
    source.hang = False
    try:
        yield source, target
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


async def test_a_session_of_a_hot_instance_is_served_elsewhere_and_the_record_says_that_no_kv_was_moved(
    tmp_path: Path,
) -> None:
    async with instances("a", "b") as both, router(both, "ear", folder=tmp_path, parameters=EAR) as routed:
        async with hot(routed, both) as (source, target):
            moved = await routed.post("s", prompt=OWN)
            assert (moved.status_code, by(moved)) == (200, target.name)
            assert routed.find_owner("s") == target.name
            assert by(await routed.post("s")) == target.name, "the binding followed"
            assert await routed.metric('migrations_total{status="recomputed"}') == 1
        records = await routed.records(7)
    (record,) = [one for one in records if one.decision.migrate_from]
    assert (record.decision.migrate_from, record.decision.instance) == (source.name, target.name)
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.migration) == ("ok", "recomputed")
    assert record.outcome.transfer is None
    assert all(one.outcome is None or not one.outcome.migration for one in records if one is not record)
    later = [one for one in records if one.request.session == "s"][-1]
    assert later.request.since_migration_s is not None
    assert later.decision.reason == "bound"
    assert "no KV was moved" in explain_picks([record])[-1]
    log = read_log(tmp_path / "decisions.jsonl", "log")
    assert repeat_picks(log.records, make_policy("ear", EAR)).agreement == 1.0


async def test_a_migration_that_fails_leaves_the_session_where_it_is_and_is_counted_as_failed(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "ear", folder=tmp_path, parameters=EAR) as routed:
        async with hot(routed, both) as (source, target):
            target.status = 500
            answer = await routed.post("s", prompt=OWN)
            assert (answer.status_code, by(answer)) == (200, source.name), "served where its KV is"
            assert routed.find_owner("s") == source.name
            assert await routed.metric('migrations_total{status="failed"}') == 1
        records = await routed.records(7)
    first, again = [one for one in records if one.request.session == "s"][-2:]
    assert first.decision.migrate_from == source.name
    assert first.outcome is not None
    assert (first.outcome.status, first.outcome.migration) == ("retried", "failed")
    assert (again.decision.reason, again.request.since_migration_s) == ("hot_no_target", None), "no cooldown began"
