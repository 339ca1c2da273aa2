"""The Lifecycle panel: what an operator sees of requests broken down into phases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from console import format as say
from console.glyphs import UNICODE
from console.panels import lifecycle as rows
from console.panels.lifecycle import LifecyclePanel
from console.rows import waterfall
from console.screens.dialogs import Detail
from console.widgets.table import Cell
from results.records.lifecycle import HANDSHAKE_PARTS, parts_of
from results.records.lifecycle import PHASES as RECORDED
from state import lease
from state.events import LifecycleMeasured
from state.lifecycle import LifecycleView, MeasuredRequest, bandwidths, overheads
from state.status import to_json
from state.store import RunStore
from state.view import RunView
from tests.console import demo
from tests.console.conftest import LIFECYCLE_RUN, NARROW, WIDE, app_for, sees, settled, shown, until


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run in the middle of its sweep, and one that ended."""
    made = {name: tmp_path_factory.mktemp(name) / LIFECYCLE_RUN for name in ("middle", "ended")}
    demo.write(made["middle"], seconds=90, tale=demo.LIFECYCLE)
    demo.write(made["ended"], tale=demo.LIFECYCLE)
    return made


@pytest.fixture
def live(folders: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    folder = Path(shutil.copytree(folders["middle"], tmp_path / LIFECYCLE_RUN))
    with RunStore.open(folder) as store, lease.acquire(store):
        yield folder


@pytest.fixture(scope="module")
def run_view(folders: dict[str, Path]) -> RunView:
    with RunStore.open(folders["ended"], read_only=True) as store:
        return store.view()


@pytest.fixture(scope="module")
def view(run_view: RunView) -> LifecycleView:
    assert run_view.lifecycle is not None
    return run_view.lifecycle


def text(content: Cell) -> str:
    return "".join(part for part, _ in content)


def panel_of(pilot: Pilot[None]) -> LifecyclePanel:
    return pilot.app.screen.query_one(LifecyclePanel)


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [57, 79, 100, 119, 200])
@pytest.mark.parametrize("marker", ["braille", "letters"])
def test_every_bar_fits_its_column(view: LifecycleView, width: int, marker: str) -> None:
    columns = waterfall.waterfall_columns(width)
    room = width - sum(column.width + 1 for column in columns if column.key != "phases")
    made = waterfall.waterfall_rows(waterfall.latest(view), columns, width, UNICODE, marker)
    place = [column.key for column in columns].index("phases")
    assert len(made) == min(waterfall.SHOWN, len(view.requests))
    assert all(len(row.cells) == len(columns) for row in made)
    assert all(len(text(row.cells[place])) <= max(room, 1) for row in made)
    assert len({row.key for row in made}) == len(made)


def one(**phases: float | None) -> MeasuredRequest:
    return MeasuredRequest(1.0, 1, LifecycleMeasured("a/cell", 0, 512, 32, 3, phases_ms=phases, e2e_ms=100.0))


def bar(*requests: MeasuredRequest, room: int = 46, marker: str = "letters") -> str:
    columns = waterfall.waterfall_columns(79)
    width = room + sum(column.width + 1 for column in columns if column.key != "phases")
    place = [column.key for column in columns].index("phases")
    return text(waterfall.waterfall_rows(requests, columns, width, UNICODE, marker)[0].cells[place])


def test_a_bar_is_as_long_as_its_phases_in_their_order() -> None:
    drawn = bar(one(p_prefill=10.0, rdma_transfer=20.0, d_first_token=10.0), room=46)
    assert drawn == "p" * 10 + "t" * 20 + "f" * 10


def test_decode_goes_on_beyond_the_edge_and_says_so() -> None:
    drawn = bar(one(p_prefill=20.0, d_first_token=20.0, d_decode=9_000.0), room=46)
    assert drawn == "p" * 20 + "f" * 20 + "d" * 5 + waterfall.GOES_ON


def test_a_phase_that_was_not_measured_takes_no_room() -> None:
    assert bar(one(p_prefill=10.0, rdma_transfer=None, d_first_token=30.0)) == "p" * 10 + "f" * 30
    assert bar(one(p_prefill=None)) == "no phase was measured"


def test_an_unknown_phase_is_drawn_too() -> None:
    assert bar(one(p_prefill=20.0, xfer_wait=20.0)) == "p" * 20 + "x" * 20


phases = st.dictionaries(
    st.sampled_from([*waterfall.PHASES, "x", "yy"]), st.none() | st.floats(-5, 1e5, allow_nan=False), max_size=10
)


