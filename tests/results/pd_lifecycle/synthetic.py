"""Requests of a lifecycle run whose true phases are known, as router, probes and client would have seen them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from results.pd_lifecycle.join import join_request
from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from results.records.layout import LifecycleLayout, sha256, write_indented_json
from results.records.lifecycle import Colo, LifecycleRecord, RequestConfig, Verification
from results.records.schemas import RequestRecord, RequestStatus
from results.records.transfer_log import ProbeEvent, ProbeLog, ProbeStatus

T0_NS = 3_000_000_000_000_123  # a host that has been up for a month
BLOCK = 128
BYTES_PER_TOKEN = 512
P_SEES = ("scheduled", "prefill_done", "send_ready", "metadata_received", "write", "response_sent")
D_SEES = ("scheduled", "blocks_allocated", "pull_sent", "received", "promoted", "steps")


@dataclass(frozen=True)
class Truth:
    """What every request of a run is made of, milliseconds."""

    alpha_ms: float = 0.5
    beta_ms_per_mb: float = 0.8
    """10 Gbit/s."""
    noise: float = 0.02
    """Of the logarithm of the write's duration."""
    jitter_ms: float = 0.05
    """Of the first token and of the combined instance's."""
    prefill_ms_per_token: float = 0.01
    wait_ms: float = 12.0
    """From the end of the prefill until the prefill instance has heard; below zero with concurrent requests."""
    tpot_ms: float = 1.5
    colo_ms: float = 8.0
    """What a combined instance takes beyond its prefill until the first token."""
    colo_ms_per_token: float = 0.012
    order_ms: float = 0.0
    """What the second request of a pair takes longer."""
    not_incremental: float = 0.0
    """Of the prior context: what is moved although the decode instance has it."""
    offset_ns: int = 0
    """What the prefill host's clock reads beyond the others'."""
    prefill_boot: str = "host-a"
    step_ms: float = 2.0


@dataclass(frozen=True)
class Seen:
    """One request as each side saw it."""

    config: RequestConfig
    repetition: int
    decision: DecisionRecord
    prefill: ProbeLog
    decode: ProbeLog
    client: RequestRecord
    colo: Colo

    def record(self, **changed: Any) -> LifecycleRecord:
        """Its record; `changed` replaces arguments of join."""
        arguments: dict[str, Any] = {
            "repetition": self.repetition,
            "warmup": self.repetition <= 2,
            "client": self.client,
            "decision": self.decision,
            "prefill": self.prefill,
            "decode": self.decode,
            "verification": Verification(self.config.prior_context, self.config.prior_context, True),
            "colo": self.colo,
            "router_boot_id": "host-a",
            "kv_bytes_per_token": BYTES_PER_TOKEN,
        }
        return join_request(self.config, **(arguments | changed))


def ns(ms: float) -> int:
    return round(ms * 1e6)


