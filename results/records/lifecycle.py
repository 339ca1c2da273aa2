"""One request of the lifecycle experiment, as `results/lifecycle/C{c}_N{n}_O{o}_rep{r}.json` holds it.

The objects `config`, `timestamps_ns`, `breakdown_ms` and `transfer_detail` are those of specs/pd_lifecycle,
"Per-Request Record"; the others stand beside them. What was not measured is null, and `gaps` says why under the same
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from results.records.declaration import rename_fields
from results.records.frames import Gap, read_record

VERSION = 4
"""2: `breakdown_ms.zmq_handshake` is all of t5 - t3; in version 1 it was what came after the metadata message.
3: `trial`, and the plain combined engine (`plain`). 4: the TTFT from the router's receipt is `router_ttft`, in version
3 it was `ttft`."""
ClockSide = Literal["router", "prefill", "decode"]
"""Whose clock a stamp was read from; the client shares the router's."""


@dataclass(frozen=True, slots=True)
class RequestConfig:
    """What was asked for, in tokens."""

    prior_context: int
    """C: what the decode instance holds before the request."""
    current_new_tokens: int
    """N: what the prefill instance moves."""
    output_length: int
    total_input_length: int = -1
    """C + N; filled in where it is missing."""

    def __post_init__(self) -> None:
        if self.total_input_length < 0:
            object.__setattr__(self, "total_input_length", self.prior_context + self.current_new_tokens)

    @property
    def key(self) -> tuple[int, int, int]:
        """C, N, O: what the repetitions of a configuration share."""
        return self.prior_context, self.current_new_tokens, self.output_length

    @property
    def tokens(self) -> int:
        """What the decode instance holds at the end."""
        return self.total_input_length + self.output_length

    @property
    def label(self) -> str:
        """How it is called in gaps and file names."""
        return f"C{self.prior_context}_N{self.current_new_tokens}_O{self.output_length}"


@dataclass(frozen=True, slots=True)
class Stamps:
    """t0 to t10: `time.perf_counter_ns()` of the process that took each; None = not taken."""

    t0_proxy_recv: int | None = None
    """The router begins to decide."""
    t1_proxy_dispatch: int | None = None
    """The router has sent the request to the prefill instance."""
    t2_p_schedule: int | None = None
    """The prefill instance schedules its first chunk."""
    t3_p_prefill_done: int | None = None
    """Its last chunk is done and the blocks may be sent."""
    t4_zmq_metadata: int | None = None
    """The decode instance has stated which blocks to send where. Where both requests are sent at once, before t3."""
    t5_rdma_start: int | None = None
    """The first write call begins."""
    t6_rdma_complete: int | None = None
    """The last write call is complete."""
    t7_d_recv_signal: int | None = None
    """The decode instance is notified that the blocks arrived."""
    t8_d_promoted: int | None = None
    """Its scheduler may run the request."""
    t9_d_first_token: int | None = None
    """The client has the first token."""
    t10_d_last_token: int | None = None
    """The client has the last token."""


@dataclass(frozen=True, slots=True)
class MoreStamps:
    """Stamps between those of the specification."""

    client_send: int | None = None
    """Before the client wrote the request's first byte."""
    t3b_send_ready: int | None = None
    """The prefill instance's worker knows that the blocks may be sent."""
    proxy_prefill_done: int | None = None
    """The router has the prefill instance's answer."""
    proxy_decode_sent: int | None = None
    """Before the router wrote the first byte of the request to the decode instance."""
    d_blocks_allocated: int | None = None
    """The decode instance has allocated the blocks."""
    d_pull_sent: int | None = None
    """The decode instance sends the request for blocks that t4 receives."""
    p_response_sent: int | None = None
    """Before the prefill instance sent the answer that t7 receives; logs of older patches: after it."""
    d_scheduled: int | None = None
    """The decode instance first schedules the request after its promotion."""


