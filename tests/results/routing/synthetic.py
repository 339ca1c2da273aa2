"""Cells of the `routing` experiment whose true numbers are known: a closed loop of sessions, simulated."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from results.measures.turns import Turns, convert_to_turns
from results.records.decisions import (
    ClusterView,
    Decision,
    DecisionRecord,
    InstanceLoad,
    KvTransfer,
    RoutedOutcome,
    RoutedRequest,
)
from results.records.frames import TURN_SCHEMA
from results.records.layout import TrialLayout, sha256
from results.records.routing_cells import RoutingConfig
from results.records.schemas import RequestStatus
from results.records.turns import EngineSample, RoutedEngine, RoutingCell, TraceRecord, TurnRecord
from results.report.document import render_markdown
from results.routing.analyze import RoutingAnalysis
from results.routing.experiment import RESULTS
from results.routing.measurements import Measurements
from results.routing.read import LoadedCell, count_picks
from results.routing.summary import summarize_cell, summarize_loaded_cell

T0_NS = 5_000_000_000_000_000_123  # beyond what a float64 can hold to the nanosecond
BLOCK = 16


@dataclass(frozen=True)
class Truth:
    """One policy."""

    label: str
    policy: str = ""
    ttft_s: float = 0.200
    """Of a turn of ordinary size, alone on its instance."""
    tpot_s: float = 0.010
    slope_s: float = 0.0
    """What each session in the system adds to a turn."""
    hit_share: float = 0.9
    """Of the tokens that could be reused."""
    hot: float = 1.0
    """A factor on TTFT on the first instance."""
    failed: frozenset[int] = frozenset()
    """Turns by index that the engine fails."""
    degraded: Mapping[int, str] = field(default_factory=dict)
    """By trial."""
    early: frozenset[int] = frozenset()
    """Trials whose replay met its hard stop."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)
    """What the cell's router says beside its counts."""
    time_scale: float | None = None
    variation: str = ""
    """Of the engine model or the load; the label ends with it."""
    trace: str = ""
    """Of its own, as all of its load is."""
    kv_cache_memory_bytes: int | None = None
    prefill: int = 0
    """This many of the instances only prefill, the others only decode; 0 = each does both."""
    moves: int = 0
    """Every session's turn of this number migrates from the other of two instances, in 0.05 s; 0 = none does."""


@dataclass(frozen=True)
class World:
    """What all policies of a run replay."""

    sessions: int = 30
    turns: int = 8
    gap_s: float = 1.0
    """Between the arrivals of sessions."""
    random_gaps: bool = False
    """Exponential around it, the same under every policy."""
    think_s: float = 0.0
    output_tokens: int = 17
    first_tokens: int = 320
    grows_by: int = 160
    instances: int = 2
    trials: int = 3
    seed: int = 0
    session_sigma: float = 0.3
    """Of the logarithm of what a session costs under every policy."""
    turn_sigma: float = 0.1
    """Of the logarithm of a turn's own luck, under each policy its own."""
    launch_sigma: float = 0.0
    """Of the logarithm of what a launch adds to every latency of its cell."""
    capacity_tokens: int | None = 40_000

    @property
    def span_s(self) -> float:
        return self.gap_s * (self.sessions - 1) + self.turns * 0.4


@dataclass(frozen=True)
class _Turn:
    session: int
    turn: int
    due_s: float
    ttft_s: float
    tpot_s: float
    inflight: int


def records(world: World, truth: Truth, trial: int = 0) -> list[TurnRecord]:
    """One cell's turns, in the order of their index: session by session."""
    common = np.random.default_rng([world.seed, 1])  # the same sessions under every policy
    own = np.random.default_rng([world.seed, 2, trial, *truth.label.encode()])
    costs = np.exp(world.session_sigma * common.standard_normal(world.sessions))
    launch = math.exp(world.launch_sigma * own.standard_normal())
    luck = np.exp(world.turn_sigma * own.standard_normal((2, world.sessions, world.turns)))
    gaps = (
        common.exponential(world.gap_s, world.sessions) if world.random_gaps else np.full(world.sessions, world.gap_s)
    )
    arrivals = np.cumsum(gaps) - gaps[0]
    waiting = [(float(arrivals[session]), session, 0) for session in range(world.sessions)]
    heapq.heapify(waiting)
    found: list[_Turn] = []
    present: set[int] = set()
    leaves: list[tuple[float, int]] = []
    while waiting:
        due_s, session, turn = heapq.heappop(waiting)
        while leaves and leaves[0][0] <= due_s:
            present.discard(heapq.heappop(leaves)[1])
        present.add(session)
        hot = truth.hot if session % world.instances == 0 else 1.0
        ttft_s = (truth.ttft_s * costs[session] * hot * luck[0, session, turn]) * launch
        ttft_s += truth.slope_s * len(present)
        tpot_s = truth.tpot_s * luck[1, session, turn] * launch
        found.append(_Turn(session, turn, due_s, float(ttft_s), float(tpot_s), len(present)))
        end_s = due_s + float(ttft_s) + float(tpot_s) * (world.output_tokens - 1)
        if turn + 1 < world.turns:
            heapq.heappush(waiting, (end_s + world.think_s, session, turn + 1))
        else:
            heapq.heappush(leaves, (end_s, session))
    return sorted((_record(world, truth, one) for one in found), key=lambda record: record.index)


