"""`tracon run pd-lifecycle` on two real engines: killed in the middle of a cell, resumed, every phase of it stamped.

With Mooncake; a small run with NIXL, whose blocks are read by the decode engine, says what it cannot stamp.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from results.pd_lifecycle.read import read_records
from results.pd_lifecycle.volumes import measure_volumes
from results.records.events import CellChanged, CellState, LifecycleMeasured, RunState
from results.records.layout import LifecycleLayout, RunLayout, is_complete
from results.records.lifecycle import LifecycleRecord
from results.records.plan import CellPlan
from runners.experiments.pd_lifecycle.grid import read_shape
from state.store import RunStore
from tests.e2e.cli import data, port, tracon, view_of, wait_until, worker_pid
from tests.e2e.test_routing import wait_until_nothing_is_left

pytestmark = [pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(300)]

BYTES_PER_TOKEN = 512
"""Of the built-in tiny model: keys and values of 2 heads of 32 in 2 layers, 2 bytes each."""
BLOCK = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke run whose process was killed with -9 in the middle of its second cell, and resumed to its end."""
    workspace = tmp_path_factory.mktemp("workspace")
    started = tracon(
        "run", "pd-lifecycle", "--preset", "smoke", "--port", port(), "--detach", "--json", workspace=workspace
    )
    assert started.returncode == 0, started.stderr
    run = Path(data(started)["folder"])
    second = sweep(run)[1].cell
    wait_until(run, lambda view: any(cell.plan.cell == second and cell.fraction > 0 for cell in view.current_cells))
    pid = worker_pid(run)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until_nothing_is_left(run)
    collected = read_records(run)
    assert {record.config.label for record in collected.records} == {read_shape(sweep(run)[0]).label}, (
        "the cell that was cut counts for nothing"
    )
    resumed = tracon("resume", run.name, "--json", workspace=workspace)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    return run


@pytest.fixture(scope="module")
def nixl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cell with NIXL. Its decode requests may begin only when the source's lease ends: docs/transfer.md."""
    workspace = tmp_path_factory.mktemp("nixl")
    small = ("prior_context=[1024]", "new_tokens=[256]", "repetitions=2")
    settings = [part for setting in small for part in ("--set", setting)]
    asked = ("run", "pd-lifecycle", "--preset", "smoke", "--config", "nixl_both", *settings, "--port", port(), "--json")
    done = tracon(*asked, workspace=workspace)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "sweep" in done.stderr, "narrated"
    return Path(data(done)["folder"])


def sweep(run: Path) -> list[CellPlan]:
    return [cell for cell in view_of(run).plan.cells if cell.kind == "lifecycle"]


def counted(run: Path) -> list[LifecycleRecord]:
    return [record for record in read_records(run).records if record.counted]


