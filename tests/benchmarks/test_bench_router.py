"""What bench_router says of its rounds: a ratio is marked where its denominator is noise, and then judges no goal."""

from __future__ import annotations

from tests.benchmarks.bench_router import DIRECT, GOAL_ROUNDS, OURS, PEER, Figures, judge, summary


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
