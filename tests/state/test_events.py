from __future__ import annotations

import pytest
from hypothesis import given

from results.records.events import (
    CellChanged,
    CellState,
    EngineDeath,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    Noted,
)
from state.events import KINDS, Recorded, Unknown, decode, encode, name_wire_kind
from state.feed_lines import make_feed_line
from tests.state.strategies import any_event


@given(any_event)
def test_every_event_comes_back_from_the_wire_as_it_went(event: Event) -> None:
    assert decode(name_wire_kind(event), encode(event)) == event


@given(any_event)
def test_every_event_can_be_told_in_one_line(event: Event) -> None:
    line = make_feed_line(Recorded(1, 5.0, 0, event))
    assert line.t_unix_s == 5.0
    assert isinstance(line.text, str)
    if not isinstance(event, Noted):
        assert line.text
        assert line.level in ("info", "warning", "error")


def test_a_finished_cell_is_told_with_its_first_numbers_as_people_read_them() -> None:
    summary = {"ttft_p50_s": 0.0072, "ttft_p90_s": 0.00882, "ttft_p90_low_s": 0.0085, "ttft_p90_high_s": 0.0093,
               "tpot_p50_s": None, "tpot_p90_s": 0.0031, "completed": 96, "dropped": 0}  # fmt: skip
    line = make_feed_line(Recorded(1, 5.0, 0, CellChanged("a", CellState.DONE, 1, summary=summary)))
    assert line.text == "done: TTFT p50 7.20 ms, TTFT p90 8.82 ms [8.50, 9.30], TPOT p90 3.10 ms, completed 96"


def test_each_kind_has_a_wire_name_of_its_own() -> None:
    assert all(cls.kind == kind for kind, cls in KINDS.items())


def test_an_event_of_a_newer_version_is_kept() -> None:
    event = decode("of_tomorrow", b'{"depth": 3}')
    assert event == Unknown("of_tomorrow", {"depth": 3})
    assert decode(name_wire_kind(event), encode(event)) == event


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    event = decode("noted", b'{"level": "info", "subject": "a", "text": "b", "color": "green"}')
    assert event == Noted("info", "a", "b")


def test_bytes_that_are_no_text_do_not_stop_an_event() -> None:
    last_words = b"died: \xff\x80".decode("utf-8", "surrogateescape")
    event = InstanceChanged("plain-1", "plain", InstanceState.FAILED, reason=last_words)
    read = decode(event.kind, encode(event))
    assert isinstance(read, InstanceChanged)
    assert read.reason == "died: ??"
    assert read.state is InstanceState.FAILED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_is_no_number_was_not_measured(value: float | None) -> None:
    read = decode("instance_sampled", encode(InstanceSampled(instance="plain-1", cell="a", ttft_p50_s=value)))
    assert isinstance(read, InstanceSampled)
    assert read.ttft_p50_s is None


def test_a_death_comes_back_whole_and_an_older_journal_has_none() -> None:
    death = EngineDeath("SIGILL", "EngineCore", 7, "vllm/x.py:1 in f", "", "", ("the last line",))
    event = InstanceChanged("plain-1", "plain", InstanceState.FAILED, death=death)
    assert decode("instance_changed", encode(event)) == event
    older = b'{"instance": "plain-1", "config": "plain", "state": "failed", "reason": "x"}'
    assert decode("instance_changed", older) == InstanceChanged("plain-1", "plain", InstanceState.FAILED, reason="x")
