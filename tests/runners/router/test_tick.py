"""What a router says of itself once a second."""

from __future__ import annotations

from collections import Counter

from tests.runners.router.routers import by, instances, router


async def test_picks_are_counted_where_they_went() -> None:
    async with instances("a", "b") as both, router(both) as routed:
        served = Counter([by(await routed.post(prompt=f"number {n}", session_id=f"s{n}")) for n in range(6)])
        tick = routed.server.tick()
    assert {row.instance: row.picks for row in tick.instances} == {"a": served["a"], "b": served["b"]}
    assert sum(row.picks for row in tick.instances) == sum(tick.decisions.values()) == 6
