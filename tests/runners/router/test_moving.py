"""A request whose KV is moved first, on a real router: whatever happens, it is served or refused with a reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from results.records.decisions import KvTransfer, RoutedOutcome
from results.records.router_spec import Limits
from runners.router.decision_log import read_log
from runners.router.policies import make_policy
from runners.router.whatif import repeat_picks
from tests.runners.router.fake_transfers import DECODE_BODY, FakeMovement, FakeTransfers, fake_transport
from tests.runners.router.routers import SHORT, Router, by, instances, router, until
from tests.runners.router.test_migration import EAR, OWN, hot
from tests.servers.backend import Backend

PD = {"prefill_count": 1}


def migrated(folder: Path) -> tuple[RoutedOutcome, KvTransfer]:
    """What became of the one pick that wanted to migrate, and of its transfer; its router has ended."""
    log = read_log(folder / "decisions.jsonl", "log")
    (outcome,) = [one.outcome for one in log.records if one.decision.migrate_from]
    assert outcome is not None
    assert outcome.transfer is not None
    return outcome, outcome.transfer


class Moving(NamedTuple):
    """A request of session `s` whose KV is on its way from `source` to `target`."""

    routed: Router
    fake: FakeTransfers
    source: Backend
    target: Backend
    asking: asyncio.Task[httpx.Response]
    movement: FakeMovement


@contextlib.asynccontextmanager
async def migrating(folder: Path | None = None, limits: Limits = SHORT) -> AsyncIterator[Moving]:
    """Its instance is hot, and EAR migrates it."""
    async with instances("a", "b") as both, router(both, "ear", folder=folder, parameters=EAR, limits=limits) as routed:
        fake = fake_transport(routed)
        async with hot(routed, both) as (source, target), asked(routed, fake) as (asking, movement):
            yield Moving(routed, fake, source, target, asking, movement)


@contextlib.asynccontextmanager
async def handing_over(folder: Path | None = None, limits: Limits = SHORT) -> AsyncIterator[Moving]:
    """Static pools: `a` prefills, `b` decodes."""
    backends = instances("a", "b")
    async with backends as both, router(both, "static_pd", folder=folder, parameters=PD, limits=limits) as routed:
        fake = fake_transport(routed)
        async with asked(routed, fake) as (asking, movement):
            yield Moving(routed, fake, both[0], both[1], asking, movement)


@contextlib.asynccontextmanager
async def asked(
    routed: Router, fake: FakeTransfers
) -> AsyncIterator[tuple[asyncio.Task[httpx.Response], FakeMovement]]:
    """A request of session `s`, and the transfer that its pick asked for, under way."""
    count = len(fake.movements)
    asking = asyncio.create_task(routed.post("s", prompt=OWN))
    await until(lambda: len(fake.movements) > count)
    try:
        yield asking, fake.movements[-1]
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_it_is_sent_when_its_kv_has_arrived_and_is_recorded_counted_and_told_so(tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        seen = len(on.target.seen)
        assert (on.movement.transfer.source, on.movement.transfer.target) == (on.source.name, on.target.name)
        assert on.movement.request.cached_tokens[on.source.name] == 12
        assert on.routed.load(on.target.name).pending_prefill_tokens == 4, "12 of 16 are on their way"
        await asyncio.sleep(0.05)
        assert len(on.target.seen) == seen, "not before it is there"
        on.movement.finish("transferred")
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, on.target.name)
        assert on.target.seen[-1].json["prompt"] == OWN, "as the client sent it"
        assert on.routed.find_owner("s") == on.target.name
        assert await on.routed.metric('migrations_total{status="transferred"}') == 1
        await on.routed.metric("picks_total")
        assert not [one for one in (tmp_path / "decisions.jsonl").read_text().splitlines() if '"t-0"' in one]
        on.movement.settle_transfer()
        assert await on.routed.metric('transfers_total{purpose="migration",status="transferred"}') == 1
        assert await on.routed.metric("transferred_tokens_total") == 48
        assert await on.routed.metric("transfer_seconds_count") == 1
        assert by(await on.routed.post("s")) == on.target.name
        await until(lambda: any(line.phase == "done" for tick in on.routed.ticks for line in tick.migrations))
    outcome, transfer = migrated(tmp_path)
    assert (outcome.status, outcome.migration) == ("ok", "transferred")
    assert (transfer.status, transfer.external_tokens) == ("transferred", 48)
    assert outcome.first_byte_s is not None
    assert outcome.first_byte_s >= (transfer.t_done_ns - transfer.t_begin_ns) / 1e9, "the client waited for it"
    steps = [line for tick in on.routed.ticks for line in tick.migrations]
    assert [(line.phase, line.reason) for line in steps] == [("started", "migrated"), ("done", "transferred")]
    assert {line.migration for line in steps} == {on.movement.request.request}
    assert (steps[1].external_tokens, steps[1].source, steps[1].target) == (48, on.source.name, on.target.name)
    assert steps[1].transfer_s is not None
    log = read_log(tmp_path / "decisions.jsonl", "log")
    assert log.gaps == ()
    assert repeat_picks(log.records, make_policy("ear", EAR)).agreement == 1.0


@pytest.mark.parametrize("status", ["failed", "refused"])
async def test_a_transfer_that_comes_to_nothing_costs_only_that_the_target_computes(
    status: str, tmp_path: Path
) -> None:
    async with migrating(tmp_path) as on:
        on.target.hang = True
        seen = len(on.target.seen)
        on.movement.finish(status, "the link was cut")  # type: ignore[arg-type]
        await until(lambda: len(on.target.seen) > seen)
        assert on.routed.load(on.target.name).pending_prefill_tokens == 16, "nothing of it is coming any more"
        await on.target.kill()
        on.target.hang = False
        await on.target.start()
        answer = await on.asking
        assert answer.status_code == 200
    _, transfer = migrated(tmp_path)
    assert (transfer.status, transfer.reason) == (status, "the link was cut")


async def test_a_client_that_leaves_ends_the_transfer_and_the_target_never_hears_of_it(tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        seen = len(on.target.seen)
        on.asking.cancel()
        await until(lambda: bool(on.movement.calls))
        assert on.movement.calls == ["abandoned: the client left"]
        assert len(on.target.seen) == seen
        assert on.routed.load(on.target.name).num_requests == 0
        assert on.routed.find_owner("s") == on.source.name
        assert on.routed.server.cluster.bindings.moving_to("s") == ""
    outcome, transfer = migrated(tmp_path)
    assert (outcome.status, outcome.migration) == ("aborted", "failed")
    assert (transfer.status, transfer.reason) == ("failed", "the client left")


@pytest.mark.parametrize("how", ["killed", "removed"])
async def test_a_target_that_is_lost_meanwhile_is_left_for_another(how: str, tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        if how == "killed":
            await on.target.kill()
        else:
            assert (await on.routed.http.delete(f"/admin/instances/{on.target.name}?now=1")).status_code == 200
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, on.source.name)
        assert len(on.movement.calls) == 1
        assert (f"removed {on.target.name}" in on.fake.calls) == (how == "removed")
        assert on.routed.find_owner("s") == on.source.name
    outcome, transfer = migrated(tmp_path)
    assert (outcome.status, outcome.migration, transfer.status) == ("retried", "failed", "failed")


@pytest.mark.parametrize("how", ["killed", "silent", "removed"])
async def test_a_source_that_is_lost_meanwhile_is_not_waited_for(how: str, tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        if how == "killed":
            await on.source.kill()
        elif how == "silent":
            on.source.health_hangs = True
        else:
            assert (await on.routed.http.delete(f"/admin/instances/{on.source.name}?now=1")).status_code == 200
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, on.target.name)
        assert on.source.name in on.movement.transfer.reason
        assert f"lost {on.source.name}" in on.fake.calls
    outcome, _ = migrated(tmp_path)
    assert (outcome.status, outcome.migration) == ("ok", "recomputed")


async def test_a_target_that_drains_still_serves_what_is_moving_to_it() -> None:
    async with migrating() as on:
        assert (await on.routed.http.post(f"/admin/instances/{on.target.name}/drain")).status_code == 200
        on.movement.finish("transferred")
        assert by(await on.asking) == on.target.name
        on.movement.settle_transfer()


async def test_a_transfer_that_takes_as_long_as_a_first_byte_may_is_done_without() -> None:
    limits = replace(SHORT, first_byte_s=1.5)
    async with migrating(limits=limits) as on:
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, on.target.name)
        assert on.movement.calls == ["abandoned: the transfer was not over within 1.5 s"]


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_router_that_ends_gives_it_up_and_says_so(hurried: bool) -> None:
    async with migrating() as on:
        ending = asyncio.create_task(on.routed.server.end(5.0 if hurried else 0.1))
        await asyncio.sleep(0.02)
        assert not ending.done(), "it is in flight"
        if hurried:
            on.routed.server.hurry()
        await ending
        answer = await on.asking
        assert answer.status_code == 503
        assert "shutting down" in answer.json()["error"]["message"]
        assert len(on.movement.calls) == 1
        assert on.fake.calls[-1] == "closed"


async def test_a_drain_waits_for_what_is_moving() -> None:
    async with migrating() as on:
        on.source.hang = False
        ending = asyncio.create_task(on.routed.server.end(5.0))
        await asyncio.sleep(0.02)
        on.movement.finish("transferred")
        assert by(await on.asking) == on.target.name
        on.movement.settle_transfer()
        on.routed.server.hurry()  # the neighbor that made the source hot never ends
        await ending


async def test_a_second_turn_stays_while_the_first_ones_kv_is_on_its_way(tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        second = await on.routed.post("s", prompt=OWN)
        assert by(second) == on.source.name, "its KV is still there"
        assert on.routed.find_owner("s") == on.source.name
        on.movement.finish("transferred")
        on.movement.settle_transfer()
        assert by(await on.asking) == on.target.name
        assert on.routed.find_owner("s") == on.target.name
        assert by(await on.routed.post("s", prompt=OWN)) == on.target.name
        assert len(on.fake.movements) == 1
    records = read_log(tmp_path / "decisions.jsonl", "log").records
    assert [one.decision.reason for one in records if one.request.session == "s"].count("hot_moving") == 1


async def test_where_no_kv_can_be_moved_to_the_session_migrates_without_it(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "ear", folder=tmp_path, parameters=EAR) as routed:
        async with hot(routed, both) as (_, target):
            fake = fake_transport(routed, cut={target.name: "quarantined for 9 s"})
            asking = asyncio.create_task(routed.post("s", prompt=OWN))
            await until(lambda: fake.movements != [])
            fake.movements[0].finish("refused")
            fake.movements[0].settle_transfer()
            assert by(await asking) == target.name
        records = await routed.records(6)
    (moved,) = [one for one in records if one.decision.reason == "migrated"]
    assert moved.request.cut_off == {target.name: "quarantined for 9 s"}
    assert moved.outcome is not None
    assert moved.outcome.migration == "recomputed"


async def test_only_a_policy_that_may_migrate_asks_where_kv_can_go() -> None:
    for policy, asks in (("ear", True), ("unified", False), ("static_pd", False)):
        parameters = {"ear": EAR, "static_pd": PD}.get(policy, {})
        async with instances("a", "b") as both, router(both, policy, parameters=parameters) as routed:
            assert (routed.server._dispatcher._cut_off is not None) == asks


async def test_a_defect_is_a_500_for_its_request_and_for_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with instances("a") as one, router(one, "ear", parameters=EAR) as routed:
        assert (await routed.post("s")).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(routed.server._dispatcher, "_cut_off", lambda source, targets: 1 / 0)
            answer = await routed.post("s")
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "router_defect")
        assert (await routed.post("s")).status_code == 200
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["retried", "held"])
async def test_a_defect_in_a_later_pick_is_a_500_as_well(
    moment: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the client would notice: the pick is made in a callback of a connection, or of the loop."""
    names = ("a", "b", "c") if moment == "retried" else ("a", "b")
    async with (
        instances(*names) as both,
        router(both, "static_pd", parameters=PD, reserved_output="max_tokens") as routed,
    ):
        dispatcher, traffic = routed.server._dispatcher, routed.server._traffic
        pick = dispatcher.pick_instance
        both[1].gate = asyncio.Event()
        streaming = asyncio.create_task(routed.post(max_tokens=4000))
        await until(lambda: bool(traffic.streaming))
        if moment == "held":
            asking = asyncio.create_task(routed.post(max_tokens=4000))
            await until(lambda: bool(traffic.held))
            monkeypatch.setattr(dispatcher, "pick_instance", lambda *asked: 1 / 0)
            both[1].gate.set()
        else:
            fail_retry = lambda asked, tried: pick(asked, tried) if not tried else 1 / 0  # noqa: E731
            monkeypatch.setattr(dispatcher, "pick_instance", fail_retry)
            for one in both:
                one.status = 500
            asking = asyncio.create_task(routed.post(max_tokens=4))
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "router_defect")
        both[1].gate.set()
        assert (await streaming).status_code == 200
        assert not [*traffic.held, *traffic.waiting]
    assert "ZeroDivisionError" in capsys.readouterr().err


