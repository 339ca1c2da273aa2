"""The Routing panel: what an operator sees of the router of a cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console import format as say
from console.feed import Picture
from console.glyphs import ASCII, UNICODE
from console.panels import routing as rows
from console.panels.routing import RoutingPanel
from console.rows import instance_loads
from console.rows import routing as router
from console.rows.instances import STALE_S
from console.screens.dialogs import Detail
from console.screens.instance import InstanceScreen
from console.screens.run import RunScreen
from console.widgets.plot import Plot
from results.report.terms import term
from state.lease import LeaseState
from state.routing import RoutingView
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
    texts,
    until,
    watching,
)

AGED_S = STALE_S + 5


@pytest.fixture(scope="module")
def picture(made: Callable[[str], Path]) -> Picture:
    return picture_of(made("routing"))


def routing_of(picture: Picture) -> RoutingView:
    assert picture.view.routing is not None
    return picture.view.routing


def panel_of(pilot: Pilot[None]) -> RoutingPanel:
    return pilot.app.screen.query_one(RoutingPanel)


async def opened(pilot: Pilot[None]) -> RoutingPanel:
    await press_and_see(pilot, "7", "PP")
    return panel_of(pilot)


# -- rows -----------------------------------------------------------------------------------------------------------


def test_the_bar_is_full_where_the_most_is_pending_and_empty_where_nothing_is(picture: Picture) -> None:
    routing = routing_of(picture)
    top = max(load.pending_prefill_tokens for load in routing.latest.instances)
    full = replace(routing, history=((routing.latest_unix_s, routing.latest.instances),))
    columns = instance_loads.load_columns(79)
    place = [column.key for column in columns].index("bar")
    for load, row in zip(
        routing.latest.instances, instance_loads.load_rows(picture, full, UNICODE, columns), strict=True
    ):
        filled = text(row.cells[place]).count(UNICODE.full)
        assert filled == round(load.pending_prefill_tokens / top * columns[place].width)


def test_the_past_minute_tells_a_second_without_work_from_one_not_seen(picture: Picture) -> None:
    routing = routing_of(picture)
    first = routing.latest.instances[0]
    end = routing.latest_unix_s
    idle, busy = replace(first, pending_prefill_tokens=0), replace(first, pending_prefill_tokens=800)
    seen = replace(routing, history=((end - 5, (idle,)), (end - 3, (busy,)), (end, (idle,))))
    columns = instance_loads.load_columns(119)
    place = [column.key for column in columns].index("past")
    curve = text(instance_loads.load_rows(picture, seen, UNICODE, columns)[0].cells[place])
    assert len(curve) == columns[place].width
    assert curve.strip() == f"{instance_loads.NO_WORK}{UNICODE.rise[8]}{instance_loads.NO_WORK}"


def test_hot_and_never_rebalanced_instances_are_named_and_marked(picture: Picture) -> None:
    routing = routing_of(picture)
    lines = [text(line) for line in rows.list_warnings(picture, routing, UNICODE)]
    assert any(line.startswith("! hot: e2 has ") for line in lines)
    assert any(line.startswith("! never rebalanced: e3 ") for line in lines)
    marked = {
        row.key: texts(row)[1]
        for row in instance_loads.load_rows(picture, routing, UNICODE, instance_loads.load_columns(119))
    }
    assert marked == {"e0": "● available", "e1": "● available", "e2": "! hot", "e3": "! never rebalanced"}


def test_an_instance_that_is_not_picked_says_why(picture: Picture) -> None:
    routing = routing_of(picture)
    first, *others = routing.latest.instances
    out = replace(first, available=False, why="no answer for 5 s")
    latest = replace(routing.latest, instances=(out, *others))
    changed = replace(routing, latest=latest, history=())
    (line,) = rows.list_warnings(picture, changed, ASCII)
    assert text(line) == "x e0 is not picked: no answer for 5 s"
    assert (
        texts(instance_loads.load_rows(picture, changed, ASCII, instance_loads.load_columns(119))[0])[1]
        == "x no answer for 5 s"
    )


def test_many_warnings_are_counted(picture: Picture) -> None:
    routing = routing_of(picture)
    changed = replace(routing, history=(), latest=replace(routing.latest, alarms=tuple("abcdef")))
    lines = [text(line) for line in rows.list_warnings(picture, changed, UNICODE)]
    assert lines == ["! a", "! b", "and 4 more"]


def test_old_numbers_warn_of_nothing_but_of_their_age(picture: Picture) -> None:
    routing = routing_of(picture)
    late = replace(picture, frozen_unix_s=routing.latest_unix_s + AGED_S)
    assert rows.list_warnings(late, routing, UNICODE) == ()
    assert router.list_alarms_now(late) == ()
    assert "no sample from the router for 8s" in text(rows.describe_router(late, routing, 200)[0])
    assert routing.alarms
    assert router.list_alarms_now(picture) == routing.alarms


def test_after_the_cell_its_numbers_are_those_of_a_past_moment(picture: Picture) -> None:
    routing = routing_of(picture)
    gone = replace(picture, lease=LeaseState("none"))
    assert router.list_alarms_now(gone) == ()
    assert f"as of {say.clock(routing.latest_unix_s)}" in text(rows.describe_router(gone, routing, 200)[0])


def test_reasons_are_ordered_by_their_picks_and_add_up(picture: Picture) -> None:
    routing = routing_of(picture)
    picks = [int(texts(row)[1]) for row in rows.make_reason_rows(routing, UNICODE)]
    assert picks == sorted(picks, reverse=True)
    assert sum(picks) == sum(routing.latest.decisions.values())
    line = text(rows.make_reason_line(routing))
    assert all(reason in line for reason in routing.latest.decisions)


def test_a_pick_that_went_nowhere_says_so(picture: Picture) -> None:
    routing = routing_of(picture)
    last = replace(routing.lines[-1], instance="", session="", reason="queue_full")
    (row,) = rows.make_decision_rows(picture, replace(routing, lines=(last,)), rows.choose_decision_columns(79))
    assert texts(row)[1:] == ["no session", "nowhere", "queue_full"]
    assert rows.find_decision_line(replace(routing, lines=(last,)), row.key) == last
    assert rows.find_decision_line(routing, row.key) is None
    facts = dict(rows.list_decision_facts(routing, last))
    assert (facts["instance"], facts["session"]) == ("nowhere", "the request names none")


# -- on the screen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_it_shows_instances_reasons_decisions_and_alarms(live_routing: Path, size: tuple[int, int]) -> None:
    async with watching(live_routing, size) as pilot:
        panel = await opened(pilot)
        if size == WIDE:
            await pilot.press("z")
        for part in ("sticky", "sessions bound", "hot: e2", "never rebalanced: e3", "BS", "OT", "sess", "picks",
                     "decided by", "affinity", "least_loaded", "instance", "reason"):  # fmt: skip
            await sees(pilot, part)
        await see_footer(pilot)
        lines = shown(pilot.app)
        newest = panel.table.rows[-1]
    assert len(lines) == size[1]
    assert any(texts(newest)[1] in line and texts(newest)[3] in line for line in lines), "the newest decision is seen"
    assert not any("…" in line for line in lines[5:-1]), "nothing is cut off below the head"


async def test_the_numbers_are_those_of_status_json(live_routing: Path) -> None:
    with RunStore.open(live_routing, read_only=True) as store:
        known = to_json(store.view(), time.time())["routing"]
    async with watching(live_routing) as pilot:
        panel = await opened(pilot)
        lines = panel.loads.text()
        screen = "\n".join(shown(pilot.app))
    assert f"{sum(known['decisions'].values())} picks   {known['sessions']} sessions bound" in screen
    for instance in known["instances"]:
        row = next(line for line in lines if line.startswith(instance["instance"]))
        assert f" {instance['num_requests']} " in row
        assert say.tokens(instance["pending_prefill_tokens"]) in row
        assert row.split()[-3:] == [
            say.tokens(instance["ongoing_tokens"]),
            str(instance["sessions"]),
            say.percent(instance["share_of_picks"]),
        ]
    for alarm in known["alarms"]:
        assert alarm in screen


async def test_on_the_dashboard_of_a_routing_run_it_stands_where_the_steps_were(live_routing: Path) -> None:
    async with watching(live_routing) as pilot:
        for part in ("1 Stages", "2 Instances", "3 TTFT p90, ms", "5 Events", "7 Routing", "sessions bound"):
            await sees(pilot, part)
        await sees(pilot, "┤")  # what the client saw, where no instance measures it
        assert "4 Steps" not in "\n".join(shown(pilot.app))
        await pilot.press("4")
        await until(pilot, lambda: "sessions bound" not in "\n".join(shown(pilot.app)), "the steps do not stand alone")
        await pilot.press("escape")
        await sees(pilot, "sessions bound")


async def test_decisions_and_instances_can_be_reached_filtered_and_opened(live_routing: Path) -> None:
    async with watching(live_routing, NARROW) as pilot:
        panel = await opened(pilot)
        last = panel.table.rows[-1]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, Detail), "nothing opened")
        await sees(pilot, f"tracon why {live_routing.name}")
        await sees(pilot, "--cell sticky/trial_0")
        await sees(pilot, last.also)
        await pilot.press("y", "escape")
        assert f"tracon why {live_routing.name} {last.also} --cell sticky/trial_0" in pilot.app.clipboard
        await pilot.press("slash", *texts(last)[1], "enter")
        assert {texts(row)[1] for row in panel.table.rows} == {texts(last)[1]}
        await pilot.press("shift+tab")
        await until(pilot, lambda: panel.loads.has_focus, "the instances cannot be reached")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, InstanceScreen), "nothing opened")
        await sees(pilot, "plain-5")


async def test_an_alarm_is_seen_from_every_panel(live_routing: Path) -> None:
    async with watching(live_routing, NARROW) as pilot:
        for key in "15":
            await pilot.press(key)
            await until(pilot, lambda: "hot: e2" in shown(pilot.app)[2], "the header says nothing")


def test_the_cell_is_named_in_80_columns_too(picture: Picture) -> None:
    routing = routing_of(picture)
    named = replace(routing, cell="trials/EAR_KV_not_moved_time_scale=0.0333/t2")
    head = [text(line) for line in rows.describe_router(picture, named, 80)]
    assert all(len(line.rstrip()) <= 80 for line in head)
    assert all(part in " ".join(head) for part in (named.cell, "picks", "sessions bound", "TTFT p90"))


def test_a_prefill_or_decode_instance_is_named_so(picture: Picture) -> None:
    routing = routing_of(picture)
    first, *others = routing.latest.instances
    roles = (replace(first, role="prefill"), *others)
    pools = replace(routing, latest=replace(routing.latest, instances=roles))
    columns = instance_loads.load_columns(79)
    assert [texts(row)[0] for row in instance_loads.load_rows(picture, pools, UNICODE, columns)] == [
        f"{first.instance} prefill", *(load.instance for load in others)
    ]  # fmt: skip


async def test_a_panel_of_a_finished_run_that_gets_its_room_late_is_drawn_then(made: Callable[[str], Path]) -> None:
    async with watching(made("routed")) as pilot:
        await sees(pilot, "sessions bound")
        panel, screen = panel_of(pilot), pilot.app.screen
        assert isinstance(screen, RunScreen)
        panel.display = False
        await pilot.pause()
        panel.show(screen.shown_picture)
        panel.display = True
        await pilot.pause()
        await sees(pilot, "sessions bound")


async def test_the_latency_of_all_instances_leads_the_legend(live_routing: Path) -> None:
    async with watching(live_routing, NARROW) as pilot:
        await press_and_see(pilot, "3", "● all ")
        assert pilot.app.screen.query(Plot).first().text()[0].startswith("● all ")


def test_an_instance_that_the_run_did_not_launch_shows_what_the_router_knows(picture: Picture) -> None:
    facts = dict(instance_loads.load_detail(routing_of(picture), "e2"))
    assert facts["state"] == "available"
    assert facts["PP"].endswith(term("pending prefill tokens").meaning)
    assert dict(instance_loads.load_detail(routing_of(picture), "e9")) == {"instance": "the router has removed it"}


async def test_finished_cells_show_the_numbers_of_routing(live_routing: Path) -> None:
    async with watching(live_routing, NARROW) as pilot:
        assert isinstance(pilot.app.screen, RunScreen)
        await sees(pilot, "lmetric")
        with RunStore.open(live_routing, read_only=True) as store:
            summary = store.view().cells["trials/lmetric/t0"].summary
        lines = pilot.app.screen.panel("stages").table.text()  # type: ignore[union-attr]
        row = next(line for line in lines if "lmetric" in line)
    assert say.ms(summary["ttft_p90_s"]) in row
    assert say.percent(summary["apc"]) in row.split()
