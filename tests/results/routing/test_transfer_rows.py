"""Rows of transfers of which only some were counted: what is known of all, and what may not stand for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.records.turns import RoutedEngine
from results.routing.logs import LogFacts, log_facts
from results.routing.measure import Measurements
from results.routing.summary import summary_of
from results.routing.transfers import PolicyTransfers
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import Truth, World, loaded
from tests.results.routing.test_moves import transfers_of

SESSIONS = 10
WORLD = World(sessions=SESSIONS, turns=2, trials=3)


def engine(name: str, external: float | None) -> RoutedEngine:
    sources = {} if external is None else {"external_kv_transfer": external}
    return RoutedEngine(name, "both", "", None, "spawn", 16, None, None, None, sources)


def row_of(counted: int, *, totals: tuple[float | None, ...] = (0.0, 8000.0), also: str = "") -> PolicyTransfers:
    """Ten handovers in each of three trials: five of 400 tokens, five of 1600; the largest `counted` were counted."""
    log = Log()
    for place in range(SESSIONS):
        tokens = 1600 if place < 5 else 400
        sent = moved("a", "b", purpose="handover", prefix=tokens, external=tokens if place < counted else None)
        log.pick(place, f"s{place:03d}", "b", prefill="a", transfer=sent)
    if also:
        log.pick(50, "s000", "b", source="a", transfer=moved("a", "b", purpose=also))
    facts: dict[int, LogFacts] = {}
    cells = []
    for trial in range(WORLD.trials):
        cell = loaded(WORLD, Truth("static_pd"), trial)
        engines = tuple(engine(f"e{place}", total) for place, total in enumerate(totals))
        cells.append(replace(cell, record=replace(cell.record, engines=engines)))
        facts[trial] = log_facts(cells[-1], log.records)
    measurements = Measurements(cells, [summary_of(cell) for cell in cells])
    return transfers_of(facts, measurements)[0]


def test_where_few_were_counted_they_have_no_interval_and_the_engines_totals_stand_beside() -> None:
    row = row_of(counted=5)
    assert (row.counted, row.statuses) == (15, {"transferred": 30})
    external = row.values["external_tokens_mean"]
    assert (external.value, external.low, external.reason) == (1600, None, "only 15 of 30 were counted")
    assert row.values["prefix_tokens_mean"].value == 1000, "what was to be moved is known of all"
    assert row.values["prefix_tokens_mean"].low == pytest.approx(1000)
    assert row.values["external_total_mean"].value == 800


def test_where_nearly_all_were_counted_their_means_have_intervals() -> None:
    assert row_of(counted=9).values["external_tokens_mean"].low is not None
    assert row_of(counted=8).values["external_tokens_mean"].low is None


def test_totals_are_of_one_purpose_and_of_all_engines_or_of_none() -> None:
    for row in (row_of(9, totals=(0.0, None)), row_of(9, also="migration")):
        assert row.values["external_total_mean"].value is None