async def test_the_target_failing_after_the_transfer_is_retried_as_any_other(tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        on.target.status = 500
        on.movement.finish("transferred")
        on.movement.settle_transfer()
        assert by(await on.asking) == on.source.name
        assert on.routed.find_owner("s") == on.source.name
    outcome, transfer = migrated(tmp_path)
    assert (outcome.status, outcome.migration, transfer.status) == ("retried", "failed", "transferred")


async def test_a_record_whose_transfer_is_never_counted_is_written_with_the_reason(tmp_path: Path) -> None:
    async with migrating(tmp_path) as on:
        on.movement.finish("transferred")
        assert (await on.asking).status_code == 200
    _, transfer = migrated(tmp_path)
    assert "not read before the record was written" in transfer.counted_reason


# prefill and decode pools
def of_pools(folder: Path) -> tuple[list[str], list[KvTransfer]]:
    records = read_log(folder / "decisions.jsonl", "log").records
    outcomes = [record.outcome for record in records if record.outcome is not None]
    return [one.status for one in outcomes], [one.transfer for one in outcomes if one.transfer is not None]


async def test_a_handover_sends_the_decode_request_and_counts_the_prompt_where_it_is_computed(tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "static_pd", folder=tmp_path, parameters=PD) as routed:
        fake = fake_transport(routed)
        async with asked(routed, fake) as (asking, movement):
            assert (movement.transfer.source, movement.transfer.target) == ("a", "b")
            assert [load.pending_prefill_tokens for load in routed.loads] == [16, 0]
            both[1].hang = True
            movement.finish("transferred")
            await until(lambda: bool(both[1].seen))
            assert [load.pending_prefill_tokens for load in routed.loads] == [0, 1], "its last token is left"
            assert [load.num_requests for load in routed.loads] == [0, 1], "the first has done its part"
            assert [load.retained_tokens for load in routed.loads] == [16, 0], "and keeps what it did"
            assert both[1].seen[-1].body == DECODE_BODY
            assert both[1].seen[-1].headers["x-session-id"] == "s"
            assert movement.calls == []
            await both[1].kill()
            both[1].hang = False
            await both[1].start()
            assert (await asking).status_code == 502, "no other instance decodes"
            assert movement.calls[0].endswith(", a strike")
        await until(lambda: routed.available() == {"a", "b"})
        async with asked(routed, fake) as (asking, movement):
            movement.finish("transferred")
            answer = await asking
            assert (answer.status_code, by(answer)) == (200, "b")
            assert movement.calls == ["served"]
        assert not both[0].seen
    statuses, transfers = of_pools(tmp_path)
    assert statuses.count("ok") == 1
    assert [one.status for one in transfers if one.purpose == "handover"].count("transferred") == 1


async def test_a_handover_whose_source_fails_is_computed_where_it_decodes(tmp_path: Path) -> None:
    async with handing_over(tmp_path) as on:
        on.movement.finish("failed", "the source answers HTTP 500")
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, "b")
        assert on.target.seen[-1].json["prompt"] == OWN
        assert on.movement.calls == []
    _, (transfer,) = of_pools(tmp_path)
    assert (transfer.status, transfer.reason) == ("failed", "the source answers HTTP 500")


