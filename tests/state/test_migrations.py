"""What a reader sees of sessions that migrate."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.events import CellChanged, CellState, Event, MigrationChanged
from state.bindings import MAX_LIVES, MAX_STAYS
from state.events import decode, encode
from state.migrations import MAX_MIGRATIONS, MAX_REFUSALS, PHASES, QUIET_S, MigrationsView, make_migrations_json
from state.model import RunView
from state.view import list_new_feed_lines
from tests.state.moves import CELL, OTHER, STORY, second, step
from tests.state.plans import folded


def migrations(*events: Event) -> MigrationsView:
    view = folded(*events).migrations
    assert view is not None
    return view


def lines(*events: Event) -> list[str]:
    return [f"{line.level} {line.subject}: {line.text}" for line in folded(*events).feed[1:]]


def test_a_migration_is_one_row_from_its_beginning_to_its_end() -> None:
    begun = step("started", 3.0, text="e0 is hot")
    (row,) = migrations(begun).rows
    assert (row.phase, row.t_unix_s, row.ended_unix_s, row.text) == ("started", 3.0, None, "e0 is hot")
    assert migrations(begun).counts_of(CELL).under_way == 1
    (row,) = migrations(step("started", 3.0, reason="hot"), step("failed", 4.0, reason="error", text="no answer")).rows
    assert (row.reason, row.text) == ("error", "hot, no answer")
    done = step("done", 3.4, reason="transferred", external_tokens=1024, bytes=524_288, transfer_s=0.031)
    (row,) = migrations(begun, done).rows
    assert (row.phase, row.reason, row.t_unix_s, row.ended_unix_s) == ("done", "transferred", 3.0, 3.4)
    assert (row.external_tokens, row.bytes, row.transfer_s, row.text) == (1024, 524_288, 0.031, "e0 is hot")
    counts = migrations(begun, done).counts_of(CELL)
    assert (counts.under_way, counts.of("done"), counts.tokens, counts.bytes) == (0, 1, 1024, 524_288)


def test_one_request_id_in_two_cells_is_two_migrations() -> None:
    view = migrations(step("started", 3.0), replace(step("started", 9.0), cell=OTHER))
    assert [(row.cell, row.t_unix_s) for row in view.rows] == [(CELL, 3.0), (OTHER, 9.0)]
    assert len(view.of(CELL)) == 1
    assert view.counts_of("no/cell").of("started") == 0


def test_an_end_whose_beginning_was_not_seen_is_a_row_too() -> None:
    (row,) = migrations(step("failed", 3.0, reason="no answer")).rows
    assert (row.phase, row.t_unix_s, row.ended_unix_s) == ("failed", 3.0, 3.0)


def test_another_attempt_begins_its_cell_anew_and_leaves_the_others() -> None:
    first = (CellChanged(CELL, CellState.RUNNING, 1), step("started", 3.0), step("done", 3.1, reason="transferred"))
    other = (CellChanged(OTHER, CellState.RUNNING, 1), replace(step("started", 4.0), cell=OTHER))
    again = (
        CellChanged(CELL, CellState.PENDING, 1),
        CellChanged(CELL, CellState.RUNNING, 2),
        step("started", 5.0, "x"),
    )
    view = migrations(*first, *other, *again)
    assert [(row.cell, row.attempt, row.migration) for row in view.rows] == [(OTHER, 1, "r3-0"), (CELL, 2, "x")]
    assert view.counts_of(CELL).by_phase == {"started": {"": 1}}
    assert view.counts_of(OTHER).of("started") == 1


def test_counts_are_by_phase_and_reason() -> None:
    counts = folded(*STORY).migrations.counts_of(CELL)  # type: ignore[union-attr]
    assert counts.by_phase == {
        "refused": {"no_colder_target": 2},
        "started": {"": 2},
        "done": {"transferred": 1},
        "failed": {"e1 did not answer": 1},
    }


def test_a_migration_of_a_cell_that_the_plan_does_not_have_changes_nothing() -> None:
    assert folded(replace(step("started", 1.0), cell="no/cell")).migrations is None


def test_the_past_is_bounded_and_refusals_push_no_migration_out() -> None:
    view = None
    events = [step("started", float(n), f"m{n}") for n in range(MAX_MIGRATIONS + 5)]
    refusals = [step("refused", float(n), f"x{n}", reason=f"{n}") for n in range(MAX_REFUSALS + 50)]
    view = migrations(*events, *refusals)
    phases = Counter(row.phase for row in view.rows)
    assert phases == {"started": MAX_MIGRATIONS, "refused": MAX_REFUSALS}
    assert view.rows[0].migration == "m5"
    counts = view.counts_of(CELL)
    assert counts.of("refused") == len(refusals)
    assert len(counts.by_phase["refused"]) < 30, "reasons without end are counted together"


# -- the feed -------------------------------------------------------------------------------------------------------


def test_the_feed_tells_what_an_operator_wants_to_know() -> None:
    told_lines = [line for line in lines(*STORY) if "session" in line]
    assert told_lines == [
        "info session s2: stays at e0, which is hot: no_colder_target, e1 has no room",
        "info session s1: migrates e0 -> e1: 9000 pending prefill tokens > 4096",
        "info session s1: migrated e0 -> e1: 1024 tokens transferred, 0.524 MB in 31 ms",
        "info session s2: migrates e0 -> e1",
        "warning session s2: did not migrate e0 -> e1, it stays: e1 did not answer",
    ]


def test_what_was_recomputed_and_what_was_not_counted_say_so() -> None:
    assert lines(step("done", 3.0, reason="recomputed", text="the source was quarantined")) == [
        "warning session s1: served at e1 without KV from e0: the source was quarantined"
    ]
    assert lines(step("done", 3.0, reason="unneeded", text="the target lacks 0")) == [
        "info session s1: migrated e0 -> e1, no KV had to be moved: the target lacks 0"
    ]
    assert lines(step("done", 3.0, reason="transferred", external_tokens=68_800, bytes=6.76e9, transfer_s=2.5))[
        0
    ].endswith("68800 tokens transferred, 6760 MB in 2500 ms")
    assert lines(step("done", 3.0, reason="transferred")) == ["info session s1: migrated e0 -> e1: tokens not counted"]


def test_refusals_do_not_flood_the_feed() -> None:
    flood = [step("refused", n / 10, f"r{n}", f"s{n % 7}", reason="cooldown") for n in range(int(20 * QUIET_S))]
    shown = [line for line in lines(*flood) if "stays" in line]
    assert len(shown) == 2, "one at once, one after the quiet time"
    assert shown[1].endswith(f"(and {10 * QUIET_S - 1:.0f} more since)")
    other = lines(*flood[:5], step("refused", 1.0, "r-x", reason="no_target"))
    assert len(other) == 2, "another reason makes a line at once"


@given(st.lists(st.floats(0, 200), min_size=1, max_size=80))
@settings(deadline=None)
def test_every_refusal_is_told_or_counted_for_the_next_line(times: list[float]) -> None:
    events = [step("refused", at, f"r{n}", reason="cooldown") for n, at in enumerate(sorted(times))]
    view = folded(*events)
    shown = [line.text for line in view.feed[1:]]
    reported = len(shown) + sum(int(text.rpartition("(and ")[2].split()[0]) for text in shown if "more since" in text)
    assert view.migrations is not None
    assert reported + view.migrations.quiet["cooldown"][1] == len(events)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 5), st.floats(0, 100)), min_size=1, max_size=60))
def test_no_story_is_counted_twice_or_lost(story: list[tuple[str, int, float]]) -> None:
    events = [step(phase, at, f"m{migration}", reason="why") for phase, migration, at in story]
    view = migrations(*events)
    counts = view.counts_of(CELL)
    assert {phase: counts.of(phase) for phase in PHASES if counts.of(phase)} == Counter(p for p, _, _ in story)
    assert {row.migration for row in view.rows} == {event.migration for event in events}
    assert all((row.phase == "started") == (row.ended_unix_s is None) for row in view.rows if row.phase != "refused")
    assert json.loads(json.dumps(make_migrations_json(view), allow_nan=False))


# -- where sessions lived -------------------------------------------------------------------------------------------


def stays(view: RunView, session: str) -> list[tuple[str, str, int, str]]:
    assert view.routing is not None
    return [(stay.instance, stay.why, stay.picks, stay.migration) for stay in view.routing.lives[session]]


def test_a_session_s_life_says_where_it_was_and_what_moved_it() -> None:
    view = folded(*STORY)
    assert stays(view, "s1") == [("e0", "cold", 2, ""), ("e1", "hot", 2, "r3-0")]
    assert stays(view, "s2") == [
        ("e0", "cold", 2, ""), ("e1", "hot", 1, ""), ("e0", "its migration to e1 failed", 0, "")
    ]  # fmt: skip
    assert stays(view, "s3") == [("e1", "cold", 1, "")]
    assert view.routing is not None
    assert view.routing.lives["s1"][0].since_unix_s == 0.0


def test_a_migration_whose_pick_no_tick_named_moves_the_session_all_the_same() -> None:
    view = folded(second(1.0, ("s1", "e0", "cold")), step("done", 3.0, reason="transferred"))
    assert stays(view, "s1") == [("e0", "cold", 1, ""), ("e1", "migrated", 0, "r3-0")]


def test_whether_the_pick_or_the_end_is_told_first_makes_no_difference() -> None:
    first, pick = second(1.0, ("s1", "e0", "cold")), second(3.0, ("s1", "e1", "hot"))
    done = step("done", 2.5, reason="transferred")
    assert stays(folded(first, done, pick), "s1") == stays(folded(first, pick, done), "s1")
    failed = (step("failed", 2.5, reason="no answer"), second(4.0, ("s1", "e0", "affinity")))
    told_first = folded(first, failed[0], pick, failed[1])
    assert stays(told_first, "s1") == [("e0", "cold", 2, "")]
    assert stays(folded(first, pick, *failed), "s1")[-1][:3] == ("e0", "its migration to e1 failed", 1)


def test_a_session_that_moves_before_a_tick_names_its_first_pick_was_elsewhere_first() -> None:
    done = step("done", 2.5, migration="r3-1", reason="transferred")
    picks = second(2.9, ("s1", "e0", "cold"), ("s1", "e1", "hot"))
    assert stays(folded(second(1.0), done, picks), "s1") == [("e0", "cold", 1, ""), ("e1", "hot", 1, "r3-1")]


def test_lives_are_those_of_one_cell() -> None:
    view = folded(second(1.0, ("s1", "e0", "cold")), second(2.0, ("s1", "e1", "cold"), cell=OTHER), step("done", 3.0))
    assert stays(view, "s1") == [("e1", "cold", 1, "")]


def test_lives_are_bounded_to_the_sessions_seen_last() -> None:
    picks = [second(float(n), (f"s{n}", "e0", "cold"), ("s0", f"e{n}", "cold")) for n in range(MAX_LIVES + 3)]
    view = folded(*picks)
    assert view.routing is not None
    lives = view.routing.lives
    assert (len(lives), len(lives["s0"])) == (MAX_LIVES, MAX_STAYS)
    assert "s0" in lives
    assert "s1" not in lives


def test_a_pick_without_a_session_or_a_place_belongs_to_nobody() -> None:
    view = folded(second(1.0, ("", "e0", "cold"), ("s1", "", "queue_full")))
    assert view.routing is not None
    assert view.routing.lives == {}


# -- what came between two views ------------------------------------------------------------------------------------


def test_what_was_told_between_two_views_is_what_the_events_between_say() -> None:
    before, after = folded(*STORY[:9]), folded(*STORY)
    assert list_new_feed_lines(before, before) == ()
    new = list_new_feed_lines(before, after)
    assert [line.text for line in new] == [line.text for line in after.feed[len(before.feed) :]]


def test_a_step_that_an_older_run_wrote_is_read() -> None:
    body = (
        b'{"cell":"trials/EAR/t0","migration":"r-1","session":"s","turn":3,"source":"e0","target":"e1","phase":"done",'
        b'"t_unix_s":5.0,"reason":"transferred","text":"","external_tokens":640,"bytes":327680,"transfer_s":0.02}'
    )
    event = decode("migration_changed", body)
    assert event == MigrationChanged(
        "r-1", "s", 3, "e0", "e1", "done", "transferred", "", 640, 327_680, 0.02, cell="trials/EAR/t0", t_unix_s=5.0
    )
    assert decode("migration_changed", encode(event)) == event