def test_every_cell_is_measured_once_and_nothing_stays(folder: Path) -> None:
    view = view_of(folder)
    assert view.state is RunState.DONE
    assert {cell.state for cell in view.cells.values()} == {CellState.DONE}
    with RunStore.open(folder, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    done = Counter(event.cell for event in events if isinstance(event, CellChanged) and event.state is CellState.DONE)
    assert set(done.values()) == {1}
    wait_until_nothing_is_left(folder)


def test_every_cell_has_its_records_and_what_they_were_made_from(folder: Path) -> None:
    collected, layout = read_records(folder), LifecycleLayout(folder)
    assert collected.gaps == ()
    for cell in sweep(folder):
        config = read_shape(cell)
        found = [record for record in collected.records if record.config == config]
        assert [(record.repetition, record.warmup) for record in found] == [(1, True), (2, False), (3, False)]
        assert is_complete(layout.cell(config), cell.cell)
        files = {path.name.split(".")[0] for path in layout.cell(config).parent.rglob("*") if path.is_file()}
        assert files >= {"cell", "requests", "decisions", "transfer"}


def test_all_stamps_are_there_in_order_and_the_phases_add_up(folder: Path) -> None:
    for record in counted(folder):
        stamps = asdict(record.timestamps_ns)
        assert None not in stamps.values(), record.gaps
        named = {name: int(t_ns) for name, t_ns in stamps.items() if t_ns is not None}
        assert sorted(named.values()) == list(named.values()), named
        assert record.residual_share is not None
        assert abs(record.residual_share) < 0.05
    # From the client's send it holds the way to the router too: of one request that is a matter of a busy host's mood.
    whole = [(record.ms("client_e2e"), record.ms("e2e")) for record in counted(folder)]
    assert sum(client - own for client, own in whole if client and own) < 0.05 * sum(client or 0 for client, _ in whole)


def test_both_engines_held_c_tokens_and_the_new_ones_were_moved(folder: Path) -> None:
    for record in counted(folder):
        config = record.config
        assert record.verification.ok
        assert record.counts.p_cached_tokens == config.prior_context
        assert record.counts.local_tokens == config.prior_context
        blocks = -(-config.current_new_tokens // BLOCK)
        assert record.transfer_detail.num_blocks == blocks
        assert record.transfer_detail.bytes_transferred == blocks * BLOCK * BYTES_PER_TOKEN
        assert record.colo.ttft_ms is not None
        assert record.colo.ttft_ms > 0
    moved = measure_volumes(counted(folder))
    assert [(one.new_tokens, one.of_expected) for one in moved] == [(256, 1.0), (1024, 1.0)]


def test_the_combined_request_took_the_same_way_and_came_first_in_half_of_the_pairs(folder: Path) -> None:
    records = read_records(folder).records
    assert {record.colo.through for record in records} == {"router"}
    assert sum(record.colo.first is True for record in records) == len(records) / 2
    assert not any(record.ids.request in record.colo.request for record in records)


def test_what_is_not_of_one_request_is_kept_too(folder: Path) -> None:
    layout = LifecycleLayout(folder)
    link = msgspec.json.decode((layout.folder / "link.json").read_bytes())
    assert (link["from"], link["reason"]) == ("measured", "")
    assert 0 < link["low"] <= link["gbps"] <= link["high"]
    assert "The Mooncake Transfer Engine is using tcp as its protocol" in link["transport"]
    for cell in sweep(folder):
        said = msgspec.json.decode(layout.cell(read_shape(cell)).read_bytes())
        assert (said["order"], said["baseline"], said["counted_by"]) == ("counterbalanced", "router", "probe")
        for side in ("prefill", "decode"):
            begin, end = said["load"][side]["begin"], said["load"][side]["end"]
            assert (begin["reason"], begin["preemptions"], end["preemptions"]) == ("", 0, 0)
            assert end["prefix_cache_queries"] > begin["prefix_cache_queries"]


def test_the_console_saw_every_measurement(folder: Path) -> None:
    with RunStore.open(folder, read_only=True) as store:
        seen = [recorded.event for recorded in store.events() if isinstance(recorded.event, LifecycleMeasured)]
    last = {(event.cell, event.repetition): event for event in seen if not event.discarded}
    assert len(last) == 3 * len(sweep(folder))
    assert all(event.phases_ms["p_prefill"] for event in last.values())


def test_the_report_says_what_was_found(folder: Path) -> None:
    assert RunLayout(folder).report_html.stat().st_size > 0
    assert LifecycleLayout(folder).summary_csv.stat().st_size > 0
    printed = tracon("report", folder.name, workspace=folder.parent)
    assert printed.returncode == 0, printed.stderr
    assert "Breakdown is complete" in printed.stdout
    found = data(tracon("report", folder.name, "--json", workspace=folder.parent))
    assert {"aggregate", "verdicts"} <= set(found)


def test_with_nixl_the_phases_add_up_without_the_stamp_that_it_does_not_have(nixl: Path) -> None:
    (record,) = counted(nixl)
    assert record.transport == "nixl"
    assert record.timestamps_ns.t4_zmq_metadata is None
    assert record.gaps["t4_zmq_metadata"]
    assert [name for name, t_ns in asdict(record.timestamps_ns).items() if t_ns is None] == ["t4_zmq_metadata"]
    assert None not in record.phases_ms.values()
    assert record.residual_share is not None
    assert abs(record.residual_share) < 0.05
    found = data(tracon("report", nixl.name, "--json", workspace=nixl.parent))
    complete = found["verdicts"]["criteria"][0]
    # How it is judged from the client's send too is a matter of a busy host's mood.
    assert complete["numbers"]["largest residual, from t0"]["value"] < 0.05, complete
