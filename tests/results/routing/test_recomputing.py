"""Was moving KV faster than computing? Known times come out of the fit and of the arms; a poor fit judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from results.routing.recomputing import (
    MIN_FIT,
    AgainstArm,
    AgainstRecomputing,
    Prefill,
    TransferredTurn,
    compare_with_arm,
    compare_with_recomputing,
    describe_fit,
    explain_withheld,
    find_prefills,
    find_recomputing_arms,
    find_transferred_turns,
    fit_times,
)
from results.statistics.judgement import Verdict
from tests.results.routing.logs import Log, facts_of_logs, moved
from tests.results.routing.synthetic import Truth, World, loaded
from tests.results.routing.test_moves import PARAMETERS, PER_TOKEN_S, SESSIONS, facts_of, log_of

pytestmark = pytest.mark.usefixtures("trials_differ_by_a_hair")


@pytest.mark.parametrize(("took_s", "verdict"), [(0.1, Verdict.LOWER), (0.3, Verdict.HIGHER)])
def test_a_migrated_turn_is_set_against_computing_what_came(took_s: float, verdict: Verdict) -> None:
    """Without KV the target would have computed 2000 tokens at 0.1 ms each, with nothing pending: 0.05 + 0.2 s."""
    row = _against(log_of(took_s), log_of(took_s * 1.01), log_of(took_s * 0.99))
    assert row.prefill_s_per_token.value == pytest.approx(PER_TOKEN_S)
    assert row.compute_s.value == pytest.approx(0.16)
    assert row.transfer_s.value == pytest.approx(took_s)
    assert row.with_kv_s.value == pytest.approx(took_s + 0.03)
    assert row.without_kv_s.value == pytest.approx(0.25)
    assert row.difference_s.value == pytest.approx(took_s + 0.03 - 0.25)
    assert row.verdict == verdict


def test_one_trial_resamples_sessions_and_carries_no_verdict() -> None:
    row = _against(log_of(0.1))
    assert row.difference_s.low == pytest.approx(-0.12)  # no noise was put in: every draw finds the same
    assert (row.difference_s.basis, row.verdict) == ("sessions resampled, 1 trial", None)


def test_what_the_target_had_pending_counts_on_both_sides() -> None:
    log = log_of(0.1)
    busy = [
        msgspec.structs.replace(load, pending_prefill_tokens=4000 if load.instance == "b" else 0)
        for load in log.records[-1].cluster.instances
    ]
    log.records = [
        msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, instances=tuple(busy)))
        if one.decision.migrate_from
        else one
        for one in log.records
    ]
    assert _against(log).without_kv_s.value == pytest.approx(0.25 + 3e-5 * 4000)


def _against(*logs: Log) -> AgainstRecomputing:
    facts, measurements = facts_of(*logs)
    cells = {trial: (one.prefills, one.transferred_turns) for trial, one in facts.items()}
    row = compare_with_recomputing("ear", cells, measurements)
    assert row is not None
    return row


def test_turns_with_kv_from_elsewhere_do_not_tell_what_computing_takes() -> None:
    log = Log()
    log.pending["a"] = 70
    log.pick(0, "s000", "a", counted=500)
    log.pick(1, "s000", "b", counted=0, prefill="a", transfer=moved("a", "b", purpose="handover"))
    log.pick(2, "s000", "b", source="a", counted=1600, transfer=moved("a", "b"))
    log.pick(3, "s000", "a")  # the response did not say what was cached
    assert find_prefills(log.records) == (Prefill("s000", 1500, 70, 0.5),)
    assert find_transferred_turns(log.records) == (TransferredTurn("s000", 1600, 0.2, 2000, 0, 0.5),)
    _, measurements = facts_of(log_of())
    assert "needs" in str(fit_times(find_prefills(log.records), find_transferred_turns(log.records), measurements))


def test_what_was_pending_is_not_taken_for_what_was_computed() -> None:
    """Long prompts came when much was pending: the time per token is not that of the queue."""
    _, measurements = facts_of(log_of())
    came = (TransferredTurn("s000", 1600, 0.2, 2000, 0, 0.5),)

    def per_token(turns: list[Prefill]) -> float:
        found = fit_times(turns, came, measurements)
        assert not isinstance(found, str), found
        return found["prefill_s_per_token"].value

    queues = [1000 * place + 300 * (place % 3) for place in range(40)]
    turns = [Prefill("s000", 100 * n, queue, 0.1 + 1e-2 * n + 5e-5 * queue) for n, queue in enumerate(queues)]
    assert per_token(turns) == pytest.approx(1e-4)
    assert per_token([replace(one, pending_tokens=0) for one in turns]) == pytest.approx(6e-4, rel=0.01)
    falling = [Prefill("s000", 100 * place, 0, 50.0 - place) for place in range(MIN_FIT)]
    equal = [Prefill("s000", 100, 0, 0.1 * place) for place in range(MIN_FIT)]
    for flat in (falling, equal):
        assert "did not take longer" in str(fit_times(flat, came, measurements))


def noisy(sigma_s: float, prompts: int = 2400) -> list[Prefill]:
    """Turns of up to this many tokens, whose times follow PER_TOKEN_S but for noise."""
    rng = np.random.default_rng(7)
    tokens = np.linspace(100, prompts, 400)
    times = 0.05 + PER_TOKEN_S * tokens + sigma_s * rng.standard_normal(tokens.size)
    return [Prefill("s000", int(n), 0, float(t)) for n, t in zip(tokens, times, strict=True)]


def test_the_fit_says_how_much_it_explains_and_by_how_much_it_misses() -> None:
    came = (TransferredTurn("s000", 1600, 0.2, 2000, 0, 0.5),)
    good, poor = describe_fit(noisy(0.02), came), describe_fit(noisy(0.2), came)
    spread = PER_TOKEN_S * 2300 / np.sqrt(12)  # of evenly spread tokens
    assert good.error_s == pytest.approx(0.02, rel=0.1)
    assert good.r2 == pytest.approx(1 / (1 + (0.02 / spread) ** 2), abs=0.02)
    assert poor.error_s == pytest.approx(0.2, rel=0.1)
    assert poor.r2 < 0.2
    assert explain_withheld([good]) == ""
    assert "of the variance" in explain_withheld([good, poor])


def test_a_fit_that_is_stretched_beyond_its_turns_carries_no_verdict() -> None:
    inside, outside = TransferredTurn("s000", 1600, 0.2, 2000, 0, 0.5), TransferredTurn("s000", 9000, 0.2, 9000, 0, 0.5)
    queued = replace(inside, pending_tokens=5000)
    fit = describe_fit(noisy(0.02), (inside, outside, queued))
    assert (fit.moved, fit.beyond) == (3, 2)
    assert fit.computed_tokens == pytest.approx(0.95 * 2300 + 100, abs=2)
    assert explain_withheld([fit]) == "2 of 3 migrated turns lie beyond the turns it was fitted to"
    assert explain_withheld([describe_fit(noisy(0.02), (inside, inside, outside))]) == ""


def test_three_trials_of_a_poor_fit_show_their_numbers_and_no_verdict() -> None:
    _, measurements = facts_of(log_of())
    came = tuple(TransferredTurn(f"s{n:03d}", 1600, 0.2, 2000, 0, 0.9) for n in range(5))
    row = compare_with_recomputing("ear", dict.fromkeys(range(3), (noisy(0.3), came)), measurements)
    assert row is not None
    assert row.difference_s.value is not None
    assert row.difference_s.low is not None
    assert row.difference_s.low == pytest.approx(row.difference_s.value - row.fits[0].error_s)  # trials are equal
    assert row.verdict is None
    assert row.withheld


ARM = {"moves_kv": True, "transfer": {"timeout_s": 4.0}}


def arms_of(with_kv_s: float, without_kv_s: float, trials: int, early: Collection[str] = ()) -> AgainstArm:
    """Two labels, whose migrated turns wait this long, in launches that differ by a tenth.

    `early`: those whose replays met their hard stop.
    """
    world = World(sessions=SESSIONS, turns=2, trials=trials)
    logs: dict[str, list[Log]] = {"ear": [], "again": []}
    for label, took_s in (("ear", with_kv_s), ("again", without_kv_s)):
        for trial in range(trials):
            logs[label].append(Log())
            for number in range(SESSIONS):
                launch = 1 + 0.1 * trial  # of both arms alike
                logs[label][trial].pick(number, f"s{number:03d}", "b", source="a", first_byte_s=took_s * launch)
    stopped = {"replay": {"stop_reason": "hard_stop"}}
    facts, measurements = facts_of_logs(
        world, "ear", logs, lambda label: {"parameters": PARAMETERS, **(stopped if label in early else {})}
    )
    migrations = {label: {trial: log.migrations for trial, log in own.items()} for label, own in facts.items()}
    return compare_with_arm("ear", "again", migrations, measurements)


def test_arms_are_compared_inside_their_trials() -> None:
    row = arms_of(0.2, 0.3, trials=3)
    assert row.ratio.value == pytest.approx(2 / 3)
    assert row.ratio.high == pytest.approx(2 / 3)  # what a launch does to both cancels
    assert row.with_kv_s.value == pytest.approx(0.22)
    assert (row.migrated, row.other_migrated) == (36, 36)
    assert (row.verdict, arms_of(0.3, 0.2, trials=3).verdict) == (Verdict.LOWER, Verdict.HIGHER)


def test_an_arm_whose_replay_ended_early_carries_no_verdict() -> None:
    row = arms_of(0.2, 0.3, trials=3, early=("again",))
    assert row.ratio.value == pytest.approx(2 / 3)
    assert (row.verdict, row.ratio.low, row.every_turn.low) == (None, None, None)
    assert "in 3 of 3 trials of again the replay ended early" in (row.ratio.reason or "")


def test_arms_in_two_trials_carry_no_verdict() -> None:
    row = arms_of(0.2, 0.3, trials=2)
    assert row.ratio.value == pytest.approx(2 / 3)
    assert row.verdict is None


@pytest.mark.parametrize(
    ("parameters", "router", "arm"),
    [
        (PARAMETERS, {**ARM, "moves_kv": False}, {"ear": "again"}),
        ({**PARAMETERS, "hot_tokens": 7}, {**ARM, "moves_kv": False}, {}),
        (PARAMETERS, {"moves_kv": False, "transfer": {"timeout_s": 15.0}}, {}),
        (PARAMETERS, ARM, {}),
        (PARAMETERS, {}, {}),
    ],
)
def test_an_arm_differs_in_nothing_but_whether_kv_moves(
    parameters: Mapping[str, Any], router: Mapping[str, Any], arm: Mapping[str, str]
) -> None:
    records = [loaded(World(sessions=2, turns=1), Truth(label, "ear")).record for label in ("ear", "again")]
    first = replace(records[0], parameters=PARAMETERS, router=ARM)
    assert find_recomputing_arms([first, replace(records[1], parameters=parameters, router=router)]) == arm


@pytest.mark.parametrize(
    ("load", "arm"),
    [
        ({}, {"ear": "again"}),
        ({"trace": "more-skew"}, {}),
        ({"kv_cache_memory_bytes": 1 << 24}, {}),
        ({"time_scale": 2.0}, {}),
    ],
)
def test_an_arm_meets_the_same_load(load: Mapping[str, Any], arm: Mapping[str, str]) -> None:
    own: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"moves_kv": True}, {"moves_kv": False})
    truths = Truth("ear", "ear", router=own[0]), Truth("again", "ear", router=own[1], **load)
    assert find_recomputing_arms(loaded(World(sessions=2, turns=1), truth).record for truth in truths) == arm


def test_the_arm_stands_where_no_transfer_was_counted() -> None:
    row = arms_of(0.2, 0.3, trials=3)
    _, measurements = facts_of(log_of())
    assert compare_with_recomputing("ear", {0: ((), ())}, measurements) is None
    found = compare_with_recomputing("ear", {0: ((), ())}, measurements, row)
    assert found is not None
    assert found.arm is row
    assert "no migration brought KV" in (found.difference_s.reason or "")
