"""A connector that does nothing, or the wrong thing, does not pass for one that works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from launch import preflight_proofs as proofs
from launch.instance import Served
from launch.preflight_checks import Completion, Gate, GateFailed, counter
from launch.profile import list_config_names, load_config
from launch.transfer_request import find_transferring
from tests.launch.fake_engine import PROFILE, FakeEngine, FakeInstance, asked_about

LMCACHE, BOTH, PRODUCER, CONSUMER, NIXL = (
    "lmcache_only", "mooncake_both", "mooncake_producer", "mooncake_consumer", "nixl_both",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "COUNTERS_SETTLE_S", 0.05)
    monkeypatch.setattr(proofs, "RELEASE_SLACK_S", 0.2)


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeEngine]:
    """Addresses at which gates find an engine by themselves: its bootstrap server, a counterpart."""
    there: dict[str, FakeEngine] = {}

    def client(url: str) -> httpx.AsyncClient:
        return there[url].client()

    monkeypatch.setattr(proofs, "make_http_client", client)
    return there


async def seen(engine: FakeEngine, config: str, gate: Gate) -> str:
    async with asked_about(engine, config, env={"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "0"}) as subject:
        return await gate(subject)


def broken(*faults: str, contextual: bool = True) -> FakeEngine:
    return FakeEngine(frozenset(faults), contextual)


async def test_what_is_stored_comes_back() -> None:
    said = await seen(FakeEngine(), LMCACHE, proofs.store_and_retrieve)
    assert "4095 of 4096 tokens retrieved" in said
    assert "same answer as computed" in said


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("stores nothing", "4096 tokens sent twice 0 came from the connector"),
        ("retrieves nothing", "4096 tokens sent twice 0 came from the connector"),
        ("loads garbage", "is not the one from computed KV"),
        ("no dev mode", "needs VLLM_SERVER_DEV_MODE=1"),
    ],
)
async def test_a_store_that_does_not_work_fails(fault: str, reason: str) -> None:
    with pytest.raises(GateFailed, match=reason):
        await seen(broken(fault), LMCACHE, proofs.store_and_retrieve)


async def test_equal_answers_of_a_model_without_context_are_not_called_equal_contents() -> None:
    said = await seen(broken("loads garbage", contextual=False), LMCACHE, proofs.store_and_retrieve)
    assert "contents not compared" in said


async def test_an_engine_pulls_from_itself_what_its_own_prefix_cache_does_not_hold(
    reach: dict[str, FakeEngine],
) -> None:
    engine = reach["http://127.0.0.1:18002"] = FakeEngine()
    assert "4095 of 4096 tokens pulled from itself" in await seen(engine, BOTH, proofs.check_self_transfer)
    requests = [body for body in engine.asked if "kv_transfer_params" in body]
    assert len({body["cache_salt"] for body in requests}) == 2
    first, second = (body["kv_transfer_params"] for body in requests)
    assert first["transfer_id"] == second["transfer_id"]
    assert second["remote_engine_id"] == "e1"
    assert (requests[0]["max_tokens"], requests[0]["ignore_eos"]) == (1, True)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("computes what it should pull", "0 are counted as transferred"),
        ("loads garbage", "is not the one from computed KV"),
        ("ends by stop", "ended by stop"),
    ],
)
async def test_a_transfer_that_does_not_happen_fails(reach: dict[str, FakeEngine], fault: str, reason: str) -> None:
    engine = reach["http://127.0.0.1:18002"] = broken(fault)
    with pytest.raises(GateFailed, match=reason):
        await seen(engine, BOTH, proofs.check_self_transfer)


async def test_a_producer_keeps_its_blocks_and_frees_them(reach: dict[str, FakeEngine]) -> None:
    engine = reach["http://127.0.0.1:18002"] = FakeEngine()
    said = await seen(engine, PRODUCER, proofs.check_retained_blocks)
    assert "names engine e1; blocks held (0.2500), freed after" in said


@pytest.mark.parametrize(
    ("fault", "reason"), [("keeps nothing", "no block is held"), ("keeps for good", "still held after")]
)
async def test_a_producer_that_keeps_no_blocks_or_never_frees_them_fails(
    reach: dict[str, FakeEngine], fault: str, reason: str
) -> None:
    engine = reach["http://127.0.0.1:18002"] = broken(fault)
    with pytest.raises(GateFailed, match=reason):
        await seen(engine, PRODUCER, proofs.check_retained_blocks)


async def test_a_consumer_asks_the_bootstrap_it_is_told() -> None:
    said = await seen(FakeEngine(), CONSUMER, proofs.check_bootstrap_query)
    assert said == "asked 1 time(s), the pull failed with 500, the next one passed"


@pytest.mark.parametrize(
    ("fault", "reason"), [("never asks", "was not asked"), ("answers anyway", "nothing was pulled")]
)
async def test_a_consumer_that_does_not_pull_fails(fault: str, reason: str) -> None:
    with pytest.raises(GateFailed, match=reason):
        await seen(broken(fault), CONSUMER, proofs.check_bootstrap_query)


async def moved(reach: dict[str, FakeEngine], *faults: str, pulls_to_fail: int = 0) -> str:
    engine, other = broken(*faults), broken(*faults)
    engine.pulls_to_fail = pulls_to_fail
    reach["http://127.0.0.1:18099"] = other

    @asynccontextmanager
    async def counterpart() -> AsyncIterator[Served]:
        yield FakeInstance("fake-2", "http://127.0.0.1:18099")

    async with asked_about(engine, NIXL, counterpart=counterpart) as subject:
        return await proofs.check_peer_transfer(subject)


async def test_two_engines_exchange_blocks_both_ways(reach: dict[str, FakeEngine]) -> None:
    said = await moved(reach)
    assert "4095 of 4096 tokens (512 bytes) to the counterpart" in said
    assert "from the counterpart" in said


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("moves no bytes", "did not rise"),
        ("computes what it should pull", "0 are counted as transferred"),
        ("keeps nothing", "offers no blocks"),
        ("loads garbage", "is not the one from computed KV"),
    ],
)
async def test_engines_that_exchange_nothing_fail(reach: dict[str, FakeEngine], fault: str, reason: str) -> None:
    with pytest.raises(GateFailed, match=reason):
        await moved(reach, fault)


async def test_a_handshake_that_a_busy_host_missed_is_tried_again(reach: dict[str, FakeEngine]) -> None:
    assert "from the counterpart" in await moved(reach, pulls_to_fail=proofs.HANDSHAKES - 1)
    with pytest.raises(GateFailed, match="from the counterpart, 3 times, was answered 500"):
        await moved(reach, pulls_to_fail=proofs.HANDSHAKES)


async def test_without_a_second_engine_no_byte_moves_and_nothing_is_proven() -> None:
    with pytest.raises(GateFailed, match="no byte was moved: no second engine can run beside this one"):
        await seen(FakeEngine(), NIXL, proofs.check_peer_transfer)


@pytest.mark.parametrize(("context", "tokens"), [(40_960, 4096), (200_000, 4096), (3000, 1280), (512, 256)])
async def test_the_prompt_of_a_proof_is_whole_chunks_and_fits(context: int, tokens: int) -> None:
    engine = msgspec.structs.replace(PROFILE.engine, max_model_len=context)
    profile = msgspec.structs.replace(PROFILE, engine=engine)
    async with asked_about(FakeEngine(), LMCACHE, profile=profile) as subject:
        assert proofs.count_proof_tokens(subject) == tokens


async def test_a_context_that_holds_no_chunk_cannot_prove_anything() -> None:
    engine = msgspec.structs.replace(PROFILE.engine, max_model_len=300)
    profile = msgspec.structs.replace(PROFILE, engine=engine)
    async with asked_about(FakeEngine(), LMCACHE, profile=profile) as subject:
        with pytest.raises(GateFailed, match="holds no chunk of 256"):
            proofs.count_proof_tokens(subject)


@pytest.mark.parametrize(
    ("likely", "nats"),
    [
        ({"a": -0.1, "b": -2.5}, 0.0),
        ({"b": -2.5, "a": -0.3}, 0.2),
        ({"a": -0.1, "b": -9.0}, 6.5),
        ({"a": -0.1, "c": -4.0}, 1.5),
        ({"x": -0.1, "y": -3.0}, 2.9),
    ],
    ids=["the same", "rounding", "another runner-up", "a runner-up that is not listed", "nothing in common"],
)
def test_answers_are_compared_by_their_likeliest_tokens(likely: dict[str, float], nats: float) -> None:
    reference, answer = (
        Completion(200, {"choices": [{"logprobs": {"top_logprobs": [ranks]}}]}, "", 0.0)
        for ranks in ({"a": -0.1, "b": -2.5, "c": -7.0}, likely)
    )
    assert proofs.measure_distance_nats(reference, answer) == pytest.approx(nats)


def test_answers_without_log_probabilities_cannot_be_compared() -> None:
    mute = Completion(200, {"choices": [{"logprobs": None}]}, "", 0.0)
    with pytest.raises(GateFailed, match="no log probabilities"):
        proofs.measure_distance_nats(mute, mute)


def test_every_connector_that_does_work_proves_it() -> None:
    proven = {name for name in list_config_names() if load_config(name).preflight.proofs}
    assert proven == set(list_config_names()) - {"plain", "noop_connector"}
    for name in proven:
        moves = set(load_config(name).preflight.proofs) - {"store_and_retrieve"}
        assert bool(moves) == (find_transferring(load_config(name), "cpu") is not None)


def test_counters_are_summed_over_the_samples_with_the_labels() -> None:
    text = 'a_total{x="1",y="1"} 2\na_total{x="1",y="2"} 3\na_total{x="2",y="1"} 5\na_total_more{x="1"} 7\nb 1.5e3'
    assert counter(text, "a_total") == 10
    assert counter(text, "a_total", x="1") == 5
    assert counter(text, "a_total", y="1", x="1") == 2
    assert counter(text, "b") == 1500
    assert counter(text, "a_total", x="3") is None
    assert counter(text, "c") is None
