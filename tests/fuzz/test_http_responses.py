"""Whatever bytes an instance sends: its caller gets an end or none yet, and never more than came."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runners.router.response_facts import Usage, is_preamble, pause_s, read_error_event, read_usage
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.router.instances.test_link import Taker, chunked, head, link_with, pieces_of
from tests.servers.api_streams import MESSAGES, RESPONSES, message_error

SEEDS = (
    head(events=True) + chunked(list(MESSAGES)),
    head(events=True) + chunked([*RESPONSES[:3], message_error(400)]),
    head(events=False, framing=b"content-length: 12") + b'{"usage":{}}',
    b"HTTP/1.1 100 Continue\r\n\r\n" + head(events=False, framing=b"retry-after: 1") + b"until the end",
    head(events=True, more=b"connection: x-a\r\nx-a: b\r\nretry-after: 5\r\n") + chunked([b"data: [DONE]\n\n"]),
)

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
    link, _, wire = link_with(taker)
    for piece in pieces_of(data, cuts):
        if not wire.closed:
            link.data_received(piece)
    link.connection_lost(None)
    passed = b"".join(taker.pieces)
    assert len(taker.ends) <= 1
    assert passed in data
    if taker.answer is not None:
        assert pause_s(taker.answer.named, refusal=True) >= 0
    assert read_usage(passed) == Usage() or b"_tokens" in passed
    read_error_event(passed)
    is_preamble(passed)


@given(mutated([*MESSAGES, *RESPONSES, message_error(500), b'data: {"usage":{"prompt_tokens":8}}\n\n']))
@settings(max_examples=examples(300))
def test_an_events_numbers_are_counts_or_none(event: bytes) -> None:
    for count in read_usage(event):
        assert count is None or 0 <= count < 1 << 55
    error = read_error_event(event)
    assert error is None or 400 <= error[1] < 600
