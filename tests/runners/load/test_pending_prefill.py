"""Pending prefill tokens: clients and the router count the same where nothing is cached."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.decisions import Decision
from runners.load.stream import Exchange, PendingPrefill
from runners.router.cluster import Cluster, CounterReservation, Member
from tests.examples import examples
from tests.runners.router.views import ask


class Client:
    """Sends requests, and counts them as the open loop, the replay and the simulated replay do."""

    def __init__(self) -> None:
        self.pending = PendingPrefill()
        self.input_tokens: list[int] = []

    def send(self, input_tokens: int) -> Exchange:
        exchange = Exchange(len(self.input_tokens), self, 1, t_send_ns=1)
        self.input_tokens.append(input_tokens)
        self.pending.add_sent(input_tokens)
        return exchange

    def first_token(self, exchange: Exchange) -> None:
        self.pending.remove_started(self.input_tokens[exchange.index])

    def ended(self, exchange: Exchange) -> None:
        self.pending.remove_ended(exchange, self.input_tokens[exchange.index])


def receive_token(exchange: Exchange, reservation: CounterReservation) -> None:
    if not exchange.t_first_ns and exchange.status is None:
        exchange.t_first_ns = 2
        exchange.listener.first_token(exchange)
        reservation.end_prefill()


def end_request(exchange: Exchange, reservation: CounterReservation, *, cut: bool) -> None:
    if cut:
        exchange.cut(3)
    else:
        exchange.fail("the connection closed", 3)
    reservation.end()


@given(
    prompts=st.lists(st.integers(1, 100_000), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("token", "fail", "cut"))), max_size=20),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_prompt_is_pending_from_its_send_to_its_first_token_or_its_end(
    prompts: list[int], steps: list[tuple[int, str]]
) -> None:
    client, cluster, pick = Client(), Cluster([Member("a")], lambda: 0.0), Decision("test", "a", "test")
    requests = [(client.send(tokens), cluster.reserve_counters(pick, ask(tokens))) for tokens in prompts]
    for index, step in steps:
        exchange, reservation = requests[index % len(requests)]
        if step == "token":
            receive_token(exchange, reservation)
        else:
            end_request(exchange, reservation, cut=step == "cut")
        exchanges = [exchange for exchange, _ in requests]
        waiting = (one.index for one in exchanges if not one.t_first_ns and one.status is None)
        expected = sum(prompts[index] for index in waiting)
        assert client.pending.tokens == expected
        assert cluster.take_view().instances[0].pending_prefill_tokens == expected
