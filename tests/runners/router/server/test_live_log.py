"""The log of a live router: the pure policy makes every one of its picks again, and explains it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runners.router.decision_log import read_log
from runners.router.policies import make_policy
from runners.router.whatif import repeat_picks
from runners.router.why import explain_picks
from tests.runners.router.routers import STEADY, instances, router, until


@pytest.mark.parametrize("policy", ["lmetric", "unified", "kv_aware", "sticky"])
async def test_every_live_pick_is_made_again_from_its_record(policy: str, tmp_path: Path) -> None:
    async with instances("e0", "e1", "e2") as backends:
        async with router(backends, policy, folder=tmp_path, health=STEADY) as running:
            await until(lambda: len(running.available()) == 3)

            async def session(number: int) -> None:
                for turn in range(4):
                    prompt = [number] * (8 + 16 * turn)
                    answer = await running.post(f"s{number}", prompt=prompt)
                    assert answer.status_code == 200

            await asyncio.gather(*(session(number) for number in range(8)))
            await running.records(32)
        log = read_log(tmp_path / "decisions.jsonl", "log")
        assert log.gaps == ()
        assert len(log.records) == 32
        comparison = repeat_picks(log.records, make_policy(policy, {}))
        assert comparison.agreement == 1.0
        for record in log.records:
            text = "\n".join(explain_picks([record]))
            assert f"went to {record.decision.instance}." in text
            assert text.count("not picked:") == 2
