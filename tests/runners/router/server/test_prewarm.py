"""Alternative E of specs/load_floor.md: every instance holds the common prefix before the first session comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.records.router_spec import Prewarm
from runners.router.messages import RouterError
from tests.runners.router.routers import instances, router

PREFIX = tuple(range(16))


async def test_every_instance_computes_the_prefix_and_the_index_knows_it(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, folder=tmp_path, prewarm=Prewarm("m", PREFIX)) as routed:
        assert [[seen.json["prompt"] for seen in one.seen] for one in both] == [[list(PREFIX)]] * 2
        await routed.post("s", prompt=[*PREFIX, 99, 98, 97, 96])
        record = (await routed.records(1))[0]
        assert record.request.cached_tokens == {"a": 16, "b": 16}
        assert record.seq == 0, "pre-warming is no pick"


async def test_an_instance_that_cannot_be_prewarmed_is_named() -> None:
    async with instances("a", "b") as both:
        both[1].status = 500
        with pytest.raises(RouterError, match="instance b was not pre-warmed: HTTP 500"):
            async with router(both, prewarm=Prewarm("m", PREFIX)):
                raise AssertionError("it started")