def _record(world: World, truth: Truth, one: _Turn) -> TurnRecord:
    index = one.session * world.turns + one.turn
    send = T0_NS + round(one.due_s * 1e9)
    first = send + round(one.ttft_s * 1e9)
    last = first + round(one.tpot_s * 1e9) * (world.output_tokens - 1)
    whole = index not in truth.failed
    tokens = world.first_tokens + world.grows_by * one.turn
    reusable = (tokens - world.grows_by) // BLOCK * BLOCK if one.turn else 0
    return TurnRecord(
        index=index,
        request=f"r{index}",
        session=f"s{one.session:03d}",
        agent="",
        turn=one.turn,
        status=RequestStatus.OK if whole else RequestStatus.ERROR,
        t_due_ns=send,
        t_send_ns=send,
        t_first_token_ns=first if whole else None,
        t_last_token_ns=last if whole else None,
        t_end_ns=last if whole else first,
        input_tokens=tokens,
        output_tokens=world.output_tokens,
        prompt_tokens=tokens if whole else None,
        completion_tokens=world.output_tokens if whole else None,
        cached_tokens=int(truth.hit_share * reusable) if whole else None,
        reusable_any_tokens=reusable,
        reusable_intra_tokens=reusable,
        chunks=world.output_tokens if whole else 0,
        inflight_sessions=one.inflight,
        instance=f"e{one.session % world.instances}",
        http_status=200 if whole else 500,
    )


def cell_record(world: World, truth: Truth, trial: int, turns: Sequence[TurnRecord], place: int = 0) -> RoutingCell:
    """The record of the cell with these turns."""
    end_ns = max(turn.t_end_ns or T0_NS for turn in turns)
    wall_s = (end_ns - T0_NS) / 1e9
    whole = [turn for turn in turns if turn.status == RequestStatus.OK]
    reason = truth.degraded.get(trial, "")
    if trial in truth.early:
        reason = "the replay ended early (hard_stop): 5 turns were never sent"
    return RoutingCell(
        cell=f"trials/{truth.label}/t{trial}",
        label=truth.label,
        policy=truth.policy or truth.label,
        parameters=truth.parameters,
        trial=trial,
        position=place,
        replay_seed=trial,
        trace={
            "file": "made.jsonl", "sha256": "0" * 64, "format": "tracon", "sessions": world.sessions,
            "requests": len(turns), "span_s": world.span_s, "apc_bound_any": 0.8, "apc_bound_intra": 0.8,
            **({"name": truth.trace, "sha256": truth.trace[:1] * 64} if truth.trace else {}),
        },
        replay={
            "max_inflight_sessions": 0, "sent": len(turns), "completed": len(whole), "cut": 0,
            "failed": len(turns) - len(whole), "sessions_done": world.sessions, "wall_clock_s": wall_s,
            "trace_span_s": world.span_s, "amplification": wall_s / world.span_s,
            "fidelity": {"degraded": bool(reason), "reason": reason},
            **({} if truth.time_scale is None else {"time_scale": truth.time_scale}),
            **({"stop_reason": "hard_stop"} if trial in truth.early else {}),
        },
        engines=tuple(_engine(world, truth, turns, number) for number in range(world.instances)),
        router={"decide_us_p50": 20.0, "picks": len(turns), "retries": 0, "index": "approximate", **truth.router},
        t_start_ns=T0_NS,
        t_end_ns=end_ns,
        t_start_unix_s=1_800_000_000.0 + 60 * place,
        attempt=1,
        git_commit="abc1234",
        gpu_reason="no GPU on this host",
        kv_cache_memory_bytes=truth.kv_cache_memory_bytes,
        variation=truth.variation,
    )  # fmt: skip


