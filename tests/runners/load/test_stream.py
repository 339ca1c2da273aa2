from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.records.schemas import RequestRecord, RequestStatus
from runners.load.stream import Exchange


class Heard:
    def __init__(self) -> None:
        self.firsts = 0
        self.ends = 0

    def first_token(self, exchange: Exchange) -> None:
        self.firsts += 1

    def ended(self, exchange: Exchange) -> None:
        self.ends += 1


def exchange(heard: Heard | None = None) -> Exchange:
    made = Exchange(0, heard or Heard(), t_intended_ns=5)
    made.t_send_ns = 10
    made.http_status = 200
    return made


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def token(text: str = "a", ids: list[int] | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": None, **more}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}})
DONE = b"data: [DONE]\n\n"
STREAM = b"".join(
    (
        event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        token("a", [1]),
        b": keep-alive\n\n",
        token("", [2]),
        token("é\n", [3, 4], finish_reason="length"),
        USAGE,
        DONE,
    )
)


def outcome(made: Exchange) -> tuple[object, ...]:
    return (
        made.status,
        made.error,
        made.chunks,
        made.tokens,
        made.counted_tokens,
        made.finish_reason,
        made.prompt_tokens,
    )


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12), crlf=st.booleans())
def test_however_the_stream_is_cut_it_means_the_same(cuts: list[int], crlf: bool) -> None:
    heard = Heard()
    made = exchange(heard)
    data = STREAM.replace(b"\n\n", b"\r\n\r\n") if crlf else STREAM
    edges = [0, *sorted(cuts), len(data)]
    for t_ns, (begin, end) in enumerate(pairwise(edges), start=100):
        if begin < end:
            made.feed(data[begin:end], t_ns)
    made.complete(200)
    assert outcome(made) == (RequestStatus.OK, None, 3, 4, 4, "length", 3)
    assert (heard.firsts, heard.ends) == (1, 1)


def test_an_event_is_stamped_by_the_read_that_completed_it() -> None:
    made = exchange()
    whole = token("a", [1])
    made.feed(whole[:20], 100)
    assert made.t_first_ns == 0
    made.feed(whole[20:] + token("b", [2])[:10], 110)
    assert (made.t_first_ns, made.t_last_ns) == (110, 110)
    made.feed(token("b", [2])[10:], 120)
    assert (made.t_first_ns, made.t_last_ns) == (110, 120)
    assert made.ttft_s == pytest.approx(100e-9)


def test_without_ids_and_usage_the_number_of_tokens_is_not_known() -> None:
    made = exchange()
    made.feed(token("a") + token("") + token("bc") + DONE, 100)
    made.complete(200)
    assert made.status is RequestStatus.OK
    assert made.chunks == 2
    assert made.counted_tokens is None
    assert made.tpot_s is None


def test_a_running_count_is_evidence_of_tokens() -> None:
    made = exchange()
    for t_ns, (text, count) in enumerate((("", 1), ("ab", 3), ("c", 3)), start=100):
        made.feed(event({"choices": [{"text": text}], "usage": {"prompt_tokens": 2, "completion_tokens": count}}), t_ns)
    made.feed(DONE, 105)
    made.complete(200)
    assert (made.chunks, made.counted_tokens, made.t_first_ns, made.t_last_ns) == (2, 3, 100, 101)


def test_reasoning_is_output_too() -> None:
    made = exchange()
    made.feed(event({"choices": [{"delta": {"reasoning": "hm"}}]}), 100)
    assert made.t_first_ns == 100


def test_a_whole_answer_without_a_token_is_an_error_that_says_so() -> None:
    made = exchange()
    made.feed(DONE, 100)
    made.complete(200)
    assert made.status is RequestStatus.ERROR
    assert made.error == "the stream carried no token"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"error": {"message": "max_tokens is too large", "code": 400}}', "HTTP 400: max_tokens is too large"),
        (b'{"detail": "no such model"}', "HTTP 400: no such model"),
        (b"<html>\n nginx </html>", "HTTP 400: <html> nginx </html>"),
        (b"", "HTTP 400: (no body)"),
        (b"\xff" * 100_000, "HTTP 400: \\xff"),
    ],
)
def test_the_server_is_quoted_when_it_refuses(body: bytes, word: str) -> None:
    made = exchange()
    made.http_status = 400
    for begin in range(0, len(body), 7000):
        made.feed(body[begin : begin + 7000], 100)
    made.complete(200)
    assert (made.error or "").startswith(word)
    assert len(made.error or "") < 400


def test_a_request_ends_once() -> None:
    heard = Heard()
    made = exchange(heard)
    made.feed(token("a", [1]) + DONE, 100)
    made.complete(200)
    made.fail("too late", 300)
    made.cut(400)
    assert heard.ends == 1
    assert made.status is RequestStatus.OK
    assert made.record(7, 1).t_end_ns == 200


def test_a_request_in_flight_has_no_record() -> None:
    with pytest.raises(RuntimeError):
        exchange().record(1, 1)


def test_a_request_that_is_never_sent_has_its_reason_and_nothing_that_was_measured() -> None:
    heard = Heard()
    made = Exchange(3, heard, 5, True, 9, status=RequestStatus.DROPPED, error="the cap was reached")
    assert made.record(7, 2) == RequestRecord(
        index=3,
        status=RequestStatus.DROPPED,
        t_send_ns=None,
        t_first_token_ns=None,
        t_last_token_ns=None,
        t_end_ns=None,
        input_tokens=7,
        output_tokens=2,
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        chunks=0,
        error="the cap was reached",
        warmup=True,
        t_intended_ns=5,
        inflight_at_send=9,
    )
    assert heard.ends == 0
