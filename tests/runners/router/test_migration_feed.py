"""What the ticks say of migrations: each step once, in order, with what was counted of it."""

from __future__ import annotations

from time import perf_counter_ns

import msgspec

from results.records.decisions import Decision, Gate, KvTransfer
from runners.router import migration_feed
from runners.router.migration_feed import NOT_ASKED, MigrationFeed
from runners.router.transfer.movement import Movement
from tests.runners.router.fake_transfers import FakeTransfers
from tests.runners.router.views import ask

HOT = Gate("hot", 5000, 4000, True, "a has 5000 prompt tokens pending > 4000")
MOVES = Decision("ear", "b", "migrated", migrate_from="a", gates=(HOT,))
STAYS = Decision("ear", "a", "hot_cooldown", gates=(HOT, Gate("cooldown", 20, 0, False, "20 s of 30 s left")))
REQUEST = msgspec.structs.replace(ask(session="s", owner="a"), request="r-1")


def movement(status: str = "transferred") -> Movement:
    transfer = KvTransfer("t-1", "migration", "nixl", "a", "b", "failed", external_tokens=480, bytes=9)
    moved = Movement(FakeTransfers(), transfer, b"")
    reason = "" if status == "transferred" else "timed out"
    moved.change_transfer(status=status, reason=reason, t_begin_ns=10**9, t_done_ns=3 * 10**9)
    return moved


def test_a_migration_is_told_from_its_pick_to_its_count() -> None:
    feed, moved = MigrationFeed(perf_counter_ns), movement()
    feed.add_decision(1, REQUEST, MOVES)
    feed.add_served(perf_counter_ns(), REQUEST, MOVES, moved)
    (started,) = feed.take_steps()
    assert started.phase == "started", "its tokens are not counted yet"
    assert started.text == HOT.text, "why it moves"
    assert feed.take_steps() == ()
    moved.settled = True
    (done,) = feed.take_steps()
    assert (done.phase, done.reason, done.migration, done.source, done.target) == (
        "done", "transferred", "r-1", "a", "b",
    )  # fmt: skip
    assert (done.external_tokens, done.bytes, done.transfer_s) == (480, 9, 2.0)
    assert feed.take_steps(last=True) == ()


def test_what_is_never_counted_is_told_in_the_end() -> None:
    feed = MigrationFeed(perf_counter_ns)
    feed.add_served(perf_counter_ns(), REQUEST, MOVES, movement())
    assert feed.take_steps() == ()
    assert [line.phase for line in feed.take_steps(last=True)] == ["done"]
    long_ago_ns = perf_counter_ns() - migration_feed.COUNTED_WITHIN_NS - 1
    feed.add_served(long_ago_ns, REQUEST, MOVES, movement())
    assert [line.phase for line in feed.take_steps()] == ["done"]


def test_a_recomputed_migration_says_why_nothing_was_moved() -> None:
    feed, failed = MigrationFeed(perf_counter_ns), movement("failed")
    failed.settled = True
    feed.add_served(1, REQUEST, MOVES, failed)
    feed.add_served(2, REQUEST, MOVES, None)
    unneeded = movement("unneeded")
    unneeded.settled = True
    feed.add_served(3, REQUEST, MOVES, unneeded)
    taken = feed.take_steps()
    assert [(line.reason, line.text) for line in taken] == [
        ("recomputed", "timed out"), ("recomputed", NOT_ASKED), ("unneeded", "timed out"),
    ]  # fmt: skip
    assert {(line.external_tokens, line.transfer_s) for line in taken} == {(None, None)}


def test_a_failed_one_names_the_failure() -> None:
    feed = MigrationFeed(perf_counter_ns)
    feed.add_failed(5, REQUEST, MOVES, "retried", "HTTP 500")
    (line,) = feed.take_steps()
    assert (line.phase, line.reason, line.text) == ("failed", "retried", "HTTP 500")


def test_a_refusal_is_told_once_per_session_and_reason() -> None:
    feed = MigrationFeed(perf_counter_ns)
    for turn in range(3):
        feed.add_decision(turn, msgspec.structs.replace(REQUEST, turn=turn), STAYS)
    feed.add_decision(9, REQUEST, msgspec.structs.replace(STAYS, reason="hot_moving"))
    feed.add_decision(10, msgspec.structs.replace(REQUEST, session="other"), STAYS)
    taken = feed.take_steps()
    assert [(line.session, line.reason) for line in taken] == [
        ("s", "hot_cooldown"), ("s", "hot_moving"), ("other", "hot_cooldown"),
    ]  # fmt: skip
    first = taken[0]
    assert (first.phase, first.source, first.target, first.text) == ("refused", "a", "", "20 s of 30 s left")


def test_many_at_once_are_told_over_several_ticks() -> None:
    feed = MigrationFeed(perf_counter_ns)
    for place in range(migration_feed.AT_ONCE + 5):
        feed.add_decision(place, REQUEST, MOVES)
    taken = [feed.take_steps(), feed.take_steps(), feed.take_steps()]
    assert [len(lines) for lines in taken] == [migration_feed.AT_ONCE, 5, 0]
    assert [line.t_ns for line in taken[0] + taken[1]] == list(range(migration_feed.AT_ONCE + 5))


def test_picks_that_have_nothing_to_do_with_migrations_are_not_told() -> None:
    feed = MigrationFeed(perf_counter_ns)
    feed.add_decision(1, REQUEST, Decision("ear", "a", "bound", gates=(msgspec.structs.replace(HOT, passed=False),)))
    cached = Gate("cache", 1, 0, True, "it holds it")
    feed.add_decision(2, REQUEST, Decision("unified", "a", "affinity", gates=(cached,)))
    assert feed.take_steps() == ()
