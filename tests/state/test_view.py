from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    Noted,
    PaceChosen,
    RequestAnswered,
    RequestSubmitted,
    RunChanged,
    RunState,
    RunTaken,
)
from state.events import Recorded, Unknown, decode
from state.model import EMPTY, RunView
from state.status import to_json
from state.view import FEED_LINES, HISTORY_SAMPLES, compute_elapsed_s, estimate_eta_s, fold, progress
from tests.state.plans import CELLS, a_plan, folded
from tests.state.strategies import any_event, run_events

FIXTURES = Path(__file__).parent / "fixtures"
FIRST, SECOND = CELLS[0].cell, CELLS[1].cell


@given(st.lists(any_event | run_events, max_size=25), st.data())
@settings(deadline=None)
def test_folding_in_two_parts_is_folding_at_once_and_never_fails(events: list[Event], data: st.DataObject) -> None:
    recorded = [Recorded(n + 1, 10.0 + n, 0, event) for n, event in enumerate(events)]
    cut = data.draw(st.integers(0, len(recorded)))
    assert reduce(fold, recorded[cut:], reduce(fold, recorded[:cut], EMPTY)) == reduce(fold, recorded, EMPTY)


@given(st.lists(run_events, max_size=25), st.floats(0, 1e6))
@settings(deadline=None)
def test_every_view_can_be_printed_as_json(events: list[Event], later_s: float) -> None:
    view = folded(*events)
    now = view.last_t_unix_s + later_s
    printed = json.loads(json.dumps(to_json(view, now), allow_nan=False))
    assert printed["last_seq"] == len(events) + 1
    assert 0.0 <= printed["progress"]["fraction"] <= 1.0
    assert printed["eta_s"] is None or printed["eta_s"] >= 0.0
    assert sum(printed["cell_counts"].values()) == len(CELLS)


def golden() -> RunView:
    """A run with a failed pre-flight, a kill -9 in the middle of a cell, a takeover and two requests."""
    view = EMPTY
    for text in (FIXTURES / "run.jsonl").read_text().splitlines():
        line = json.loads(text)
        event = decode(line["kind"], json.dumps(line["body"]))
        view = fold(view, Recorded(line["seq"], line["t_unix_s"], line["t_mono_ns"], event))
    return view


def test_the_golden_journal_reads_as_an_operator_reads_it() -> None:
    view = golden()
    lines = [
        f"{line.t_unix_s - view.row.created_unix_s:4.0f} {line.level:7} {line.subject}: {line.text}"
        for line in view.feed
    ]
    assert lines == (FIXTURES / "run.feed.txt").read_text().splitlines()


def test_the_golden_journal_gives_the_golden_status() -> None:
    """The contract of `tracon status --json`: change it knowingly, with the expected file."""
    shown: dict[str, Any] = json.loads(json.dumps(to_json(golden(), now_unix_s=1_767_268_880.0)))
    assert shown == json.loads((FIXTURES / "run.status.json").read_text())


def test_histories_and_feed_are_bounded() -> None:
    start = InstanceChanged("plain-1", "plain", InstanceState.STARTING, pid=1)
    samples = [
        InstanceSampled(instance="plain-1", cell=FIRST, sent=n, step_counts=(1, 2)) for n in range(HISTORY_SAMPLES + 50)
    ]
    notes = [Noted("info", "run", str(n)) for n in range(FEED_LINES + 50)]
    view = folded(start, *samples, *notes)
    instance = view.instances["plain-1"]
    assert len(instance.history) == HISTORY_SAMPLES
    assert instance.history[-1][1] is instance.latest is samples[-1]
    assert instance.history[0][1] is samples[50]
    assert instance.step_counts_total == (len(samples), 2 * len(samples))
    assert [line.text for line in view.feed] == [str(n) for n in range(50, FEED_LINES + 50)]


def test_live_numbers_make_no_feed_line() -> None:
    before = folded(InstanceChanged("plain-1", "plain", InstanceState.STARTING))
    after = fold(before, Recorded(3, 102.0, 0, InstanceSampled(instance="plain-1", cell=FIRST)))
    assert after.feed is before.feed


