"""Two processes whose clocks really differ, as on two hosts: namespaces of their own for time and network."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns as now

import pytest

from results.pd_lifecycle.analysis_settings import DEFAULT
from results.pd_lifecycle.analyze import recompute_durations
from results.pd_lifecycle.clock_offsets import align_clocks
from results.records.lifecycle import LifecycleRecord, RequestConfig
from tests.results.pd_lifecycle.synthetic import Truth, seen

AHEAD_S = 86_400
"""What the prefill host's clock reads beyond the decode host's."""
EXCHANGES, PREFILL_NS = 40, 3_000_000
PREFILL_HOST = """
import socket, sys, time
now = time.perf_counter_ns
with socket.socket(socket.AF_UNIX) as stream:
    stream.connect(sys.argv[1])
    answers = stream.makefile("rw")
    for line in answers:
        heard = now()
        answers.write(f"{heard} {now()}\\n")
        answers.flush()
"""
"""The other host. A socket in the file system is the one thing that both hosts share."""


def _find_unshare() -> list[str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare(1)")
    command = [unshare, "--user", "--map-root-user", "--net", "--time", "--monotonic", str(AHEAD_S), "--fork"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this user may not have a clock and a network of its own: {tried.stderr.strip()}")
    return command


def _exchange(folder: Path, command: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """(asked, heard, answered, got) of each exchange: the first and last by this host's clock."""
    address = folder / "wire"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        server.settimeout(30)
        peer = subprocess.Popen([*command, sys.executable, "-c", PREFILL_HOST, str(address)])
        try:
            stream, _ = server.accept()
            stream.settimeout(30)
            with stream, stream.makefile("rw") as wire:
                stamps = []
                for _ in range(EXCHANGES):
                    asked = now()
                    wire.write("blocks\n")
                    wire.flush()
                    heard, answered = map(int, wire.readline().split())
                    stamps.append((asked, heard, answered, now()))
            return stamps
        finally:
            peer.kill()
            peer.wait()


def _record(four: tuple[int, int, int, int], repetition: int) -> LifecycleRecord:
    """A request whose exchange between both hosts has these stamps, and whose prefill took PREFILL_NS."""
    asked, heard, answered, got = four
    one = seen(Truth(prefill_boot="host-b"), RequestConfig(4096, 8192, 1), repetition).record()
    stamps = replace(
        one.timestamps_ns, t2_p_schedule=heard - 2 * PREFILL_NS, t3_p_prefill_done=heard - PREFILL_NS,
        t4_zmq_metadata=heard, t5_rdma_start=heard, t6_rdma_complete=answered, t7_d_recv_signal=got,
    )  # fmt: skip
    more = replace(one.more_timestamps_ns, d_pull_sent=asked, p_response_sent=answered)
    return replace(one, timestamps_ns=stamps, more_timestamps_ns=more)


def test_durations_between_two_real_clocks_are_right_within_their_error(tmp_path: Path) -> None:
    stamps = _exchange(tmp_path, _find_unshare())
    assert stamps[0][1] - stamps[0][0] > 0.9 * AHEAD_S * 1e9, "the clocks do differ"
    records = [_record(four, number) for number, four in enumerate(stamps, 3)]
    clocks, steps = align_clocks(records)
    assert steps == ()
    for record, clock, (asked, heard, answered, got) in zip(records, clocks, stamps, strict=True):
        assert not clock.one_host
        assert clock.offset_ns is not None
        assert clock.error_ns is not None
        assert abs(clock.offset_ns - AHEAD_S * 10**9) <= clock.error_ns
        assert clock.error_ns <= (got - asked) / 2 + 2, "no worse than the exchange alone"
        split = recompute_durations(record, clock, DEFAULT)
        assert split.breakdown_ms["p_prefill"] == PREFILL_NS / 1e6, "within one host it has no error"
        request, response = split.ms("zmq_request"), split.ms("zmq_response")
        assert request is not None
        assert response is not None
        error = split.error_ms["zmq_request"]
        true_ms = (heard - AHEAD_S * 10**9 - asked) / 1e6
        assert abs(request - true_ms) <= error + 1e-5
        assert request + response <= (got - asked - (answered - heard)) / 1e6 + 2 * error


def test_the_offset_is_not_taken_for_time_where_no_exchange_compares_the_clocks(tmp_path: Path) -> None:
    """Else a day would be in every duration between the hosts."""
    (four, *_) = _exchange(tmp_path, _find_unshare())
    record = _record(four, 3)
    blind = replace(record, more_timestamps_ns=replace(record.more_timestamps_ns, d_pull_sent=None))
    ((clock,), _) = align_clocks([replace(blind, clock=replace(record.clock, offset_ns=None, error_ns=None))])
    split = recompute_durations(blind, replace(clock, reason="no exchange"), DEFAULT)
    assert split.breakdown_ms["transfer_signal"] is None
    assert split.gaps["transfer_signal"] == "no exchange"
    assert split.breakdown_ms["p_prefill"] == PREFILL_NS / 1e6