async def test_a_decode_request_that_fails_is_computed_there_and_counts_against_the_pair_only(
    tmp_path: Path,
) -> None:
    async with handing_over(tmp_path) as on:
        on.target.status, on.target.errors = 500, 1
        on.movement.finish("transferred")
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, "b")
        assert [one.body == DECODE_BODY for one in on.target.seen] == [True, False]
        assert on.movement.calls == ["failed: HTTP 500, a strike"]
        assert on.routed.available() == {"a", "b"}
    (status,), (transfer,) = of_pools(tmp_path)
    assert (status, transfer.status, transfer.reason) == ("ok", "failed", "HTTP 500")


async def test_a_decode_request_that_hangs_is_computed_there_in_time() -> None:
    limits = replace(SHORT, first_byte_s=0.3)
    async with handing_over(limits=limits) as on:
        on.target.hang = True
        on.movement.finish("transferred")
        await until(lambda: bool(on.target.seen))
        on.target.hang = False
        answer = await on.asking
        assert answer.status_code == 200
        assert on.movement.calls == ["failed: no byte of the response within 0.3 s, a strike, freed"]


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_client_that_leaves_a_handover_frees_both(moment: str) -> None:
    async with handing_over() as on:
        if moment == "during":
            on.target.ttft_s = 5.0
            on.movement.finish("transferred")
            await until(lambda: bool(on.target.seen))
        on.asking.cancel()
        await until(lambda: bool(on.movement.calls))
        expected = "abandoned: the client left" if moment == "before" else "failed: the client left, freed"
        assert on.movement.calls == [expected]
        await until(on.routed.counters_are_zero)