@dataclass(frozen=True, slots=True)
class TransferDetail:
    """The specification's `transfer_detail`."""

    bytes_transferred: int | None = None
    """Bytes of all writes."""
    num_rdma_ops: int | None = None
    """Descriptors of all writes."""
    num_blocks: int | None = None
    """KV blocks."""
    num_layers: int | None = None
    """Layers of the model's KV cache."""
    build_params_ms: float | None = None
    """Time to build the writes' parameters."""
    rdma_write_ms: float | None = None
    """Time in which at least one write call of the transfer was under way."""
    effective_bw_gbps: float | None = None
    """bytes x 8 / rdma_write, in 10^9 bits per second."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted beside the stamps."""

    p_cached_tokens: int | None = None
    """Prompt tokens that the prefill instance had in its own cache: it did not compute them."""
    external_tokens: int | None = None
    """What the decode instance waited for, as its probe saw it allocate the blocks."""
    local_tokens: int | None = None
    """What it had in its own cache."""
    computed_tokens: int | None = None
    """What it computed, by its own counters as the router read them."""
    write_calls: int | None = None
    """Write calls of the transfer."""
    write_side: ClockSide = "prefill"
    """Who moved the blocks: the prefill instance writes them (Mooncake), or the decode instance reads them (NIXL)."""
    write_end_from: str = ""
    """How t6 is known: `return` of the call, the transport's own `telemetry`, or `poll` (when the worker looked)."""
    d_step_ms: float | None = None
    """Median step of the decode instance while the request waited for its blocks."""
    attempts: int | None = None
    """Attempts of the transfer, from 1."""
    dispatch_late_ms: float | None = None
    """From the prefill instance's scheduling of the request to the router's stamp of its send; t1 is then t2, the
    latest that it can have been. None = the stamps are in order."""
    run_delay_us: float | None = None
    """How long the threads that wrote were ready to run and had no core, over all writes."""
    kv_bytes_per_token: int | None = None
    """Keys and values of a token in all layers, by the model's own configuration."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the decode instance held C tokens of the prompt before the request, and no more."""

    claimed_tokens: int
    """C."""
    counted_tokens: int | None
    """By the decode instance's counters; None = not known."""
    ok: bool | None
    """None: not known."""
    reason: str = ""
    """Why not, or why it is not known."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clocks of the hosts compare. A host is its boot id; an unknown one equals no other."""

    router: str = ""
    """Boot id of the router's host."""
    prefill: str = ""
    """Boot id of the prefill instance's host."""
    decode: str = ""
    """Boot id of the decode instance's host."""
    offset_ns: int | None = None
    """What the prefill host's clock reads beyond the decode host's; 0 on one host."""
    error_ns: int | None = None
    """The offset is right to within this."""
    reason: str = ""
    """Why the offset is not known."""

    @property
    def one_host(self) -> bool:
        """All stamps are of one clock."""
        return bool(self.router) and self.router == self.prefill == self.decode


@dataclass(frozen=True, slots=True)
class Colo:
    """The same request on one combined engine, by the client's clock from its send."""

    ttft_ms: float | None = None
    """None = not measured."""
    e2e_ms: float | None = None
    """None = not measured."""
    reason: str = ""
    """Why it is not known."""
    first: bool | None = None
    """It was sent before the request whose prompt is handed over, not after it; None = not known, or there is none."""
    through: str = ""
    """How it was sent: `router` = through the same router process as the other one; empty = not known."""
    request: str = ""
    """Its `x-request-id`."""


