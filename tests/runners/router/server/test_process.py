"""The router in its own process: followed, ended in order, and never left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from results.records.errors import SpecError
from results.records.router_spec import InstanceSpec, KvEndpoint, RouterSpec, TransferRules
from runners.router.messages import RouterError, RouterTick, read_router_spec
from runners.router.server.process import RouterProcess
from tests.runners.router.routers import instances, members_of, until
from tests.servers.backend import Backend

GONE_WITHIN_S = 20.0


def spec_for(backends: tuple[Backend, ...], **changes: object) -> RouterSpec:
    return RouterSpec(members_of(backends, block_tokens=16), "unified", **changes)  # type: ignore[arg-type]


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "runners.router" in child.cmdline()]


async def test_it_serves_ticks_and_gives_an_account_at_its_end(tmp_path: Path) -> None:
    ticks: list[RouterTick] = []
    log = tmp_path / "decisions.jsonl"
    async with instances("a", "b") as both:
        spec = spec_for(both, decisions_path=str(log))
        async with RouterProcess(spec, tmp_path / "router.spec.json", ticks.append) as process:
            async with httpx.AsyncClient(base_url=process.url, trust_env=False, verify=False) as http:
                for number in range(4):
                    body = {"prompt": [1, 2, 3], "stream": True, "session_id": str(number % 2)}
                    assert (await http.post("/v1/completions", json=body)).status_code == 200
            await until(lambda: bool(ticks) and ticks[-1].sessions == 2)
            outcome = await process.end()
            assert not process.alive
        assert read_router_spec(tmp_path / "router.spec.json") == spec
        assert (outcome.requests, outcome.picks, outcome.errors, outcome.records_lost) == (4, 4, 0, 0)
        assert sum(outcome.decisions.values()) == 4
        assert outcome.decide_us_p50 is not None
        assert outcome.decide_us_p99 is not None
        assert 0 < outcome.decide_us_p50 <= outcome.decide_us_p99
        assert [pick.session for pick in ticks[-1].latest] == ["0", "1", "0", "1"]
        assert {row.instance: row.num_requests for row in ticks[-1].instances} == {"a": 0, "b": 0}
        assert log.read_bytes().count(b"\n") == 4
    assert not children()


async def test_its_last_tick_has_every_pick(tmp_path: Path) -> None:
    """A router ends before the next second: what came since the last tick is in one more."""
    ticks: list[RouterTick] = []
    async with (
        instances("a", "b") as both,
        RouterProcess(spec_for(both), tmp_path / "s.json", ticks.append) as process,
        httpx.AsyncClient(base_url=process.url, trust_env=False, verify=False) as http,
    ):
        for number in range(4):
            assert (await http.post("/v1/completions", json={"prompt": [1, number]})).status_code == 200
        outcome = await process.end()
    assert outcome.picks == sum(row.picks for row in ticks[-1].instances) == 4
    assert sum(ticks[-1].decisions.values()) == len(ticks[-1].latest) == 4
    assert {(row.available, row.num_requests) for row in ticks[-1].instances} == {(True, 0)}


async def test_leaving_the_block_ends_it_and_keeps_its_log(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"

    async def defect(backends: tuple[Backend, ...]) -> None:
        async with RouterProcess(spec_for(backends, decisions_path=str(log)), tmp_path / "s.json") as process:
            async with httpx.AsyncClient(base_url=process.url, trust_env=False, verify=False) as http:
                await http.post("/v1/completions", json={"prompt": [1]})
            raise KeyError("the campaign's own defect")

    async with instances("a") as one:
        with pytest.raises(KeyError):
            await defect(one)
    assert log.read_bytes().count(b"\n") == 1
    assert not children()


async def test_what_it_refuses_reaches_the_parent_with_its_remedy(tmp_path: Path) -> None:
    spec = RouterSpec((InstanceSpec("a", "http://127.0.0.1:9"),), "no_such_policy")
    with pytest.raises(RouterError, match="no_such_policy") as refused:
        async with RouterProcess(spec, tmp_path / "s.json"):
            pass
    assert refused.value.remedy
    assert not children()


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with instances("a") as (a,):
        with pytest.raises(RouterError, match=f"cannot listen on 127.0.0.1:{a.port}"):
            async with RouterProcess(spec_for((a,), port=a.port), tmp_path / "s.json"):
                pass


@pytest.mark.fault
async def test_one_that_was_killed_is_an_error_and_not_a_result(tmp_path: Path) -> None:
    async with instances("a") as one, RouterProcess(spec_for(one), tmp_path / "s.json") as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RouterError, match=r"without an account of itself \(ended by SIGKILL\)") as died:
            await process.end()
        assert died.value.ended_by == "SIGKILL"


@pytest.mark.fault
async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    async with instances("a") as one:
        path = tmp_path / "spec.json"
        path.write_bytes(msgspec.json.encode(spec_for(one)))
        script = (
            "import asyncio, sys, pathlib\n"
            "from runners.router.server.process import RouterProcess\n"
            "from runners.router.messages import read_router_spec\n"
            "async def main():\n"
            "    spec = read_router_spec(pathlib.Path(sys.argv[1]))\n"
            "    async with RouterProcess(spec, pathlib.Path(sys.argv[1] + '.2')) as process:\n"
            "        print(process.pid, flush=True)\n"
            "        await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(path), stdout=subprocess.PIPE)
        assert parent.stdout is not None
        router = psutil.Process(int(await parent.stdout.readline()))
        parent.kill()
        await parent.wait()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, [router], GONE_WITHIN_S)
        assert gone
        assert not alive


def test_a_spec_that_is_wrong_names_the_field(tmp_path: Path) -> None:
    for instances_, changes, match in (
        ((), {}, "no instance"),
        ((InstanceSpec("a", "x"),), {}, "no http"),
        ((InstanceSpec("a b", "http://h"),), {}, "name"),
        ((InstanceSpec("a", "http://h"),) * 2, {}, "named twice: a"),
        ((InstanceSpec("a", "http://h"),), {"index": "guess"}, "index"),
        ((InstanceSpec("a", "http://h"),), {"index": "events"}, "kv_events"),
        ((InstanceSpec("a", "http://h", transfer=KvEndpoint("mooncake")),), {}, "bootstrap"),
        ((InstanceSpec("a", "http://h", transfer=KvEndpoint("nixl", "both")),), {}, "kv_role"),
        ((InstanceSpec("a", "http://h", "decode", transfer=KvEndpoint("nixl", "kv_producer")),), {}, "its role"),
        ((InstanceSpec("a", "http://h"),), {"transfer": TransferRules(attempts=0)}, "transfer.attempts"),
        ((InstanceSpec("a", "http://h"),), {"transfer": TransferRules(timeout_s=0)}, "transfer time"),
    ):
        with pytest.raises(SpecError, match=match):
            RouterSpec(instances_, **changes)
    path = tmp_path / "s.json"
    path.write_text('{"instances": [], "policy": 3}')
    with pytest.raises(RouterError, match="policy"):
        read_router_spec(path)
    path.write_text('{"instances": [], "version": 2}')
    with pytest.raises(RouterError, match="no instance"):
        read_router_spec(path)
    path.write_text('{"instances": [], "version": 9}')
    with pytest.raises(RouterError, match="has version 9; this Tracon reads versions 1 and 2"):
        read_router_spec(path)


def test_a_spec_of_the_first_version_has_the_present_names(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"instances": [{"instance": "a", "url": "http://h"}], "transfer": {"leg_priority": -1}}')
    assert read_router_spec(path) == RouterSpec((InstanceSpec("a", "http://h"),), transfer=TransferRules(priority=-1))


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ('"version": 2, "transfer": {"leg_priority": -1}', "transfer has no field leg_priority; it has timeout_s,"),
        ('"transfer": {"timeuot_s": 5}', "transfer has no field timeuot_s; it has timeout_s,"),
        ('"polcy": "unified"', "it has no field polcy; it has instances, policy,"),
        ('"limits": {"stream": 9}', "limits has no field stream; it has connect_s,"),
    ],
)
def test_a_spec_with_a_field_that_no_router_has_is_refused(tmp_path: Path, fields: str, refused: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(f'{{"instances": [{{"instance": "a", "url": "http://h"}}], {fields}}}')
    with pytest.raises(RouterError, match=re.escape(refused)) as error:
        read_router_spec(path)
    assert error.value.remedy


def test_a_spec_with_an_instance_that_has_another_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"instances": [{"instance": "a", "url": "http://h", "capacity": 9}]}')
    with pytest.raises(RouterError, match=r"instances\[0\] has no field capacity; it has instance, url, role,"):
        read_router_spec(path)


def test_any_parameter_of_a_policy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"instances": [{"instance": "a", "url": "http://h"}], "parameters": {"mine": {"deep": [1, 2]}}}')
    assert read_router_spec(path).parameters == {"mine": {"deep": [1, 2]}}
