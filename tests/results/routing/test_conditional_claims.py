"""What is said of a claim over the coefficients of an engine model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.routing.conditional_claims import ConditionalClaim, conditional_table, judge_variations
from results.statistics.judgement import Judgement, Outcome

CLAIM = Judgement("C1", "a is above b", "holds where it is", Outcome.HOLDS, "it is")


@pytest.mark.parametrize(
    ("own", "outcomes", "verdict"),
    [
        (Outcome.HOLDS, {"base_s*0.7": Outcome.HOLDS, "base_s*1.3": Outcome.UNDECIDED}, "reproduced"),
        (
            Outcome.HOLDS,
            {"base_s*0.7": Outcome.FAILS, "base_s*1.3": Outcome.FAILS, "trace=more-skew": Outcome.FAILS},
            "reproduced, conditional on base_s, trace=more-skew",
        ),
        (Outcome.FAILS, {"base_s*0.7": Outcome.HOLDS}, "contradicted, conditional on base_s"),
        (Outcome.UNDECIDED, {"base_s*0.7": Outcome.HOLDS}, "undecided"),
        (Outcome.OPEN, {"base_s*0.7": Outcome.OPEN}, "not testable"),
    ],
)
def test_a_claim_is_conditional_on_what_turns_it_into_its_opposite(
    own: Outcome, outcomes: dict[str, Outcome], verdict: str
) -> None:
    assert ConditionalClaim(replace(CLAIM, outcome=own), outcomes).verdict == verdict


def test_the_table_names_what_is_not_decided_and_what_is_decided_elsewhere() -> None:
    held = ConditionalClaim(CLAIM, {"base_s*0.7": Outcome.UNDECIDED})
    open_claim = ConditionalClaim(replace(CLAIM, outcome=Outcome.OPEN), {"base_s*0.7": Outcome.FAILS})
    rows = conditional_table((held, open_claim)).rows
    assert rows[0][-2:] == ("base_s*0.7", "-")
    assert rows[1][-2:] == ("-", "base_s*0.7: fails")


def test_the_claims_of_a_variation_are_judged_again_only_where_a_cell_or_a_rule_changed(tmp_path: Path) -> None:
    cells = [{"cell": "a", "params": {"variation": "base_s*1.3"}}, {"cell": "b", "params": {}}]
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode({"cells": cells}))
    asked = list[str]()

    def judge(variation: str) -> tuple[Judgement, ...]:
        asked.append(variation)
        return (replace(CLAIM, outcome=Outcome.FAILS),)

    for _ in range(2):
        (claim,) = judge_variations(tmp_path, (CLAIM,), judge)
        assert claim.flips == ("base_s*1.3",)
    assert asked == ["base_s*1.3"]
    trial = tmp_path / "results" / "20260101_a" / "trial_0"
    trial.mkdir(parents=True)
    (trial / "cell.json").write_text("{}")
    judge_variations(tmp_path, (CLAIM,), judge)
    assert asked == ["base_s*1.3"] * 2
    for claims in ((CLAIM, replace(CLAIM, name="D1")), (replace(CLAIM, rule="another"),)):
        judge_variations(tmp_path, claims, judge)
        judge_variations(tmp_path, claims, judge)
    assert asked == ["base_s*1.3"] * 4, "a claim that is new, or judged by a new rule, is judged under every variation"