@dataclass(frozen=True, slots=True)
class Ids:
    """What the request is called, and by whom it was served."""

    request: str = ""
    """The `x-request-id`."""
    transfer: str = ""
    """As in `KvTransfer.transfer`."""
    prefill: str = ""
    """Instance."""
    decode: str = ""
    """Instance."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One reading of an engine's counters, which start with the engine. None = unknown, `reason` says why."""

    preemptions: int | None = None
    """Preemptions of requests."""
    prefix_cache_queries: int | None = None
    """Tokens looked up."""
    prefix_cache_hits: int | None = None
    """Tokens that were cached."""
    reason: str = ""
    """Why they are unknown."""


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """One engine before the first and after the last request of a cell."""

    begin: EngineLoad = field(default_factory=EngineLoad)
    """Before the first request."""
    end: EngineLoad = field(default_factory=EngineLoad)
    """After the last one."""

    @property
    def preemptions(self) -> int | None:
        """During the cell; None = the engine does not count them."""
        before, after = self.begin.preemptions, self.end.preemptions
        return None if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class LifecycleRecord:
    """One request, broken down. Durations are in milliseconds, None = not known, `gaps` says why."""

    config: RequestConfig
    """What was requested."""
    timestamps_ns: Stamps
    """The specification's stamps."""
    breakdown_ms: Mapping[str, float | None]
    """The specification's keys in its order; see results.pd_lifecycle.phases."""
    transfer_detail: TransferDetail
    """The specification's numbers of the transfer."""
    repetition: int
    """From 1, as in the file's name."""
    warmup: bool
    """One of the first, dropped because connections are made in them."""
    verification: Verification
    """Whether the decode instance held C tokens."""
    discarded: str = ""
    """Why it does not count; empty = it does, unless it is a warm-up."""
    more_timestamps_ns: MoreStamps = field(default_factory=MoreStamps)
    """Stamps between those."""
    more_ms: Mapping[str, float | None] = field(default_factory=dict)
    """Phases between the specification's, and what is compared with the combined instance."""
    error_ms: Mapping[str, float] = field(default_factory=dict)
    """By how much a duration between two hosts may be wrong; none on one host."""
    residual_share: float | None = None
    """(e2e - sum of the phases) / e2e."""
    client_residual_share: float | None = None
    """The same, of the time from the client's send: it holds the way from the client to the router."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Stamp, duration or number to why it is not known."""
    counts: Counts = field(default_factory=Counts)
    """What was counted beside the stamps."""
    clock: Clock = field(default_factory=Clock)
    """How the hosts' clocks compare."""
    colo: Colo = field(default_factory=Colo)
    """The same request on the decode engine alone: a combined engine with the connector."""
    plain: Colo = field(default_factory=Colo)
    """The same request on a combined engine without a connector."""
    transport: str = ""
    """`mooncake` or `nixl`; empty = not known."""
    ids: Ids = field(default_factory=Ids)
    """Names of the request and of its instances."""
    trial: int = 0
    """From 0. Each trial has launched its own engines."""
    version: int = VERSION

    @property
    def counted(self) -> bool:
        """It takes part in results."""
        return not self.warmup and not self.discarded

    def ms(self, name: str) -> float | None:
        """A duration by its name, of `breakdown_ms` or of `more_ms`."""
        return self.breakdown_ms[name] if name in self.breakdown_ms else self.more_ms.get(name)

    @property
    def client_ttft_ms(self) -> float | None:
        """From the client's send to its first token."""
        return self.ms("client_ttft")

    @property
    def phases_ms(self) -> Mapping[str, float | None]:
        """The specification's phases, which add up to e2e, in the order they pass."""
        return {name: self.breakdown_ms[name] for name in PHASES}

    @property
    def parts_ms(self) -> Mapping[str, float | None]:
        """As phases_ms, with `zmq_handshake` in its two parts where these are known."""
        return {name: self.ms(name) for name in list_phase_parts(lambda part: self.ms(part) is not None)}


PHASES = (
    "routing", "p_queue", "p_prefill", "zmq_handshake", "rdma_transfer", "transfer_signal", "d_promotion",
    "d_first_token", "d_decode",
)  # fmt: skip
"""What e2e is made of, in the order it passes: the specification's names."""
HANDSHAKE = "zmq_handshake"
HANDSHAKE_PARTS = ("metadata_wait", "zmq_after_metadata")
"""What it is made of where t4 is known: until the decode instance's request reaches the prefill instance, and from then
on."""


def list_phase_parts(known: Callable[[str], bool]) -> tuple[str, ...]:
    """The phases in the order they pass, the handshake in its parts where both are known."""
    parts = HANDSHAKE_PARTS if all(known(name) for name in HANDSHAKE_PARTS) else (HANDSHAKE,)
    index = PHASES.index(HANDSHAKE)
    return (*PHASES[:index], *parts, *PHASES[index + 1 :])