@given(st.lists(phases, min_size=1, max_size=6), st.integers(1, 90), st.sampled_from(["letters", "braille"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bar_is_longer_than_its_room(many: list[dict[str, float | None]], room: int, marker: str) -> None:
    requests = [one(**each) for each in many]
    drawn = bar(*requests, room=room, marker=marker)
    assert len(drawn) <= room or drawn == "no phase was measured"


def test_requests_that_do_not_count_are_marked(view: LifecycleView) -> None:
    columns = waterfall.waterfall_columns(119)
    place = [column.key for column in columns].index("mark")
    requests = view.requests
    made = waterfall.waterfall_rows(requests, columns, 119, UNICODE, "braille")
    marks = {row.key: text(row.cells[place]) for row in made}
    for key, request in waterfall.keyed(requests):
        event = request.event
        wanted = "✗" if event.discarded else "w" if event.warmup else ""
        assert marks[key] == wanted
    assert {"✗", "w", ""} == set(marks.values())


def test_the_legend_gives_the_medians_of_what_counts(view: LifecycleView) -> None:
    counting = [each for each in waterfall.latest(view) if each.counts]
    prefills = sorted(each.event.phases_ms["p_prefill"] or 0.0 for each in counting)
    middle = (prefills[(len(prefills) - 1) // 2] + prefills[len(prefills) // 2]) / 2
    legend = " ".join(text(line) for line in waterfall.legend(waterfall.latest(view), "braille", 80))
    assert f"prefill {say.digits(middle)} " in legend
    assert all(waterfall.PHASES[name].label in legend for name in counting[0].event.phases_ms)
    assert all(len(text(line)) <= 80 for line in waterfall.legend(waterfall.latest(view), "letters", 80))


def test_every_phase_of_the_records_has_a_name_and_a_colour_of_its_own() -> None:
    assert set(waterfall.PHASES) == {*RECORDED, *HANDSHAKE_PARTS}
    for drawn in (RECORDED, parts_of(lambda _: True)):
        phases = [waterfall.PHASES[name] for name in drawn]
        assert len({phase.tone for phase in phases}) == len({phase.letter for phase in phases}) == len(drawn)


def test_a_request_shows_every_phase_and_every_gap() -> None:
    request = one(p_prefill=12.5, rdma_transfer=None)
    gapped = replace(request, event=replace(request.event, gaps={"rdma_transfer": "no write was seen"}))
    facts = dict(rows.request_facts(gapped))
    assert facts["prefill"] == "12.5 ms"
    assert facts["transfer"] == "– ms"
    assert facts["rdma_transfer"] == "not measured: no write was seen"
    assert facts["counts"] == "yes"


def test_bandwidth_and_overhead_are_the_view_s(view: LifecycleView) -> None:
    (curve,) = rows.bandwidth_chart(view).lines
    assert [point.value for point in curve.points] == [each.median_gbps for each in bandwidths(view)]
    columns = rows.overhead_columns(view, 79)
    made = rows.overhead_rows(view, columns)
    shown_overheads = {(row.key, column.key): text(content) for row in made
                       for column, content in zip(columns[1:], row.cells[1:], strict=True)}  # fmt: skip
    for each in overheads(view):
        cell_text = shown_overheads[str(each.context_tokens), str(each.new_tokens)]
        assert cell_text == f"{'+' if each.overhead_ms > 0 else ''}{say.digits(each.overhead_ms)}"
    assert "faster nowhere" in rows.overhead_note(view)
    assert rows.overhead_note(LifecycleView()).startswith("no size was measured")
    assert rows.bandwidth_chart(LifecycleView()).lines == ()


# -- on the screen --------------------------------------------------------------------------------------------------


async def test_at_80x24_waterfall_bandwidth_and_overhead_are_sections(live: Path) -> None:
    async with app_for(live).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        for part in ("9 Lifecycle", "of 27 cells", "warm-up", "median ms", "prefill", "from arrival on", "TTFT", "E2E"):
            await sees(pilot, part)
        assert "q Quit" in shown(pilot.app)[-1]
        await pilot.press("right")
        await sees(pilot, "Gbit/s over MB moved")
        await pilot.press("right")
        await sees(pilot, "TTFT disaggregated minus combined")
        await pilot.press("right")
        await sees(pilot, "from arrival on")


async def test_with_room_all_three_are_seen_at_once(folders: dict[str, Path]) -> None:
    async with app_for(folders["ended"]).run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("9", "z")
        for part in ("27 of 27 cells", "from arrival on", "Gbit/s over MB moved", "TTFT disaggregated minus", "N 512"):
            await sees(pilot, part)


async def test_on_the_dashboard_it_stands_where_the_steps_were(live: Path) -> None:
    async with app_for(live).run_test(size=WIDE) as pilot:
        await settled(pilot)
        for part in ("1 Stages", "2 Instances", "5 Events", "9 Lifecycle", "of 27 cells"):
            await sees(pilot, part)
        assert "4 Steps" not in "\n".join(shown(pilot.app))


async def test_a_request_opens_and_requests_are_filtered(live: Path) -> None:
    async with app_for(live).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        await sees(pilot, "from arrival on")
        panel = panel_of(pilot)
        await pilot.press("slash", *"!warm-up", "enter", "end", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, Detail), "nothing opened")
        for part in ("on one combined instance", "wait for D", "whole transfer"):
            await sees(pilot, part)
        await pilot.press("escape")
        assert panel.table.rows
        assert not any(text(row.cells[0]) == "w" for row in panel.table.rows)


async def test_a_new_request_is_seen_as_it_comes(live: Path) -> None:
    async with app_for(live).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        await sees(pilot, "from arrival on")
        with RunStore.open(live) as store:
            cell = store.view().current_cells[0].cell
            store.append(LifecycleMeasured(cell, 77, 333, 5, 4, phases_ms={"p_prefill": 9.0}, e2e_ms=54_321.0))
        await sees(pilot, "54321")


async def test_it_shows_what_status_json_says(folders: dict[str, Path]) -> None:
    with RunStore.open(folders["ended"], read_only=True) as store:
        known = to_json(store.view(), 0.0)["lifecycle"]
    counted = sum(each["counted"] for each in known["cells"])
    discarded = sum(each["discarded"] for each in known["cells"])
    async with app_for(folders["ended"]).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        await sees(pilot, f"{counted} requests  {discarded} discarded")
        await sees(pilot, f"residual ≤ {say.digits(known['worst_residual_share'] * 100)} %")


async def test_in_ascii_phases_are_letters(live: Path) -> None:
    async with app_for(live, ascii=True).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        await sees(pilot, "p prefill")
        await sees(pilot, "pppp")
        screen = "\n".join(shown(pilot.app))
    assert screen.isascii(), {character for character in screen if not character.isascii()}


async def test_another_run_has_none_and_says_so(live_run: Path) -> None:
    async with app_for(live_run).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("9")
        await sees(pilot, "no request of this run has been broken down")
