"""The Lifecycle panel: what an operator sees of requests broken down into phases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from console.glyphs import UNICODE
from console.panels import lifecycle as rows
from console.panels.lifecycle import LifecyclePanel
from console.rows import waterfall
from console.screens.dialogs import Detail
from results.records.events import RESIDUAL_BELOW, LifecycleMeasured
from results.records.lifecycle import HANDSHAKE_PARTS, list_phase_parts
from results.records.lifecycle import PHASES as RECORDED
from results.records.named_number import digits
from state.lifecycle import LifecycleView, MeasuredRequest, list_bandwidths, list_overheads
from state.status import to_json
from state.store import RunStore
from tests.console.conftest import NARROW, picture_of, press_and_see, see_footer, sees, shown, text, until, watching


@pytest.fixture(scope="module")
def view(made: Callable[[str], Path]) -> LifecycleView:
    lifecycle = picture_of(made("measured")).view.lifecycle
    assert lifecycle is not None
    return lifecycle


def panel_of(pilot: Pilot[None]) -> LifecyclePanel:
    return pilot.app.screen.query_one(LifecyclePanel)


# -- rows -----------------------------------------------------------------------------------------------------------


def one(**phases: float | None) -> MeasuredRequest:
    return MeasuredRequest(1.0, LifecycleMeasured("a/cell", 0, 512, 32, 3, phases_ms=phases, e2e_ms=100.0))


def bar(*requests: MeasuredRequest, room: int = 46, marker: str = "letters") -> str:
    columns = waterfall.choose_waterfall_columns(79)
    width = room + sum(column.width + 1 for column in columns if column.key != "phases")
    place = [column.key for column in columns].index("phases")
    return text(waterfall.make_waterfall_rows(requests, columns, width, UNICODE, marker)[0].cells[place])


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
@example([{"p_queue": 1e-311, "d_decode": 1.0}], 1, "letters")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bar_is_longer_than_its_room(many: list[dict[str, float | None]], room: int, marker: str) -> None:
    requests = [one(**each) for each in many]
    drawn = bar(*requests, room=room, marker=marker)
    assert len(drawn) <= room or drawn == "no phase was measured"


def test_requests_that_do_not_count_are_marked(view: LifecycleView) -> None:
    columns = waterfall.choose_waterfall_columns(119)
    place = [column.key for column in columns].index("mark")
    requests = view.requests
    made = waterfall.make_waterfall_rows(requests, columns, 119, UNICODE, "braille")
    marks = {row.key: text(row.cells[place]) for row in made}
    for key, request in waterfall.key_requests(requests):
        event = request.event
        wanted = "✗" if event.discarded else "w" if event.warmup else ""
        assert marks[key] == wanted
    assert {"✗", "w", ""} == set(marks.values())


@pytest.mark.parametrize(("share", "tone"), [(RESIDUAL_BELOW, "warn"), (0.99 * RESIDUAL_BELOW, "")])
def test_a_residual_that_fails_the_criterion_is_a_warning(share: float, tone: str) -> None:
    columns = waterfall.choose_waterfall_columns(119)
    place = [column.key for column in columns].index("residual")
    request = one()
    request = replace(request, event=replace(request.event, residual_share=share))
    (row,) = waterfall.make_waterfall_rows((request,), columns, 119, UNICODE, "letters")
    assert row.cells[place] == ((waterfall.format_share(share), tone),)


def test_the_legend_gives_the_medians_of_what_counts(view: LifecycleView) -> None:
    counting = [each for each in waterfall.list_latest_requests(view) if each.counts]
    prefills = sorted(each.event.phases_ms["p_prefill"] or 0.0 for each in counting)
    middle = (prefills[(len(prefills) - 1) // 2] + prefills[len(prefills) // 2]) / 2
    legend = " ".join(text(line) for line in waterfall.list_phases(waterfall.list_latest_requests(view), "braille", 80))
    assert f"prefill {digits(middle)} " in legend
    assert all(waterfall.PHASES[name].label in legend for name in counting[0].event.phases_ms)
    assert all(
        len(text(line)) <= 80 for line in waterfall.list_phases(waterfall.list_latest_requests(view), "letters", 80)
    )


def test_every_phase_of_the_records_has_a_name_and_a_color_of_its_own() -> None:
    assert set(waterfall.PHASES) == {*RECORDED, *HANDSHAKE_PARTS}
    for drawn in (RECORDED, list_phase_parts(lambda _: True)):
        phases = [waterfall.PHASES[name] for name in drawn]
        assert len({phase.tone for phase in phases}) == len({phase.letter for phase in phases}) == len(drawn)


def test_a_request_names_its_ttft_on_both_combined_instances() -> None:
    request = one()
    event = replace(request.event, ttft_ms=31.5, colo_ttft_ms=25.5, plain_ttft_ms=21.5)
    facts = dict(rows.list_request_facts(replace(request, event=event)))
    assert facts["TTFT"] == "31.5 ms; on one combined instance 25.5 ms; on one without a connector 21.5 ms"
    assert "without a connector" not in dict(rows.list_request_facts(request))["TTFT"]


def test_a_request_shows_every_phase_and_every_gap() -> None:
    request = one(p_prefill=12.5, rdma_transfer=None)
    gapped = replace(request, event=replace(request.event, gaps={"rdma_transfer": "no write was seen"}))
    facts = dict(rows.list_request_facts(gapped))
    assert facts["prefill"] == "12.5 ms"
    assert facts["transfer"] == "– ms"
    assert facts["rdma_transfer"] == "not measured: no write was seen"
    assert facts["counts"] == "yes"


def test_bandwidth_and_overhead_are_the_view_s(view: LifecycleView) -> None:
    (curve,) = rows.make_bandwidth_chart(view).lines
    assert [point.value for point in curve.points] == [each.median_gbps for each in list_bandwidths(view)]
    columns = rows.choose_overhead_columns(view, 79)
    made = rows.make_overhead_rows(view, columns)
    shown_overheads = {(row.key, column.key): text(content) for row in made
                       for column, content in zip(columns[1:], row.cells[1:], strict=True)}  # fmt: skip
    for each in list_overheads(view):
        cell_text = shown_overheads[str(each.context_tokens), str(each.new_tokens)]
        assert cell_text == f"{'+' if each.overhead_ms > 0 else ''}{digits(each.overhead_ms)}"
    assert "faster nowhere" in rows.make_overhead_note(view)
    assert rows.make_overhead_note(LifecycleView()).startswith("no size was measured")
    assert rows.make_bandwidth_chart(LifecycleView()).lines == ()


# -- on the screen --------------------------------------------------------------------------------------------------


async def test_at_80x24_waterfall_bandwidth_and_overhead_are_sections(live_lifecycle: Path) -> None:
    async with watching(live_lifecycle, NARROW) as pilot:
        await pilot.press("9")
        for part in ("9 Lifecycle", "of 27 cells", "warm-up", "median ms", "prefill", "from arrival on", "TTFT", "E2E"):
            await sees(pilot, part)
        await see_footer(pilot)
        await pilot.press("right")
        await sees(pilot, "Gbit/s over MB moved")
        await pilot.press("right")
        await sees(pilot, "TTFT disaggregated minus combined")
        await pilot.press("right")
        await sees(pilot, "from arrival on")


async def test_with_room_all_three_are_seen_at_once(made: Callable[[str], Path]) -> None:
    async with watching(made("measured")) as pilot:
        await pilot.press("9", "z")
        for part in ("27 of 27 cells", "from arrival on", "Gbit/s over MB moved", "TTFT disaggregated minus", "N 512"):
            await sees(pilot, part)


async def test_on_the_dashboard_it_stands_where_the_steps_were(live_lifecycle: Path) -> None:
    async with watching(live_lifecycle) as pilot:
        for part in ("1 Stages", "2 Instances", "5 Events", "9 Lifecycle", "of 27 cells"):
            await sees(pilot, part)
        assert "4 Steps" not in "\n".join(shown(pilot.app))


async def test_a_request_opens_and_requests_are_filtered(live_lifecycle: Path) -> None:
    async with watching(live_lifecycle, NARROW) as pilot:
        await press_and_see(pilot, "9", "from arrival on")
        panel = panel_of(pilot)
        await pilot.press("slash", *"!warm-up", "enter", "end", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, Detail), "nothing opened")
        for part in ("on one combined instance", "wait for D", "whole transfer"):
            await sees(pilot, part)
        await pilot.press("escape")
        assert panel.table.rows
        assert not any(text(row.cells[0]) == "w" for row in panel.table.rows)


async def test_a_new_request_is_seen_as_it_comes(live_lifecycle: Path) -> None:
    async with watching(live_lifecycle, NARROW) as pilot:
        await press_and_see(pilot, "9", "from arrival on")
        with RunStore.open(live_lifecycle) as store:
            cell = store.view().current_cells[0].cell
            store.append(LifecycleMeasured(cell, 77, 333, 5, 4, phases_ms={"p_prefill": 9.0}, e2e_ms=54_321.0))
        await sees(pilot, "54321")


async def test_it_shows_what_status_json_says(made: Callable[[str], Path]) -> None:
    with RunStore.open(made("measured"), read_only=True) as store:
        known = to_json(store.view(), 0.0)["lifecycle"]
    counted = sum(each["counted"] for each in known["cells"])
    discarded = sum(each["discarded"] for each in known["cells"])
    async with watching(made("measured"), NARROW) as pilot:
        await pilot.press("9")
        await sees(pilot, f"{counted} requests  {discarded} discarded")
        await sees(pilot, f"residual ≤ {digits(known['worst_residual_share'] * 100)} %")
