"""The stamps themselves: how far they lie from the true writes, at the load and priority of a measured run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from results.records.host import HostSample, read_host
from runners.load import stream
from runners.load.process import run_load
from runners.samplers.host import HostSampler
from tests.runners.load.cells import Measure, read_rows, short_spec
from tests.runners.load.meter import (
    SAMPLE_S,
    StampErrors,
    compare_stamps,
    find_disturbance,
    read_chunks,
)
from tests.servers.truth_server import TruthServer

RATE_PER_S, TOKENS, TTFT_MS, ITL_MS = 64.0, 32, 20.0, 5.0


@pytest.mark.timing
@pytest.mark.parametrize("realtime", [True, False], ids=["real time", "ordinary priority"])
async def test_stamps_lie_close_to_the_true_writes(server: TruthServer, tmp_path: Path, realtime: bool) -> None:
    """A cell that the host disturbed is invalid: it says so and is not measured again."""
    chunks, host = tmp_path / "chunks.jsonl", tmp_path / "host.csv"
    spec = short_spec(
        server.url(ttft_ms=TTFT_MS, itl_ms=ITL_MS), tmp_path, rate_per_s=RATE_PER_S, output_tokens=TOKENS,
        warmup_s=1.0, min_duration_s=5.0, max_duration_s=20.0, realtime=realtime, chunks_path=str(chunks),
    )  # fmt: skip
    with HostSampler(host, period_s=SAMPLE_S) as sampler:
        sampler.cell = "meter"
        outcome = await run_load(spec, lambda tick: None)
    truth = server.take()
    late_s = np.array([max(0.0, one.ttft_s - TTFT_MS / 1e3) for one in truth.values()])
    disturbance = find_disturbance(read_host(host), late_s)
    if disturbance:
        pytest.skip(f"the cell is invalid, the host was disturbed: {disturbance}")
    if realtime and not outcome.realtime:
        pytest.skip("this user may not run in real time")
    errors = compare_stamps(read_rows(spec.requests_path), truth, read_chunks(chunks))
    assert errors.first.size > 5 * RATE_PER_S
    assert errors.first.min() >= 0, "nothing is stamped before it is written"
    assert not errors.find_excess()


def _errors(first_s: float, gap_s: float) -> StampErrors:
    return StampErrors(np.full(300, first_s), np.full(9000, gap_s))


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        (_errors(0.0001, 0.0001), ""),
        (_errors(0.0012, 0.0001), "p50 of the first token's stamp: 1.20 ms"),
        (StampErrors(np.repeat([0.0001, 0.006], [280, 20]), np.zeros(9)), "p99 of the first token's stamp: 6.00 ms"),
        (_errors(0.0001, 0.0051), "p99 of the ITL: 5.10 ms"),
    ],
)
def test_a_bound_that_is_exceeded_is_named(errors: StampErrors, named: str) -> None:
    assert errors.find_excess() == named


QUIET = HostSample("meter", 1.0, 0.0002, 0.4, 0.0, 0.05)


@pytest.mark.parametrize(
    ("sample", "served_late_s", "named"),
    [
        (QUIET, 0.0003, ""),
        (replace(QUIET, stolen=None, waiting=None), 0.0003, ""),
        (replace(QUIET, late_s=0.02), 0.0003, "woken 20.0 ms late"),
        (replace(QUIET, stolen=0.3), 0.0003, "30% of a core was taken away"),
        (replace(QUIET, waiting=0.95), 0.0003, "no core for"),
        (QUIET, 0.008, "the server wrote 8.0 ms late"),
    ],
)
def test_a_disturbed_host_makes_the_cell_invalid_and_says_why(
    sample: HostSample, served_late_s: float, named: str
) -> None:
    samples = [sample] * 20
    reason = find_disturbance(samples, np.full(300, served_late_s))
    assert bool(reason) is bool(named)
    assert named in reason
    assert find_disturbance([], np.full(300, served_late_s)) == "the host was not sampled"


def _check_first_stamps(measure: Measure) -> None:
    """The server writes one token and falls silent: whoever stamps the first token later has no stamp at all."""
    cell = measure({"itl_ms": 1, "stall_after": 1}, min_completed=0, min_duration_s=0.3, stall_timeout_s=0.4)
    assert cell.rows
    for row in cell.rows:
        assert row.chunks == 1
        assert row.t_first_token_ns is not None
        assert cell.truth[row.index].t_writes_ns[0] <= row.t_first_token_ns == row.t_last_token_ns


def test_the_first_token_is_stamped_though_no_other_follows(measure: Measure) -> None:
    _check_first_stamps(measure)


def test_a_client_that_stamps_the_first_token_one_chunk_late_is_found(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    count: Callable[..., None] = stream.Exchange._count_tokens

    def stamp_late(exchange: stream.Exchange, chunk: object, t_ns: int) -> None:
        count(exchange, chunk, t_ns)
        if exchange.chunks == 1:
            exchange.t_first_ns = 0

    monkeypatch.setattr(stream.Exchange, "_count_tokens", stamp_late)
    with pytest.raises(AssertionError):
        _check_first_stamps(measure)
