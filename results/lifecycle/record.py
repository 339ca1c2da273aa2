"""One request of the lifecycle experiment, as `results/lifecycle/C{c}_N{n}_O{o}_rep{r}.json` holds it.

The objects `config`, `timestamps_ns`, `breakdown_ms` and `transfer_detail` are those of specs/pd_lifecycle,
"Per-Request Record"; the others stand beside them. What was not measured is null, and `gaps` says why under the same
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from results.layout import write_atomic
from results.load import Gap, artifact_name

VERSION = 2
"""2: `breakdown_ms.zmq_handshake` is all of t5 - t3; in version 1 it was what came after the metadata message."""
Place = Literal["router", "prefill", "decode"]
"""Whose clock a stamp was read from; the client shares the router's."""


@dataclass(frozen=True, slots=True)
class RequestConfig:
    """What was asked for, in tokens."""

    prior_context: int
    """C: what the decode instance holds before the request."""
    current_new_tokens: int
    """N: what the prefill instance moves."""
    output_length: int
    """O."""
    total_input_length: int = -1
    """C + N; filled in where it is not given."""

    def __post_init__(self) -> None:
        if self.total_input_length < 0:
            object.__setattr__(self, "total_input_length", self.prior_context + self.current_new_tokens)

    @property
    def key(self) -> tuple[int, int, int]:
        """C, N, O: what the repetitions of a configuration share."""
        return self.prior_context, self.current_new_tokens, self.output_length

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
    """It has heard from the decode instance which blocks to send where. With concurrent legs this is before t3."""
    t5_rdma_start: int | None = None
    t6_rdma_complete: int | None = None
    t7_d_recv_signal: int | None = None
    """The decode instance has heard that the blocks are there."""
    t8_d_promoted: int | None = None
    """Its scheduler may run the request."""
    t9_d_first_token: int | None = None
    """The client has the first token."""
    t10_d_last_token: int | None = None


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
    """The router has sent the request to the decode instance."""
    d_blocks_allocated: int | None = None
    d_pull_sent: int | None = None
    """The decode instance sends the request for blocks that t4 receives."""
    p_response_sent: int | None = None
    """The prefill instance sends the answer that t7 receives."""
    d_scheduled: int | None = None
    """The decode instance first schedules the request after its promotion."""


@dataclass(frozen=True, slots=True)
class TransferDetail:
    """The specification's `transfer_detail`."""

    bytes_transferred: int | None = None
    num_rdma_ops: int | None = None
    num_blocks: int | None = None
    num_layers: int | None = None
    build_params_ms: float | None = None
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
    write_side: Place = "prefill"
    """Who moved the blocks: the prefill instance writes them (Mooncake), or the decode instance reads them (NIXL)."""
    write_end_from: str = ""
    """How t6 is known: `return` of the call, the transport's own `telemetry`, or `poll` (when the worker looked)."""
    d_step_ms: float | None = None
    """Median step of the decode instance while the request waited for its blocks."""
    attempts: int | None = None
    dispatch_late_ms: float | None = None
    """So long after the prefill instance scheduled the request the router stamped that it was sent; t1 is then t2, the
    latest that it can have been. None = the stamps are in order."""
    run_delay_us: float | None = None
    """How long the threads that wrote were ready to run and had no core, over all writes."""
    kv_bytes_per_token: int | None = None
    """Keys and values of a token in all layers, by the model's own configuration."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the decode instance held C tokens of the prompt before the request, and no more."""

    claimed_tokens: int
    counted_tokens: int | None
    ok: bool | None
    """None: it could not be told."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clocks of the hosts compare. Hosts are told apart by their boot ids; an unknown one is like no other."""

    router: str = ""
    prefill: str = ""
    decode: str = ""
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
    """The same request on one combined instance, by the client's clock from its send."""

    ttft_ms: float | None = None
    e2e_ms: float | None = None
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
    prefill: str = ""
    """Instance."""
    decode: str = ""


@dataclass(frozen=True, slots=True)
class LifecycleRecord:
    """One request, taken apart. Durations are in milliseconds, None = not known, `gaps` says why."""

    config: RequestConfig
    timestamps_ns: Stamps
    breakdown_ms: Mapping[str, float | None]
    """The specification's keys in its order; see results.lifecycle.phases."""
    transfer_detail: TransferDetail
    repetition: int
    """From 1, as in the file's name."""
    warmup: bool
    """One of the first, dropped because connections are made in them."""
    verification: Verification
    discarded: str = ""
    """Why it does not count; empty = it does, unless it is a warm-up."""
    more_timestamps_ns: MoreStamps = field(default_factory=MoreStamps)
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
    clock: Clock = field(default_factory=Clock)
    colo: Colo = field(default_factory=Colo)
    transport: str = ""
    """`mooncake` or `nixl`; empty = not known."""
    ids: Ids = field(default_factory=Ids)
    version: int = VERSION

    @property
    def counted(self) -> bool:
        """It takes part in results."""
        return not self.warmup and not self.discarded

    def ms(self, name: str) -> float | None:
        """A duration by its name, of `breakdown_ms` or of `more_ms`."""
        return self.breakdown_ms[name] if name in self.breakdown_ms else self.more_ms.get(name)

    @property
    def ttft_ms(self) -> float | None:
        """The client's: from its send to its first token."""
        return self.ms("client_ttft")

    @property
    def phases_ms(self) -> Mapping[str, float | None]:
        """The specification's phases, which add up to e2e, in the order they pass."""
        return {name: self.breakdown_ms[name] for name in PHASES}

    @property
    def parts_ms(self) -> Mapping[str, float | None]:
        """As phases_ms, with `zmq_handshake` in its two parts where these are known."""
        return {name: self.ms(name) for name in parts_of(lambda part: self.ms(part) is not None)}


