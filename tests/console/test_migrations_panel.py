"""The Migrations panel: what an operator sees of sessions that moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from console import format as say
from console.feed import Picture
from console.glyphs import ASCII, UNICODE
from console.panels import migrations as rows
from console.panels.migrations import MigrationsPanel
from console.panels.routing import RoutingPanel
from console.pasts import PAST_SAMPLES, Pasts
from console.rows import instance_loads
from console.screens.dialogs import Detail
from console.screens.run import RunScreen
from console.widgets.timeline import HOT_TONE, Arrow, Band, Scene, count_band_lines, draw_scene
from results.records.events import MigrationChanged, RoutedLoad, RouterSampled
from state.lease import LeaseState
from state.migrations import fold_step_into_migrations
from state.status import to_json
from state.store import RunStore
from tests.console.conftest import (
    NARROW,
    WIDE,
    picture_of,
    press_and_see,
    see_footer,
    sees,
    shown,
    text,
    until,
    watching,
)
from tests.examples import examples

EAR = "trials/ear/t0"


@pytest.fixture(scope="module")
def picture(made: Callable[[str], Path]) -> Picture:
    return picture_of(made("routed"), LeaseState("none"))


def panel_of(pilot: Pilot[None]) -> MigrationsPanel:
    return pilot.app.screen.query_one(MigrationsPanel)


async def opened(pilot: Pilot[None]) -> MigrationsPanel:
    await press_and_see(pilot, "8", "from → to")
    return panel_of(pilot)


# -- rows -----------------------------------------------------------------------------------------------------------


def test_every_row_says_what_came_of_it_and_what_was_moved(picture: Picture) -> None:
    columns = rows.choose_migration_columns(119)
    keys = [column.key for column in columns]
    assert picture.view.migrations is not None
    migrations = picture.view.migrations.of(EAR)
    assert {rows.name_outcome(row) for row in migrations} >= {"transferred", "recomputed", "failed", "refused"}
    for row, made in zip(migrations, rows.make_migration_rows(picture, EAR, columns, UNICODE), strict=True):
        cells = dict(zip(keys, (text(content) for content in made.cells), strict=True))
        assert cells["session"] == row.session
        assert rows.name_outcome(row) in cells["phase"]
        if row.phase == "refused":
            assert cells["way"] == f"{row.source} stays"
            assert (cells["tokens"], cells["bytes"], cells["took"]) == ("", "", "")
        else:
            assert cells["way"] == f"{row.source} → {row.target}"
            assert cells["tokens"] == say.tokens(row.external_tokens)
            assert cells["took"] == say.short_ms(row.transfer_s)
        assert rows.find_migration(picture, EAR, made.key) == row
    assert rows.find_migration(picture, EAR, "unknown") is None


def test_what_needed_no_kv_is_counted_apart() -> None:
    moved = None
    for number, reason in enumerate(("transferred", "unneeded", "unneeded", "recomputed")):
        done = MigrationChanged(f"r{number}", "s", number, "e0", "e1", "done", reason, cell=EAR, t_unix_s=1.0)
        moved = fold_step_into_migrations(moved, done, 1)
    assert moved is not None
    assert text(rows.count_outcomes(moved.counts_of(EAR))).split("  ")[:3] == [
        "▼ 1 transferred", "▼ 2 unneeded", "▼ 1 recomputed",
    ]  # fmt: skip
    assert {rows.name_outcome(row) for row in moved.of(EAR)} == {"transferred", "unneeded", "recomputed"}


def test_what_is_under_way_is_neither_done_nor_failed(picture: Picture) -> None:
    begun = MigrationChanged("r-new", "s-1", 3, "e0", "e1", "started", cell=EAR, t_unix_s=1.0)
    moved = fold_step_into_migrations(None, begun, 1)
    changed = replace(picture, view=replace(picture.view, migrations=moved))
    (row,) = rows.make_migration_rows(changed, EAR, rows.choose_migration_columns(119), UNICODE)
    assert "▶ started" in text(row.cells[4])
    assert text(rows.count_outcomes(moved.counts_of(EAR))).strip() == "▼ 1 under way"


def test_the_counts_are_seen_in_80_columns(picture: Picture) -> None:
    head = [text(line) for line in rows.describe_cell(picture, EAR, 80)]
    assert all(len(line.rstrip()) <= 80 for line in head)
    assert all(part in " ".join(head) for part in (EAR, "migrations", "refused", "moved"))
    once = fold_step_into_migrations(
        None, MigrationChanged("r", "s", 3, "e0", "e1", "started", cell=EAR, t_unix_s=1.0), 1
    )
    one = replace(picture, view=replace(picture.view, migrations=once))
    assert "1 migration  " in text(rows.describe_cell(one, EAR, 200)[0])


@pytest.mark.parametrize(("pace", "partial"), [(0.0, True), (10.0, False)])
def test_counts_that_the_journal_has_only_in_part_say_so(picture: Picture, pace: float, partial: bool) -> None:
    plan = replace(picture.view.plan, inputs={"simulated": "a model"})
    simulated = replace(picture, view=replace(picture.view, plan=plan, pace=pace))
    assert (rows.SEEN_LIVE in text(rows.describe_cell(simulated, EAR, 200)[0])) is partial


def test_nothing_is_under_way_in_a_cell_that_is_over() -> None:
    begun = MigrationChanged("r-new", "s-1", 3, "e0", "e1", "started", cell=EAR, t_unix_s=1.0)
    counts = fold_step_into_migrations(None, begun, 1).counts_of(EAR)
    assert text(rows.count_outcomes(counts, running=False)).strip() == "▼ 1 without an end"


def test_the_bands_take_the_lines_that_the_table_leaves() -> None:
    assert rows.count_timeline_lines(8, 31, 0) == 31 - rows.TABLE_LEAST
    assert rows.count_timeline_lines(8, 16, 40) == 8 + 2, "at 80x24, below a head of two lines"
    assert rows.count_timeline_lines(8, 31, 100) == count_band_lines(8, 1)
    assert rows.count_timeline_lines(2, 31, 0) == count_band_lines(2)


def test_a_session_s_stays_are_listed(picture: Picture) -> None:
    assert picture.view.migrations is not None
    moved = next(row for row in picture.view.migrations.of(EAR) if rows.name_outcome(row) == "transferred")
    facts = [fact for _, fact in rows.list_life_facts(picture, EAR, moved.session)]
    assert len(facts) >= 2
    assert any(fact.startswith(f"{moved.target} ") and "migrated" in fact for fact in facts)
    assert "since then" in facts[-1]
    assert all("since then" not in fact for fact in facts[:-1])
    assert rows.list_life_facts(picture, EAR, "unknown") == [("its instances", "no pick of the session is stored")]


# -- the past of each cell ------------------------------------------------------------------------------------------


@given(st.integers(1, 3 * PAST_SAMPLES), st.integers(0, 3 * PAST_SAMPLES))
@settings(deadline=None, max_examples=examples(25))
def test_the_past_of_a_cell_is_bounded_and_loses_no_peak(seconds: int, peak: int) -> None:
    pasts = Pasts()
    for second in range(seconds):
        load = RoutedLoad("e0", True, "", 1, 9_999 if second == peak else second % 7, 0, 0)
        pasts.add(1000.0 + second, RouterSampled("a/cell", "ear", (load,)), 1)
    (past,) = pasts.frozen().values()
    assert len(past.pending) <= PAST_SAMPLES
    assert len(past.pending) * past.step_s >= min(seconds, PAST_SAMPLES) / 2
    assert [at for at, _ in past.pending] == sorted(at for at, _ in past.pending)
    highest = max(pending["e0"] for _, pending in past.pending)
    assert highest == (9_999 if peak < seconds else min(seconds - 1, 6))


def test_another_attempt_has_a_past_of_its_own() -> None:
    pasts = Pasts()
    load = RoutedLoad("e0", True, "", 1, 5, 0, 0, engine="plain-1")
    pasts.add(1.0, RouterSampled("a/cell", "ear", (load,)), 1)
    first = pasts.frozen()["a/cell"]
    pasts.add(9.0, RouterSampled("a/cell", "ear", (replace(load, engine="plain-2"),)), 2)
    assert [at for at, _ in first.pending] == [1.0]
    second = pasts.frozen()["a/cell"]
    assert ([at for at, _ in second.pending], second.instances) == ([9.0], {"e0": "plain-2"})


# -- the timeline ---------------------------------------------------------------------------------------------------

FLAT = tuple((float(second), 100.0) for second in range(60))
BANDS = (Band("e0", "series-0", FLAT), Band("e1", "series-1", FLAT), Band("e2", "series-2", FLAT))


def lines(scene: Scene, width: int, height: int) -> list[str]:
    return [text(tuple(line)) for line in draw_scene(scene, width, height, UNICODE)]


def test_an_arrow_goes_from_the_instance_left_to_the_one_reached() -> None:
    down = lines(Scene(BANDS, (Arrow(30.0, 0, 1, "good"),), 0, 60), 66, count_band_lines(3, 1))
    scale, *bands, _ = down
    assert "full height 100 tokens" in scale
    assert [line[:2] for line in bands] == ["e0", "  ", "e1", "  ", "e2"]
    assert (bands[1][36], bands[3].strip()) == ("▼", "")
    up = lines(Scene(BANDS, (Arrow(30.0, 2, 0, "good"),), 0, 60), 66, count_band_lines(3, 1))[1:-1]
    assert [line[36] for line in up] == ["█", "▲", "│", "│", "█"]


@given(
    st.integers(1, 9), st.integers(3, 40), st.integers(20, 150),
    st.lists(st.tuples(st.floats(-10, 80), st.integers(0, 9), st.integers(0, 9)), max_size=12),
)  # fmt: skip
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_draws_into_any_room(count: int, height: int, width: int, moves: list[tuple[float, int, int]]) -> None:
    bands = tuple(Band(f"instance-{n}", "", FLAT[n:]) for n in range(count))
    arrows = tuple(Arrow(at, source, target, "good") for at, source, target in moves)
    made = lines(Scene(bands, arrows, 0, 60), width, height)
    assert 3 <= len(made) <= height
    assert all(len(line) <= width for line in made[1:])
    named = sum(line.startswith("instance-") for line in made)
    assert named == min(count, height - 2)
    assert (" no room" in made[0]) == (named < count)


def test_a_second_that_was_not_sampled_is_blank_and_one_without_work_is_not() -> None:
    band = Band("e0", "", ((0.0, 50.0), (1.0, 0.0), (30.0, 100.0)))
    drawn_line = lines(Scene((band,), (), 0, 60), 66, 3)[1][6:]
    assert drawn_line[0] not in " _"
    assert drawn_line[1:3] == "__"
    assert drawn_line[10:28].strip() == ""
    assert drawn_line[30] == UNICODE.rise[8]


def test_an_instance_above_the_policys_threshold_is_marked_hot_and_the_threshold_is_said() -> None:
    band = Band("e0", "series-0", ((0.0, 1000.0), (20.0, 1001.0), (40.0, 2000.0)))
    scene = Scene((band,), (), 0, 60, 20, hot_above=1000)
    head, line = draw_scene(scene, 66, 3, UNICODE)[:2]
    tones = [tone for _, tone in line[1:]]
    assert tones[0] == "series-0"  # at the threshold it is not above it
    assert tones[20:60] == [HOT_TONE] * 40
    assert "hot above 1.00k" in text(tuple(head))
    assert HOT_TONE in {tone for _, tone in head}
    cold = draw_scene(replace(scene, hot_above=None), 66, 3, UNICODE)
    assert HOT_TONE not in {tone for line in cold for _, tone in line}


def test_the_threshold_is_that_of_the_cells_policy(picture: Picture) -> None:
    cell = rows.choose_shown_cell(picture)
    assert rows.build_scene(picture, cell, None).hot_above is None  # the plan states none
    view = picture.view.cells[cell]
    plan = replace(view.plan, params={**view.plan.params, "parameters": {"hot_tokens": 1500}})
    cells = {**picture.view.cells, cell: replace(view, plan=plan)}
    planned = replace(picture, view=replace(picture.view, cells=cells))
    assert rows.build_scene(planned, cell, None).hot_above == 1500


# -- on the screen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_it_shows_instances_arrows_counts_and_the_table(live_migrating: Path, size: tuple[int, int]) -> None:
    async with watching(live_migrating, size) as pilot:
        panel = await opened(pilot)
        for part in ("ear", EAR, "migrations", "refused", "transferred", "pending prefill, full height", "e0", "e3",
                     "session", "phase", "why"):  # fmt: skip
            await sees(pilot, part)
        assert {"▲", "▼"} & set("".join(panel.timeline.text()))
        newest = panel.table.rows[-1]

        def seen() -> bool:
            return any(text(newest.cells[1]) in line and text(newest.cells[0]) in line for line in shown(pilot.app))

        await until(pilot, seen, "the newest one is not seen")
        await see_footer(pilot)


async def test_the_numbers_are_those_of_status_json(live_migrating: Path) -> None:
    with RunStore.open(live_migrating, read_only=True) as store:
        known = to_json(store.view(), time.time())["migrations"]
    (counts,) = (each for each in known["cells"] if each["cell"] == EAR)
    async with watching(live_migrating) as pilot:
        await opened(pilot)
        await sees(pilot, f"{counts['started']} migrations  {counts['refused']} refused")
        for outcome in ("transferred", "recomputed"):
            await sees(pilot, f"{counts['reasons']['done'][outcome]} {outcome}")
        await sees(pilot, f"migration_cooldown {counts['reasons']['refused']['migration_cooldown']}")


async def test_a_migration_opens_with_the_life_of_its_session(live_migrating: Path) -> None:
    async with watching(live_migrating, NARROW) as pilot:
        panel = await opened(pilot)
        await pilot.press("slash", *"transferred", "enter")
        session = text(panel.table.rows[-1].cells[1])
        await pilot.press("end", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, Detail), "nothing opened")
        await sees(pilot, "its instances")
        await sees(pilot, "outcome")
        await pilot.press("escape", "y")
        assert f"tracon session {live_migrating.name} {session} --cell ear/trial_0" in pilot.app.clipboard


async def test_a_finished_run_is_looked_at_cell_by_cell(made: Callable[[str], Path]) -> None:
    async with watching(made("routed")) as pilot:
        await opened(pilot)
        await sees(pilot, "trials/ear/t1  8 of 8")
        await pilot.press("left")
        await sees(pilot, "trials/unified/t1  7 of 8")
        await sees(pilot, "no migration yet")
        await pilot.press("right", "right")
        await sees(pilot, "trials/lmetric/t0  1 of 8")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
async def test_the_tabs_fit(live_migrating: Path, width: int) -> None:
    async with watching(live_migrating, (width, 24)) as pilot:
        await pilot.press("8")
        await sees(pilot, "8 Migrations")
        tabs = shown(pilot.app)[3]
    for name in ("1 Stages", "2 Instances", "7 Routing"):
        assert name in tabs


async def test_frozen_it_stands_still(live_migrating: Path) -> None:
    async with watching(live_migrating, NARROW) as pilot:
        panel = await opened(pilot)
        before = len(panel.table.rows)
        await pilot.press("space")
        await sees(pilot, "FROZEN")
        with RunStore.open(live_migrating) as store:
            event = MigrationChanged("r-late", "s-late", 9, "e0", "e1", "started", cell=EAR, t_unix_s=time.time())
            store.append(event)
        await sees(pilot, "+1 events")
        assert len(panel.table.rows) == before
        await pilot.press("space")
        await sees(pilot, "s-late")


# -- TTFT of an instance, on Routing --------------------------------------------------------------------------------


async def test_the_ttft_of_an_instance_stands_on_routing_where_it_is_measured(live_migrating: Path) -> None:
    async with watching(live_migrating, NARROW) as pilot:
        await pilot.press("7")
        await sees(pilot, "TTFT")
        assert isinstance(pilot.app.screen, RunScreen)
        view = pilot.app.screen.picture.view
        lines_of = pilot.app.screen.query_one(RoutingPanel).loads.text()
    assert view.routing is not None
    for load in view.routing.latest.instances:
        row = next(line for line in lines_of if line.startswith(load.instance))
        sampled = view.instances[load.engine].latest
        assert sampled is not None
        assert say.short_ms(sampled.ttft_p90_s) in row.split()


def test_without_a_measurement_there_is_no_column(picture: Picture) -> None:
    assert picture.view.routing is not None
    assert instance_loads.has_ttft(picture, picture.view.routing)
    unmeasured = replace(picture, view=replace(picture.view, instances={}))
    assert not instance_loads.has_ttft(unmeasured, picture.view.routing)
    assert [column.key for column in instance_loads.load_columns(79)].count("ttft") == 0
    made = instance_loads.load_columns(79, timed=True)
    assert sum(column.width + 1 for column in made) - 1 <= 79
    assert rows.make_migration_rows(picture, EAR, rows.choose_migration_columns(79), ASCII)