def cell_config(record: RoutingCell) -> RoutingConfig:
    """The settings of the cell with this record."""
    requests, sessions = record.trace["requests"], record.trace["sessions"]
    trace = TraceRecord("made.jsonl", "0" * 64, "tracon", requests, sessions, 0, 0, 1.0, BLOCK, 1.0, 0, 4096)
    return RoutingConfig(
        cell=record.cell, label=record.label, trial=record.trial, policy=record.policy, parameters=record.parameters,
        roles=tuple(engine.role for engine in record.engines), position=record.position, replay_seed=record.replay_seed,
        instances=len(record.engines), config="plain", trace=trace, replay={}, router={}, profile="cpu-tiny", model={},
        engine={}, decode_kv_cache_memory_bytes=None, engine_versions={},
    )  # fmt: skip


def _engine(world: World, truth: Truth, turns: Sequence[TurnRecord], number: int) -> RoutedEngine:
    here = [turn for turn in turns if turn.instance == f"e{number}"]
    cached = float(sum(turn.cached_tokens or 0 for turn in here))
    prompts = float(sum(turn.prompt_tokens or 0 for turn in here))
    came = 480.0 * sum(turn.turn == truth.moves for turn in here) if truth.moves else 0.0
    left = 480.0 * sum(turn.turn == truth.moves for turn in turns if turn not in here) if truth.moves else 0.0
    return RoutedEngine(
        instance=f"e{number}",
        role="both" if not truth.prefill else "prefill" if number < truth.prefill else "decode",
        url=f"http://127.0.0.1:{9000 + number}",
        pid=None,
        started_by="spawn",
        block_tokens=BLOCK,
        kv_capacity_tokens=world.capacity_tokens,
        prompt_tokens=prompts + came + left,
        cached_tokens=cached + came + left,
        prompt_tokens_by_source={
            "local_cache_hit": cached + left,
            "external_kv_transfer": came,
            "local_compute": prompts - cached,
        },
    )


def decisions(turns: Sequence[TurnRecord], policy: str, moves: int = 0) -> list[DecisionRecord]:
    """A pick per turn: the first of a session is `cold`, the others `affinity`; `migrated` as Truth.moves says."""
    view = ClusterView((InstanceLoad("e0"), InstanceLoad("e1")), 0)
    hot = ClusterView(tuple(InstanceLoad(name, pending_prefill_tokens=3000) for name in ("e0", "e1")), 0)
    found = [
        DecisionRecord(
            seq=place,
            t_ns=turn.t_send_ns or 0,
            decide_us=20.0,
            request=RoutedRequest(turn.request, turn.session, turn.turn, turn.input_tokens, 17, BLOCK, {}),
            cluster=view,
            decision=Decision(policy, turn.instance, "affinity" if turn.turn else "cold"),
            outcome=RoutedOutcome(
                "ok" if turn.status == RequestStatus.OK else "error",
                first_byte_s=0.01 + 1e-4 * ((turn.prompt_tokens or 0) - (turn.cached_tokens or 0)),
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
            ),
        )
        for place, turn in enumerate(turns)
    ]
    return [_migrated(pick, hot) if moves and pick.request.turn == moves else pick for pick in found]


def _migrated(pick: DecisionRecord, hot: ClusterView) -> DecisionRecord:
    """The same turn, come from the other instance with 480 tokens of KV."""
    source = {"e0": "e1", "e1": "e0"}[pick.decision.instance]
    sent = KvTransfer(
        "t", "migration", "mooncake", source, pick.decision.instance, "transferred", attempts=1, prefix_tokens=480,
        source_cached_tokens=480, external_tokens=480, local_tokens=0, computed_tokens=0, bytes=960,
        bytes_from="tokens",
        t_begin_ns=pick.t_ns, t_source_sent_ns=pick.t_ns, t_source_done_ns=pick.t_ns + 10_000_000,
        t_target_sent_ns=pick.t_ns + 10_000_000, t_done_ns=pick.t_ns + 50_000_000,
    )  # fmt: skip
    outcome = pick.outcome
    if outcome is not None:
        outcome = msgspec.structs.replace(outcome, migration="transferred", transfer=sent)
    made = msgspec.structs.replace(pick.decision, reason="migrated", migrate_from=source)
    return msgspec.structs.replace(pick, cluster=hot, decision=made, outcome=outcome)


def loaded(world: World, truth: Truth, trial: int = 0, place: int = 0) -> LoadedCell:
    """A cell as it is after loading, without a file."""
    turns = records(world, truth, trial)
    record = cell_record(world, truth, trial, turns, place)
    picks = count_picks(decisions(turns, record.policy, truth.moves))
    return LoadedCell(record, turns_from(turns), picks, (), f"{record.cell}/cell.json")


