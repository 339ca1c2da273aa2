"""Every format is read as what it means: times, lengths, hashes, who follows whom; however packed, line by line."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.trace_lines import MAIN, Turn
from runners.errors import RunnerError
from runners.trace.formats import FORMATS, detect_format, open_trace, read_trace
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session, Trace, TraceFacts
from runners.trace.source import TraceError
from tests.examples import examples
from tests.runners.trace import files

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return files.write_all(tmp_path_factory.mktemp("traces"))


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_file_is_recognized_and_its_sessions_keep_every_rule_of_the_internal_form(
    format: str, made: dict[str, Path]
) -> None:
    assert detect_format(made[format]) == format
    trace = read_trace(made[format])
    assert trace.facts.format == format
    assert trace.facts.source == made[format].name
    files.assert_sound(trace)


def test_mooncake_says_what_its_numbers_mean(made: dict[str, Path]) -> None:
    trace = read_trace(made["mooncake"])
    rows = files.mooncake_rows()
    assert trace.facts == TraceFacts(
        format="mooncake", source="mooncake.jsonl", time_unit_s=0.001, block_tokens=512, tail_rule="ceil",
        hash_scope="global", has_sessions=False,
    )  # fmt: skip
    for row, session in zip(rows, trace.sessions, strict=True):
        (turn,) = session.turns
        assert turn.arrival_s == pytest.approx((row["timestamp"] - rows[0]["timestamp"]) / 1000)
        assert (turn.input_tokens, turn.output_tokens) == (row["input_length"], row["output_length"])
        assert turn.hashes == tuple(row["hash_ids"])
        assert (turn.think_s, turn.after) == (None, ())


def test_bailian_sessions_are_built_from_parents(made: dict[str, Path]) -> None:
    trace = read_trace(made["bailian"])
    rows = {row["chat_id"]: row for row in files.bailian_rows()}
    begin_s = min(row["timestamp"] for row in rows.values())
    assert (trace.facts.block_tokens, trace.facts.tail_rule, trace.facts.hash_scope) == (16, "ceil", "global")
    assert trace.facts.hashes_chained
    assert trace.requests == len(rows)
    by_name = {session.session: session for session in trace.sessions}
    assert len(by_name["9999"].turns) == 1  # its parent is not in the file
    forked = by_name["201"]
    by_hashes = {tuple(row["hash_ids"]): row for row in rows.values()}
    for turn in forked.turns:
        row = by_hashes[turn.hashes]
        assert turn.arrival_s == pytest.approx(row["timestamp"] - begin_s)
        waited = [by_hashes[forked.turns[place].hashes]["chat_id"] for place in turn.after]
        assert waited == ([] if row["parent_chat_id"] == -1 else [row["parent_chat_id"]])
    assert sorted(turn.after for turn in forked.turns).count((0,)) == 2  # two follow-ups of one request


def test_bailian_hashes_that_are_no_prefix_hashes_are_stated_as_such(tmp_path: Path) -> None:
    rows = files.bailian_rows()
    for row in rows:
        row["hash_ids"][-1] = 7  # one block's content, after many others
    path = tmp_path / "blocks.jsonl"
    path.write_bytes(files.lines(rows))
    assert not read_trace(path).facts.hashes_chained


def test_bailian_lines_need_not_be_in_order(tmp_path: Path, made: dict[str, Path]) -> None:
    path = tmp_path / "bailian.jsonl"
    path.write_bytes(files.lines(files.bailian_rows()[::-1]))
    assert read_trace(path) == read_trace(made["bailian"])


def agents(session: Session) -> list[tuple[str, int]]:
    return [(turn.agent, turn.turn) for turn in session.turns]


def test_sub_agents_begin_when_they_were_launched_and_are_waited_for_where_they_came_back(
    made: dict[str, Path],
) -> None:
    trace = read_trace(made["agentic"])
    assert (trace.facts.block_tokens, trace.facts.tail_rule, trace.facts.hash_scope) == (64, "floor", "session")
    assert [session.arrival_s for session in trace.sessions] == [0, 0, 0]
    turns = trace.sessions[0].turns
    places = {who: place for place, who in enumerate(agents(trace.sessions[0]))}
    own = [turns[places[MAIN, number]] for number in range(3)]
    # agent_1 came back at 36.5 after 31 s, agent_2 at 46 after 40.5: both began at 5.5, half a second after the answer.
    assert turns[places["agent_1", 0]].arrival_s == pytest.approx(5.5)
    assert turns[places["agent_1", 0]].think_s == pytest.approx(0.5)
    assert turns[places["agent_1", 0]].after == (places[MAIN, 0],)
    assert turns[places["agent_1", 1]].arrival_s == pytest.approx(14.5)
    assert turns[places["agent_1", 1]].after == (places["agent_1", 0],)
    assert turns[places["agent_2", 1]].think_s is None  # how long its first answer took is not recorded
    assert set(own[1].after) == {places[MAIN, 0], places["agent_1", 1], places["agent_2", 1]}
    assert own[1].think_s == pytest.approx(4.0)  # since the later of the two came back, not since the answer before
    # agent_3 runs in the background: it begins at its t, and no request waits for it.
    assert turns[places["agent_3", 0]].arrival_s == pytest.approx(58.4)
    assert own[2].after == (places[MAIN, 1],)
    assert own[2].think_s == 12.0
    assert not any(places["agent_3", 1] in turn.after for turn in turns)


def test_a_sub_agents_times_may_count_from_the_session(tmp_path: Path) -> None:
    """As some files have them: the same turns come out."""
    relative, absolute = files.agentic_session(), files.agentic_session()
    begins = {"agent_1": 5.5, "agent_2": 5.5, "agent_3": 58.4}
    for entry in absolute["requests"]:
        for request in entry.get("requests", ()):
            request["t"] += begins[entry["agent_id"]]
    actual = []
    for name, session in (("relative", relative), ("absolute", absolute)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(session, indent=2))
        actual.append(read_trace(path).sessions[0])
    assert agents(actual[0]) == agents(actual[1])
    for one, other in zip(actual[0].turns, actual[1].turns, strict=True):
        assert one.arrival_s == pytest.approx(other.arrival_s)
        assert one.after == other.after


def pack(content: bytes, how: str, member: str) -> bytes:
    if how == "gz":
        return gzip.compress(content)
    if how == "xz":
        return lzma.compress(content, preset=0)
    packed = files.tar_of((f"./._{member}", b"junk"), ("traces/readme.txt", b"no trace"), (f"traces/{member}", content))
    return packed if how == "tar" else pack(packed, how.removeprefix("tar."), "")


@pytest.mark.parametrize("how", ["gz", "xz", "tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize("format", list(FORMATS))
def test_packing_changes_nothing_whatever_the_name(
    format: str, how: str, made: dict[str, Path], tmp_path: Path
) -> None:
    plain = read_trace(made[format])
    path = tmp_path / "some.trace"
    path.write_bytes(pack(made[format].read_bytes(), how, "inside.jsonl"))
    packed = read_trace(path)
    assert packed.sessions == plain.sessions
    assert replace(packed.facts, source="") == replace(plain.facts, source="")


def test_a_folder_of_sessions_is_a_trace(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps(files.agentic_session(f"s{number}", number)))
    (tmp_path / "notes.md").write_text("not a trace")
    assert [session.session for session in read_trace(tmp_path).sessions] == ["s0", "s1", "s2"]


@pytest.mark.parametrize("format", list(FORMATS))
def test_what_is_converted_reads_back_the_same(format: str, made: dict[str, Path], tmp_path: Path) -> None:
    trace = read_trace(made[format])
    path = tmp_path / "again.jsonl.gz"
    written = write_trace(path, trace.facts, trace.sessions)
    again = read_trace(path)
    assert again.sessions == trace.sessions
    assert replace(again.facts, format=format, source=trace.facts.source, time_unit_s=trace.facts.time_unit_s) == (
        trace.facts
    )
    assert (written.sessions, written.requests) == (len(trace.sessions), trace.requests)
    assert written.span_s == trace.span_s
    first = path.read_bytes()
    write_trace(path, trace.facts, trace.sessions)
    assert path.read_bytes() == first


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[Session]:
        yield files.sessions()[0]
        raise RuntimeError("the source broke off")

    with pytest.raises(RuntimeError):
        write_trace(tmp_path / "t.jsonl", files.FACTS, broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sessions", "rule"),
    [
        (files.sessions()[::-1], "not at 0"),
        ((files.sessions()[0],) * 2, "comes twice"),
        ((replace(files.sessions()[0], turns=()),), "no turns"),
    ],
)
def test_sessions_that_break_a_rule_are_not_written(sessions: tuple[Session, ...], rule: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=rule):
        write_trace(tmp_path / "t.jsonl", files.FACTS, sessions)
    assert not (tmp_path / "t.jsonl").exists()


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Sessions whose prompts branch off earlier ones anywhere."""
    facts = replace(
        files.FACTS,
        block_tokens=draw(st.integers(2, 64)),
        tail_rule=draw(st.sampled_from(["ceil", "floor"])),
        hash_scope=draw(st.sampled_from(["global", "session"])),
    )
    ids = itertools.count(draw(st.integers(0, 1 << 40)))
    sessions, arrival_s = [], 0.0
    for number in range(draw(st.integers(1, 4))):
        turns: list[Turn] = []
        numbers = {MAIN: 0, "a": 0}
        now_s = arrival_s
        for place in range(draw(st.integers(1, 6))):
            base = draw(st.sampled_from(turns)).hashes if turns else ()
            hashes = (*base[: draw(st.integers(0, len(base)))], *itertools.islice(ids, draw(st.integers(1, 5))))
            tail = draw(st.integers(0, facts.block_tokens - 1))
            agent = draw(st.sampled_from([MAIN, "a"]))
            tokens = len(hashes) * facts.block_tokens + (tail if facts.tail_rule == "floor" else -tail)
            after = tuple(sorted(draw(st.sets(st.integers(0, place - 1), max_size=2)))) if place else ()
            think_s = draw(st.none() | st.floats(0, 1e4))
            turns.append(
                files.make_turn(agent, numbers[agent], now_s, think_s, tokens, draw(st.integers(0, 99)), hashes, after)
            )
            numbers[agent] += 1
            now_s += draw(st.floats(0, 1e3))
        sessions.append(Session(f"s{number}", tuple(turns)))
        arrival_s += draw(st.floats(0, 1e3))
    return Trace(facts, tuple(sessions))