def test_an_unknown_event_moves_the_journal_and_nothing_else() -> None:
    before = folded(CellChanged(FIRST, CellState.RUNNING, 1))
    after = fold(before, Recorded(3, 102.0, 0, Unknown("of_tomorrow", {"a": 1})))
    assert (after.last_seq, after.feed[-1].subject) == (3, "of_tomorrow")
    assert (after.cells, after.stages, after.row) == (before.cells, before.stages, before.row)


def test_seconds_without_step_timing_leave_the_histogram_alone() -> None:
    start = InstanceChanged("plain-1", "plain", InstanceState.STARTING)
    view = folded(
        start,
        InstanceSampled(instance="plain-1", cell=FIRST),
        InstanceSampled(instance="plain-1", cell=FIRST, step_counts=(1, 0, 4)),
        InstanceSampled(instance="plain-1", cell=FIRST),
    )
    assert view.instances["plain-1"].step_counts_total == (1, 0, 4)


def test_what_an_instance_event_leaves_out_stays_known() -> None:
    view = folded(
        InstanceChanged(
            "plain-1", "plain", InstanceState.STARTING, pid=9, pgid=9, process_start=1.5, boot_id="b", devices=("1",)
        ),
        InstanceChanged("plain-1", "plain", InstanceState.READY, url="http://127.0.0.1:8000"),
        InstanceChanged("plain-1", "plain", InstanceState.FAILED, reason="died"),
    )
    instance = view.instances["plain-1"]
    assert (instance.pid, instance.pgid, instance.process_start, instance.boot_id) == (9, 9, 1.5, "b")
    assert instance.devices == ("1",)
    assert (instance.url, instance.reason, instance.ready_unix_s) == ("http://127.0.0.1:8000", "died", 102.0)
    assert view.live_instances == ()


def test_pausing_shows_from_the_request_until_the_run_rests() -> None:
    running = RunChanged(RunState.RUNNING)
    asked = RequestSubmitted(1, "pause")
    assert folded(running).pause == ""
    assert folded(running, asked).pause == "pausing"
    assert folded(running, asked, RequestAnswered(1, True)).pause == "pausing"
    assert folded(running, asked, RequestAnswered(1, False)).pause == ""
    assert folded(running, asked, RequestSubmitted(2, "resume")).pause == ""
    assert folded(running, asked, RunChanged(RunState.PAUSED)).pause == "paused"
    assert folded(running, asked, RunChanged(RunState.PAUSED), running).pause == ""


def test_time_counts_only_while_someone_runs_the_run() -> None:
    ran_10 = folded(RunChanged(RunState.RUNNING), RunChanged(RunState.PAUSED), start_s=0, step_s=10)
    assert compute_elapsed_s(ran_10, 1_000.0) == 10.0
    again = folded(
        RunChanged(RunState.RUNNING),  # 10 s
        RunChanged(RunState.PAUSED),  # 20 s
        RunChanged(RunState.RUNNING),  # 30 s
        start_s=0,
        step_s=10,
    )
    assert compute_elapsed_s(again, 31.0) == 11.0
    taken = RunTaken(2, "host", 1, "host", last_heartbeat_unix_s=13.0)
    after_death = folded(
        RunChanged(RunState.RUNNING, pid=1),  # 10 s; dead after 13 s
        taken,  # 20 s
        RunChanged(RunState.RUNNING, pid=2),  # 30 s
        start_s=0,
        step_s=10,
    )
    assert compute_elapsed_s(after_death, 32.0) == 5.0


def test_a_takeover_without_a_word_goes_on_from_the_last_event() -> None:
    view = folded(
        RunChanged(RunState.RUNNING),  # 10 s
        Noted("info", "run", "alive"),  # 20 s
        RunChanged(RunState.RUNNING),  # 30 s
        start_s=0,
        step_s=10,
    )
    assert compute_elapsed_s(view, 31.0) == 11.0


def test_progress_weighs_cells_by_their_estimate() -> None:
    view = folded(
        CellChanged(FIRST, CellState.RUNNING, 1),
        CellChanged(FIRST, CellState.DONE, 1),
        CellChanged(SECOND, CellState.RUNNING, 1),
        CellProgressed(SECOND, 0.5),
    )
    ended, total, fraction = progress(view)
    assert (ended, total) == (1, 6)
    assert fraction == pytest.approx((10 + 5) / 140)
    assert view.counts[CellState.PENDING] == 4
    assert [cell.cell for cell in view.current_cells] == [SECOND]


