"""What an operator sees of a run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from console import format as say
from console.screens.instance import InstanceScreen
from console.screens.run import RunScreen
from results.records.events import Noted
from results.records.named_number import NOT_MEASURED
from state.status import to_json
from state.store import RunStore
from tests.console.conftest import NARROW, RUN, WIDE, press_and_see, see_footer, sees, shown, until, watching


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_header_names_the_run_and_tells_how_it_stands(live_run: Path, size: tuple[int, int]) -> None:
    async with watching(live_run, size) as pilot:
        first, second, _ = shown(pilot.app)[:3]
    assert RUN in first
    assert "running" in first
    assert f"live, pid {os.getpid()}" in first
    assert "/39 cells" in second
    assert "left" in second


async def test_the_dashboard_shows_everything_at_once(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await sees(pilot, "TTFT p90, ms")
        text = "\n".join(shown(pilot.app))
    for part in ("1 Stages", "2 Instances", "3 TTFT p90, ms", "3 TPOT p90, ms per token", "4 Steps", "5 Events"):
        assert part in text
    assert "Phase A: rate sweep" in text
    assert "up to, ms" in text, "the histogram has an axis"
    assert "last 5 min" in text, "plots say which time they show"


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("1", ["Phase A: rate sweep", "✓ done", "▶ running", "TTFT p90", "req/s"]),
        ("2", ["TTFT ms", "TPOT ms", "run wait", "pend", "KV", "step ms", "p50/p90", " old", "○ gone"]),
        ("3", ["TTFT p90, ms", "TPOT p90, ms per token", "┤", "┬"]),
        ("4", ["up to, ms", "steps", "█"]),
        ("5", ["phase-a", "running"]),
        ("6", ["Page", "no cell was measured", "← →"]),
    ],
)
async def test_at_80x24_each_key_opens_its_panel(live_run: Path, key: str, parts: list[str]) -> None:
    async with watching(live_run, NARROW) as pilot:
        await pilot.press(key)
        for part in parts:
            await sees(pilot, part)
        await see_footer(pilot)
        assert len(shown(pilot.app)) == 24


async def test_the_numbers_are_those_of_status_json(ended_run: Path) -> None:
    with RunStore.open(ended_run, read_only=True) as store:
        view = store.view()
    status = to_json(view, time.time())
    async with watching(ended_run, (200, 50)) as pilot:
        await pilot.press("2", "z")
        await sees(pilot, "nixl_both-12")
        lines = shown(pilot.app)
    for instance in status["instances"]:
        row = next(line for line in lines if line.strip("│ ").startswith(instance["instance"] + " "))
        latest = instance["latest"]
        if latest is None:
            assert NOT_MEASURED in row
            continue
        expected = [
            say.ms(latest["ttft_p50_s"]),
            say.ms(latest["ttft_p90_s"]),
            say.ms(latest["tpot_p50_s"]),
            say.ms(latest["tpot_p90_s"]),
            say.whole(latest["running"]),
            say.whole(latest["waiting"]),
            say.tokens(latest["pending_prefill_tokens"]),
            say.percent(latest["kv_usage"]),
            say.us_as_ms(latest["step_p50_us"]),
            say.us_as_ms(latest["step_p90_us"]),
        ]
        assert row.strip("│ ").split()[3:] == expected


async def test_the_header_numbers_are_those_of_status_json(ended_run: Path) -> None:
    with RunStore.open(ended_run, read_only=True) as store:
        status = to_json(store.view(), time.time())
    async with watching(ended_run) as pilot:
        lines = shown(pilot.app)
    progress = status["progress"]
    assert "✗ failed" in lines[0]
    assert "no process" in lines[0]
    assert f"{progress['fraction'] * 100:.0f} %   {progress['ended']}/{progress['total']} cells" in lines[1]
    assert say.duration(status["elapsed_s"]) in lines[1]
    assert status["reason"] in lines[2]


async def test_a_finished_cell_shows_its_headline_and_its_detail_on_enter(ended_run: Path) -> None:
    with RunStore.open(ended_run, read_only=True) as store:
        cell = next(c for c in to_json(store.view(), 0)["cells"] if c["cell"] == "phase-a/plain/r8")
    async with watching(ended_run, (140, 50)) as pilot:
        await sees(pilot, "8 req/s")
        table = pilot.app.screen.panel("stages").table  # type: ignore[attr-defined]
        row = next(line for line in table.text() if "8 req/s" in line)
        assert say.ms(cell["summary"]["ttft_p90_s"]) in row
        assert say.ms(cell["summary"]["tpot_p90_s"]) in row
        table.move_to("cell:phase-a/plain/r8")
        await pilot.press("enter")
        await sees(pilot, "effective throughput")
        await pilot.press("escape")
        assert "stage, cell" in "\n".join(shown(pilot.app))


async def test_a_failed_cell_says_why_and_a_degraded_one_too(ended_run: Path) -> None:
    async with watching(ended_run, (160, 60)) as pilot:
        await pilot.press("z")
        await pilot.pause()
        text = "\n".join(pilot.app.screen.panel("stages").table.text())  # type: ignore[attr-defined]
    assert "! degraded" in text
    assert "the client was late: p99 14.1 ms" in text
    assert "✗ failed" in text
    assert "the engine died: exit code -9" in text


async def test_a_run_whose_process_died_says_so_and_how_to_go_on(dead_run: Path) -> None:
    async with watching(dead_run) as pilot:
        lines = shown(pilot.app)
    assert "no process" in lines[0]
    assert "no process works on this run: r resumes it" in lines[2]


async def test_freeze_holds_the_panels_and_counts_what_comes(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("space")
        await sees(pilot, "FROZEN  +0 events")
        with RunStore.open(live_run) as store:
            store.append(Noted("warning", "phase-a", "something new"), Noted("info", "phase-a", "and more"))
        await sees(pilot, "FROZEN  +2 events")
        events = pilot.app.screen.panel("events").table  # type: ignore[attr-defined]
        assert "something new" not in "\n".join(events.text())
        await pilot.press("space")
        await until(pilot, lambda: "something new" in "\n".join(events.text()), "the feed did not catch up")
        assert "FROZEN" not in "\n".join(shown(pilot.app))


async def test_filter_keeps_matching_rows_and_escape_brings_all_back(live_run: Path) -> None:
    async with watching(live_run, NARROW) as pilot:
        await pilot.press("2", "slash", *"mooncake", "enter")
        await sees(pilot, "mooncake_both-2")
        table = pilot.app.screen.panel("instances").table  # type: ignore[attr-defined]
        assert {row.key.split("-")[0] for row in table.rows} == {"mooncake_both"}
        await pilot.press("slash", "home", "exclamation_mark", "enter")
        assert "mooncake_both" not in {row.key.split("-")[0] for row in table.rows}
        await pilot.press("escape")
        assert len({row.key.split("-")[0] for row in table.rows}) > 1


async def test_a_filter_is_named_at_80x24_and_one_that_matches_nothing_says_so(live_run: Path) -> None:
    async with watching(live_run, NARROW) as pilot:
        await pilot.press("2", "slash", *"mooncake", "enter")
        await sees(pilot, "filter: mooncake (esc clears)")
        await pilot.press("5")
        await until(pilot, lambda: "filter:" not in shown(pilot.app)[2], "the events are not filtered")
        await pilot.press("slash", *"nowhere", "enter")
        await sees(pilot, "no row matches the filter: esc clears it")
        await pilot.press("2")
        await sees(pilot, "plain-")


async def test_what_has_no_rows_is_not_filtered(live_run: Path) -> None:
    async with watching(live_run, NARROW, notifications=True) as pilot:
        await press_and_see(pilot, "3", "TTFT p90")
        await press_and_see(pilot, "slash", "nothing here has rows to filter")


async def test_a_long_detail_shows_at_80x24_how_to_scroll_and_to_close_it(ended_run: Path) -> None:
    async with watching(ended_run, NARROW) as pilot:
        await sees(pilot, "8 req/s")
        pilot.app.screen.panel("stages").table.move_to("cell:phase-a/plain/r8")  # type: ignore[attr-defined]
        await press_and_see(pilot, "enter", "effective throughput", "up, down scroll   esc closes")


async def test_a_filter_finds_cells_by_their_config(live_run: Path) -> None:
    async with watching(live_run, NARROW) as pilot:
        await pilot.press("slash", *"phase-a/plain", "enter")
        table = pilot.app.screen.panel("stages").table  # type: ignore[attr-defined]
        assert [row.key for row in table.rows] == [f"cell:phase-a/plain/r{rate}" for rate in (2, 4, 8, 12, 16)]


async def test_the_time_window_steps_through_its_sizes(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        for key, text in (
            ("left_square_bracket", "last 1 min"),
            ("left_square_bracket", "last 1 min"),
            ("right_square_bracket", "last 5 min"),
            ("right_square_bracket", "last 15 min"),
            ("right_square_bracket", "last 60 min"),
            ("right_square_bracket", "whole run"),
        ):
            await pilot.press(key)
            await sees(pilot, text)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (WIDE, ["http://127.0.0.1:", "fork_server/uni", "requests", "Steps, share per bucket", "p50"]),
        (NARROW, ["┤", "up to, ms", "Its events"]),
    ],
)
async def test_enter_on_an_instance_opens_it_and_escape_returns(
    live_run: Path, size: tuple[int, int], parts: list[str]
) -> None:
    async with watching(live_run, size) as pilot:
        await pilot.press("2", "enter")
        await sees(pilot, "TTFT p50, p90, ms")
        assert isinstance(pilot.app.screen, InstanceScreen)
        for part in (pilot.app.screen.instance, *parts):
            await sees(pilot, part)
        await pilot.press("escape")
        await sees(pilot, "2 Instances")


async def test_a_picture_that_comes_while_an_instance_is_being_opened_waits_for_it(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        run = pilot.app.screen
        assert isinstance(run, RunScreen)
        opened = InstanceScreen(next(iter(run.picture.view.instances)), run.folder, run.picture)
        pilot.app.push_screen(opened)
        opened.show(run.picture)
        await sees(pilot, opened.instance)


async def test_zoom_shows_one_panel_alone_and_back(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("5", "z")
        await until(pilot, lambda: "4 Steps, share" not in "\n".join(shown(pilot.app)), "the other panels stayed")
        await pilot.press("z")
        await sees(pilot, "4 Steps, share")


async def test_help_explains_every_key_and_number(live_run: Path) -> None:
    async with watching(live_run, (120, 120)) as pilot:
        await pilot.press("question_mark")
        for part in ("Stop after cell", "Freeze", "TTFT p50, p90", "vllm:num_requests_waiting", "step histogram"):
            await sees(pilot, part)
        await pilot.press("escape")
        await sees(pilot, "1 Stages")
