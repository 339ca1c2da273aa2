"""A transfer's tokens are attributed from the target's counters, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.router.transfer.accounting import NOTHING_S, SETTLE_S, TransferAccounting
from runners.router.transfer.counters import Attribution, Counters, TargetAnswer, attribute_rise, read_counters
from tests.runners.router.routers import until

PAGE = b"""# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 2080.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1024.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="external_kv_transfer"} 1e+03
vllm:prompt_tokens_by_source_created{engine="0",model_name="m",source="external_kv_transfer"} 1.7e+09
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf"} 2.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 524288.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1024"} 1.0
"""


def test_a_page_is_read_over_all_engines() -> None:
    assert read_counters(PAGE) == Counters(2024.0, 524288.0, 32)
    assert read_counters(b"") == Counters()


def brought(rise: float, *ended: TargetAnswer, moved: float | None = None) -> list[Attribution]:
    return attribute_rise(Counters(100.0, 0.0), Counters(100.0 + rise, moved), ended)


def test_one_transfers_rise_is_its_own_unless_it_cannot_be() -> None:
    assert brought(64, TargetAnswer(80, 64)) == [Attribution(64, None)]
    assert brought(64, TargetAnswer(80, 70), moved=640.0) == [Attribution(64, 640)]
    assert brought(64, TargetAnswer(None, None)) == [Attribution(64, None)]
    (polluted,) = brought(164, TargetAnswer(80, 64))
    assert polluted.external_tokens is None
    assert "not only this one's" in polluted.reason
    (restarted,) = brought(-1, TargetAnswer(80, 64))
    assert "restarted" in restarted.reason
    (silent,) = attribute_rise(Counters(), Counters(5.0), [TargetAnswer(1, 1)])
    assert "does not count" in silent.reason


def test_of_several_all_or_nothing_can_be_told_apart() -> None:
    assert [one.external_tokens for one in brought(96, TargetAnswer(80, 64), TargetAnswer(40, 32))] == [64, 32]
    assert [one.external_tokens for one in brought(0, TargetAnswer(80, 64), TargetAnswer(40, 32))] == [0, 0]
    assert [one.external_tokens for one in brought(90, TargetAnswer(80, 64), TargetAnswer(40, 32))] == [None, None]
    assert [one.external_tokens for one in brought(96, TargetAnswer(80, 64), TargetAnswer(None, None))] == [None, None]
    several = brought(96, TargetAnswer(80, 64), TargetAnswer(40, 32), moved=9)
    assert all(one.nixl_bytes is None and "bytes" in one.reason for one in several)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=6))
def test_what_is_told_is_what_came(transfers: list[tuple[int, int, int]]) -> None:
    """Each: prompt tokens; the most of them that may be cached; the most of those that may be transferred."""
    true, ended = [], []
    for prompt, cached, external in transfers:
        cached = min(prompt, cached)
        true.append(min(cached, external))
        ended.append(TargetAnswer(prompt, cached))
    for attributions, really in zip(brought(sum(true), *ended), true, strict=True):
        assert attributions.external_tokens in (None, really)
        assert (attributions.external_tokens is None) == bool(attributions.reason)


class Books:
    """The account of an engine whose counters the test turns."""

    def __init__(self) -> None:
        self.external, self.now_s, self.reads, self.silent = 0.0, 100.0, 0, False
        self.gate: asyncio.Event | None = None
        self.account = TransferAccounting(self.fetch, lambda: self.now_s)
        self.attributions: list[Attribution] = []

    async def fetch(self) -> Counters | None:
        self.reads += 1
        counters = None if self.silent else Counters(self.external)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        return counters

    def end(self, prompt: int, cached: int | None, *, streams: bool = False) -> Callable[[], None]:
        return self.account.end_transfer(TargetAnswer(prompt, cached), self.attributions.append, streams=streams)


@pytest.fixture
async def books() -> AsyncIterator[Books]:
    made = Books()
    yield made
    await made.account.close(0.0)


async def test_a_transfer_is_told_from_the_counters_before_and_after_it(books: Books) -> None:
    await books.account.refresh_counters()
    for tokens in (64, 32):
        books.account.begin_transfer()
        books.external += tokens
        books.end(tokens + 8, tokens)
        await books.account.wait_until_quiet(1.0)
    assert [one.external_tokens for one in books.attributions] == [64, 32]
    assert books.reads == 3, "the counters after one are those before the next"


async def test_a_baseline_that_a_transfer_ran_into_is_not_taken(books: Books) -> None:
    books.gate = asyncio.Event()
    reading = asyncio.create_task(books.account.refresh_counters())
    await asyncio.sleep(0)
    books.account.begin_transfer()
    books.gate.set()
    await reading
    books.external += 64
    books.end(72, 64)
    await until(lambda: bool(books.attributions))
    assert books.attributions[0].external_tokens is None
    assert "not read before" in books.attributions[0].reason


async def test_nothing_is_believed_only_after_a_while(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.end(72, 64)
    await until(lambda: books.reads > 2)
    assert books.attributions == []
    books.now_s += NOTHING_S
    await until(lambda: bool(books.attributions))
    assert books.attributions == [Attribution(0)]


async def test_transfers_that_never_pause_are_given_up_on_and_the_next_quiet_one_is_told(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.account.begin_transfer()
    books.external += 64
    books.end(72, 64)
    books.now_s += SETTLE_S
    await until(lambda: bool(books.attributions))
    assert books.attributions[0].external_tokens is None
    books.external += 32
    books.end(40, 32)
    await until(lambda: len(books.attributions) == 2)
    assert books.attributions[1].external_tokens is None, "what the first brought is among it"
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.external += 16
    books.end(40, 16)
    await until(lambda: len(books.attributions) == 3)
    assert books.attributions[2].external_tokens == 16


async def test_after_a_failure_nothing_is_claimed_until_the_counters_are_read_again(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.external += 7
    books.account.fail_transfer()
    books.account.begin_transfer()
    books.external += 32
    books.end(40, 32)
    await until(lambda: bool(books.attributions))
    assert "failed" in books.attributions[0].reason
    books.account.begin_transfer()
    books.external += 16
    books.end(40, 16)
    await until(lambda: len(books.attributions) == 2)
    assert books.attributions[1].external_tokens == 16


async def test_an_engine_that_cannot_be_asked_leaves_it_unknown(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.silent = True
    books.end(40, 32)
    books.now_s += SETTLE_S
    await until(lambda: bool(books.attributions))
    assert books.attributions[0].external_tokens is None


async def test_those_that_overlap_a_stream_are_told_with_it(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.account.begin_transfer()
    books.external += 48
    over = books.end(32, 32, streams=True)
    books.end(16, 16)
    await until(lambda: len(books.attributions) == 2)
    assert [one.external_tokens for one in books.attributions] == [32, 16]
    over()
    assert books.reads == 2


async def test_what_came_last_is_read_before_the_end(books: Books) -> None:
    await books.account.refresh_counters()
    books.account.begin_transfer()
    books.end(40, 32)
    await until(lambda: books.reads == 2)  # it has been answered and the engine has not counted it
    books.external += 32
    await books.account.close(5.0)
    assert books.attributions == [Attribution(32)]


async def test_who_cannot_be_told_apart_at_the_end_is_told_at_once(books: Books) -> None:
    books.account.begin_transfer()
    books.account.begin_transfer()
    books.end(40, 32)
    async with asyncio.timeout(2.0):
        await books.account.close(60.0)
    assert "ended first" in books.attributions[0].reason
