"""Recorded picks made again: the same policy agrees with itself, another one differs where it must, and says where."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from runners.errors import RunnerError
from runners.router.decision_log import read_log, read_logs
from runners.router.policies import POLICIES, make_policy
from runners.router.policies.policy import PolicyError
from runners.router.whatif import repeat_picks
from tests.runners.router.logs import NEEDED, simulate, write_log


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "static_pd"])
def test_a_policy_agrees_with_its_own_log_read_back_from_disk(name: str, tmp_path: Path) -> None:
    log = read_log(write_log(tmp_path / "decisions.jsonl", simulate(name)), "log")
    assert log.gaps == ()
    comparison = repeat_picks(log.records, make_policy(name, NEEDED.get(name, {})))
    assert (comparison.picks, comparison.agreement, comparison.differences) == (40, 1.0, ())
    assert comparison.migrations[0] == comparison.migrations[1]
    assert bool(comparison.migrations[0]) == (name == "ear")
    assert comparison.recorded_met == comparison.instead_met


def test_it_agrees_with_itself_although_picks_are_missing() -> None:
    records = [record for record in simulate("lmetric") if record.seq % 3]
    assert repeat_picks(records, make_policy("lmetric", {})).agreement == 1.0


def test_another_policy_differs_and_every_difference_is_told() -> None:
    records = simulate("round_robin")
    comparison = repeat_picks(records, make_policy("sticky", {}))
    assert 0 < comparison.agree < comparison.picks
    assert len(comparison.differences) == comparison.picks - comparison.agree
    assert sum(pair.picks for pair in comparison.reasons) == comparison.picks
    assert sum(pair.differ for pair in comparison.reasons) == len(comparison.differences)
    assert (
        sum(was for was, _ in comparison.shares.values()) == sum(then for _, then in comparison.shares.values()) == 40
    )
    assert all("places from the session's hash" in one.why_not_recorded for one in comparison.differences)
    assert "recorded view" in comparison.limits


def test_ties_take_turns_although_the_recorded_policy_never_advanced_them() -> None:
    records = simulate("sticky", in_flight=1, turns=1)
    comparison = repeat_picks(records, make_policy("lmetric", {}))
    assert {name for name, (_, then) in comparison.shares.items() if then} == {"e0", "e1", "e2"}


def test_it_counts_the_migrations_that_there_would_have_been() -> None:
    comparison = repeat_picks(simulate("sticky"), make_policy("ear", NEEDED["ear"]))
    assert comparison.migrations[0] == 0
    assert (
        comparison.migrations[1]
        == sum(pair.picks for pair in comparison.reasons if pair.instead_reason == "migrated")
        > 0
    )
    stays = repeat_picks(simulate("ear"), make_policy("ear", {"hot_tokens": 10**9, "cooldown_s": 5.0}))
    assert stays.migrations[0] > stays.migrations[1] == 0
    assert {pair.recorded_reason for pair in stays.reasons if pair.differ} == {"migrated"}


def test_owners_may_be_taken_from_who_served() -> None:
    records = simulate("round_robin", in_flight=1)
    blind = repeat_picks(records, make_policy("unified", {}))
    assert blind.unowned_turns == 30
    assert {pair.instead_reason for pair in blind.reasons} == {"cold"}
    seeing = repeat_picks(records, make_policy("unified", {}), "served")
    assert seeing.unowned_turns == 0
    assert "affinity" in {pair.instead_reason for pair in seeing.reasons}


def test_cache_aware_policies_would_have_met_less_to_compute() -> None:
    comparison = repeat_picks(simulate("round_robin"), make_policy("leastwork", {}))
    assert comparison.recorded_met.new_tokens is not None
    assert comparison.instead_met.new_tokens is not None
    assert comparison.instead_met.new_tokens < comparison.recorded_met.new_tokens


def test_no_picks_give_no_agreement_instead_of_a_number() -> None:
    comparison = repeat_picks([], make_policy("lmetric", {}))
    assert (comparison.agreement, comparison.recorded_met.new_tokens) == (None, None)


def test_damaged_lines_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = write_log(tmp_path / "decisions.jsonl", simulate("lmetric"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = b'{"seq": 4, "broken": \n'
    lines[7] = b"\xff\xfe\n"
    lines[9] = lines[9].replace(b'"decide_us":', b'"decided":')
    path.write_bytes(b"".join(lines))
    log = read_log(path, "log")
    assert len(log.records) == 37
    reasons = " | ".join(gap.reason for gap in log.gaps)
    for part in ("line 5 is damaged", "line 8 is damaged", "line 10 is damaged", "decide_us", "3 picks are not in it"):
        assert part in reasons
    assert repeat_picks(log.records, make_policy("lmetric", {})).agreement == 1.0


@pytest.mark.parametrize(
    ("seqs", "reasons"),
    [
        ((0, 1, 2), []),
        ((2, 5, 6), ["4 picks are not in it, between 0 and 4"]),
        ((0, 0, 1), ["1 picks are in it twice"]),
        ((-7, 0, 1), []),
        ((0, 10**18), [f"{10**18 - 1} picks are not in it, between 1 and {10**18 - 1}"]),
    ],
)
def test_picks_that_are_missing_are_counted_however_many(
    seqs: tuple[int, ...], reasons: list[str], tmp_path: Path
) -> None:
    records = [structs.replace(one, seq=seq) for one, seq in zip(simulate("lmetric"), seqs, strict=False)]
    log = read_log(write_log(tmp_path / "decisions.jsonl", records), "log")
    assert [gap.reason for gap in log.gaps] == reasons


def test_records_come_in_the_order_of_the_picks_whatever_the_file_has(tmp_path: Path) -> None:
    records = simulate("unified")
    path = write_log(tmp_path / "decisions.jsonl", records[::-1])
    assert [record.seq for record in read_log(path, "log").records] == list(range(40))


def test_a_run_without_logs_is_refused_and_a_missing_one_is_a_gap(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="no decision log"):
        read_logs(tmp_path)
    (tmp_path / "results" / "20260131_unified" / "trial_1").mkdir(parents=True)
    write_log(tmp_path / "results" / "20260131_lmetric" / "trial_1" / "decisions.jsonl", simulate("lmetric"))
    first, second = read_logs(tmp_path)
    assert first.name == "20260131_lmetric/trial_1"
    assert [gap.reason for gap in first.gaps] == ["is missing: the cell was not finished"]
    assert [gap.reason for gap in second.gaps] == ["is missing"]
    assert [log.name for log in read_logs(tmp_path, "lmetric")] == ["20260131_lmetric/trial_1"]


def test_an_empty_file_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").touch()
    assert [gap.reason for gap in read_log(tmp_path / "decisions.jsonl", "log").gaps] == ["is empty"]


def test_a_users_policy_that_fails_names_the_pick(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from results.records.decisions import Decision\n"
        "class Mine:\n"
        "    name, source = 'mine', 'me'\n"
        "    def decide(self, request, cluster):\n"
        "        if request.turn: return Decision('mine', 'unknown', 'x')\n"
        "        return Decision('mine', cluster.instances[1 // len(request.session)].instance, 'x')\n"
    )
    policy = make_policy(str(tmp_path / "mine.py"), {})
    records = simulate("lmetric")
    with pytest.raises(PolicyError, match="mine at pick 10: it names 'unknown'"):
        repeat_picks(records, policy)
    nameless = msgspec.structs.replace(records[3], request=msgspec.structs.replace(records[3].request, session=""))
    with pytest.raises(PolicyError, match="pick 3: ZeroDivisionError"):
        repeat_picks([nameless], policy)