@given(trace=traces())
@settings(max_examples=examples(60), deadline=None)
def test_any_trace_survives_its_file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "property.jsonl"
    write_trace(path, trace.facts, trace.sessions)
    again = read_trace(path)
    assert again.sessions == trace.sessions
    assert replace(again.facts, source=trace.facts.source) == trace.facts


def test_prompts_that_repeat_their_history_do_not_make_the_file_repeat_it(tmp_path: Path) -> None:
    turns = tuple(
        files.make_turn(MAIN, place, float(place), None, 16 * 50 * (place + 1), 1, tuple(range(50 * (place + 1))))
        for place in range(40)
    )
    path = tmp_path / "long.jsonl"
    write_trace(path, files.FACTS, [Session("s", turns)])
    assert path.stat().st_size < 40_000  # 41,000 hashes in memory, 2,000 in the file
    assert read_trace(path).sessions[0].turns == turns


def test_sessions_are_read_as_they_are_asked_for(made: dict[str, Path], tmp_path: Path) -> None:
    """The damage behind the second session is met only by who asks for the third."""
    for format in ("agentic", "tracon", "mooncake"):
        text = made[format].read_bytes().splitlines(keepends=True)
        path = tmp_path / f"{format}.jsonl"
        actual = 3 if format == "tracon" else 2
        path.write_bytes(b"".join(text[:actual]) + b"{damaged\n")
        facts, sessions = open_trace(path, format)
        assert facts.format == format
        assert [session.session for session in itertools.islice(sessions, 2)]
        with pytest.raises(TraceError) as refusal:
            next(sessions)
        assert (refusal.value.file, refusal.value.line) == (path.name, actual + 1)


