"""`tracon replay` as an operator uses it: any trace, a server that runs, data on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from runners.cli import app
from runners.cli.replay import progress_line
from runners.load.replay_messages import ReplayTick
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session
from tests.runners.command import refusal_of
from tests.runners.load.traces import chain, read_turns, trace_of
from tests.servers.truth_server import TruthServer


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer() as running:
        yield running


def tracon(*arguments: str) -> Result:
    """The command in this process: what it needs takes seconds to import."""
    return CliRunner().invoke(app, ["replay", *arguments])


def trace_file(folder: Path, **facts: object) -> Path:
    path = folder / "sessions.jsonl"
    made = trace_of(chain("a", 3), chain("b", 2), **facts)
    write_trace(path, made.facts, made.sessions)
    return path


def test_a_trace_is_replayed_and_summed_up_as_json(server: TruthServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = tracon(
        str(trace_file(tmp_path)), "--url", server.url(ttft_ms=5, itl_ms=1), "--out", str(out), "--block-tokens", "8",
        "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["spec"]["model"] == "m"
    assert report["outcome"]["stop_reason"] == "complete"
    assert report["outcome"]["completed"] == 5
    assert report["numbers"]["ttft_p50_s"]["value"] > 0.005
    assert report["numbers"]["ttft_p50_s"]["n"] == 5
    assert report["numbers"]["apc"]["value"] is None
    assert report["numbers"]["apc"]["reason"]
    assert report["numbers"]["apc_bound_intra"]["value"] == pytest.approx((8 + 16 + 8) / (10 + 18 + 26 + 10 + 18))
    assert len(read_turns(out / "metrics.jsonl")) == 5
    assert "5 turns" in done.stderr or "reading sessions.jsonl" in done.stderr


def test_a_foreign_trace_is_converted_first(server: TruthServer, tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]},
        {"timestamp": 100, "input_length": 1030, "output_length": 2, "hash_ids": [0, 2, 3]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = tracon(str(path), "--url", server.url(ttft_ms=5, itl_ms=1), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    assert "2 of 2 turns completed" in done.stdout
    assert "trace span 0.1 s" in done.stdout
    truths = server.take_rows()
    prompts = {len(truth.prompt): truth.prompt for truth in truths[-2:]}
    assert sorted(prompts) == [600, 1030]
    assert prompts[600][:512] == prompts[1030][:512]


def test_failed_turns_are_an_exit_code_of_their_own(server: TruthServer, tmp_path: Path) -> None:
    url = server.url(itl_ms=0, status=500, refuse=0)
    done = tracon(str(trace_file(tmp_path)), "--url", url, "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "1 failed" in done.stdout


def test_a_prompt_that_the_model_cannot_take_is_refused_before_anything_is_sent(
    server: TruthServer, tmp_path: Path
) -> None:
    """The server says it takes 131072 tokens."""
    made = trace_of(chain("short", 1), chain("long", 1), block_tokens=200_000)
    path = tmp_path / "long.jsonl"
    write_trace(path, made.facts, [_with_input(session, 200_002) for session in made.sessions])
    server.take_rows()
    done = tracon(str(path), "--url", server.url(), "--out", str(tmp_path / "out"))
    refused = refusal_of(done)
    assert "200005 tokens" in str(refused)
    assert "131072" in str(refused)
    assert "tracon trace scale" in refused.remedy
    assert not server.take_rows()


def test_what_cannot_be_replayed_is_refused_by_name(tmp_path: Path) -> None:
    gone = tracon(str(trace_file(tmp_path)), "--url", "http://127.0.0.1:1", "--out", str(tmp_path / "out"))
    assert "http://127.0.0.1:1/v1/models does not answer" in str(refusal_of(gone))


def test_a_url_with_a_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    url = "http://me:hidden@127.0.0.1:1"
    done = tracon(str(trace_file(tmp_path)), "--url", url, "--out", str(tmp_path / "out"))
    assert "contains a user or a password" in str(refusal_of(done))
    assert "hidden" not in f"{refusal_of(done)}{done.output}"


def test_the_progress_line_says_how_long_it_will_take() -> None:
    tick = ReplayTick(
        t_ns=0,
        elapsed_s=30.0,
        phase="replay",
        fraction=0.25,
        turns=100,
        sent=30,
        completed=24,
        failed=1,
        inflight=5,
        inflight_sessions=4,
        waiting_sessions=2,
        sessions_done=3,
        sessions=12,
        pending_prefill_tokens=100,
        ttft_p90_s=0.25,
    )
    assert progress_line(tick) == (
        "25 of 100 turns, 3 of 12 sessions, 4 sessions in flight, 2 waiting, 1 failed, TTFT p90 250 ms, about 90 s left"
    )
    assert progress_line(replace(tick, trace_span_s=600.0)).endswith("about 570 s left")


def _with_input(session: Session, tokens: int) -> Session:
    turns = (msgspec.structs.replace(turn, input_tokens=tokens) for turn in session.turns)
    return replace(session, turns=tuple(turns))
