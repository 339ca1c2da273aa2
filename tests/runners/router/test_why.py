"""A pick in words: the winner, every gate, and for each other instance why not."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from runners.router.policies.ear import EAR
from runners.router.policies.kv_aware import KvAware
from runners.router.policies.lmetric import LMetric
from runners.router.policies.policy import Policy
from runners.router.policies.static_pd import StaticPD
from runners.router.policies.unified import Unified
from runners.router.why import explain_picks
from tests.runners.router.policies.test_policies import PD
from tests.runners.router.views import BLOCK, ask, load, view


def why_lines(
    policy: Policy, request: RoutedRequest, cluster: ClusterView, outcome: RoutedOutcome | None = None
) -> dict[str, str]:
    """The explanation, and each instance's line by name."""
    lines = explain_picks([DecisionRecord(7, 0, 23.4, request, cluster, policy.decide(request, cluster), outcome)])
    named = {line.split(":")[0].strip(): line for line in lines if line.startswith("  ")}
    return {"": "\n".join(lines), **named}


def test_affinity_is_told_with_its_gates_and_with_whom_the_score_would_have_taken() -> None:
    lines = why_lines(Unified(), ask(1000, {"a": 900}, owner="a"), view(load("a", bs=1), load("b"), load("c", bs=1)))
    for part in (
        "Request r (session s, turn 0; 1000 prompt tokens, up to 100 output tokens) went to a.",
        "Policy unified, reason `affinity`",
        "Gate cache passed: a holds 0.90 of the prompt > 0.5.",
        "Gate load passed: a has 1 requests <= 2 x mean 0.67.",
        "Pick 7, decided in 23 us.",
        "Outcome: not known",
    ):
        assert part in lines[""]
    assert "its score is better ((pending + new tokens) x requests 0 against 100)" in lines["b"]
    assert "but the score did not decide" in lines["b"]
    assert "not picked: (pending + new tokens) x requests 1000 against 100" in lines["c"]
    assert lines["a"].startswith("  a: picked; score (100, 100, 1, 0)")


def test_why_not_names_the_first_key_that_told_them_apart() -> None:
    lines = why_lines(Unified(), ask(1000, {"b": 160}), view(load("a"), load("b"), load("c", available=False)))
    assert "equal before it, then prompt tokens to compute 1000 against 840" in lines["a"]
    assert "Tie: a, b are equal on work_x_requests (0); decided by new_tokens." in lines[""]
    assert "c: not picked: ruled out: unavailable" in lines["c"]


def test_every_term_of_the_lex_score_is_shown() -> None:
    cluster = view(load("a", bs=3, assigned=9), load("b"))
    lines = why_lines(KvAware(load_floor_bonus=200), ask(2000, {"a": 50 * BLOCK}), cluster)
    assert "floor bonus 200" in lines["b"]
    assert "minus (overlap + bonuses in blocks) -50 against -200" in lines["a"]


def test_pools_compare_within_their_pool() -> None:
    lines = why_lines(StaticPD(), ask(2000), view(*PD))
    assert "went to d1, its prompt computed by p1." in lines[""]
    assert "picked for the prompt" in lines["p1"]
    assert "2500 against 2100" in lines["p0"]
    assert "ruled out: 1500 KV tokens free, 2000 needed" in lines["d0"]


def test_a_migration_is_told_with_its_gates_and_what_became_of_it() -> None:
    policy = EAR(hot_tokens=4000, cooldown_s=30)
    request = msgspec.structs.replace(ask(1000, {"a": 912}, owner="a"), since_migration_s=41.5)
    cluster = view(load("a", pp=5000), load("b", free_kv_tokens=9000), load("c", pp=10, free_kv_tokens=20))
    done = RoutedOutcome("ok", 200, 0.31, 1.2, 1000, 0, 100, migration="recomputed")
    lines = why_lines(policy, request, cluster, done)
    for part in (
        "went to b.",
        "reason `migrated`: the session's instance is hot",
        "The session's owner was a; it migrated 41.5 s before.",
        "its KV was to be moved from a first",
        "Gate hot passed: a has 5000 prompt tokens pending > 4000.",
        "Gate cooldown passed: 0.0 s of 30 s left <= 0 (migrated 41.5 s before).",
        "Gate target passed: 1 instances are less busy than a and have room for 1000 KV tokens >= 1.",
        "no KV was moved: the target computed what it did not hold",
    ):
        assert part in lines[""]
    assert "ruled out: it is hot: 5000 prompt tokens pending" in lines["a"]
    assert "ruled out: 20 KV tokens free, 1000 needed" in lines["c"]
    stays = why_lines(policy, msgspec.structs.replace(request, since_migration_s=1.0), cluster)
    assert "Gate cooldown failed: 29.0 s of 30 s left <= 0 (migrated 1.0 s before)." in stays[""]
    assert "prompt tokens pending there 0 against 5000), but the score did not decide" in stays["b"]