async def test_a_4xx_of_the_decode_request_is_the_clients_own(tmp_path: Path) -> None:
    async with handing_over() as on:
        on.target.status = 422
        on.movement.finish("transferred")
        assert (await on.asking).status_code == 422
        assert on.movement.calls == ["failed: HTTP 422, freed"]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("decoders", [1, 2])
async def test_a_decode_request_that_is_not_admitted_speaks_against_nobody_and_nothing_has_freed_the_source(
    status: int, decoders: int
) -> None:
    """It is full, and never looked at what it was to pull."""
    async with instances(*"abc"[: 1 + decoders]) as all_, router(all_, "static_pd", parameters=PD) as routed:
        fake = fake_transport(routed)
        async with asked(routed, fake) as (asking, movement):
            target = next(one for one in all_ if one.name == movement.transfer.target)
            target.status = status
            movement.finish("transferred")
            if decoders == 2:
                await until(lambda: len(fake.movements) == 2)
                fake.movements[1].finish("transferred")
            assert (await asking).status_code == (200 if decoders == 2 else status)
            assert movement.calls == [f"failed: HTTP {status}"]


async def test_a_router_that_ends_before_the_decode_request_is_served_strikes_nobody() -> None:
    """The request is dropped, and the engine that held it frees the source."""
    async with handing_over() as on:
        on.target.hang = True
        on.movement.finish("transferred")
        await until(lambda: bool(on.target.seen))
        await on.routed.server.end(0.05)
        assert (await on.asking).status_code == 503
        assert on.movement.calls == ["failed: the router is shutting down, freed"]


