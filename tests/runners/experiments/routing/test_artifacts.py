"""A finished cell's artifacts: whole, readable by the analysis, adopted after a sudden death, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from launch.profile import load_profile
from results.records.decisions import ClusterView, Decision, DecisionRecord, InstanceLoad, RoutedOutcome, RoutedRequest
from results.records.instance_events import InstanceEvent
from results.records.layout import RunLayout, TrialLayout, is_complete, write_atomic
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec
from results.records.schemas import MetricsRecord, RequestStatus
from results.records.turns import EngineSample, TraceRecord, TurnRecord
from results.routing.read import LoadedCell, load_cells
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed
from runners.experiments.first_error import first_error
from runners.experiments.routing.artifacts import (
    Replayed,
    describe_engine,
    explain_degraded,
    find_trial_layout,
    publish_cell,
)
from runners.experiments.routing.experiment import Routing
from runners.experiments.routing.grid import EXPERIMENT, read_grid
from runners.experiments.routing.plan import list_cells
from runners.load.fidelity import Fidelity
from runners.load.replay_messages import ReplayOutcome
from runners.router.messages import RouterOutcome
from runners.samplers.engine_counters import read_span

PROFILE = load_profile("cpu-tiny")
GRID = read_grid(PROFILE.experiments[EXPERIMENT], PROFILE.name, "smoke")
CELLS = list_cells(GRID, "plain", 1, 0)
CELL = next(cell for cell in CELLS if cell.kind == "replay")
TRACE = TraceRecord("synth", "0" * 64, "tracon", 2, 1, 300, 16, 2.0, 16, 1.0, 0, 4096)
S = 1_000_000_000
FAITHFUL = Fidelity(0.0, 0.0, 0.001, 0.002, 1.0, 1.0, 1.0, 0.1, degraded=False, reason="")


def outcome(**changed: Any) -> ReplayOutcome:
    fields: dict[str, Any] = {
        "t_start_ns": S, "t_stop_ns": 4 * S, "t_end_ns": 4 * S, "t_start_unix_s": 1.0, "stop_reason": "complete",
        "turns": 2, "sent": 2, "completed": 2, "failed": 0, "cut": 0, "never_sent": 0, "sessions": 1,
        "sessions_done": 1, "sessions_failed": 0, "sessions_delayed": 0, "session_delay_max_s": 0.0,
        "inflight_sessions_max": 1, "inflight_max": 1, "retried": 0, "wrong_length": 0, "late_bodies": 0,
        "realtime": False, "input_tokens": 300, "output_tokens": 16, "reusable_any_tokens": 96,
        "reusable_intra_tokens": 96, "trace_span_s": 2.0, "wall_clock_s": 3.0, "amplification": 1.5,
        "amplification_reason": "", "fidelity": FAITHFUL,
    }  # fmt: skip
    return ReplayOutcome(**(fields | changed))


def turn(index: int, instance: str) -> TurnRecord:
    sent = (1 + index) * S
    return TurnRecord(
        index=index, request=f"r{index}", session="s", agent="", turn=index, status=RequestStatus.OK, t_due_ns=sent,
        t_send_ns=sent, t_first_token_ns=sent + S // 10, t_last_token_ns=sent + S // 2, t_end_ns=sent + S // 2,
        input_tokens=150, output_tokens=8, prompt_tokens=150, completion_tokens=8, cached_tokens=96 * index,
        reusable_any_tokens=96 * index, reusable_intra_tokens=96 * index, chunks=8, inflight_sessions=1,
        instance=instance, http_status=200,
    )  # fmt: skip


def pick(seq: int, instance: str) -> DecisionRecord:
    request = RoutedRequest(f"r{seq}", "s", seq, 150, 8, 32, {"e0": 0, "e1": 0})
    cluster = ClusterView((InstanceLoad("e0"), InstanceLoad("e1")), seq)
    return DecisionRecord(
        seq, S, 3.0, request, cluster, Decision("round_robin", instance, "turn"), RoutedOutcome("ok", 200)
    )


def lines(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.Encoder().encode_lines(rows))


def run_context(root: Path) -> RunContext:
    """As much of a run as its artifacts take: the run's folder is `root`."""
    return cast(
        RunContext,
        SimpleNamespace(
            layout=RunLayout(root),
            launcher=SimpleNamespace(date="20990101"),
            profile=PROFILE,
            engine=SimpleNamespace(versions={"vllm": "0"}),
        ),
    )


def write_engines(folder: Path) -> dict[str, Path]:
    """What the samplers of two engines leave in an attempt's folder; returns the scrapes by engine."""
    written = TrialLayout(folder)
    lines(written.engines, EngineSample(S, "e0", 1.0, 0.0, 0.1, 150, 1))
    scrapes = {name: written.scrapes(name) for name in ("e0", "e1")}
    for path in scrapes.values():
        before = {"vllm:prompt_tokens_total": 10.0, "vllm:prompt_tokens_cached_total": 0.0}
        after = {"vllm:prompt_tokens_total": 160.0, "vllm:prompt_tokens_cached_total": 96.0}
        lines(path, MetricsRecord(1, 1.0, "baseline", before), MetricsRecord(2, 2.0, "final", after))
    return scrapes


