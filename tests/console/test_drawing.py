"""The pure parts: numbers as text, samples as lines, rows of tables; and the table that repaints little."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.geometry import Region

from console import format as say
from console.feed import Picture
from console.glyphs import ASCII, UNICODE, to_ascii
from console.rows import instances
from console.series import GAP_S, find_gaps, make_time_axis, make_value_axis, thin_line
from console.widgets.header import make_header_lines
from console.widgets.histogram import Counts, Histogram, format_edge, make_axis_labels
from console.widgets.table import Column, Row, Table, cell, fit_row
from results.records.events import STEP_BUCKETS_US, CellState, InstanceState, RunState, StageState
from results.records.named_number import digits
from state.lease import LeaseState
from state.model import RunView
from tests.console.conftest import LIVE, picture_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0412, "0.04"),
        (1.664, "1.66"),
        (9.996, "10.0"),
        (14.23, "14.2"),
        (99.96, "100"),
        (12_345, "12345"),
    ],
)
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


@given(st.floats(0, 999))
def test_a_long_wait_still_fits_beside_another(seconds: float) -> None:
    assert len(say.short_ms(seconds)) <= 4


@given(st.integers(0, 10**8))
def test_token_counts_stay_narrow(count: int) -> None:
    assert len(say.tokens(count)) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.4, "0 s"), (59.6, "1 min 00 s"), (150, "2 min 30 s"), (17_520, "4 h 52 min")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert say.duration(seconds) == text


LINE = st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1e6)), max_size=300).map(sorted)


@given(LINE, st.integers(1, 80))
def test_thinning_keeps_the_peak_and_the_order(line: list[tuple[float, float]], places: int) -> None:
    thinned = thin_line(line, 0, 1000, places)
    assert list(thinned) == sorted(thinned, key=lambda point: point[0])
    assert set(thinned) <= set(line)
    assert len(thinned) <= max(len(line) if len(line) <= places else 0, places + 1)
    if line:
        assert max(value for _, value in thinned) == max(value for _, value in line)


def test_a_pause_in_the_samples_is_a_gap_in_the_line() -> None:
    assert find_gaps([(0, 1.0), (1, 1.0), (1 + GAP_S + 1, 1.0), (8, 1.0)]) == [2]


@given(st.floats(1e-6, 1e7), st.integers(1, 40))
def test_the_value_axis_holds_the_highest_value_without_much_air(top: float, rows: int) -> None:
    axis = make_value_axis(top, rows)
    assert axis.lower == 0
    assert axis.upper >= top * 0.999
    assert axis.upper <= top * 5.001
    assert len(axis.ticks) == len(axis.labels) >= 2


@given(st.floats(1e9, 2e9), st.floats(1, 1e5), st.integers(20, 200))
def test_time_ticks_lie_on_the_axis_and_do_not_crowd(start: float, span: float, columns: int) -> None:
    axis = make_time_axis(start, start + span, columns)
    assert all(start <= tick <= start + span for tick in axis.ticks)
    assert sum(len(label) + 1 for label in axis.labels) <= columns + 9


def test_states_differ_without_color() -> None:
    states = [*RunState, *StageState, *CellState, *InstanceState]
    for glyphs in (UNICODE, ASCII):
        assert all(glyphs.sign(state).strip() for state in states)
        assert all(str(state) in glyphs.state(state)[0] for state in states)


@given(st.text(max_size=40))
def test_plain_text_is_ascii(text: str) -> None:
    assert to_ascii(text).isascii()


# -- histogram ------------------------------------------------------------------------------------------------------


def test_bucket_edges_are_those_of_the_journal() -> None:
    assert format_edge(0) == "0.1"
    assert format_edge(len(STEP_BUCKETS_US)) == ">1000"
    assert make_axis_labels(4, 8, 6) == "0.8   1     1.25  1.5   2"


async def test_the_histogram_shows_every_filled_bucket() -> None:
    counts = [0] * (len(STEP_BUCKETS_US) + 1)
    counts[5], counts[7], counts[8] = 1, 400, 100

    class One(App[None]):
        def compose(self) -> ComposeResult:
            yield Histogram()

    async with One().run_test(size=(60, 6)) as pilot:
        histogram = pilot.app.query_one(Histogram)
        histogram.show([Counts("plain-1", "series-0", tuple(counts))])
        lines = histogram.text()
    low = lines[3]
    assert low.startswith(" " * 12)
    columns = low[12:].split()
    assert [column[0] for column in columns] == ["▁", "█", "█"], (
        "a bucket with one step is visible, an empty one is not"
    )
    assert "501 steps" in lines[1]
    assert "peak 80 %" in lines[2]
    assert lines[-1].split()[:3] == ["up", "to,", "ms"]


# -- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def view(made: Callable[[str], Path]) -> RunView:
    return picture_of(made("middle")).view


@pytest.mark.parametrize(("age_s", "text"), [(1.0, "● ready"), (12.0, "! 12s old"), (200.0, "! 3m old")])
def test_old_numbers_are_marked_with_their_age(view: RunView, age_s: float, text: str) -> None:
    ready = next(each for each in view.instances.values() if each.state is InstanceState.READY)
    assert ready.latest_unix_s is not None
    picture = Picture(view, LIVE, loading=False, frozen_unix_s=ready.latest_unix_s + age_s)
    assert "".join(part for part, _ in instances.show_instance_state(picture, ready, UNICODE)) == text
    assert instances.is_current(picture, ready) is (age_s <= instances.STALE_S)


def test_an_unmeasured_number_is_a_dash_and_never_zero(view: RunView) -> None:
    ready = next(each for each in view.instances.values() if each.latest is not None)
    assert ready.latest is not None
    blind = replace(ready, latest=replace(ready.latest, step_p50_us=None, step_p90_us=None, kv_usage=None))
    numbers = instances.format_instance_numbers(blind)
    assert (numbers["step"], numbers["step_p50"], numbers["kv"]) == ("–", "–", "–")
    assert numbers["ttft_p50"] != "–"


@pytest.mark.parametrize("width", [78, 118, 198])
def test_the_header_never_exceeds_its_width(view: RunView, width: int) -> None:
    for lease in (LIVE, LeaseState("dead", 4711, "here", 99.0), LeaseState("none")):
        picture = Picture(view, lease, loading=False)
        for line in make_header_lines(picture, (("FROZEN  +12 events  ", "warn"),), UNICODE, width, view.last_t_unix_s):
            assert sum(len(text) for text, _ in line) <= width


def test_the_header_of_a_live_simulated_run_shows_its_pace(view: RunView) -> None:
    simulated = replace(view, plan=replace(view.plan, inputs={"simulated": "a model"}))
    for pace, lease, begin in (
        (0.0, LIVE, "SIMULATED a"),
        (10.0, LIVE, "SIMULATED 10x a"),
        (10.0, LeaseState("none"), "SIMULATED a"),
    ):
        picture = Picture(replace(simulated, pace=pace, run="a-run"), lease, loading=False)
        line = make_header_lines(picture, (), UNICODE, 78, view.last_t_unix_s)[0]
        assert "".join(text for text, _ in line).startswith(begin)


# -- table ----------------------------------------------------------------------------------------------------------

COLUMNS = (Column("name", "name", 10, left=True), Column("a", "a", 6), Column("b", "b", 6))


def rows(values: dict[str, tuple[str, str]]) -> tuple[Row, ...]:
    return tuple(Row(key, (cell(key), cell(a), cell(b))) for key, (a, b) in values.items())


class TableApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Table()


async def test_only_changed_cells_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TableApp().run_test(size=(40, 12)) as pilot:
        table = pilot.app.query_one(Table)
        table.show(COLUMNS, rows({"x": ("1", "2"), "y": ("3", "4")}))
        await pilot.pause()
        drawn: list[tuple[Region, ...]] = []
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: drawn.append(regions))
        table.show(COLUMNS, rows({"x": ("1", "2"), "y": ("3", "5")}))
        assert drawn == [(Region(18, 2, 6, 1),)]
        drawn.clear()
        table.show(COLUMNS, rows({"x": ("1", "2"), "y": ("3", "5")}))
        assert drawn == []


async def test_the_cursor_stays_on_its_row_when_others_come() -> None:
    async with TableApp().run_test(size=(40, 12)) as pilot:
        table = pilot.app.query_one(Table)
        table.show(COLUMNS, rows({"x": ("1", "2"), "y": ("3", "4")}))
        await pilot.press("down")
        assert table.cursor_key == "y"
        table.show(COLUMNS, rows({"new": ("0", "0"), "x": ("1", "2"), "y": ("3", "4")}))
        assert table.cursor_key == "y"
        await pilot.press("home")
        assert table.cursor_key == "new"


async def test_the_cursor_is_always_in_view() -> None:
    dice = random.Random(1)
    async with TableApp().run_test(size=(40, 8)) as pilot:
        table = pilot.app.query_one(Table)
        table.show(COLUMNS, rows({f"row{i}": ("1", "2") for i in range(60)}))
        for _ in range(30):
            await pilot.press(dice.choice(["up", "down", "pageup", "pagedown", "home", "end"]))
            place = [row.key for row in table.rows].index(str(table.cursor_key))
            assert table.scroll_offset.y <= place < table.scroll_offset.y + table.size.height - table.header_height


async def test_long_text_ends_in_an_ellipsis_and_runs_on_over_empty_cells() -> None:
    async with TableApp().run_test(size=(40, 8)) as pilot:
        table = pilot.app.query_one(Table)
        long = Row("l", (cell("a very long name"), cell(""), cell("7")))
        table.show(COLUMNS, [long, Row("m", (cell("a very long name"), cell("1"), cell("7")))])
        lines = table.text()
    assert lines[1].rstrip() == "a very long name       7"
    assert lines[2].rstrip() == "a very lo…      1      7"


def test_a_number_that_is_too_wide_runs_on_over_empty_cells_before_it() -> None:
    spans = fit_row(COLUMNS, (cell("a very long name"), cell(""), cell("105/1050")), 24)
    assert "".join(part for part, _ in spans).rstrip() == "a very long na… 105/1050"
    kept = fit_row(COLUMNS, (cell("name"), cell("1"), cell("105/1050")), 24)
    assert "".join(part for part, _ in kept).rstrip() == "name            1 105/1…"


async def test_a_table_claims_nothing_before_it_was_shown_anything() -> None:
    async with TableApp().run_test(size=(40, 8)) as pilot:
        table = pilot.app.query_one(Table)
        table._empty = "nothing has happened yet"
        assert not table.render_line(0).text.strip()
        table.show(COLUMNS, ())
        assert table.render_line(0).text.strip() == "nothing has happened yet"