def measurements_of(cells: Sequence[LoadedCell]) -> Measurements:
    return Measurements(cells, [summarize_loaded_cell(cell) for cell in cells])


def measured(world: World, truths: Sequence[Truth]) -> Measurements:
    """The measurements of every policy in every trial of the world."""
    return measurements_of([loaded(world, truth, trial) for trial in range(world.trials) for truth in truths])


def report_text(analysis: RoutingAnalysis) -> str:
    """What `tracon report` shows of it, as Markdown."""
    return render_markdown("", RESULTS.report(analysis))


def write_run(root: Path, world: World, truths: Sequence[Truth], *, planned: Sequence[str] = ()) -> Path:
    """Write every artifact of the run folder `root`, as a finished campaign leaves them."""
    variations = {truth.label: truth.variation for truth in truths}
    cells = list(_cells(world, truths))
    for place, (trial, truth) in enumerate(cells):
        write_cell(root, world, truth, trial, place)
    plan: dict[str, Any] = {
        "experiment": "routing",
        "profile": "cpu-tiny",
        "preset": "demo",
        "configs": ["plain"],
        "seed": 1,
        "inputs": {"profile": {"engine": {"kind": "cpu"}}, "engine": {"versions": {"vllm": "0.32.0"}}},
        "cells": [
            {
                "cell": f"trials/{label}/t{trial}", "kind": "replay", "label": label, "trial": trial,
                "params": {"variation": variations[label]} if variations.get(label) else {},
            }
            for label in (*variations, *planned)
            for trial in range(world.trials)
        ],
    }  # fmt: skip
    (root / "plan.json").write_bytes(msgspec.json.encode(plan))
    return root


def write_interference(root: Path, slowdowns: Mapping[int, float], repeats: int = 5) -> None:
    """Prefill tokens to how much longer a decode's token takes meanwhile."""
    rows = [
        {
            "instance": "e0", "prefill_tokens": tokens, "decodes": 4, "repeat": repeat,
            "itl_before_s": 0.01 * (1 + 0.01 * repeat), "itl_during_s": 0.01 * (1 + 0.01 * repeat) * slow,
            "itl_after_s": 0.01, "worst_gap_during_s": 0.03 * slow, "gaps_during": 8,
        }
        for tokens, slow in slowdowns.items()
        for repeat in range(repeats)
    ]  # fmt: skip
    (root / "results" / "interference.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))


def _cells(world: World, truths: Sequence[Truth]) -> Iterator[tuple[int, Truth]]:
    order = np.random.default_rng(world.seed)
    for trial in range(world.trials):
        for number in order.permutation(len(truths)):
            yield trial, truths[int(number)]


def write_cell(root: Path, world: World, truth: Truth, trial: int, place: int = 0) -> None:
    """Write the artifacts of one cell of the run folder `root`."""
    layout = TrialLayout(root / "results" / f"20260131_{truth.label}" / f"trial_{trial}")
    layout.root.mkdir(parents=True)
    turns = records(world, truth, trial)
    record = cell_record(world, truth, trial, turns, place)
    picks = decisions(turns, record.policy, truth.moves)
    samples = [EngineSample(T0_NS, f"e{number}", 1.0, 0.0, 0.1, 0, 1) for number in range(world.instances)]
    encode = msgspec.json.Encoder().encode_lines
    layout.metrics.write_bytes(encode(turns))
    layout.decisions.write_bytes(encode(picks))
    layout.engines.write_bytes(encode(samples))
    layout.config.write_bytes(msgspec.json.encode(cell_config(record)))
    layout.apc.write_text("{}")
    layout.gpu_util.write_text("t_unix_s,gpu,utilisation\n# no GPU on this host\n")
    numbers, breakdown = summarize_cell(turns_from(turns), picks, record)
    layout.summary.write_bytes(msgspec.json.encode(numbers))
    layout.breakdown.write_bytes(msgspec.json.encode(breakdown))
    checksums = {path.name: sha256(path) for path in (layout.metrics, layout.decisions, layout.engines)}
    layout.cell.write_bytes(msgspec.json.encode(replace(record, checksums=checksums)))


def turns_from(rows: Sequence[TurnRecord]) -> Turns:
    """The turns that reading these records back from `metrics.jsonl` gives."""
    table = pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema=TURN_SCHEMA)
    return convert_to_turns(table, T0_NS)