def test_a_transfer_is_told_with_its_times_and_what_the_target_counted() -> None:
    policy = EAR(hot_tokens=4000, cooldown_s=30)
    request = ask(1000, {"a": 912}, owner="a")
    cluster = view(load("a", pp=5000), load("b", free_kv_tokens=9000))
    moved = KvTransfer(
        "kv-1", "migration", "mooncake", "a", "b", "transferred", attempts=2, prefix_tokens=912, external_tokens=880,
        local_tokens=32, computed_tokens=0, bytes=450_560, bytes_from="tokens", t_begin_ns=10**9,
        t_source_sent_ns=1_010_000_000, t_source_done_ns=1_060_000_000, t_target_sent_ns=1_070_000_000,
        t_done_ns=1_200_000_000,
    )  # fmt: skip
    done = RoutedOutcome("ok", 200, 0.31, 1.2, 1000, 912, 100, migration="transferred", transfer=moved)
    text = why_lines(policy, request, cluster, done)[""]
    for part in (
        "Transfer kv-1 (migration, mooncake): KV of 912 tokens from a to b was moved after 2 tries in 0.200 s "
        "(prefill request 0.050 s, decode request 0.130 s).",
        "The target counted 880 from the transfer, 32 in its own cache, 0 computed; 450560 bytes (tokens).",
        "the session's KV was moved, and the session with it",
    ):
        assert part in text
    for status, reason, part in (
        ("refused", "quarantined for 9 s", "was not tried: quarantined for 9 s."),
        ("unneeded", "the target lacks 0", "was not needed: the target lacks 0."),
        ("failed", "the source answers HTTP 500", "failed after 2 tries: the source answers HTTP 500 in 0.200 s"),
    ):
        lost = replace(
            moved,
            status=status,  # type: ignore[arg-type]
            reason=reason,
            external_tokens=None,
            counted_reason="nothing came",
        )
        failed = msgspec.structs.replace(done, transfer=lost, migration="recomputed")
        text = why_lines(policy, request, cluster, failed)[""]
        assert part in text
    assert "Not all of it could be counted: nothing came." in text


def test_nothing_picked_says_why() -> None:
    lines = why_lines(
        LMetric(), ask(tried=["b"]), view(load("a", available=False, why_unavailable="breaker open"), load("b"))
    )
    assert "went nowhere" in lines[""]
    assert "no instance can be picked" in lines[""]
    assert "breaker open" in lines["a"]
    assert "failed this request already" in lines["b"]


def test_the_outcome_compares_what_the_index_expected_with_what_the_engine_had() -> None:
    done = RoutedOutcome("ok", 200, 0.31, 1.2, 1000, 880, 100)
    lines = why_lines(LMetric(), ask(1000, {"a": 912}), view(load("a")), done)
    assert "ok (HTTP 200), first byte after 0.310 s, last byte after 1.200 s" in lines[""]
    assert "1000 prompt tokens, 880 of them cached (912 expected by the index)" in lines[""]


def test_a_retry_is_told_after_the_pick_that_failed() -> None:
    request, cluster = ask(), view(load("a"), load("b"))
    first = DecisionRecord(
        0, 0, 9.0, request, cluster, LMetric().decide(request, cluster), RoutedOutcome("retried", error="refused")
    )
    again = ask(tried=["a"])
    second = DecisionRecord(1, 0, 9.0, again, cluster, LMetric().decide(again, cluster), RoutedOutcome("ok"))
    text = "\n".join(explain_picks([first, second]))
    assert text.index("Outcome: retried, refused.") < text.index("It was picked again:") < text.index("went to b.")
    assert "Tried before: a." in text


def test_a_policy_of_ones_own_is_told_as_far_as_it_said_something() -> None:
    decision = Decision("mine", "a", "because")
    text = "\n".join(explain_picks([DecisionRecord(0, 0, 1.0, ask(), view(load("a"), load("b")), decision)]))
    assert "reason `because`: a reason of its own" in text