def test_progress_is_shares_and_ends_at_one(made: dict[str, Path]) -> None:
    for format, path in made.items():
        shares: list[float] = []
        list(open_trace(path, format, shares.append)[1])
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_a_format_that_does_not_exist_is_refused_by_name(made: dict[str, Path]) -> None:
    with pytest.raises(RunnerError, match="no trace format 'csv'"):
        open_trace(made["mooncake"], "csv")


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared traces are not here")
def test_the_shared_mooncake_trace_keeps_the_rules() -> None:
    trace = read_trace(DATA / "mooncake_conversation_trace.jsonl.xz")
    assert trace.requests == 12_031


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared traces are not here")
def test_the_shared_agentic_trace_keeps_the_rules() -> None:
    _, sessions = open_trace(DATA / "agentic_sessions_dev.tar.xz")
    requests = subs = 0
    for session in itertools.islice(sessions, 40):  # the first 40 of 355: the rest takes seconds
        requests += len(session.turns)
        subs += sum(turn.agent != MAIN for turn in session.turns)
    assert requests > 1000
    assert subs > 50


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_trace_is_on_disk_before_it_has_its_name(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def note_size(file: int) -> None:
        sizes.append(os.fstat(file).st_size)

    monkeypatch.setattr("os.fsync", note_size)
    path = tmp_path / f"t.jsonl{suffix}"
    write_trace(path, files.FACTS, files.sessions())
    assert sizes[0] == path.stat().st_size
