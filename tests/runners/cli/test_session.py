"""`tracon session`: where one session lived, from the decision logs of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import pytest

from results.records.decisions import (
    ClusterView,
    Decision,
    DecisionRecord,
    InstanceLoad,
    KvTransfer,
    RoutedOutcome,
    RoutedRequest,
)
from runners.cli.session import _describe_movement, build_life
from tests.runners.command import Tracon
from tests.runners.router.logs import write_log

CLUSTER = ClusterView((InstanceLoad("e0"), InstanceLoad("e1")), 0)
MOVED = KvTransfer(
    "m-1", "migration", "mooncake", "e0", "e1", "transferred", attempts=1, prefix_tokens=1024, external_tokens=1024,
    bytes=524_288, t_begin_ns=10, t_done_ns=31_000_010,
)  # fmt: skip


def pick(
    seq: int,
    turn: int,
    instance: str,
    reason: str,
    outcome: RoutedOutcome | None,
    *,
    session: str = "s-1",
    migrate_from: str = "",
) -> DecisionRecord:
    request = RoutedRequest(f"r{seq}", session, turn, 100 * (turn + 1), 8, 16, {"e0": 16, "e1": 32})
    decision = Decision("ear", instance, reason, migrate_from=migrate_from)
    return DecisionRecord(seq, 1_000_000_000 * (seq + 1), 5.0, request, CLUSTER, decision, outcome)


RECORDS = (
    pick(0, 0, "e0", "cold", RoutedOutcome("ok", first_byte_s=0.1, cached_tokens=0)),
    pick(1, 0, "e1", "cold", RoutedOutcome("ok"), session="s-10"),
    pick(2, 1, "e0", "affinity", RoutedOutcome("ok", first_byte_s=0.2, cached_tokens=96)),
    pick(3, 2, "e1", "migration",
         RoutedOutcome("ok", first_byte_s=0.3, cached_tokens=192, migration="transferred", transfer=MOVED),
         migrate_from="e0"),
    pick(4, 3, "e0", "affinity", RoutedOutcome("error", error="connection refused")),
    pick(5, 3, "e1", "affinity", None),
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "20260131-120000-routing-cpu-tiny"
    for cell in ("20260131_ear/trial_0", "20260131_lmetric/trial_0"):
        write_log(folder / "results" / cell / "decisions.jsonl", RECORDS if "ear" in cell else RECORDS[:3])
    return folder


def test_a_life_is_made_of_the_turns_that_were_served() -> None:
    lived = build_life(RECORDS, "ear", "s-1")
    assert [(stay.instance, stay.first_turn, stay.last_turn, stay.reason, stay.migration) for stay in lived.stays] == [
        ("e0", 0, 1, "cold", ""), ("e1", 2, 2, "migration", "transferred")
    ]  # fmt: skip
    assert [pick.seq for pick in lived.picks] == [0, 2, 3, 4, 5]
    assert lived.begin_ns == RECORDS[0].t_ns


def test_it_is_told_turn_by_turn(run: Path, tracon: Tracon) -> None:
    done = tracon("session", str(run), "s-1", "--cell", "ear")
    assert done.returncode == 0
    assert "lived at e0 -> e1 (transferred)" in done.stdout
    moved = next(line for line in done.stdout.splitlines() if "migration " in line and "1024" in line)
    assert "transferred e0 -> e1: 1024 of 1024 tokens, 0.524 MB in 31 ms" in moved
    assert "affinity; error" in done.stdout
    assert "lmetric" not in done.stdout


@pytest.mark.parametrize(
    ("migration", "status", "said"),
    [
        ("unneeded", "unneeded", "unneeded e0 -> e1: the target lacks 0"),
        ("recomputed", "refused", "recomputed e0 -> e1: refused, the target lacks 0"),
    ],
)
def test_what_moved_no_kv_says_why(migration: str, status: Literal["unneeded", "refused"], said: str) -> None:
    kv = KvTransfer("m-1", "migration", "mooncake", "e0", "e1", status, "the target lacks 0")
    outcome = RoutedOutcome("ok", migration=migration, transfer=kv)
    decision = pick(0, 1, "e1", "migrated", outcome, migrate_from="e0").decision
    assert _describe_movement(decision, outcome) == said


def test_every_cell_answers_in_json(run: Path, tracon: Tracon) -> None:
    done = tracon("session", str(run), "s-10", "--json")
    assert [(each["session"], len(each["turns"])) for each in done.data()] == [("s-10", 1), ("s-10", 1)]
    assert "gap:" in done.stderr, "what is wrong with the logs is said"
    (one,) = tracon("session", str(run), "s-1", "--json", "--cell", "ear").data()
    assert list(one) == ["cell", "session", "stays", "turns"]
    assert [turn["at_s"] for turn in one["turns"]] == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert one["turns"][2]["transfer"] == asdict(MOVED)
    assert one["turns"][4] == {
        "seq": 5, "turn": 3, "at_s": 5.0, "request": "r5", "instance": "e1", "reason": "affinity", "owner": "",
        "prefill": "", "input_tokens": 400, "indexed_tokens": 32, "cached_tokens": None, "first_byte_s": None,
        "status": "", "migrate_from": "", "migration": "", "transfer": None,
    }  # fmt: skip


@pytest.mark.parametrize(("session", "said"), [("s-7", "e.g. s-1, s-10"), ("s-", "begins 2 sessions")])
def test_a_session_that_is_not_there_or_not_one_is_refused(session: str, said: str, run: Path, tracon: Tracon) -> None:
    refused = tracon("session", str(run), session)
    assert refused.returncode == 2
    assert said in refused.stderr.lower()
