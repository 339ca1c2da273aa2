"""The load in its own process: followed, cut, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from results.records.schemas import RequestStatus
from runners.load.messages import LoadError, LoadTick, read_load_spec
from runners.load.process import run_load
from tests.runners.load.cells import Measured, assert_golden, read_rows, short_spec
from tests.servers.truth_server import TruthServer

GONE_WITHIN_S = 20.0


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "runners.load" in child.cmdline()]


async def test_a_cell_in_its_own_process_measures_the_truth(server: TruthServer, tmp_path: Path) -> None:
    ticks: list[LoadTick] = []
    spec = short_spec(server.url(itl_ms=2), tmp_path, min_duration_s=1.5)
    outcome = await run_load(spec, ticks.append)
    assert outcome.stop_reason == "complete"
    assert ticks
    assert read_load_spec(tmp_path / "requests.spec.json") == spec
    assert_golden(Measured(outcome, read_rows(spec.requests_path), server.take(), tuple(ticks)))
    assert not children()


async def test_cut_ends_it_with_an_outcome(server: TruthServer, tmp_path: Path) -> None:
    cut = asyncio.Event()
    spec = short_spec(server.url(ttft_ms=60_000), tmp_path, min_duration_s=9.0)
    outcome = await run_load(spec, lambda tick: cut.set(), cut=cut)
    assert outcome.stop_reason == "cancelled"
    assert {row.status for row in read_rows(spec.requests_path)} == {RequestStatus.CUT}
    assert not children()


async def test_cancelling_leaves_no_process_behind(server: TruthServer, tmp_path: Path) -> None:
    running = asyncio.Event()
    spec = short_spec(server.url(ttft_ms=60_000), tmp_path, min_duration_s=9.0)
    cell = asyncio.create_task(run_load(spec, lambda tick: running.set()))
    await asyncio.wait_for(running.wait(), 30)
    assert len(children()) == 1
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    assert not children()


async def test_a_process_that_dies_is_an_error(server: TruthServer, tmp_path: Path) -> None:
    spec = short_spec(server.url(ttft_ms=60_000), tmp_path, min_duration_s=9.0)
    with pytest.raises(LoadError, match=r"ended with no outcome \(ended by SIGKILL\)") as died:
        await run_load(spec, lambda tick: children()[0].kill())
    assert died.value.ended_by == "SIGKILL"


async def test_what_the_process_refuses_reaches_the_parent_with_its_remedy(tmp_path: Path) -> None:
    with TruthServer() as gone:
        url = gone.url()
    with pytest.raises(LoadError, match="cannot connect") as refused:
        await run_load(short_spec(url, tmp_path), lambda tick: None)
    assert refused.value.remedy
    assert refused.value.exit_code == 2


async def test_a_callback_that_fails_leaves_no_process_behind(server: TruthServer, tmp_path: Path) -> None:
    def fail(tick: LoadTick) -> None:
        raise KeyError("the campaign's own defect")

    with pytest.raises(KeyError):
        await run_load(short_spec(server.url(), tmp_path, min_duration_s=9.0), fail)
    assert not children()


@pytest.mark.fault
def test_the_load_ends_with_its_parent(server: TruthServer, tmp_path: Path) -> None:
    spec_path = tmp_path / "spec.json"
    spec_path.write_bytes(msgspec.json.encode(short_spec(server.url(ttft_ms=60_000), tmp_path, min_duration_s=9.0)))
    script = (
        "import asyncio, sys, pathlib\n"
        "from runners.load.process import run_load\n"
        "from runners.load.messages import read_load_spec\n"
        "spec = read_load_spec(pathlib.Path(sys.argv[1]))\n"
        "asyncio.run(run_load(spec, lambda tick: print('tick', flush=True)))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(spec_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "tick\n"
        load = psutil.Process(parent.pid).children()
        assert len(load) == 1
        parent.kill()
        parent.wait()
        gone, alive = psutil.wait_procs(load, timeout=GONE_WITHIN_S)
    assert gone
    assert not alive


def test_a_parent_that_stops_reading_does_not_stop_the_load(server: TruthServer, tmp_path: Path) -> None:
    """Its output pipe is full from the start: ticks are lost, requests are not."""
    spec = short_spec(server.url(itl_ms=1), tmp_path, min_duration_s=2.2)
    spec_path = tmp_path / "spec.json"
    spec_path.write_bytes(msgspec.json.encode(spec))
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    filler = 0
    try:
        while True:
            filler += os.write(write_end, b"\n" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    load = subprocess.Popen(
        [sys.executable, "-m", "runners.load", str(spec_path)], stdin=subprocess.PIPE, stdout=write_end
    )
    os.close(write_end)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _finished(tmp_path / "requests.jsonl", 88):
        time.sleep(0.05)
    rest = b""
    while block := os.read(read_end, 1 << 16):
        rest += block
    os.close(read_end)
    assert load.stdin is not None
    load.stdin.close()
    assert load.wait(timeout=30) == 0
    assert rest.strip().startswith(b'{"outcome"')
    assert len(rest) > filler
    rows = read_rows(spec.requests_path)
    assert len(rows) == 96
    assert {row.status for row in rows} == {RequestStatus.OK}


def _finished(path: Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


def test_sigterm_by_hand_cuts_the_cell(server: TruthServer, tmp_path: Path) -> None:
    spec_path = tmp_path / "spec.json"
    spec_path.write_bytes(msgspec.json.encode(short_spec(server.url(ttft_ms=60_000), tmp_path, min_duration_s=9.0)))
    load = subprocess.Popen(
        [sys.executable, "-m", "runners.load", str(spec_path)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert load.stdout is not None
    with load.stdout:
        assert load.stdout.readline().startswith(b'{"tick"')
        load.send_signal(signal.SIGTERM)
        last = load.stdout.read().splitlines()[-1]
    assert b'"stop_reason":"cancelled"' in last
    assert load.wait(timeout=30) == 0
