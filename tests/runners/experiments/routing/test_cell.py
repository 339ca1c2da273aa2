"""What a replay that failed is put down to."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from results.records.router_spec import InstanceSpec, RouterSpec
from runners.experiments.routing.cell import replay_behind
from runners.load.messages import LoadError
from runners.router.messages import RouterError
from runners.router.server.process import RouterProcess
from tests.runners.load.traces import chain, replay_spec, trace_of
from tests.runners.router.routers import instances, until


@pytest.mark.fault
@pytest.mark.parametrize("is_killed", [True, False], ids=["the router died", "another address"])
async def test_a_replay_that_finds_no_router_names_the_router_s_death(tmp_path: Path, is_killed: bool) -> None:
    async with instances("a") as (one,):
        spec = RouterSpec((InstanceSpec("a", one.url, kv_capacity_tokens=4096, block_tokens=16),), "unified")
        async with RouterProcess(spec, tmp_path / "router.json") as router:
            url = router.url if is_killed else "http://127.0.0.1:1"
            replay = replay_spec(url, trace_of(chain("s", 1)), tmp_path)
            if is_killed:
                os.kill(router.pid, signal.SIGKILL)
                await until(lambda: not router.alive)
            with pytest.raises(RouterError if is_killed else LoadError) as failed:
                await replay_behind(router, replay, lambda tick: None, asyncio.Event())
            assert failed.value.ended_by == ("SIGKILL" if is_killed else "")
