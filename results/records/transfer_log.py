"""What the transfer probe inside one instance wrote: `transfer.<pid>.jsonl`, a JSON object per line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap, name_artifact
from results.records.layout import TRANSFER_LOGS


class ProbeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a request; fields that its kind does not have are None."""

    event: str
    """Its kind, e.g. `promoted`."""
    t_ns: int
    """`time.perf_counter_ns()` of the engine's process."""
    request: str | None = None
    """The engine's own id of it."""
    transfer: str | None = None
    """Its id, as in `KvTransfer.transfer`."""
    transfers: tuple[str, ...] | None = None
    """Where one write served several."""
    remote_request: str | None = None
    """What the other instance calls it."""
    decode_request: str | None = None
    """With a metadata message: the decode instance's id of the request."""
    decode_requests: tuple[str, ...] = ()
    """With a write: what the decode instance calls the requests it served."""
    part: str | None = None
    """Which request of its transfer: `prefill`, `decode` or `none` (it belongs to no transfer)."""
    prompt_tokens: int | None = None
    """Prompt tokens of the request."""
    cached_tokens: int | None = None
    """Prompt tokens in this instance's own cache."""
    num_computed: int | None = None
    """With `promoted`: prompt tokens whose KV has arrived."""
    external_tokens: int | None = None
    """Prompt tokens from the transfer."""
    local_tokens: int | None = None
    """Prompt tokens in the target's own cache."""
    blocks: int | None = None
    """KV blocks."""
    layers: int | None = None
    """Layers in the write."""
    ok: bool | None = None
    """Whether it succeeded."""
    bytes: int | None = None
    """Written or read."""
    operations: int | None = None
    """Descriptors in the write."""
    t5_ns: int | None = None
    """Begin of a write."""
    t6_ns: int | None = None
    """End of a write."""
    t6_from: str | None = None
    """How the end of a write is known: `return`, `telemetry`, or `poll` (when the worker looked)."""
    status: str | None = None
    """How the prefill request ended."""
    build_params_us: float | None = None
    """Time to build a write's parameters."""
    submit_us: float | None = None
    """With a write: duration of the call that submits it; null where the transport does not state it."""
    post_us: float | None = None
    """With a read: duration of NIXL's call that posts it."""
    code: int | None = None
    """With a write: the transport's return value."""
    reason: str | None = None
    """Why it failed, where `ok` is false."""
    steps: int | None = None
    """Engine steps while the request waited for its blocks."""
    run_delay_us: float | None = None
    """With a write: how long its thread was ready to run and had no core."""
    step_p50_us: float | None = None
    """Median engine step while the request waited for its blocks."""

    @property
    def carries(self) -> frozenset[str]:
        """The transfers it belongs to."""
        return frozenset((*(self.transfers or ()), *((self.transfer,) if self.transfer else ())))


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a process can see. A later line of the same role replaces an earlier one."""

    role: str = ""
    """`engine` or `worker`."""
    pid: int | None = None
    """Process id."""
    boot_id: str | None = None
    """None = the process could not read it."""
    vllm: str | None = None
    """Installed version."""
    untested_version: bool | None = None
    """The probe was not tested with this version of vLLM."""
    connector: str | None = None
    """Class of the KV connector; None = not known yet."""
    clock: str = ""
    """Clock of `t_ns`, as the operating system names it."""
    t_ns: int | None = None
    """When the status was taken."""
    unix_ns: int | None = None
    """The same moment by the wall clock."""
    available: Mapping[str, bool] = {}
    """By kind of event."""
    reasons: Mapping[str, str] = {}
    """Why a kind of event is not seen."""


@dataclass(frozen=True, slots=True)
class ProbeLog:
    """One instance's probe, all of its processes."""

    events: tuple[ProbeEvent, ...] = ()
    """In the order of time."""
    statuses: tuple[ProbeStatus, ...] = ()
    gaps: tuple[Gap, ...] = field(default_factory=tuple)

    @property
    def boot_id(self) -> str:
        """The boot id of its host; empty where no process states it, or not all state the same."""
        boot_ids = {status.boot_id for status in self.statuses if status.boot_id}
        return boot_ids.pop() if len(boot_ids) == 1 else ""

    def blind(self, event: str) -> str:
        """Why no process records this kind of event; empty where one does, or may."""
        if not self.statuses:
            return "the instance's probe wrote nothing"
        latest = {(status.pid, status.role): status for status in self.statuses}
        declared = [status for status in latest.values() if event in status.available]
        if not declared or any(status.available[event] for status in declared):
            return ""
        reasons = dict.fromkeys(status.reasons.get(event, "") for status in declared)
        return "; ".join(reason for reason in reasons if reason) or "the probe cannot see it in this engine"

    def of(self, transfer: str, names: Iterable[str]) -> tuple[ProbeEvent, ...]:
        """The events of one transfer; `names`: ids that the engine's id of its request may equal or contain.

        Events that state only the request belong to it by the request ids of those that state the transfer.
        """
        asked = [name for name in names if name]
        known = {
            event.request
            for event in self.events
            if event.request
            and (transfer in event.carries or any(_contains_name(event.request, name) for name in asked))
        }
        return tuple(
            event
            for event in self.events
            if transfer in event.carries or event.request in known or not known.isdisjoint(event.decode_requests)
        )


def _contains_name(request: str, name: str) -> bool:
    """The engine makes its ids from the client's: `cmpl-NAME-0-1a2b3c4d`."""
    return request == name or f"-{name}-" in f"-{request}-"


def read_probe(folder: Path) -> ProbeLog:
    """Every probe file of the instance that logs into `folder`; a line that cannot be read is a gap."""
    events: list[ProbeEvent] = []
    statuses: list[ProbeStatus] = []
    gaps: list[Gap] = []
    paths = sorted(folder.glob(TRANSFER_LOGS))
    for path in paths:
        read, own, bad = _read_file(path)
        events += read
        statuses += own
        gaps += bad
    if not paths:
        gaps.append(Gap(name_artifact(folder), "holds no file of the transfer probe"))
    return ProbeLog(tuple(sorted(events, key=lambda event: event.t_ns)), tuple(statuses), tuple(gaps))


def _read_file(path: Path) -> tuple[list[ProbeEvent], list[ProbeStatus], list[Gap]]:
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        return [], [], [Gap(name_artifact(path), f"cannot be read: {error.strerror}")]
    events: list[ProbeEvent] = []
    statuses: list[ProbeStatus] = []
    bad = 0
    for line in lines:  # what follows the last newline was cut off by the process's end
        try:
            event = _EVENT.decode(line.replace(_OLD_PART, b'"part":'))
            if event.event == "status":
                statuses.append(_STATUS.decode(line))
            else:
                events.append(event)
        except DAMAGED_JSON:
            bad += bool(line.strip())
    cut = ["ends in half a line"] if tail.strip() else []
    wrong = [f"holds {bad} damaged lines"] if bad else []
    return events, statuses, [Gap(name_artifact(path), text) for text in (*wrong, *cut)]


_OLD_PART = b'"leg":'
"""What logs of earlier versions call `part`; a text of a log has no bare quotes."""
_EVENT = msgspec.json.Decoder(ProbeEvent)
_STATUS = msgspec.json.Decoder(ProbeStatus)
