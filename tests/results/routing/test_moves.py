"""Migrations and transfers over trials: rates, times and tokens that were put into the logs come out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from results.records.decisions import Gate
from results.records.turns import RoutedEngine
from results.routing.logs import LogFacts
from results.routing.measurements import Measurements
from results.routing.migrations import PolicyMigrations, summarize_migrations
from results.routing.recomputing import compare_with_recomputing
from results.routing.transfers import PolicyTransfers, summarize_transfers
from tests.results.routing.logs import Log, facts_of_logs, moved
from tests.results.routing.synthetic import World

pytestmark = pytest.mark.usefixtures("trials_differ_by_a_hair")

PARAMETERS: Mapping[str, Any] = {"hot_tokens": 1000, "cooldown_s": 10.0}
PER_TOKEN_S = 1e-4
SESSIONS = 12
COMES_AGAIN = 3


def log_of(took_s: float = 0.1, recomputed: int = 0) -> Log:
    """Every session computes a prompt on an idle instance, then migrates with 1600 tokens; the last `recomputed` of
    them without KV."""
    log = Log()
    for place in range(COMES_AGAIN * SESSIONS):
        log.pending["a"] = 500 * (place % 3)
        prompt = 1000 + 200 * (place % 7)
        took = 0.05 + PER_TOKEN_S * prompt + 3e-5 * log.pending["a"]
        log.pick(place / 10, f"s{place % SESSIONS:03d}", "a", prompt_tokens=prompt, counted=0, first_byte_s=took)
    log.pending["a"] = 5000
    for number in range(SESSIONS):
        begin_s = 50.0 + number
        whole = number < SESSIONS - recomputed
        sent = moved("a", "b", begin_s=begin_s, took_s=took_s, status="transferred" if whole else "failed",
                     reason="no answer within 120 s")  # fmt: skip
        log.pick(
            begin_s, f"s{number:03d}", "b", source="a", status="transferred" if whole else "recomputed",
            cached={"a": 1600}, counted=1600 if whole else 0, transfer=sent,
            first_byte_s=took_s + 0.03 if whole else 0.35,
        )  # fmt: skip
    return log


def facts_of(*logs: Log) -> tuple[dict[int, LogFacts], Measurements]:
    """A trial per log."""
    world = World(sessions=SESSIONS, turns=2, trials=len(logs))
    facts, measurements = facts_of_logs(world, "ear", {"ear": logs}, lambda _: {"parameters": PARAMETERS})
    return facts["ear"], measurements


def collect_transfers(facts: Mapping[int, LogFacts], measurements: Measurements) -> tuple[PolicyTransfers, ...]:
    moved = {trial: log.moved for trial, log in facts.items()}
    totals = {trial: log.external_total_tokens for trial, log in facts.items()}
    return summarize_transfers("ear", moved, totals, measurements)


def migrations_of(
    facts: Mapping[int, LogFacts], measurements: Measurements, parameters: Mapping[str, Any] = PARAMETERS
) -> PolicyMigrations:
    return summarize_migrations("ear", {t: log.migrations for t, log in facts.items()}, parameters, measurements)


def test_where_a_replay_ended_early_transfers_and_migrations_have_no_interval_over_trials() -> None:
    """The trials that are left are the faster ones."""
    world, logs = World(sessions=SESSIONS, turns=2, trials=3), [log_of(0.1), log_of(0.2), log_of(0.3)]
    early = {"parameters": PARAMETERS, "replay": {"stop_reason": "hard_stop"}}
    facts, measurements = facts_of_logs(world, "ear", {"ear": logs}, lambda _: early)
    (row,) = collect_transfers(facts["ear"], measurements)
    migrated = migrations_of(facts["ear"], measurements)
    for one in (
        row.values["transfer_mean_s"],
        migrated.values["trigger_rate"],
        migrated.values["waited_transferred_s"],
    ):
        assert one.value is not None
        assert (one.low, one.high) == (None, None)
        assert "in 3 of 3 trials of ear the replay ended early" in (one.reason or "")


def test_the_numbers_of_a_transfer_come_out_of_the_log() -> None:
    (row,) = collect_transfers(*facts_of(log_of(), log_of(), log_of()))
    assert (row.purpose, row.asked, row.statuses) == ("migration", 36, {"transferred": 36})
    assert row.transports == ("mooncake",)
    expected = {
        "transfer_mean_s": 0.1, "transfer_p50_s": 0.1, "transfer_max_s": 0.1, "prefill_request_mean_s": 0.025,
        "decode_request_mean_s": 0.075, "prefix_tokens_mean": 1600, "external_tokens_mean": 1600,
        "local_tokens_mean": 0, "computed_tokens_mean": 0, "bytes_mean": 3200, "external_share": 1.0,
        "source_computed_share": 0.0, "bandwidth_bytes_per_s": 3200 / 0.075,
    }  # fmt: skip
    for name, value in expected.items():
        assert row.values[name].value == pytest.approx(value), name


def test_tokens_that_the_source_lost_and_that_the_target_had_are_counted_apart() -> None:
    log = Log()
    log.pick(0, "s000", "b", source="a", transfer=moved("a", "b", prefix=1600, external=1200, source_cached=400))
    (row,) = collect_transfers(*facts_of(log))
    assert row.values["source_computed_share"].value == 0.75
    assert row.values["external_share"].value == 0.75
    assert row.values["local_tokens_mean"].value == 400


def test_three_trials_give_an_interval_over_trials_and_one_resamples_sessions() -> None:
    found = collect_transfers(*facts_of(log_of(0.1), log_of(0.2), log_of(0.3)))[0].values["transfer_mean_s"]
    assert found.value == pytest.approx(0.2)
    assert found.basis == "over 3 trials"
    assert found.low == 0.0  # 0.2 - 4.30 * 0.1 / sqrt(3), which a time cannot be
    assert found.high == pytest.approx(0.2 + 4.3027 * 0.1 / np.sqrt(3), rel=1e-4)
    rate = migrations_of(*facts_of(log_of(recomputed=3))).values["trigger_rate"]
    assert (rate.value, rate.low, rate.high) == (0.25, 0.25, 0.25)  # a quarter of every session's requests
    assert rate.basis == "sessions resampled, 1 trial"


def test_outcomes_and_reasons_are_counted_without_their_numbers() -> None:
    facts, measurements = facts_of(log_of(recomputed=3), log_of(recomputed=1), log_of())
    row = migrations_of(facts, measurements)
    assert (row.requests, row.asked, row.outcomes) == (144, 36, {"recomputed": 4, "transferred": 32})
    assert row.why_none == ""
    (sent,) = collect_transfers(facts, measurements)
    assert sent.statuses == {"failed": 4, "transferred": 32}
    assert sent.reasons == {"no answer within N s": 4}
    assert row.values["waited_transferred_s"].value == pytest.approx(0.13)  # the transfer included
    assert row.values["waited_recomputed_s"].value == pytest.approx(0.35)


def test_tokens_that_were_not_counted_are_unknown_and_say_why() -> None:
    log = Log()
    lost = replace(moved("a", "b", external=None), counted_reason="3000 tokens came, more than its 1600")
    log.pick(0, "s000", "b", source="a", transfer=lost)
    facts, measurements = facts_of(log)
    (row,) = collect_transfers(facts, measurements)
    assert row.values["external_tokens_mean"].value is None
    assert row.values["transfer_mean_s"].value == pytest.approx(0.2)
    assert row.uncounted == {"N tokens came, more than its N": 1}
    assert compare_with_recomputing("ear", {0: (facts[0].prefills, facts[0].transferred_turns)}, measurements) is None


def test_sessions_that_the_turns_do_not_name_are_not_resampled() -> None:
    log = log_of()
    log.records = [
        msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, session="x" + one.request.session))
        for one in log.records
    ]
    found = collect_transfers(*facts_of(log))[0].values["transfer_mean_s"]
    assert found.value == pytest.approx(0.1)
    assert found.low is None
    assert "the turn records do not name" in (found.reason or "")


def test_a_session_id_that_a_header_cannot_hold_is_known_again() -> None:
    _, measurements = facts_of(log_of())
    draws = measurements.replicate_rows(["s00%30", "s000"], lambda group, _weights: group.astype(float))()
    assert not isinstance(draws, str)
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    ("parameters", "gates", "why"),
    [
        ({}, (), "the policy does not migrate"),
        ({**PARAMETERS, "migration": False}, (), "migration is switched off"),
        (PARAMETERS, (), "no session's instance had more than 1000 prompt tokens pending (T_hot) at a pick"),
        (
            PARAMETERS,
            (Gate("hot", 2000, 1000, True, ""), Gate("cooldown", 3, 0, False, "")),
            "every time that a session's instance was hot it stayed: cooldown 1",
        ),
    ],
)
def test_a_cell_without_migrations_says_why(parameters: Mapping[str, Any], gates: tuple[Gate, ...], why: str) -> None:
    log = Log()
    log.pick(0, "s000", "a", gates=gates)
    row = migrations_of(*facts_of(log), parameters)
    assert (row.why_none, row.asked) == (why, 0)


def test_thrashing_names_its_sessions() -> None:
    log = Log()
    log.pick(0, "s000", "b", source="a")
    log.pick(5, "s000", "a", source="b")
    log.pick(5, "s001", "a", source="b")
    row = migrations_of(*facts_of(log))
    assert row.thrashed == ("s000",)
    assert row.values["thrash_rate"].value == 0.5


HANDED = 10
HANDOVERS = World(sessions=HANDED, turns=2, trials=3)


def engine(name: str, external: float | None) -> RoutedEngine:
    sources = {} if external is None else {"external_kv_transfer": external}
    return RoutedEngine(name, "both", "", None, "spawn", 16, None, None, None, sources)


def row_of(counted: int, *, totals: tuple[float | None, ...] = (0.0, 8000.0), also: str = "") -> PolicyTransfers:
    """Ten handovers in each of three trials: five of 400 tokens, five of 1600; the largest `counted` were counted."""
    log = Log()
    for place in range(HANDED):
        tokens = 1600 if place < 5 else 400
        sent = moved("a", "b", purpose="handover", prefix=tokens, external=tokens if place < counted else None)
        log.pick(place, f"s{place:03d}", "b", prefill="a", transfer=sent)
    if also:
        log.pick(50, "s000", "b", source="a", transfer=moved("a", "b", purpose=also))
    engines = tuple(engine(f"e{place}", total) for place, total in enumerate(totals))
    logs = {"static_pd": [log] * HANDOVERS.trials}
    facts, measurements = facts_of_logs(HANDOVERS, "static_pd", logs, lambda _: {"engines": engines})
    return collect_transfers(facts["static_pd"], measurements)[0]


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