def replayed(replay: ReplayOutcome, router: RouterOutcome, scrapes: Mapping[str, Path]) -> Replayed:
    """A replay's results before the engines of `write_engines`."""
    instances = [InstanceSpec(name, "http://127.0.0.1:1", "both", 8192, 32) for name in scrapes]
    spans = {name: read_span(path) for name, path in scrapes.items()}
    engines = tuple(describe_engine(one, spans[one.instance], "spawn/uni", 7) for one in instances)
    return Replayed(replay, router, engines, spans)


class Subject:
    """A cell that has just been replayed into its attempt's folder."""

    def __init__(self, root: Path) -> None:
        self.context = run_context(root)
        self.folder = root / "attempts" / "cell" / "1"
        self.layout: TrialLayout = find_trial_layout(self.context, CELL)
        self.experiment = Routing(GRID, self.context)
        written = TrialLayout(self.folder)
        lines(written.metrics, turn(0, "e0"), turn(1, "e1"))
        lines(written.decisions, pick(0, "e0"), pick(1, "e1"))
        lines(written.instance_events, InstanceEvent("e0", "added", t_ns=1), InstanceEvent("e1", "added", t_ns=1))
        self.scrapes = write_engines(self.folder)

    def put(self, cell: CellPlan = CELL, **changed: Any) -> CellOutcome:
        router = RouterOutcome(S, 4 * S, "round_robin", "approximate", 2, 2, 0, 0, 0, 0, {"turn": 2}, 3.0, 5.0, 0)
        measured = replayed(outcome(**changed), router, self.scrapes)
        return publish_cell(cell, 1, GRID, TRACE, measured, self.folder, self.context)

    def load(self) -> LoadedCell:
        """The run's only cell, as the analysis reads it."""
        (loaded,), _ = load_cells(self.context.layout.root)
        return loaded


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(tmp_path)


def test_the_bundle_is_whole_and_the_analysis_reads_all_of_it(subject: Subject) -> None:
    headline = subject.put().summary
    loaded = subject.load()
    assert loaded.gaps == ()
    assert loaded.record.trace["apc_bound_any"] == pytest.approx(96 / 300)
    assert loaded.record.replay["amplification"] == 1.5
    assert [engine.prompt_tokens for engine in loaded.record.engines] == [150.0, 150.0]
    assert headline["apc"] == pytest.approx(192 / 300)
    assert headline["completed"] == 2
    assert (subject.layout.root / "engines" / "e1" / "metrics.jsonl").is_file()
    for path in (subject.layout.config, subject.layout.apc, subject.layout.gpu_util, subject.layout.breakdown):
        assert path.stat().st_size > 0
    assert loaded.record.git_commit or loaded.record.git_reason


def test_a_cell_in_place_is_adopted_with_the_same_headline(subject: Subject) -> None:
    published = subject.put()
    assert subject.experiment.adopt(CELL) == published
    assert published.degraded == ""


@pytest.mark.parametrize("artifact", ["metrics", "decisions", "instance_events", "apc", "config", "summary"])
def test_a_cell_that_is_not_whole_is_measured_again(subject: Subject, artifact: str) -> None:
    subject.put()
    path: Path = getattr(subject.layout, artifact)
    path.unlink()
    assert subject.experiment.adopt(CELL) is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"values": ', b"null"])
def test_a_cell_whose_numbers_are_damaged_is_measured_again(subject: Subject, content: bytes) -> None:
    subject.put()
    subject.layout.summary.write_bytes(content)
    assert subject.experiment.adopt(CELL) is None


@pytest.mark.parametrize(
    "own", [{}, {"kv_cache_memory_bytes": 1 << 20, "variation": "base_s*1.3", "trace": "other", "trace_number": 2}]
)
def test_the_settings_of_a_cell_are_those_of_its_plan(subject: Subject, own: dict[str, Any]) -> None:
    """The name of its trace is in the trace's record."""
    cell = replace(CELL, params={**CELL.params, **own})
    subject.put(cell)
    stated = msgspec.json.decode(subject.layout.config.read_bytes())
    planned = {name: value for name, value in cell.params.items() if name != "trace"}
    assert {name: stated.get(name) for name in planned} == planned
    assert stated["trace"] == msgspec.to_builtins(TRACE)
    assert {"kv_cache_memory_bytes", "variation", "trace_number"} & stated.keys() == own.keys() - {"trace"}
    assert "simulated" not in stated