PHASES = (
    "routing", "p_queue", "p_prefill", "zmq_handshake", "rdma_transfer", "transfer_signal", "d_promotion",
    "d_first_token", "d_decode",
)  # fmt: skip
"""What e2e is made of, in the order it passes: the specification's names."""
HANDSHAKE = "zmq_handshake"
HANDSHAKE_PARTS = ("metadata_wait", "zmq_after_metadata")
"""What it is made of where t4 is known: until the prefill instance has heard from the decode instance, and from then
on."""


def parts_of(known: Callable[[str], bool]) -> tuple[str, ...]:
    """The phases in the order they pass, the handshake in its parts where both are known."""
    parts = HANDSHAKE_PARTS if all(known(name) for name in HANDSHAKE_PARTS) else (HANDSHAKE,)
    place = PHASES.index(HANDSHAKE)
    return (*PHASES[:place], *parts, *PHASES[place + 1 :])


@dataclass(frozen=True, slots=True)
class LifecycleLayout:
    """Where the records of a run lie."""

    root: Path
    """The run's folder."""

    @property
    def folder(self) -> Path:
        return self.root / "results" / "lifecycle"

    @property
    def summary_csv(self) -> Path:
        return self.folder / "summary.csv"

    def record(self, config: RequestConfig, repetition: int) -> Path:
        return self.folder / f"{config.label}_rep{repetition}.json"

    def cell(self, config: RequestConfig) -> Path:
        """The commit mark of a configuration's cell."""
        return self.folder / "cells" / config.label / "cell.json"

    def failed(self, config: RequestConfig) -> Path:
        """Why a cell failed, where it did."""
        return self.cell(config).with_name("failed.json")

    def failures(self) -> tuple[Path, ...]:
        """What the cells that failed left, by name."""
        return tuple(sorted(self.folder.glob("cells/C*/failed.json")))

    @property
    def link(self) -> Path:
        """What the link between the two instances carries."""
        return self.folder / "link.json"

    def records(self) -> tuple[Path, ...]:
        """Every record there is, by C, N, O and repetition."""
        named = ((_NAME.fullmatch(path.name), path) for path in self.folder.glob("C*_rep*.json"))
        return tuple(path for _, path in sorted((tuple(map(int, name.groups())), path) for name, path in named if name))


def labelled(label: str) -> RequestConfig | None:
    """The configuration of a RequestConfig's label; None where it is none."""
    found = _LABEL.fullmatch(label)
    return RequestConfig(*map(int, found.groups())) if found else None


_NAME = re.compile(r"C(\d+)_N(\d+)_O(\d+)_rep(\d+)\.json")
_LABEL = re.compile(r"C(\d+)_N(\d+)_O(\d+)")


def write_record(path: Path, record: LifecycleRecord) -> None:
    """Write the record, whole or not at all. Raises OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_record(path: Path) -> LifecycleRecord | Gap:
    """The record at `path`, or what is wrong with it."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LifecycleRecord)
    except OSError as error:
        return Gap(artifact_name(path), f"cannot be read: {error.strerror}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Gap(artifact_name(path), f"is damaged: {error}")
    if record.version == 1:
        return _upgraded(record)
    if record.version != VERSION:
        return Gap(artifact_name(path), f"has version {record.version}; this Tracon reads versions 1 and {VERSION}")
    return record


def _upgraded(record: LifecycleRecord) -> LifecycleRecord:
    """A record of version 1 with the names of version 2; there the combined instance came last, or it is said."""
    more, gaps = dict(record.more_ms), dict(record.gaps)
    whole, why_whole = more.pop("ready_to_write", None), gaps.pop("ready_to_write", "")
    more["zmq_after_metadata"] = record.breakdown_ms.get(HANDSHAKE)
    if HANDSHAKE in gaps:
        gaps["zmq_after_metadata"] = gaps.pop(HANDSHAKE)
    if whole is None:
        gaps[HANDSHAKE] = why_whole or "not known"
    errors = {_NEW_NAMES.get(name, name): error for name, error in record.error_ms.items()}
    return replace(
        record,
        breakdown_ms={**record.breakdown_ms, HANDSHAKE: whole},
        more_ms=more,
        error_ms=errors,
        gaps=gaps,
        colo=record.colo if record.colo.first is not None else replace(record.colo, first=_came_last(record.colo)),
        version=VERSION,
    )


def _came_last(colo: Colo) -> bool | None:
    return None if colo.ttft_ms is None else False


_NEW_NAMES = {HANDSHAKE: "zmq_after_metadata", "ready_to_write": HANDSHAKE}
"""What version 1 called otherwise."""
