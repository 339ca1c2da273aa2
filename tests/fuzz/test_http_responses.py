"""Whatever bytes an instance sends: its caller gets an end or none yet, and never more than came."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runners.router.failure import Failure
from runners.router.instances import upstream
from runners.router.instances.upstream import HEAD_LIMIT_BYTES
from runners.router.response_facts import Usage, is_preamble, pause_s, read_error_event, read_usage
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.router.instances.test_instance_connection import Taker, chunked, connection_with, head, pieces_of
from tests.servers.api_streams import MESSAGES, RESPONSES, message_error

SEEDS = (
    head(events=True) + chunked(list(MESSAGES)),
    head(events=True) + chunked([*RESPONSES[:3], message_error(400)]),
    head(events=False, framing=b"content-length: 12") + b'{"usage":{}}',
    b"HTTP/1.1 100 Continue\r\n\r\n" + head(events=False, framing=b"retry-after: 1") + b"until the end",
    head(events=True) + chunked([b"x"]).removesuffix(b"\r\n") + b"T: u\r\nContent-Encoding: gzip\r\n\r\n",
    head(events=True, more=b"connection: x-a\r\nx-a: b\r\nretry-after: 5\r\n") + chunked([b"data: [DONE]\n\n"]),
)

EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
ODDLY_CHUNKED = head(events=True, framing=b"transfer-encoding: not-chunked") + b"\x00bd\r\ndata: x\n\n\r\n"
AFTER_EMPTY_LINES = b"\r\n\r\n" + head(events=True) + b"b"
"""The parser skips empty lines before a response; they are no head."""


@example(ODDLY_CHUNKED, [])
@example(AFTER_EMPTY_LINES, [])
@example(AFTER_EMPTY_LINES, [1, 3])
@given(mutated(SEEDS), st.lists(st.integers(0, 1 << 20), max_size=6))
@settings(max_examples=examples(300))
def test_an_instances_bytes_are_passed_on_or_are_its_failure(data: bytes, cuts: list[int]) -> None:
    taker = Taker()
    connection, _, wire = connection_with(taker)
    for piece in pieces_of(data, cuts):
        if not wire.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    passed = b"".join(taker.pieces)
    assert len(taker.ends) <= 1
    assert passed in data
    if taker.answer is not None:
        assert pause_s(taker.answer.named, refusal=True) >= 0
    assert read_usage(passed) == Usage() or b"_tokens" in passed
    read_error_event(passed)
    is_preamble(passed)


def long_head(size_bytes: int, begin: bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n") -> bytes:
    """A head that has `size_bytes` with its blank line."""
    lines = begin + b"x: %b\r\n\r\n"
    return lines % (b"y" * (size_bytes - len(lines % b"")))


def take(data: bytes, cuts: list[int]) -> Taker:
    """The caller after a response that comes in pieces."""
    taker = Taker()
    connection, _, wire = connection_with(taker)
    for piece in pieces_of(data, cuts):
        if not wire.closed:
            connection.data_received(piece)
    return taker


def require_limit(taker: Taker, beyond: int, body: bytes) -> None:
    """The response is whole if its head is within the limit, else it is a failure without an answer."""
    if beyond <= 0:
        assert taker.ends == [True]
        assert b"".join(taker.pieces) == body
        return
    [failure] = taker.ends
    assert isinstance(failure, Failure)
    assert failure.kind == "protocol"
    assert "response head" in failure.text
    assert taker.answer is None


@given(st.integers(-9, 9) | st.integers(10, 200_000), st.lists(st.integers(0, 1 << 20), max_size=6), st.booleans())
@settings(max_examples=examples(60))
@example(0, [], False)
@example(1, [], False)
@example(1, [HEAD_LIMIT_BYTES], True)
def test_a_head_beyond_its_limit_is_a_failure_however_it_comes(beyond: int, cuts: list[int], early: bool) -> None:
    body = chunked([b"x" * 9_000])
    taker = take(EARLY * early + long_head(HEAD_LIMIT_BYTES + beyond) + body, cuts)
    require_limit(taker, beyond, body)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_head_at_its_limit_is_read_wherever_it_is_cut(beyond: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An informational head has the same limit."""
    monkeypatch.setattr(upstream, "HEAD_LIMIT_BYTES", 90)
    body, long = chunked([b"x"]), long_head(90 + beyond)
    long_early = long_head(90 + beyond, b"HTTP/1.1 103 Early Hints\r\n")
    for data in (long + body, EARLY + long + body, long_early + long_head(90) + body):
        for cut in range(len(data)):
            require_limit(take(data, [cut]), beyond, body)


@given(mutated([*MESSAGES, *RESPONSES, message_error(500), b'data: {"usage":{"prompt_tokens":8}}\n\n']))
@settings(max_examples=examples(300))
def test_an_events_numbers_are_counts_or_none(event: bytes) -> None:
    for count in read_usage(event):
        assert count is None or 0 <= count < 1 << 55
    error = read_error_event(event)
    assert error is None or 400 <= error[1] < 600
