"""What bench_router says of its rounds: a ratio is marked where its denominator is noise, and then judges no goal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.records.load_specs import LoadSpec
from tests.benchmarks.api_load import FORMS, build_bodies, make_messages, run_api_load
from tests.benchmarks.bench_router import DIRECT, GOAL_ROUNDS, OURS, PEER, Figures, Scenario, judge, summary
from tests.servers.truth_server import TruthServer


def figures(p50_us: float, p99_us: float, cpu_us: float = 300.0) -> Figures:
    return Figures(100, 0, p50_us, p99_us, cpu_us, cpu_us / 5, 30.0)


def rounds_of(ours_us: float, peers_us: list[float]) -> dict[str, list[Figures]]:
    """Direct is 100 us at p50 and from 200 to 260 us at p99."""
    direct = [figures(100, 200 + 60 * (place % 2)) for place in range(len(peers_us))]
    return {
        DIRECT: direct,
        OURS: [figures(100 + ours_us, 300 + ours_us, 250) for _ in peers_us],
        PEER: [figures(100 + peer_us, 230) for peer_us in peers_us],
    }


def test_a_ratio_over_a_denominator_within_noise_is_marked_and_judges_nothing() -> None:
    made = summary(rounds_of(150, [200.0] * GOAL_ROUNDS))
    assert made["within_noise"] == ["added_ttft_p99_us"], "230 less 260 is below 0"
    assert made["goals"]["added_ttft_p99_us"].startswith("open")
    assert made["goals"]["added_ttft_p50_us"] == "holds"
    assert made["ratio"]["added_ttft_p50_us"] == (0.75, 0.75, 0.75)


def test_a_goal_needs_its_rounds_and_its_upper_quartile() -> None:
    assert judge([0.5] * (GOAL_ROUNDS - 1), 0.9, within_noise=False) == "open: 8 rounds, 9 needed"
    assert judge([0.5] * 6 + [2.0] * 3, 0.9, within_noise=False) == "fails", "its median alone would hold"
    assert judge([0.5] * 8 + [2.0], 0.9, within_noise=False) == "holds"


def make_spec(folder: Path, url: str = "http://127.0.0.1:1") -> LoadSpec:
    return LoadSpec(
        url=url,
        model="m",
        rate_per_s=50.0,
        input_tokens=1024,
        output_tokens=4,
        requests_path=str(folder / "requests.jsonl"),
        warmup_s=0.0,
        min_duration_s=0.3,
        min_completed=0,
        max_duration_s=0.3,
        token_evidence="usage",
    )


def test_texts_have_four_bytes_a_token_and_no_two_begin_alike(tmp_path: Path) -> None:
    bodies = build_bodies(make_spec(tmp_path), "text", 2)
    prompts = [json.loads(bodies.take_body(index))["prompt"] for index in range(2)]
    assert [len(prompt) for prompt in prompts] == [4 * 1024 - 1] * 2
    assert prompts[0][:16] != prompts[1][:16]


@pytest.mark.parametrize("tokens", [1, 2, 130, 1024, 1027])
def test_chats_have_every_word_and_the_users_last(tokens: int) -> None:
    words = [str(number) for number in range(tokens)]
    messages = make_messages(words)
    assert " ".join(message["content"] for message in messages).split() == words
    roles = [message["role"] for message in messages]
    assert roles[:2] == ["system", "user"]
    assert roles[-1] == "user"


@pytest.mark.parametrize("form", FORMS)
def test_a_cell_of_chats_or_texts_is_timed_by_its_first_token(form: str, tmp_path: Path) -> None:
    behavior = Scenario("", 50.0, 4, 20.0, 5.0, 1024, form).behavior
    with TruthServer() as server:
        outcome = run_api_load(make_spec(tmp_path, server.url(**behavior)), form)
        truths = server.take()
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert outcome.completed == len(rows) == len(truths) > 10
    for row in rows:
        truth, sent = truths[row["index"]], row["t_first_token_ns"] - row["t_send_ns"]
        assert row["chunks"] == truth.tokens == 4
        assert sent >= truth.ttft_s * 1e9 >= 20e6, "the role is no token"