def parse_cell_name(name: str) -> tuple[RequestConfig, int] | None:
    """The configuration and the trial of a cell's folder; None where it is no cell's."""
    match = _CELL_NAME.fullmatch(name)
    if match is None:
        return None
    *lengths, trial = match.groups()
    return RequestConfig(*map(int, lengths)), int(trial or 0)


_CELL_NAME = re.compile(r"C(\d+)_N(\d+)_O(\d+)(?:_t(\d+))?")


def read_lifecycle(path: Path) -> LifecycleRecord | Gap:
    """The record at `path`, or what is wrong with it."""
    return read_record(path, LifecycleRecord, VERSION, {1: upgrade_from_1, 2: upgrade_from_2, 3: upgrade_from_3})


def upgrade_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A record of version 1 with the names of version 2; there the combined instance came last where none says else."""
    more, gaps, phases = dict(row.get("more_ms", {})), dict(row.get("gaps", {})), dict(row["breakdown_ms"])
    whole, why_whole = more.pop("ready_to_write", None), gaps.pop("ready_to_write", "")
    more["zmq_after_metadata"] = phases.get(HANDSHAKE)
    if HANDSHAKE in gaps:
        gaps["zmq_after_metadata"] = gaps.pop(HANDSHAKE)
    if whole is None:
        gaps[HANDSHAKE] = why_whole or "not known"
    colo = dict(row.get("colo", {}))
    if colo.get("first") is None:
        colo["first"] = None if colo.get("ttft_ms") is None else False
    return row | {
        "breakdown_ms": {**phases, HANDSHAKE: whole},
        "more_ms": more,
        "error_ms": rename_fields(row.get("error_ms", {}), _NEW_NAMES),
        "gaps": gaps,
        "colo": colo,
        "version": 2,
    }


def upgrade_from_2(row: dict[str, Any]) -> dict[str, Any]:
    """A record of version 2: its run had one trial and no plain combined engine."""
    return row | {
        "trial": 0,
        "plain": {"reason": NO_PLAIN},
        "more_ms": {**row.get("more_ms", {}), PLAIN_OVERHEAD: None},
        "gaps": {**row.get("gaps", {}), PLAIN_OVERHEAD: f"plain: {NO_PLAIN}"},
        "version": 3,
    }


def upgrade_from_3(row: dict[str, Any]) -> dict[str, Any]:
    """A record of version 3 with the name of version 4 for the TTFT from the router's receipt."""
    return row | _rename_keys(row, ("more_ms", "error_ms", "gaps"), _NEW_METRICS) | {"version": 4}


AGGREGATE_FORMAT = 4
"""Format of `aggregate.json`. 3: the sign of an overhead is `sign`, in format 2 it was `told`; the launches, both
combined engines and the first repetitions. 4: the TTFT from the router's receipt is `router_ttft`, before it was
`ttft`."""


def upgrade_aggregate(document: dict[str, Any]) -> dict[str, Any]:
    """An `aggregate.json` of format 2 or 3 with the names of format 4; what it did not hold stays out."""
    if document.get("format") == 2:
        cells = [rename_fields(cell, _NEW_FIELDS) for cell in document["overheads"]]
        document = document | {"format": 3, "overheads": cells, "launches": 1}
    if document.get("format") == 3:
        configs = [one | _rename_keys(one, ("values", "medians"), _NEW_METRICS) for one in document["configs"]]
        document = document | {"format": AGGREGATE_FORMAT, "configs": configs}
    return document


def _rename_keys(row: Mapping[str, Any], among: Sequence[str], names: Mapping[str, str]) -> dict[str, Any]:
    """Those of the mappings `among` that the row has, with new names of their keys."""
    return {part: rename_fields(row[part], names) for part in among if part in row}


_NEW_FIELDS = {"told": "sign"}
_NEW_METRICS = {"ttft": "router_ttft"}
NO_PLAIN = "no combined engine without a connector was measured"
PLAIN_OVERHEAD = "pdsep_overhead_vs_plain"
"""In `more_ms`: TTFT of the handover request less that of the same one on `plain`."""
_NEW_NAMES = {HANDSHAKE: "zmq_after_metadata", "ready_to_write": HANDSHAKE}
"""Old name to new."""
