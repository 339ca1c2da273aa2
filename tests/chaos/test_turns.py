"""A turn that is lost without a word is seen, also in an attempt that failed; an answer or a refusal is no loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from results.records.layout import RunLayout, TrialLayout, name_spec_beside
from results.records.load_specs import ReplaySpec
from results.records.schemas import RequestStatus
from runners.load.client import Connection, LoadClient
from runners.load.replay import read_plan
from runners.load.replay_plan import make_request_prefix
from runners.load.stream import Exchange
from tests.chaos import audit
from tests.chaos.audit import Findings
from tests.chaos.turns import SentTurn, Traffic, list_lost, why_lost
from tests.runners.load.traces import chain, replay_spec, trace_of

OK, ERROR, CUT, DROPPED = RequestStatus.OK, RequestStatus.ERROR, RequestStatus.CUT, RequestStatus.DROPPED
SEED = 7


def at(seconds: float) -> int:
    return round((1000.0 + seconds) * 1e9)


def row(index: int = 0, send_s: float | None = 0.0, end_s: float | None = 0.1, **changes: Any) -> SentTurn:
    """A whole answer of three tokens; session `s<n>` has turns 3n to 3n + 2."""
    whole: dict[str, Any] = {"status": OK, "http_status": 200, "finish_reason": "length", "completion_tokens": 3}
    if send_s is None:
        whole = {"status": CUT, "http_status": None, "finish_reason": None, "completion_tokens": None}
    return SentTurn(
        **{
            "request": f"{make_request_prefix(SEED)}{index}",
            "index": index,
            "session": f"s{index // 3}",
            "turn": index % 3,
            "t_send_ns": None if send_s is None else at(send_s),
            "t_end_ns": None if end_s is None else at(end_s),
            "output_tokens": 3,
            **whole,
            **changes,
        }
    )


def failed(text: str | None, http_status: int | None = None, **changes: Any) -> SentTurn:
    return row(**{"status": ERROR, "error": text, "http_status": http_status, "completion_tokens": None, **changes})


def decision(
    index: int = 0, begin_s: float = 0.0, last_byte_s: float = 0.1, status: str | None = "ok"
) -> DecisionRecord:
    request = RoutedRequest(f"{make_request_prefix(SEED)}{index}", f"s{index // 3}", index % 3, 8, 3, 16, {})
    return DecisionRecord(
        seq=index, t_ns=at(begin_s), decide_us=1.0, request=request, cluster=ClusterView((), 0),
        decision=Decision("p", "i0", "only"), t_dispatch_ns=at(begin_s),
        outcome=None if status is None else RoutedOutcome(status, last_byte_s=last_byte_s),
    )  # fmt: skip


def lost(turns: Sequence[SentTurn], decisions: Sequence[DecisionRecord], **more: Any) -> list[str]:
    return list(list_lost(Traffic(turns, decisions, **more)))


class Listener:
    def first_token(self, exchange: Exchange) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...


def exchange(http_status: int = 200) -> Exchange:
    made = Exchange(0, Listener(), at(0), t_send_ns=at(0))
    made.http_status = http_status
    return made


def row_of(made: Exchange) -> SentTurn:
    """As the load writes it."""
    return msgspec.convert(made.sent_fields(8, 3) | {"request": "r"}, SentTurn)


TOKEN = b'data: {"choices": [{"text": "a", "token_ids": [1]}]}\n\n'
USAGE = b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"
BROKEN = b'data: {"error": {"message": "the instance failed"}}\n\n'


@pytest.mark.parametrize("stream", [TOKEN + USAGE + DONE, BROKEN + DONE, TOKEN + BROKEN])
def test_a_whole_answer_and_an_error_event_are_no_loss(stream: bytes) -> None:
    made = exchange()
    made.feed(stream, at(0.1))
    made.complete(at(0.1))
    assert why_lost(row_of(made)) == ""


@pytest.mark.parametrize("stream", [TOKEN, TOKEN + USAGE, TOKEN + DONE, DONE, TOKEN + b"data: {\n\n" + DONE])
def test_a_stream_that_ends_as_if_whole_but_is_not_is_a_loss(stream: bytes) -> None:
    """Its row may hold an error text: the load noticed, and no error event came."""
    made = exchange()
    made.feed(stream, at(0.1))
    made.complete(at(0.1))
    assert why_lost(row_of(made))


def test_a_refusal_and_a_connection_that_was_cut_are_no_loss() -> None:
    refused, cut = exchange(http_status=503), exchange()
    refused.complete(at(0.1))
    connection = Connection(cast(LoadClient, SimpleNamespace(forget=lambda connection: None)))
    connection.exchange = cut
    cut.feed(TOKEN, at(0.1))
    connection.connection_lost(None)
    cut.t_end_ns = at(0.2)
    assert why_lost(row_of(refused)) == ""
    assert why_lost(row_of(cut)) == ""
    assert why_lost(failed("cannot connect: [Errno 111] Connection refused")) == ""
    assert why_lost(failed(None)) != ""


def test_a_turn_that_hangs_is_a_loss_whatever_its_status() -> None:
    assert why_lost(failed("timed out: the stream stalled, nothing came for 300 s"))
    assert why_lost(row(status=CUT, end_s=58.0))
    assert why_lost(row(end_s=58.0))
    assert not why_lost(row(status=CUT, end_s=8.0))


LATER = [row(1, 5.0, 5.1), decision(1, 5.0)]
"""What shows that the router lived on for five seconds."""


@pytest.mark.parametrize(
    "turn",
    [row(), failed("connection closed before any byte of the response"), failed("connection closed mid-response", 200)],
)
def test_a_turn_of_which_the_router_has_no_record_is_seen_where_it_lived_on(turn: SentTurn) -> None:
    later, recorded = LATER
    assert isinstance(later, SentTurn)
    assert isinstance(recorded, DecisionRecord)
    assert len(lost([turn, later], [recorded])) == 1
    assert len(lost([turn], [], is_log_closed=True)) == 1
    assert lost([turn, later], [recorded], records_lost=1) == [], "the router counted it"
    assert lost([turn, later], [recorded], starved=[(at(-1), at(1))]) == [], "it could not write"
    assert len(lost([turn, later], [recorded], starved=[(at(2.5), at(3))])) == 1
    assert lost([turn], []) == [], "a router that is killed loses what it wrote last"
    assert lost([turn, later], [decision(0, status="error" if turn.error else "ok"), recorded]) == []


def test_a_record_of_a_turn_whose_kv_moved_may_wait_for_its_counts() -> None:
    moved = KvTransfer("t", "handover", "mooncake", "a", "b", "transferred")
    waits = msgspec.structs.replace(decision(1, 5.0), outcome=RoutedOutcome("ok", transfer=moved))
    late = msgspec.structs.replace(decision(1, 9.0), outcome=RoutedOutcome("ok", transfer=moved))
    assert lost([row(), row(1, 5.0, 5.1)], [waits]) == []
    assert len(lost([row(), row(1, 9.0, 9.1)], [late])) == 1


def test_a_turn_that_was_refused_or_never_reached_the_router_needs_no_record() -> None:
    texts = [("HTTP 503: the router is shutting down", 503), ("cannot connect: [Errno 24] Too many open files", None)]
    for text, status in texts:
        assert lost([failed(text, status)], [], is_log_closed=True) == []
    assert lost([row(send_s=None, end_s=None)], [], is_log_closed=True) == []


def test_what_router_and_client_say_of_a_turn_must_agree() -> None:
    assert len(lost([row()], [decision(status=None)])) == 1
    assert len(lost([row(status=CUT, end_s=20.0)], [decision()])) == 1
    assert lost([row(status=CUT, end_s=20.0)], [decision(status="aborted", last_byte_s=20.0)]) == []


@pytest.fixture
def replay(tmp_path: Path) -> ReplaySpec:
    """Two sessions of three turns, each 20 ms after the one before."""
    trace = trace_of(chain("s0", 3), chain("s1", 3))
    return replay_spec("http://127.0.0.1:1", trace, tmp_path, seed=SEED, max_duration_s=100.0)


def lost_of(spec: ReplaySpec, turns: Sequence[SentTurn], *others: DecisionRecord) -> list[str]:
    decisions = [decision(turn.index, (turn.t_send_ns or 0) / 1e9 - 1000.0) for turn in turns if turn.status is OK]
    return lost(turns, [*decisions, *others], spec=spec, plan=read_plan(spec)[0])


FIRST = [row(0, 0.0, 0.1), row(1, 0.2, 0.3), row(2, 0.4, 0.5)]
"""The session `s0`."""


def test_a_session_whose_next_turn_was_never_sent_is_lost(replay: ReplaySpec) -> None:
    unsent = [row(4, None, None), row(5, None, None)]
    busy = [row(0, 0.0, 0.1), row(1, 30.0, 30.1), row(2, 30.2, 30.3)]
    assert len(lost_of(replay, [row(3, 0.0, 0.1), *busy, *unsent])) == 1
    assert lost_of(replay, [row(3, 29.0, 29.1), *busy, *unsent]) == [], "the load was cut before it could be sent"
    assert lost_of(replace(replay, max_duration_s=5.0), [row(3, 0.0, 0.1), *busy, *unsent]) == [], "its hard stop"
    failing = [failed("HTTP 503: no", 503, index=3, request="x", session="s1"), *busy, *unsent]
    assert lost_of(replace(replay, max_failures_in_a_row=1), failing) == [], "too many turns had failed"


def test_a_turn_that_was_never_sent_is_seen_in_rows_that_were_cut(replay: ReplaySpec) -> None:
    """The load process was killed: a turn without a row may be in flight, but not for ever."""
    assert lost_of(replay, [row(3, 0.0, 0.1), *FIRST]) == []
    late = [row(0, 0.0, 0.1), row(1, 0.2, 0.3), row(2, 69.0, 69.1)]
    assert len(lost_of(replay, [row(3, 0.0, 0.1), *late])) == 1
    assert lost_of(replay, [row(3, 30.0, 30.1), *late]) == []


def test_a_turn_whose_answer_never_reached_its_client_is_seen(replay: ReplaySpec) -> None:
    answered = decision(3, 0.0)
    assert lost_of(replay, FIRST, answered) == [], "its row may not have been written yet"
    assert len(lost_of(replay, [*FIRST[:2], row(2, 14.0, 14.1)], answered)) == 1
    assert lost_of(replay, [*FIRST[:2], row(2, 14.0, 14.1)], decision(3, 0.0, status="error")) == []


def test_a_turn_that_was_dropped_without_a_failure_is_lost(replay: ReplaySpec) -> None:
    dropped = row(4, None, None, status=DROPPED)
    broken = failed("HTTP 503: no", 503, index=3, request="x", session="s1")
    assert len(lost_of(replay, [*FIRST, row(3, 0.0, 0.1), dropped])) == 1
    assert lost_of(replay, [*FIRST, broken, dropped]) == []


def attempt_folder(folder: Path, turns: Sequence[SentTurn], decisions: Sequence[DecisionRecord]) -> TrialLayout:
    """An attempt at a cell of `routing` that failed, in a run that has no finished cell."""
    run = RunLayout(folder)
    layout = TrialLayout(run.attempt("trials/unified/t0", 1))
    layout.root.mkdir(parents=True)
    run.trace.parent.mkdir()
    spec = replay_spec("http://127.0.0.1:1", trace_of(chain("s0", 3), chain("s1", 3)), run.trace.parent, seed=SEED)
    encode = msgspec.json.Encoder()
    name_spec_beside(layout.metrics).write_bytes(encode.encode(spec))
    layout.metrics.write_bytes(encode.encode_lines(turns))
    layout.decisions.write_bytes(encode.encode_lines(decisions))
    return layout


def test_a_silent_loss_in_an_attempt_that_failed_is_counted(tmp_path: Path) -> None:
    truncated = failed("the stream ended without [DONE] (after 1 token chunks)", 200, index=3, session="s1")
    decisions = [decision(0), decision(1, 0.2), decision(2, 0.4)]
    layout = attempt_folder(tmp_path, [*FIRST, truncated], decisions)
    findings = Findings()
    assert audit.check_sessions(tmp_path, findings) == 1
    assert findings.sentences == (
        "sessions lost by the router without an error event: attempt 1 at trials_unified_t0: turn 0 of s1 got neither "
        "an error event nor a cut connection: the stream ended without [DONE] (after 1 token chunks)",
    )
    layout.metrics.write_bytes(layout.metrics.read_bytes().replace(b"s1", b"s1\xff"))
    audit.check_sessions(tmp_path, findings := Findings())
    assert "line 4 of metrics.jsonl cannot be read" in " ".join(findings.sentences)


def test_what_a_kill_leaves_of_an_attempt_is_no_loss(tmp_path: Path) -> None:
    cut = failed("connection closed mid-response ([Errno 104] Connection reset by peer)", 200, index=3, session="s1")
    layout = attempt_folder(tmp_path, [*FIRST, cut], [decision(0), decision(1, 0.2)])
    for path in (layout.metrics, layout.decisions):
        path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    findings = Findings()
    assert audit.check_sessions(tmp_path, findings) == 1
    assert findings.sentences == ()


def test_requests_of_pd_lifecycle_are_audited_by_the_logs_of_their_routers(tmp_path: Path) -> None:
    attempt, router = (
        tmp_path / "attempts" / "sweep_C0_N256_O4" / "1",
        tmp_path / "results" / "lifecycle" / "engines" / "1",
    )
    attempt.mkdir(parents=True)
    router.mkdir(parents=True)
    encode = msgspec.json.Encoder()
    turns = [row(0), row(1, 5.0, 5.1), row(2, 10.0, 10.1)]
    (attempt / "requests.jsonl").write_bytes(encode.encode_lines(turns))
    (router / "decisions.jsonl").write_bytes(encode.encode_lines([decision(0), decision(2, 10.0)]))
    findings = Findings()
    assert audit.check_sessions(tmp_path, findings) == 1
    assert len(findings.sentences) == 1
    assert "turn 1 of s0 was answered, and the router" in findings.sentences[0]