def seen(truth: Truth, config: RequestConfig, repetition: int = 3, *, start_ns: int = T0_NS, seed: int = 0) -> Seen:
    """One request; its first repetition pays for the connection."""
    key = (seed, *config.key, repetition)
    luck = np.random.default_rng(key)
    new, name, transfer = config.current_new_tokens, f"r{'-'.join(map(str, key))}", f"x{'-'.join(map(str, key))}"
    moved = (new + round(truth.not_incremental * config.prior_context)) // BLOCK * BLOCK * BYTES_PER_TOKEN
    write_ms = (truth.alpha_ms + truth.beta_ms_per_mb * moved / 1e6) * float(np.exp(truth.noise * luck.normal()))
    write_ms += 40.0 if repetition == 1 else 0.0
    t0 = start_ns
    t1, t2 = t0 + ns(0.2), t0 + ns(4.2)
    t3 = t2 + ns(truth.prefill_ms_per_token * new)
    t4 = t3 + ns(truth.wait_ms)
    t5 = max(t3, t4) + ns(0.6)
    t6 = t5 + ns(write_ms)
    t7, t8 = t6 + ns(0.3), t6 + ns(2.5)
    colo_first = (repetition + config.output_length) % 2 == 1
    t9 = t8 + ns(5.0 + truth.jitter_ms * luck.random() + (truth.order_ms if colo_first else 0.0))
    t10 = t9 + ns(truth.tpot_ms * (config.output_length - 1))
    off, p_id, d_id = truth.offset_ns, f"cmpl-{transfer}-p-0-aa", f"cmpl-{name}-0-bb"
    p_events = [
        _event("scheduled", t2 + off, p_id, transfer, part="prefill", cached_tokens=config.prior_context),
        _event("prefill_done", t3 + off, p_id, transfer, blocks=config.total_input_length // BLOCK),
        _event("send_ready", t3 + ns(0.4) + off, p_id, transfer),
        _event("metadata_received", t4 + off, None, transfer, blocks=moved // BLOCK // BYTES_PER_TOKEN),
        _event(
            "write", t6 + off, p_id, transfer, t5_ns=t5 + off, t6_ns=t6 + off, ok=True, bytes=moved, operations=2,
            blocks=moved // BLOCK // BYTES_PER_TOKEN, layers=2, build_params_us=250.0, t6_from="return",
        ),
        _event("response_sent", t6 + ns(0.1) + off, None, transfer),
    ]  # fmt: skip
    d_events = [
        _event("blocks_allocated", t4 - ns(1.2), d_id, transfer, external_tokens=new, local_tokens=0),
        _event("pull_sent", t4 - ns(0.5), d_id, transfer),
        _event("received", t7, d_id, transfer, ok=True),
        _event("promoted", t8, d_id, transfer, ok=True),
        _event("steps", t8, d_id, transfer, step_p50_us=truth.step_ms * 1e3),
        _event("scheduled", t8 + ns(0.2), d_id, transfer, part="decode", cached_tokens=config.total_input_length - 1),
    ]
    send = t0 - ns(0.7)
    return Seen(
        config=config,
        repetition=repetition,
        decision=_decision(name, transfer, t0, t1, t3 + ns(3.0), t4 - ns(5.0), config, moved),
        prefill=ProbeLog(tuple(p_events), (_status("engine", truth.prefill_boot, P_SEES),)),
        decode=ProbeLog(tuple(d_events), (_status("engine", "host-a", D_SEES),)),
        client=client_record(send, t9, t10, config),
        colo=Colo(
            truth.colo_ms + truth.colo_ms_per_token * new + truth.jitter_ms * luck.random()
            + (0.0 if colo_first else truth.order_ms),
            1000.0, first=colo_first, through="router", request=f"lcb-{name}",
        ),
    )  # fmt: skip


def client_record(send: int, first: int | None, last: int | None, config: RequestConfig) -> RequestRecord:
    return RequestRecord(
        index=0,
        status=RequestStatus.OK,
        warmup=False,
        t_intended_ns=send,
        t_send_ns=send,
        t_first_token_ns=first,
        t_last_token_ns=last,
        t_end_ns=last,
        input_tokens=config.total_input_length,
        output_tokens=config.output_length,
        prompt_tokens=config.total_input_length,
        completion_tokens=config.output_length,
        cached_tokens=0,
        chunks=config.output_length,
        inflight_at_send=0,
    )


def _event(event: str, t_ns: int, request: str | None, transfer: str, **fields: Any) -> ProbeEvent:
    return ProbeEvent(event=event, t_ns=t_ns, request=request, transfer=transfer, **fields)


def _status(role: str, boot_id: str, sees: Sequence[str]) -> ProbeStatus:
    return ProbeStatus(role=role, pid=1, boot_id=boot_id, available=dict.fromkeys(sees, True))


def _decision(
    name: str, transfer: str, t0: int, sent: int, done: int, onward: int, config: RequestConfig, moved: int
) -> DecisionRecord:
    movement = KvTransfer(
        transfer=transfer,
        purpose="handover",
        transport="mooncake",
        source="p0",
        target="d0",
        status="transferred",
        attempts=1,
        bytes=moved,
        bytes_from="tokens",
        t_begin_ns=t0,
        t_source_sent_ns=sent,
        t_source_done_ns=done,
        t_target_sent_ns=onward,
    )
    return DecisionRecord(
        seq=0,
        t_ns=t0,
        decide_us=20.0,
        request=RoutedRequest(name, "", 0, config.total_input_length, config.output_length, BLOCK, {}),
        cluster=ClusterView((), 0),
        decision=Decision("static_pd", "d0", "pools", prefill="p0"),
        outcome=RoutedOutcome("ok", transfer=movement),
    )


def grid(
    truth: Truth,
    contexts: Sequence[int] = (0, 4096),
    sizes: Sequence[int] = (512, 2048, 4096, 8192),
    lengths: Sequence[int] = (1, 32),
    repetitions: int = 5,
    seed: int = 0,
) -> Iterator[LifecycleRecord]:
    """The records of a sweep, one request a second."""
    place = 0
    for context in contexts:
        for size in sizes:
            for length in lengths:
                for repetition in range(1, repetitions + 1):
                    start = T0_NS + place * 1_000_000_000
                    yield seen(
                        truth, RequestConfig(context, size, length), repetition, start_ns=start, seed=seed
                    ).record()
                    place += 1


def write_run(root: Path, records: Sequence[LifecycleRecord], *, analysis: dict[str, Any] | None = None) -> Path:
    """Write the run folder as a finished campaign leaves it, with one configuration that was left out."""
    layout = LifecycleLayout(root)
    cells: dict[tuple[int, int, int, int], list[LifecycleRecord]] = {}
    for record in records:
        write_indented_json(layout.record(record.config, record.repetition, record.trial), record)
        cells.setdefault((record.trial, *record.config.key), []).append(record)
    for own in cells.values():
        mark = layout.cell(own[0].config, own[0].trial)
        paths = [layout.record(record.config, record.repetition, record.trial) for record in own]
        mark.parent.mkdir(parents=True)
        checksums = {f"../../{path.name}": sha256(path) for path in paths}
        engines = {side: {"block_tokens": BLOCK} for side in ("prefill", "decode")}
        mark_content = {"cell": own[0].config.label, "checksums": checksums, "discarded": [], "engines": engines}
        mark.write_bytes(msgspec.json.encode(mark_content))
    keys = [*cells, (0, 131_072, 8192, 32)]
    plan = {
        "experiment": "pd-lifecycle",
        "profile": "cpu-tiny",
        "preset": "demo",
        "configs": ["mooncake_producer", "mooncake_consumer"],
        "seed": 1,
        "inputs": {
            "profile": {"engine": {"kind": "cpu"}},
            "engine": {"versions": {"vllm": "0.32.0"}},
            "grid": {"analysis": analysis or {}},
        },
        "cells": [
            {
                "cell": f"sweep/C{context}_N{size}_O{length}" + (f"/t{trial}" if trial else ""),
                "kind": "lifecycle",
                "trial": trial,
                "params": {"prior_context": context, "new_tokens": size, "output_length": length}
                | ({"why_not": "longer than the model's context"} if context == 131_072 else {}),
            }
            for trial, context, size, length in keys
        ],
    }
    (root / "plan.json").write_bytes(msgspec.json.encode(plan))
    return root
