"""A slope is told from noise; the memory and descriptors of router and console are read."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from results.records.router_spec import InstanceSpec, RouterSpec
from runners.router.policies import make_policy
from runners.router.server.server import Server
from tests.benchmarks import bench_router
from tests.benchmarks.slow_streams import TOKENS
from tests.benchmarks.soak import (
    ALLOWED,
    HOURS,
    RATE_PER_S,
    Sample,
    Scale,
    Soak,
    count_held_sessions,
    draw_sessions,
    explain_files,
    find_trend,
    find_trends,
    main,
    make_held_table,
    make_table,
    read_samples,
)

TIMES_H = np.linspace(1.6, 8.0, 1440).tolist()


@pytest.mark.parametrize(
    ("growth", "noise", "verdict"),
    [(0.0, 0.02, "flat"), (0.05, 0.02, "flat"), (0.3, 0.02, "grows"), (0.1, 0.3, "undecided")],
)
def test_the_verdict_is_that_of_the_interval(growth: float, noise: float, verdict: str) -> None:
    rng = np.random.default_rng(1)
    values = [80.0 * (1.0 + growth * t / HOURS) + 80.0 * noise * rng.standard_normal() for t in TIMES_H]
    trend = find_trend(TIMES_H, values, 0.10)
    assert trend.verdict == verdict
    assert trend.low <= trend.growth <= trend.high
    assert trend.growth == pytest.approx(growth, abs=0.06)  # a share of the level in the middle, not at the begin


def test_the_interval_covers_the_true_growth() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        trend = find_trend(TIMES_H, (50.0 + rng.standard_normal(len(TIMES_H))).tolist(), 0.10)
        covered += trend.low <= 0.0 <= trend.high
    assert covered >= 180  # 95 % less three standard errors


@pytest.mark.parametrize(("limit", "held"), [(20_000, 9_968), (202, 69), (201, 68), (200, 68), (10, 1)])
def test_the_streams_that_a_limit_of_open_files_allows_are_those_that_the_router_takes(
    limit: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    router = Server(RouterSpec((InstanceSpec("a", "http://127.0.0.1:1"),)), make_policy("round_robin", {}), print)
    assert router._limit == held
    message = explain_files(held + 1)
    assert f"{held + 1} streams through one router need {2 * held + 66} open files" in message
    assert f"the limit is {limit}: {held} are held." in message
    assert "ulimit -Hn" in message
    assert explain_files(held) == "" or limit < 66, "no stream fits, and the router takes one at a time"


@pytest.fixture
def own_limit() -> Iterator[None]:
    """Puts the limit of open files back: raised, it would be that of every later test."""
    limits, put_back = resource.getrlimit(resource.RLIMIT_NOFILE), resource.setrlimit
    yield
    put_back(resource.RLIMIT_NOFILE, limits)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("own_limit")
@pytest.mark.parametrize(("limit", "wanted", "held"), [(None, 200, 200), (202, 80, 69)])
def test_slow_streams_through_one_router_all_come_whole(
    limit: int | None, wanted: int, held: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the limit of open files allows fewer than were asked for, those are held, and the output says so."""

    def set_limits(kind: int, limits: tuple[int, int]) -> None:
        if max(limits) > (limit or 0):
            raise ValueError("not allowed to raise maximum limit")

    if limit is not None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
        monkeypatch.setattr(resource, "setrlimit", set_limits)
    monkeypatch.setattr(bench_router, "PAUSE_MS", 600.0)
    monkeypatch.setattr(sys, "argv", ["soak", "--seconds", "0", "--streams", str(wanted), "--json"])
    main()
    made = json.loads(capsys.readouterr().out)
    expected = {"streams": held, "open_at_once": held, "whole": held, "lost": 0, "tokens": held * TOKENS, "routers": 1}
    assert {name: made["streams"][name] for name in expected} == expected
    assert ("69 are held. Raise it (ulimit -Hn)" in made["streams_limited"]) == (held < wanted)


@pytest.mark.timing
@pytest.mark.timeout(120)
async def test_a_short_soak_measures_every_quantity(tmp_path: Path) -> None:
    """At 64 req/s: twelve seconds that stand for themselves."""
    scale, path = Scale(12.0 / 3600.0, 12.0), tmp_path / "kept.jsonl"
    soak = Soak(tmp_path, scale, path)
    outcome = await soak.run()
    assert outcome.failed == 0
    assert outcome.completed == outcome.sent == round(12.0 * RATE_PER_S)
    assert set(ALLOWED) == {name for one in soak.samples for name, value in one.values.items() if value is not None}
    assert read_samples(path) == (scale, soak.samples)
    assert 0 < max(one.held["sessions_known"] for one in soak.samples) <= count_held_sessions(scale)
    assert "| sessions_known |" in make_held_table(scale, soak.samples)


def test_sessions_of_a_soak_are_drawn_from_their_part() -> None:
    sessions = draw_sessions(3, 6000, 60.0)
    assert sessions == draw_sessions(3, 6000, 60.0)
    assert sessions != draw_sessions(4, 6000, 60.0)
    turns = [turn for session in sessions for turn in session.turns]
    assert len(turns) == 6000
    assert max(turn.output_tokens for turn in turns) == 128
    assert np.mean([turn.output_tokens for turn in turns]) == pytest.approx(10.9, rel=0.1)
    assert max(session.arrival_s for session in sessions) <= 60.0


def test_what_a_router_holds_is_shown_before_and_after() -> None:
    samples = [Sample(float(t), {}, {"sessions_known": 10.0 * t}) for t in range(100)]
    assert "| sessions_known | 235 | 955 | 990 |" in make_held_table(Scale(1.0, 100.0), samples)
    assert make_held_table(Scale(1.0, 100.0), [Sample(50.0, {})]) == "", "a file of an older version"


def test_a_soak_that_was_ended_has_the_table_of_its_samples(tmp_path: Path) -> None:
    path, scale = tmp_path / "samples.jsonl", Scale(8.0, 3600.0)
    lines: list[object] = [scale]
    for number in range(900):
        t_s = 2.0 * number  # half the hour
        lines.append(Sample(t_s, {"router_rss_mb": 50.0 + t_s / 100.0, "router_files": 90.0, "ttft_p50_ms": None}))
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b'{"t_s": 18')
    trends = find_trends(*read_samples(path))
    assert {name: trend.verdict for name, trend in trends.items()} == {"router_rss_mb": "grows", "router_files": "flat"}
    assert trends["router_rss_mb"].growth == pytest.approx(36.0 / trends["router_rss_mb"].level), "10 MB in 1000 s"
    assert "| router_files | 90 | +0.0% [+0.0%, +0.0%] | flat |" in make_table(trends)


@pytest.mark.long
@pytest.mark.timing
@pytest.mark.timeout(4500)
def test_eight_hours_in_one_leave_router_and_console_as_they_were(tmp_path: Path) -> None:
    """An interval that is too wide to say so fails too: the demand is that each quantity is flat."""
    scale = Scale(HOURS, 3600.0)
    soak = Soak(tmp_path, scale)
    outcome = asyncio.run(soak.run())
    assert outcome.failed == 0
    trends = find_trends(scale, soak.samples)
    assert set(trends) == set(ALLOWED)
    tables = f"{make_table(trends)}\n\n{make_held_table(scale, soak.samples)}"
    assert all(trend.verdict == "flat" for trend in trends.values()), f"not flat:\n{tables}"
