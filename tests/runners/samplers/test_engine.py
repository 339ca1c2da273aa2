from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from results.records.events import STEP_BUCKETS_US
from results.records.schemas import MetricsRecord
from runners.samplers.engine import Gauges, MetricsSampler, MetricsText, SamplerError, StepTail, read_gauges
from tests.results.records.ring_file import RingFile, engine_rows
from tests.servers.truth_server import TruthServer

PAGE = """# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:num_requests_running{engine="0",model_name="a path/with {braces} \\"and\\" quotes"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 2.5e-01
vllm:request_success_created{engine="0",model_name="m"} 1.7e+09
vllm:e2e_seconds_bucket{engine="0",le="+Inf",model_name="m"} 7.0
vllm:e2e_seconds_count{engine="0",model_name="m"} 7.0
vllm:e2e_seconds_sum{engine="0",model_name="m"} 1.75
process_cpu_seconds_total 12.5
"""


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer() as running:
        yield running


def read(path: Path) -> list[MetricsRecord]:
    return [msgspec.json.decode(line, type=MetricsRecord) for line in path.read_bytes().splitlines()]


async def lines(path: Path, count: int) -> None:
    """Wait until the file has this many rows: it must grow while the sampler runs."""
    async with asyncio.timeout(60):
        while path.read_bytes().count(b"\n") < count:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def test_a_page_becomes_values_without_buckets_and_engine_labels() -> None:
    text = MetricsText()
    expected = {
        "vllm:num_requests_waiting": 3.0,
        'vllm:num_requests_waiting_by_reason{reason="capacity"}': 2.0,
        "vllm:num_requests_running": 5.0,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:e2e_seconds_count": 7.0,
        "vllm:e2e_seconds_sum": 1.75,
        "process_cpu_seconds_total": 12.5,
    }
    assert text.values(PAGE) == expected
    assert text.values(PAGE.replace(" 3.0", " 4.0")) == expected | {"vllm:num_requests_waiting": 4.0}


def test_a_second_engine_on_the_page_keeps_its_label_and_counts() -> None:
    values = MetricsText().values(PAGE + PAGE.replace('engine="0"', 'engine="1"').replace("process_", "other_"))
    assert values["vllm:num_requests_waiting"] == 3.0
    assert values['vllm:num_requests_waiting{engine="1",model_name="m"}'] == 3.0
    assert read_gauges(values) == Gauges(running=10.0, waiting=6.0, kv_usage=0.25)


def test_a_gauge_that_is_not_there_is_not_zero() -> None:
    assert read_gauges({"vllm:num_requests_waiting_by_reason{}": 4.0}) == Gauges()


@pytest.mark.parametrize("page", ["<html>not found</html>", "vllm:x{a= 1", "vllm:x{} many"])
def test_what_is_no_metrics_page_is_refused(page: str) -> None:
    with pytest.raises(ValueError):
        MetricsText().values(page)


async def test_a_baseline_samples_and_a_final_scrape_are_kept(server: TruthServer, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    async with MetricsSampler(server.url(), path, period_s=0.05) as sampler:
        await lines(path, 5)
        assert sampler.latest.running == 0.0
        assert sampler.latest.kv_usage == 0.25
    rows = read(path)
    assert [rows[0].moment, rows[-1].moment] == ["baseline", "final"]
    assert {row.moment for row in rows[1:-1]} == {"sample"}
    assert [row.t_ns for row in rows] == sorted(row.t_ns for row in rows)
    assert all(row.error is None for row in rows)
    assert rows[0].values["vllm:e2e_request_latency_seconds_sum"] == 0.75
    assert not any("_bucket" in name for row in rows for name in row.values)


async def test_an_engine_that_dies_leaves_records_that_say_so(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with TruthServer() as dying:
        async with MetricsSampler(dying.url(), path, period_s=0.05) as sampler:
            dying.stop()
            await lines(path, path.read_bytes().count(b"\n") + 2)
            assert sampler.latest.running is None
    last = read(path)[-1]
    assert last.moment == "final"
    assert last.values == {}
    assert "ConnectError" in (last.error or "")


async def test_a_page_that_is_not_there_is_a_record_with_its_status(server: TruthServer, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    async with MetricsSampler(server.url() + "/not/here", path, period_s=5):
        pass
    assert {row.error for row in read(path)} == {"HTTP 404"}


async def test_samples_that_cannot_be_kept_are_an_error(server: TruthServer, tmp_path: Path) -> None:
    full = tmp_path / "metrics.jsonl"
    full.symlink_to("/dev/full")
    with pytest.raises(SamplerError, match="No space left") as refused:
        async with MetricsSampler(server.url(), full):
            pass
    assert refused.value.remedy


def engine_ring(folder: Path, **status: object) -> RingFile:
    return RingFile(folder / "engine_step.engine.7.ring", "engine", 7, capacity=64, status=status)


def write_steps(ring: RingFile, steps: Sequence[tuple[float, int]]) -> None:
    """Append steps of (duration in us, tokens)."""
    durations_us, tokens = np.array(steps).T
    ring.put(engine_rows(len(steps), engine_step_ns=durations_us * 1e3, decode_tokens=tokens))


def test_steps_since_the_last_poll_are_bucketed(tmp_path: Path) -> None:
    ring = engine_ring(tmp_path)
    write_steps(ring, [(5.0, 1)] * 9)  # before the cell
    with StepTail(tmp_path) as tail:
        write_steps(ring, [(100.0, 1), (101.0, 3), (1500.0, 1), (2e6, 1), (7.0, 0)])
        seen = tail.poll()
        assert len(seen.counts) == len(STEP_BUCKETS_US) + 1
        assert {edge: n for edge, n in zip((*STEP_BUCKETS_US, "rest"), seen.counts, strict=True) if n} == {
            100: 1,
            200: 1,
            1500: 1,
            "rest": 1,
        }
        assert seen.p50_us == pytest.approx((101 + 1500) / 2)
        quiet = tail.poll()
        assert (quiet.p50_us, quiet.p90_us, sum(quiet.counts)) == (None, None, 0)


def test_a_ring_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    with StepTail(tmp_path) as tail:
        assert tail.poll().counts == ()
        write_steps(engine_ring(tmp_path), [(300.0, 1)])
        assert sum(tail.poll().counts) == 1


def test_a_probe_without_step_timing_gives_no_counts(tmp_path: Path) -> None:
    engine_ring(tmp_path, step_timing_available=False, reason="Scheduler.schedule has another signature")
    with StepTail(tmp_path) as tail:
        assert tail.poll().counts == ()


def test_a_damaged_ring_gives_no_counts_and_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "engine_step.engine.7.ring").write_bytes(b"TRC")
    with StepTail(tmp_path) as tail:
        assert tail.poll().counts == ()