@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_a_decode_request_whose_source_is_lost_is_not_waited_for(how: str, tmp_path: Path) -> None:
    """Its pull may never end; what did come is in the cache that the request hits as it is sent again."""
    async with handing_over(tmp_path) as on:
        on.target.hang = True
        on.movement.finish("transferred")
        await until(lambda: bool(on.target.seen))
        on.target.hang = False
        if how == "killed":
            await on.source.kill()
        else:
            on.source.health_hangs = True
        answer = await on.asking
        assert (answer.status_code, by(answer)) == (200, "b")
        assert [one.body == DECODE_BODY for one in on.target.seen] == [True, False]
        assert len(on.movement.calls) == 1
        assert on.movement.calls[0].startswith("failed: a is lost")
        assert on.movement.calls[0].endswith(", a strike, freed")
    assert of_pools(tmp_path)[0] == ["ok"]


async def test_an_instance_with_an_endpoint_may_join_a_router_without_any() -> None:
    backend = Backend("c")
    async with instances("a") as one, backend, router(one) as routed:
        assert not routed.server._transfers.is_configured
        added = {"instance": "c", "url": backend.url, "transfer": {"transport": "nixl"}}
        answer = await routed.http.post("/admin/instances", json=added)
        assert answer.status_code == 200
        rows = {row["instance"]: row["transfer"] for row in answer.json()["instances"]}
        assert rows["a"] is None
        assert rows["c"]["transport"] == "nixl"
        assert routed.server._transfers.is_configured
        wrong = {"instance": "d", "url": backend.url, "transfer": {"transport": "mooncake"}}
        refused = await routed.http.post("/admin/instances", json=wrong)
        assert refused.status_code == 409
        assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" in refused.json()["error"]["message"]