def test_before_anything_ran_the_plan_is_the_forecast() -> None:
    assert estimate_eta_s(folded(), 500.0) == pytest.approx(a_plan().estimated_s)


def test_cells_that_take_twice_their_estimate_double_the_forecast_of_their_kind_alone() -> None:
    view = folded(
        RunChanged(RunState.RUNNING),  # 20 s
        CellChanged(FIRST, CellState.RUNNING, 1),  # 40 s
        CellChanged(FIRST, CellState.DONE, 1),  # 60 s: 20 s for an estimate of 10
        start_s=0,
        step_s=20,
    )
    between_s = 20.0  # the run ran 20 s before its first cell
    checks = sum(cell.estimated_s for cell in CELLS[1:] if cell.kind == CELLS[0].kind)
    loads = sum(cell.estimated_s for cell in CELLS if cell.kind == "load")
    assert estimate_eta_s(view, 60.0) == pytest.approx(2 * checks + loads + 5 * between_s)


def test_kinds_of_cells_are_scaled_by_their_own_kind() -> None:
    first_load = CELLS[2].cell
    view = folded(
        RunChanged(RunState.RUNNING),
        CellChanged(FIRST, CellState.RUNNING, 1),
        CellChanged(FIRST, CellState.DONE, 1),  # 1 s for an estimate of 10
        CellChanged(first_load, CellState.RUNNING, 1),
        CellChanged(first_load, CellState.DONE, 1),  # 1 s for an estimate of 30
    )
    between_s = (5 - 1 - 2) / 2
    assert estimate_eta_s(view, view.last_t_unix_s) == pytest.approx(10 * 0.1 + 90 / 30 + 4 * between_s)


def test_the_forecast_shrinks_while_a_cell_runs_and_never_goes_below_the_rest() -> None:
    view = folded(RunChanged(RunState.RUNNING), CellChanged(FIRST, CellState.RUNNING, 1), step_s=0.0)
    forecasts = [estimate_eta_s(view, 100.0 + passed) or 0.0 for passed in range(0, 60, 5)]
    assert forecasts == sorted(forecasts, reverse=True)
    assert forecasts[0] == pytest.approx(140.0)
    assert forecasts[-1] == pytest.approx(130.0)


def test_the_first_cell_of_a_pace_is_the_forecast_of_the_others() -> None:
    first_load = CELLS[2].cell
    view = folded(
        PaceChosen(10.0),
        RunChanged(RunState.RUNNING),
        CellChanged(first_load, CellState.RUNNING, 1),
        CellProgressed(first_load, 0.25),
        step_s=15.0,
    )
    begun_s = 100.0 + 3 * 15.0
    loads = [cell.estimated_s for cell in CELLS if cell.kind == "load"]
    others = sum(cell.estimated_s for cell in CELLS) - sum(loads)
    scale = 4 * 60.0 / loads[0]  # 60 s were a quarter of it
    assert estimate_eta_s(view, begun_s + 60.0) == pytest.approx(scale * (sum(loads) + others - 0.25 * loads[0]))


def test_a_cell_that_has_just_begun_moves_the_forecast_of_a_pace_little() -> None:
    first, second, *_ = (cell for cell in CELLS if cell.kind == "load")
    done = (
        PaceChosen(10.0),
        RunChanged(RunState.RUNNING),
        CellChanged(first.cell, CellState.RUNNING, 1),
        CellChanged(first.cell, CellState.DONE, 1),
        CellChanged(second.cell, CellState.RUNNING, 1),
    )
    before, begun = folded(*done, step_s=60.0), folded(*done, CellProgressed(second.cell, 0.001), step_s=60.0)
    forecast_s = estimate_eta_s(before, before.last_t_unix_s + 1.0)
    assert forecast_s is not None
    assert estimate_eta_s(begun, before.last_t_unix_s + 1.0) == pytest.approx(forecast_s, rel=0.1)