def test_a_cell_of_an_older_plan_leaves_out_what_that_does_not_state(subject: Subject) -> None:
    later = {"moves_kv", "transfer", "reserved_output", "time_scale"}
    subject.put(replace(CELL, params={name: value for name, value in CELL.params.items() if name not in later}))
    assert later & msgspec.json.decode(subject.layout.config.read_bytes()).keys() == set()


def test_a_changed_artifact_or_another_cells_record_is_no_measurement(subject: Subject) -> None:
    subject.put()
    with subject.layout.metrics.open("ab") as file:
        file.write(b"{}\n")
    assert subject.experiment.adopt(CELL) is None
    assert not is_complete(subject.layout.cell, "trials/another/t0")


def test_what_the_engines_logged_of_kv_is_part_of_the_cell(subject: Subject) -> None:
    log = Path("engines/e1/rings/2/transfer.77.jsonl")
    lines(subject.folder / log, {"event": "status"})
    lines(subject.folder / log.with_name("engine_step.engine.77.ring"), {})
    subject.put()
    loaded = subject.load()
    assert [name for name in loaded.record.checksums if "transfer" in name] == [str(log)]
    assert not [name for name in loaded.record.checksums if "ring" in Path(name).suffix]
    assert subject.experiment.adopt(CELL) is not None
    (subject.layout.root / log).unlink()
    assert subject.experiment.adopt(CELL) is None


def test_a_cell_says_whether_kv_moved_in_it_and_by_which_rules(subject: Subject) -> None:
    subject.put()
    record, asked = (msgspec.json.decode(path.read_bytes()) for path in (subject.layout.cell, subject.layout.config))
    assert record["router"]["moves_kv"] is asked["moves_kv"] is False
    assert record["router"]["transfer"] == asked["transfer"] == CELL.params["transfer"]
    assert record["router"]["transfer"]["timeout_s"] == 10.0


def test_what_a_cut_short_attempt_left_makes_room(subject: Subject) -> None:
    stale = subject.layout.root / "engines" / "e7" / "vllm_stdout.log"
    stale.parent.mkdir(parents=True)
    stale.write_text("an attempt that died")
    subject.put()
    assert not stale.exists()


def test_a_replay_that_ended_early_is_degraded_and_counts_what_was_never_sent(subject: Subject) -> None:
    subject.put(stop_reason="hard_stop", cut=1, never_sent=3)
    loaded = subject.load()
    assert loaded.record.replay["cut"] == 4
    assert "hard_stop" in loaded.degraded
    adopted = subject.experiment.adopt(CELL)
    assert adopted is not None
    assert adopted.degraded == loaded.degraded


def test_why_a_cell_is_degraded_is_said_in_full() -> None:
    assert explain_degraded(outcome()) == ""
    assert "other lengths" in explain_degraded(outcome(wrong_length=2))


def test_a_replay_without_a_completed_turn_fails_with_the_first_error(subject: Subject) -> None:
    lines(TrialLayout(subject.folder).metrics, replace(turn(0, "e0"), error="HTTP 500"))
    with pytest.raises(CellFailed, match="2 of 2 turns failed and none was completed; the first error was: HTTP 500"):
        subject.put(completed=0, failed=2)
    assert not subject.layout.cell.exists()


def test_the_first_error_of_the_turns_is_found(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_atomic(path, b'{"error":null}\n{"error":"HTTP 500"}\n{"error":"later"}\n')
    assert first_error(path) == "HTTP 500"
    write_atomic(path, b'{"error":null}\n')
    assert first_error(path) == "none was recorded"


def test_interference_rows_are_gathered_from_the_cells_that_have_them(tmp_path: Path) -> None:
    context = cast(RunContext, SimpleNamespace(layout=RunLayout(tmp_path), engine=None))
    experiment = Routing(GRID, context)
    rows = tmp_path / "results" / "interference"
    row = {
        "instance": "plain-1", "prefill_tokens": 2048, "decodes": 4, "repeat": 0, "itl_before_s": 0.002,
        "itl_during_s": 0.02, "itl_after_s": 0.002, "worst_gap_before_s": 0.003, "worst_gap_during_s": 0.05,
        "prefill_ttft_s": 0.06, "gaps_before": 10, "gaps_during": 3, "gaps_after": 10, "t_unix_s": 1.0,
    }  # fmt: skip
    cell = next(cell for cell in CELLS if cell.kind == "interference")
    assert experiment.adopt(cell) is None
    lines(rows / "n2048.jsonl", row)
    lines(rows / "n512.jsonl", row | {"prefill_tokens": 512})
    adopted = experiment.adopt(cell)
    assert adopted is not None
    assert adopted.summary["itl_during_s"] == 0.02
    gathered = [msgspec.json.decode(line) for line in (tmp_path / "results" / "interference.jsonl").open("rb")]
    assert [each["prefill_tokens"] for each in gathered] == [512, 2048]
