"""What is said of a claim over the coefficients of an engine model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.records.estimate import Estimate
from results.routing import conditional_claims
from results.routing.analyze import analyze
from results.routing.conditional_claims import ConditionalClaim, find_same, judge_variations, make_conditional_table
from results.routing.loads import Load, LoadJudgement, judge_under_load, judge_whole_run
from results.statistics.judgement import Judgement, Outcome
from tests.results.routing.synthetic import Truth, World, write_run

WORLD = World(sessions=20, turns=4, trials=1)
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
    rows = make_conditional_table((held, open_claim)).rows
    assert rows[0][-2:] == ("base_s*0.7", "-")
    assert rows[1][-2:] == ("-", "base_s*0.7: fails")


def test_the_table_shows_how_near_a_claim_comes_to_another_outcome() -> None:
    def measured(value: float, p: float | None) -> Judgement:
        estimate = Estimate(value, 0.9 * value, 1.1 * value, launches=5)
        return replace(CLAIM, measured=estimate, quantity="ratio", p=p, p_corrected=p)

    varied = {"base_s*0.7": measured(1.2, 0.04), "base_s*1.3": measured(2.0, 0.001), "trace=even": measured(1.5, None)}
    counted = replace(CLAIM, name="D4")
    table = make_conditional_table(
        (ConditionalClaim(measured(1.4, 0.002), varied), ConditionalClaim(counted, {"base_s*0.7": counted}))
    )
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert shown[0]["measured"] == "1.40 [1.26, 1.54] (ratio)"
    assert shown[0]["over the variations"] == "1.20 (base_s*0.7) to 2.00 (base_s*1.3)"
    assert shown[0]["p after Holm"] == "0.002, largest 0.04 (base_s*0.7)"
    assert {shown[1][column] for column in ("measured", "over the variations", "p after Holm")} == {"-"}


def test_a_claim_that_a_variation_cannot_show_is_open_there(tmp_path: Path) -> None:
    cells = [{"cell": "a", "params": {"variation": "trace=even"}}]
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode({"cells": cells}))
    (claim,) = judge_variations(tmp_path, (judge_whole_run("C1", CLAIM),), (), lambda _: ())
    assert claim.outcomes == {"trace=even": Outcome.OPEN}
    assert claim.varied["trace=even"].measured.value is None


def test_the_claims_of_a_variation_are_judged_again_only_where_a_cell_a_rule_or_the_code_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [{"cell": "a", "params": {"variation": "base_s*1.3"}}, {"cell": "b", "params": {}}]
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode({"cells": cells}))
    asked = list[str]()

    def judge(variation: str) -> tuple[LoadJudgement, ...]:
        asked.append(variation)
        return (judge_whole_run("C1", replace(CLAIM, outcome=Outcome.FAILS)),)

    def judge_all(*claims: Judgement) -> tuple[ConditionalClaim, ...]:
        return judge_variations(tmp_path, [judge_whole_run(one.name, one) for one in claims], (), judge)

    for _ in range(2):
        (claim,) = judge_all(CLAIM)
        assert claim.flips == ("base_s*1.3",)
    assert asked == ["base_s*1.3"]
    trial = tmp_path / "results" / "20260101_a" / "trial_0"
    trial.mkdir(parents=True)
    (trial / "cell.json").write_text("{}")
    judge_all(CLAIM)
    assert asked == ["base_s*1.3"] * 2
    for claims in ((CLAIM, replace(CLAIM, name="D1")), (replace(CLAIM, rule="another"),)):
        judge_all(*claims)
        judge_all(*claims)
    assert asked == ["base_s*1.3"] * 4, "a claim that is new, or judged by a new rule, is judged under every variation"
    monkeypatch.setattr(conditional_claims, "digest_code", lambda *_: "another gate")
    judge_all(CLAIM)
    assert asked == ["base_s*1.3"] * 5


FASTER, SKEWED = "arrival_rate*1.25", "trace=more-skew"
RATES = (0.01, 0.02)


def _truths(variation: str = "", by: float = 1.0, *, turned: float = 0.0) -> list[Truth]:
    """Four policies at two rates; at the rate `turned` sticky keeps more than unified."""
    return [
        Truth(
            f"{name} time_scale={scale}{variation and f' vary={variation}'}",
            policy,
            hit_share=low if scale == turned else high,
            parameters={"load_floor_bonus": 200} if name == "bonus" else {},
            time_scale=scale / by,
            trace="more-skew" if variation == SKEWED else "",
            variation=variation,
        )
        for name, policy, high, low in (
            ("unified", "unified", 0.9, 0.5), ("sticky", "sticky", 0.7, 0.7),
            ("plain", "kv_aware", 0.7, 0.7), ("bonus", "kv_aware", 0.7, 0.7),
        )
        for scale in RATES
    ]  # fmt: skip


def test_claims_under_several_loads_are_judged_under_the_same_load_of_a_variation(tmp_path: Path) -> None:
    """Under a variation of the arrival rate every load is called otherwise."""
    truths = [*_truths(), *_truths(FASTER, 1.25, turned=0.02), *_truths(SKEWED)]
    conditional = {one.claim.name: one for one in analyze(write_run(tmp_path, WORLD, truths)).conditional}
    for scale, faster in zip(RATES, (0.13, -0.13), strict=True):
        kept = conditional[f"log: unified keeps more than sticky, time_scale {scale}"]
        by_variation = {name: own.measured.value for name, own in {"": kept.claim, **kept.varied}.items()}
        assert by_variation == pytest.approx({"": 0.13, FASTER: faster, SKEWED: 0.13}, abs=0.01)
    assert {name for name in conditional if name.startswith("D3")} == {f"D3, time_scale {scale}" for scale in RATES}
    reasons = {own.reason for one in conditional.values() for own in one.varied.values()}
    assert not {reason for reason in reasons if "under this variation" in reason}


def test_loads_that_a_variation_joins_are_open_under_it() -> None:
    loads = (Load(("a", "b"), "as the preset"), Load(("c", "d"), "trace even"))
    both = [judge_under_load("C1", CLAIM, load.labels, load.text) for load in loads]
    joined = judge_under_load("C1", CLAIM, "abcd", "")
    alone = judge_under_load("C1", CLAIM, "b", "")
    for claim, outcome in zip(both, (Outcome.HOLDS, Outcome.OPEN), strict=True):
        assert find_same(claim, [joined], loads).outcome == Outcome.OPEN
        assert "no judgement of its own" in find_same(claim, [joined], loads).reason
        assert find_same(claim, [alone], loads).outcome == outcome, "of a variation that is not complete yet"
