"""What is said of a claim over the coefficients of an engine model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.records.estimate import Estimate
from results.routing import conditional_claims
from results.routing.conditional_claims import ConditionalClaim, conditional_table, judge_variations
from results.statistics.judgement import Judgement, Outcome

CLAIM = Judgement("C1", "a is above b", "holds where it is", Outcome.HOLDS, "it is")


def vary(own: Judgement, outcomes: dict[str, Outcome]) -> ConditionalClaim:
    return ConditionalClaim(own, {name: replace(own, outcome=outcome) for name, outcome in outcomes.items()})


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
        (
            Outcome.UNDECIDED,
            {"base_s*0.7": Outcome.HOLDS, "base_s*1.3": Outcome.FAILS, "latency_s*1.3": Outcome.UNDECIDED},
            "undecided, conditional on base_s",
        ),
        (
            Outcome.HOLDS,
            {"base_s*0.7": Outcome.UNDECIDED, "base_s*1.3": Outcome.OPEN},
            "reproduced, undecided under every variation",
        ),
        (Outcome.OPEN, {"base_s*0.7": Outcome.OPEN}, "not testable"),
    ],
)
def test_a_claim_is_conditional_on_what_turns_it_into_its_opposite(
    own: Outcome, outcomes: dict[str, Outcome], verdict: str
) -> None:
    assert vary(replace(CLAIM, outcome=own), outcomes).verdict == verdict


def test_the_table_names_what_is_not_decided_and_what_is_decided_elsewhere() -> None:
    held = vary(CLAIM, {"base_s*0.7": Outcome.UNDECIDED})
    open_claim = vary(replace(CLAIM, outcome=Outcome.OPEN), {"base_s*0.7": Outcome.FAILS})
    rows = conditional_table((held, open_claim)).rows
    assert rows[0][-2:] == ("base_s*0.7", "-")
    assert rows[1][-2:] == ("-", "base_s*0.7: fails")


def test_the_table_shows_how_near_a_claim_comes_to_another_outcome() -> None:
    def measured(value: float, p: float | None) -> Judgement:
        estimate = Estimate(value, 0.9 * value, 1.1 * value, launches=5)
        return replace(CLAIM, measured=estimate, quantity="ratio", p=p, p_corrected=p)

    varied = {"base_s*0.7": measured(1.2, 0.04), "base_s*1.3": measured(2.0, 0.001), "trace=even": measured(1.5, None)}
    counted = replace(CLAIM, name="D4")
    table = conditional_table(
        (ConditionalClaim(measured(1.4, 0.002), varied), ConditionalClaim(counted, {"base_s*0.7": counted}))
    )
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert shown[0]["measured"] == "1.40 [1.26, 1.54] (ratio)"
    assert shown[0]["over the variations"] == "1.20 (base_s*0.7) to 2.00 (base_s*1.3)"
    assert shown[0]["p after Holm"] == "0.002, at most 0.04 (base_s*0.7)"
    assert {shown[1][column] for column in ("measured", "over the variations", "p after Holm")} == {"-"}


def test_a_claim_that_a_variation_cannot_show_is_open_there(tmp_path: Path) -> None:
    cells = [{"cell": "a", "params": {"variation": "trace=even"}}]
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode({"cells": cells}))
    (claim,) = judge_variations(tmp_path, (CLAIM,), lambda _: ())
    assert claim.outcomes == {"trace=even": Outcome.OPEN}
    assert claim.varied["trace=even"].measured.value is None


def test_the_claims_of_a_variation_are_judged_again_only_where_a_cell_a_rule_or_the_code_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(conditional_claims, "digest_code", lambda *_: "another gate")
    judge_variations(tmp_path, (CLAIM,), judge)
    assert asked == ["base_s*1.3"] * 5
