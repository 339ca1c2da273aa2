"""`tracon run routing` on real engines that exchange KV: killed in the middle it leaves nothing, resumed it measures
every cell once; sessions migrate and prompts are handed over with their KV."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.events import CellChanged, CellState, MigrationChanged, RouterSampled, RunState
from results.records.layout import RunLayout, is_complete, list_trial_layouts
from results.routing.read import load_cells
from state.store import RunStore
from tests.e2e.cli import data, port, tracon, view_of, wait_until, wait_until_no_engine, worker_pid

pytestmark = [pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(240)]

POLICIES = {"unified", "EAR", "static_pd 1P+1D"}


def left_behind(folder: Path) -> list[str]:
    """Routers and replays whose spec lies in the run's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(word.startswith(str(folder)) for word in words) and (
            "runners.router" in words or "runners.load" in words
        ):
            found.append(" ".join(words))
    return found


def wait_until_nothing_is_left(folder: Path) -> None:
    wait_until_no_engine(folder)
    deadline = time.monotonic() + 10
    while (left := left_behind(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke run whose process was killed with -9 in the middle of a replay, and resumed to its end."""
    workspace = tmp_path_factory.mktemp("workspace")
    started = tracon("run", "routing", "--preset", "smoke", "--port", port(), "--detach", "--json", workspace=workspace)
    assert started.returncode == 0, started.stderr
    run = Path(data(started)["folder"])
    wait_until(run, lambda view: any(cell.plan.kind == "replay" and cell.fraction > 0 for cell in view.current_cells))
    assert left_behind(run), "a router and a replay run"
    pid = worker_pid(run)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until_nothing_is_left(run)
    resumed = tracon("resume", run.name, "--json", workspace=workspace)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    return run


def test_every_cell_is_measured_once_and_nothing_stays(folder: Path) -> None:
    view = view_of(folder)
    assert view.state is RunState.DONE
    assert {cell.state for cell in view.cells.values()} == {CellState.DONE}
    with RunStore.open(folder, read_only=True) as store:
        done = Counter(
            recorded.event.cell
            for recorded in store.events()
            if isinstance(recorded.event, CellChanged) and recorded.event.state is CellState.DONE
        )
    assert set(done.values()) == {1}
    wait_until_nothing_is_left(folder)


def test_every_cell_has_its_artifacts_whole(folder: Path) -> None:
    cells, gaps = load_cells(folder)
    assert {cell.record.label for cell in cells} == POLICIES
    assert gaps == ()
    for layout in list_trial_layouts(folder):
        record: dict[str, Any] = msgspec.json.decode(layout.cell.read_bytes())
        assert is_complete(layout.cell, record["cell"])
        assert {path.name for path in (layout.root / "engines").iterdir()} == {"e0", "e1"}
        assert record["gpu_utilisation"] is None
        assert record["gpu_reason"]
        assert len(record["git_commit"] or "") == 40 or record["git_reason"]


def test_all_policies_replayed_the_same_turns(folder: Path) -> None:
    cells, _ = load_cells(folder)
    seen = set()
    for cell in cells:
        assert cell.turns is not None
        assert cell.record.replay["stop_reason"] == "complete"
        seen.add(tuple(zip(cell.turns.session, cell.turns.input_tokens, cell.turns.reusable_any_tokens, strict=True)))
        assert set(cell.turns.instance) == ({"e1"} if cell.record.policy == "static_pd" else {"e0", "e1"})
    assert len(seen) == 1


def test_the_engines_saw_the_traces_reuse_and_no_more_than_it(folder: Path) -> None:
    cells, _ = load_cells(folder)
    apc = {cell.record.label: hit_share(cell.record.engines) for cell in cells}
    bound = cells[0].record.trace["apc_bound_any"]
    assert 0.5 * bound < apc["unified"] <= bound + 0.01, "the others' engines also saw the requests of what they moved"


def transfers(folder: Path, label: str) -> list[KvTransfer]:
    cells, _ = load_cells(folder)
    path = next(folder / Path(cell.path).parent / "decisions.jsonl" for cell in cells if cell.record.label == label)
    records = msgspec.json.Decoder(DecisionRecord).decode_lines(path.read_bytes())
    return [record.outcome.transfer for record in records if record.outcome and record.outcome.transfer]


def came_from_elsewhere(folder: Path, label: str) -> float:
    """Prompt tokens that the cell's engines say they took from another one."""
    cells, _ = load_cells(folder)
    engines = next(cell.record.engines for cell in cells if cell.record.label == label)
    return sum(engine.prompt_tokens_by_source["external_kv_transfer"] for engine in engines)


@pytest.mark.parametrize(("label", "purpose"), [("EAR", "migration"), ("static_pd 1P+1D", "handover")])
def test_kv_moved_and_the_engines_say_so_too(folder: Path, label: str, purpose: str) -> None:
    moves = transfers(folder, label)
    assert {move.purpose for move in moves} == {purpose}
    done = [move for move in moves if move.status == "transferred"]
    assert done, [move.reason for move in moves]
    assert all(move.transport == "mooncake" and move.t_begin_ns < move.t_done_ns for move in done)
    counted = [move for move in done if move.external_tokens is not None]
    assert all(move.counted_reason for move in done if move not in counted)
    assert all(move.bytes == 512 * (move.external_tokens or 0) for move in counted)
    moved = came_from_elsewhere(folder, label)
    assert sum(move.external_tokens or 0 for move in counted) <= moved
    assert came_from_elsewhere(folder, "unified") == 0 < moved


def test_the_engines_log_of_what_moved_lies_with_the_cell(folder: Path) -> None:
    done = [move for move in transfers(folder, "EAR") if move.status == "transferred" and move.external_tokens]
    assert done
    cells, _ = load_cells(folder)
    cell = next(cell for cell in cells if cell.record.label == "EAR")
    root = folder / Path(cell.path).parent
    logs = [root / name for name in cell.record.checksums if Path(name).name.startswith("transfer.")]
    assert {path.relative_to(root).parts[1] for path in logs} == {"e0", "e1"}
    lines = [msgspec.json.decode(line) for path in logs for line in path.open("rb")]
    assert {line["role"] for line in lines if line["event"] == "status"} == {"engine", "worker"}
    came = {line["transfer"]: line for line in lines if line["event"] == "blocks_allocated"}
    assert {move.transfer: came[move.transfer]["external_tokens"] for move in done} == {
        move.transfer: move.external_tokens for move in done
    }


def test_nobody_was_left_without_an_answer_by_a_movement(folder: Path) -> None:
    cells, _ = load_cells(folder)
    for cell in cells:
        assert cell.turns is not None
        assert cell.record.replay["completed"] == cell.record.replay["turns"], cell.record.label


def test_every_migration_is_in_the_journal_from_its_start_to_its_end(folder: Path) -> None:
    with RunStore.open(folder, read_only=True) as store:
        changes = [recorded.event for recorded in store.events() if isinstance(recorded.event, MigrationChanged)]
    started = {event.migration for event in changes if event.phase == "started"}
    ended = {event.migration for event in changes if event.phase in ("done", "failed")}
    assert started
    assert started == ended
    assert {event.cell for event in changes} == {"trials/EAR/t0"}
    summary = view_of(folder).cells["trials/EAR/t0"].summary
    assert summary["migrations_transferred"] >= 1
    assert summary["transfer_mean_s"] > 0


def test_the_patches_are_gone_when_the_run_has_ended(folder: Path) -> None:
    assert view_of(folder).cells["analysis/patches"].summary["applied"] is False


def hit_share(engines: tuple[Any, ...]) -> float:
    return float(sum(e.cached_tokens for e in engines) / sum(e.prompt_tokens for e in engines))


def test_the_console_saw_the_router_live(folder: Path) -> None:
    with RunStore.open(folder, read_only=True) as store:
        seen = [recorded.event for recorded in store.events() if isinstance(recorded.event, RouterSampled)]
    assert {event.policy for event in seen} == {"unified", "ear", "static_pd"}
    assert any(event.latest for event in seen)


def test_a_prefill_holds_up_the_decodes_beside_it(folder: Path) -> None:
    rows = [msgspec.json.decode(line) for line in (folder / "results" / "interference.jsonl").open("rb")]
    assert rows
    assert all(row["itl_during_s"] > row["itl_before_s"] for row in rows)


def test_the_report_sets_the_policies_side_by_side(folder: Path) -> None:
    assert RunLayout(folder).report_md.stat().st_size > 0
    assert RunLayout(folder).report_html.stat().st_size > 0
    printed = tracon("report", folder.name, workspace=folder.parent)
    assert printed.returncode == 0, printed.stderr
    assert all(policy in printed.stdout for policy in POLICIES)
    assert data(tracon("report", folder.name, "--json", workspace=folder.parent))