def test_cells_that_end_ahead_of_their_turn_share_the_time_of_the_cell_that_runs() -> None:
    """They are recorded as running for their end only: by their own time alone nothing would be left."""
    first, second, *_ = (cell.cell for cell in CELLS if cell.kind == "load")
    view = folded(
        RunChanged(RunState.RUNNING),
        CellChanged(first, CellState.RUNNING, 1),
        CellProgressed(first, 0.5),
        CellChanged(second, CellState.RUNNING, 1),
        CellChanged(second, CellState.DONE, 1),
        step_s=10.0,
    )
    scale = (30 + 10) / (0.5 * 30 + 30)  # seconds of both cells, for the half of the first and all of the second
    assert estimate_eta_s(view, view.last_t_unix_s) == pytest.approx(scale * (0.5 * 30 + 2 * 30) + 2 * 10)


@pytest.mark.parametrize(("fraction", "left_s"), [(0.0, 100.0), (0.25, 104.0)])
def test_the_forecast_is_not_zero_while_others_end_at_once(fraction: float, left_s: float) -> None:
    """A task of a cluster reports no progress."""
    first, second, *_ = (cell.cell for cell in CELLS if cell.kind == "load")
    view = folded(
        RunChanged(RunState.RUNNING),
        CellChanged(first, CellState.RUNNING, 1),
        CellProgressed(first, fraction),
        step_s=20.0,
    )
    at_s = view.last_t_unix_s + 0.001
    for number, state in enumerate((CellState.RUNNING, CellState.DONE), view.last_seq + 1):
        view = fold(view, Recorded(number, at_s, 0, CellChanged(second, state, 1)))
    assert estimate_eta_s(view, at_s) == pytest.approx(left_s, abs=0.1)


@pytest.mark.parametrize("state", [CellState.FAILED, CellState.SKIPPED, CellState.PENDING])
def test_the_time_of_an_attempt_that_was_not_done_counts_for_those_that_ended_in_it(state: CellState) -> None:
    first, second, *_ = (cell.cell for cell in CELLS if cell.kind == "load")
    view = folded(
        RunChanged(RunState.RUNNING),
        CellChanged(first, CellState.RUNNING, 1),
        CellChanged(second, CellState.RUNNING, 1),
        CellChanged(second, CellState.DONE, 1),
        CellChanged(first, state, 1),
        step_s=10.0,
    )
    left = 3 if state is CellState.PENDING else 2
    scale = (30 + 10) / 30  # seconds of both cells, for the second
    assert estimate_eta_s(view, view.last_t_unix_s) == pytest.approx(scale * left * 30 + 2 * 10)


def test_an_attempt_that_failed_alone_says_nothing_about_the_estimates() -> None:
    first, second, *_ = (cell.cell for cell in CELLS if cell.kind == "load")
    view = folded(
        RunChanged(RunState.RUNNING),
        CellChanged(first, CellState.RUNNING, 1),
        CellChanged(first, CellState.FAILED, 1),
        CellChanged(second, CellState.RUNNING, 1),
        CellChanged(second, CellState.DONE, 1),
        step_s=10.0,
    )
    between_s = (40 - 2 * 10) / 2
    assert estimate_eta_s(view, view.last_t_unix_s) == pytest.approx(10 / 30 * 2 * 30 + 2 * 10 + 4 * between_s)


def test_the_last_pace_counts() -> None:
    assert folded().pace == 0.0
    assert folded(PaceChosen(10.0)).pace == 10.0
    assert folded(PaceChosen(10.0), PaceChosen(0.0)).pace == 0.0


def test_an_ended_run_has_nothing_to_come() -> None:
    assert estimate_eta_s(folded(RunChanged(RunState.RUNNING), RunChanged(RunState.DONE)), 1e6) == 0.0
    assert estimate_eta_s(folded(RunChanged(RunState.RUNNING), RunChanged(RunState.FAILED)), 1e6) is None


def test_a_cell_that_overshoots_its_expectation_is_not_more_than_done() -> None:
    for fraction, shown in ((1.7, 1.0), (-0.2, 0.0)):
        view = folded(CellChanged(FIRST, CellState.RUNNING, 1), CellProgressed(FIRST, fraction))
        assert view.cells[FIRST].fraction == shown


def test_progress_of_a_cell_that_does_not_run_counts_for_nothing() -> None:
    assert folded(CellProgressed(FIRST, 0.5)).cells[FIRST].fraction == 0.0
