"""The rules of D2, D4 and Q1.D of specs/load_floor.md: timeouts, refusals, and quarantines of pairs.

Pure functions of LoadFloor. Timeouts and quarantines are judged by two arms that differ in them alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from results.records.estimate import Estimate
from results.routing.floor_facts import DecodeRequests
from results.routing.load_floor import LoadFloor, QuarantinePair, TimeoutPair
from results.statistics.estimates import ALL_AGREE
from results.statistics.judgement import Outcome, Verdict, describe_excluded, explain_few_launches, judged
from results.statistics.trials import MIN_PAIRED


def judge_timeouts(floor: LoadFloor) -> tuple[Outcome, str]:
    """D2."""
    if not floor.transport.asked:
        return Outcome.OPEN, "no KV was moved in this run"
    if not floor.timeouts:
        alone = "it needs two policies that differ in transfer.timeout_s alone"
        return Outcome.OPEN, f"{alone}; {_describe_all_decode_requests(floor)}"
    return join_pairs([_judge_timeout(pair) for pair in floor.timeouts])


def name_timeouts(floor: LoadFloor) -> list[str]:
    """The labels of the pairs that D2 judges."""
    return [label for pair in floor.timeouts for label in (pair.short, pair.long)]


def name_quarantines(floor: LoadFloor) -> list[str]:
    """The labels of the pairs that Q1.D judges."""
    return [label for pair in floor.quarantines for label in (pair.fewer, pair.more)]


def join_pairs(judged_pairs: Sequence[tuple[Outcome, str]]) -> tuple[Outcome, str]:
    """What the pairs decide that do not contradict each other, those that decide first; open where every pair is."""
    outcomes = {outcome for outcome, _ in judged_pairs}
    decided = [outcome for outcome in outcomes if outcome.is_decided]
    text = "; ".join(text for _, text in sorted(judged_pairs, key=lambda pair: not pair[0].is_decided))
    if len(decided) > 1:
        return Outcome.UNDECIDED, f"two pairs contradict each other: {text}"
    if decided:
        return decided[0], text
    return (Outcome.OPEN if outcomes == {Outcome.OPEN} else Outcome.UNDECIDED), text


def _judge_lost(lost_share: Estimate) -> Outcome:
    """HOLDS where the first of two arms distinguishably loses fewer transfers."""
    outcomes = {Verdict.LOWER: Outcome.HOLDS, Verdict.HIGHER: Outcome.FAILS}
    return outcomes.get(judged(lost_share) or Verdict.NOT_DISTINGUISHABLE, Outcome.UNDECIDED)


def describe_difference(share: Estimate) -> str:
    """The difference of two arms' shares; where its interval covers none, the differences that it excludes.

    Without an interval although there are enough trials: why.
    """
    if share.low is None and share.launches >= MIN_PAIRED and share.reason not in (None, ALL_AGREE):
        return f"{share.points()} (no interval: {share.reason})"
    excluded = describe_excluded(share, of="differences", unit="pp", both_sides=True)
    return f"{share.points()}{excluded and f' ({excluded})'}"


def _judge_timeout(pair: TimeoutPair) -> tuple[Outcome, str]:
    short = _describe_decode_requests(pair.short, pair.short_decode_requests, pair.short_s)
    long = _describe_decode_requests(pair.long, pair.long_decode_requests, pair.long_s)
    text = (
        f"transfers failed or recomputed, longer - shorter timeout: {describe_difference(pair.lost_share)}; {short}; "
        f"{long}, {pair.over_short} of these took more than {pair.short_s:g} s"
    )
    outcome = _judge_lost(pair.lost_share)
    if not outcome.is_decided and not pair.over_short and not pair.short_decode_requests.timed_out:
        return outcome, f"{text}: the limit made no difference in this run"
    return outcome, text


def _describe_all_decode_requests(floor: LoadFloor) -> str:
    own = [one.decode_requests for one in floor.variants]
    longest = max((one.longest_s for one in own if one.longest_s is not None), default=None)
    limits = sorted({one.rules.timeout_s for one in floor.variants if one.rules.timeout_s is not None})
    every = DecodeRequests(sum(one.done for one in own), longest, sum(one.timed_out for one in own))
    return _describe_decode_requests("all", every, *limits)


def _describe_decode_requests(label: str, requests: DecodeRequests, *limits_s: float) -> str:
    limit = (
        f"at {', '.join(f'{one:g}' for one in limits_s)} s" if limits_s else "the limit is not in the cells' records"
    )
    longest = "" if requests.longest_s is None else f", the longest in {requests.longest_s:.3g} s"
    return (
        f"{label} ({limit}): {requests.done} decode requests brought their KV{longest}, {requests.timed_out} timed out"
    )


def judge_refusals(floor: LoadFloor) -> tuple[Outcome, str]:
    """D4."""
    refused = sum(one.rejects for one in floor.variants)
    moved = sum(one.reject_moves for one in floor.variants)
    held = sum(one.held for one in floor.variants)
    text = f"{refused} picks of sessions that some instance had refused, {moved} sent elsewhere for it, {held} held"
    if not refused:
        return Outcome.OPEN, f"refusals are counted where they happen, and there was none: {text}"
    if few := explain_few_launches(floor.trials, "policy"):
        return Outcome.UNDECIDED, f"{few}: {text}"
    return (Outcome.HOLDS if moved else Outcome.UNDECIDED), text


def judge_quarantines(floor: LoadFloor) -> tuple[Outcome, str]:
    """Q1.D."""
    moved = floor.transport
    if not moved.failed:
        return Outcome.OPEN, f"no transfer failed ({moved.asked} were asked for)"
    text = (
        f"{moved.failed} transfers of the run failed; {moved.pairs_quarantined} pairs were quarantined "
        f"({moved.quarantined} transfers refused), {moved.pairs_recovered} of them moved KV again"
    )
    if not floor.quarantines:
        return Outcome.OPEN, f"it needs two policies that differ in the rules of quarantine alone; {text}"
    outcome, why = join_pairs([_judge_quarantine(pair) for pair in floor.quarantines])
    return outcome, f"{why}; {text}"


def _judge_quarantine(pair: QuarantinePair) -> tuple[Outcome, str]:
    text = (
        f"transfers failed or recomputed, more - fewer failures to close: {describe_difference(pair.lost_share)}; "
        f"{pair.more} ({pair.more_rules}) - {pair.fewer} ({pair.fewer_rules})"
    )
    return _judge_lost(pair.lost_share), text
