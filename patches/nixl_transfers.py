"""The transfer probe on NIXL's pulling worker: D reads P's memory, and P learns of it when all has been read.

Events of D: `load_started`, `pull_sent`, `write` (which is a read, by D), `received`; of P: `send_ready`. Requests are
joined by `remote_request`, which D knows; there is no transfer id.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns as now
from typing import Any, ClassVar

from .hooks import Method, Wrap, surround
from .transfer_log import Line, Report

WORKER, AGENT = "NixlPullConnectorWorker", "nixl_wrapper"
SEND_READY, LOAD_STARTED, PULL_SENT = "send_ready", "load_started", "pull_sent"
WRITE, RECEIVED = "write", "received"

_READ_BLOCKS = (
    "read_spec", "dst_engine_id", "request_id", "remote_request_id", "local_xfer_side_handle", "local_dram_handle",
    "remote_xfer_side_handle", "expected_consumers", "awaiting_kvs",
)  # fmt: skip
HOOKS = (
    Method("", WORKER, "start_load_kv", (("metadata",),), (LOAD_STARTED, SEND_READY)),
    Method("", WORKER, "_read_blocks", (_READ_BLOCKS,), (PULL_SENT, WRITE)),
    Method("", WORKER, "_pop_done_transfers", (("transfers",),), (WRITE,)),
    Method("", WORKER, "get_transfer_results", ((),), (RECEIVED,)),
)
AGENT_HOOKS = (
    Method("", AGENT, "transfer", (("handle", "notif_msg"),), (WRITE,)),
    Method("", AGENT, "get_xfer_telemetry", (("handle",),), (WRITE,)),
)

_READS = 4096
"""Reads kept under way; more means that some never ended."""


@dataclass(slots=True)
class Read:
    """One request's blocks on their way into D."""

    request: str
    remote_request: str
    blocks: int
    begun_ns: int
    posted_ns: list[int] = field(default_factory=list)
    """When each of its transfers was handed to NIXL."""
    failed: bool = False
    telemetry: list[tuple[int, Any]] = field(default_factory=list)
    """For each transfer that is over: when it was posted, and NIXL's telemetry."""


class NixlTransfers:
    """The reads that this worker has under way."""

    unseen: ClassVar[Mapping[str, str]] = {
        "metadata_received": "NIXL: D reads P's memory by itself, P is not notified before",
        "response_sent": "NIXL: P answers nothing; it is notified when D has read",
        "write_submit": "NIXL: nothing says when the first piece was read (post_us is what starting the read took)",
    }
    """Event or field that cannot be measured, and why."""

    def __init__(self, worker: Any, report: Report) -> None:  # noqa: ANN401 - a class of vLLM's
        self.worker = worker
        self.report = report
        self.current: Read | None = None
        """The read that is being posted; the worker posts one at a time."""
        self._remote: dict[str, str] = {}
        """P's request for each request that D's worker knows and that is not over."""
        self._reads: dict[str, Read] = {}
        self._handles: dict[int, tuple[Read, int]] = {}
        """By the identity of NIXL's handle: each is posted, and so entered here, before NIXL is asked about it."""

    def targets(self) -> tuple[tuple[object, tuple[Method, ...], tuple[Wrap, ...]], ...]:
        """What to replace: the instance, its methods, and a wrapper for each."""
        agent = getattr(self.worker, AGENT, None)
        note = self.report.note
        worker_wraps = (
            surround(
                before=lambda metadata: note(LOAD_STARTED, self.make_loading_lines, metadata, now()),
                after=lambda _, metadata: note(SEND_READY, self.make_ready_lines, metadata, now()),
            ),
            functools.partial(_wrap_read, self),
            surround(after=lambda ended, transfers: any(ended) and note(WRITE, self.make_polled_lines, *ended, now())),
            surround(after=lambda results: note(RECEIVED, self.make_received_lines, results, now())),
        )
        agent_wraps = (
            surround(before=lambda handle, *_: note(WRITE, self.note_posted, handle, now())),
            surround(after=lambda telemetry, handle: note(WRITE, self.note_telemetry, handle, telemetry)),
        )
        return ((self.worker, HOOKS, worker_wraps), (agent, AGENT_HOOKS, agent_wraps))

    def make_loading_lines(self, metadata: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - NixlConnectorMetadata
        """D's worker knows of blocks to read."""
        if len(self._remote) >= _READS:
            self._remote.clear()
        lines = []
        for request, meta in metadata.reqs_to_recv.items():
            self._remote[request] = meta.remote.request_id
            lines.append(_make_line(t_ns, request, meta.remote.request_id, blocks=_count_blocks(meta.local_block_ids)))
        return lines

    def make_ready_lines(self, metadata: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - NixlConnectorMetadata
        """P's worker knows that a finished prefill waits to be read."""
        return [_make_line(t_ns, request, None, blocks=None) for request in metadata.reqs_to_send]

    def make_asking_lines(self, args: Sequence[Any], kwargs: Mapping[str, Any], t_ns: int) -> list[Line]:
        """D asks NIXL for a request's blocks, or only notifies P that it needs none."""
        request, remote_request, blocks = _parse_read_call(args, kwargs)
        return [_make_line(t_ns, request, remote_request, blocks=blocks)]

    def note_read(self, args: Sequence[Any], kwargs: Mapping[str, Any], t_ns: int) -> list[Line]:
        """What is posted from now on belongs to this request; with several workers of P it is read from each."""
        request, remote_request, blocks = _parse_read_call(args, kwargs)
        if len(self._reads) >= _READS:
            self._reads.clear()
            self._handles.clear()
        self.current = self._reads.setdefault(request, Read(request, remote_request, 0, t_ns))
        self.current.blocks += blocks
        return []

    def read(self) -> None:
        """All of it is posted."""
        if self.current is not None and not self.current.posted_ns:
            self._reads.pop(self.current.request, None)
        self.current = None

    def note_posted(self, handle: object, t_ns: int) -> list[Line]:
        """A transfer of the current read begins."""
        if self.current is not None:
            self.current.posted_ns.append(t_ns)
            self._handles[id(handle)] = (self.current, t_ns)
        return []

    def note_telemetry(self, handle: object, telemetry: object) -> list[Line]:
        """A transfer is over."""
        posted = self._handles.pop(id(handle), None)
        if posted is not None:
            read, posted_ns = posted
            read.telemetry.append((posted_ns, telemetry))
        return []

    def make_polled_lines(self, done: Collection[str], failed: Collection[str], t_ns: int) -> list[Line]:
        """The worker has asked after its transfers: those of `done` have none left, of `failed` one or more failed."""
        for request in failed:
            if request in self._reads:
                self._reads[request].failed = True
        lines = []
        for request in done:
            read = self._reads.pop(request, None)
            if read is None or not read.posted_ns:
                continue
            parts = [(posted_ns, part) for posted_ns, part in read.telemetry if part is not None]
            whole = len(parts) == len(read.posted_ns)
            t5_ns = read.posted_ns[0]
            end_ns = max(posted_ns + round(part.xferDuration * 1000) for posted_ns, part in parts) if whole else None
            known = end_ns is not None and end_ns <= t_ns  # NIXL's clock may run faster than the host's
            lines.append(
                _make_line(
                    t_ns,
                    request,
                    read.remote_request,
                    transfers=[],
                    decode_requests=[request],
                    t5_ns=t5_ns,
                    t6_ns=end_ns if known else t_ns,
                    t6_from="telemetry" if known else "poll",
                    ok=not read.failed,
                    code=None,
                    bytes=sum(part.totalBytes for _, part in parts) if whole else None,
                    operations=sum(part.descCount for _, part in parts) if whole else None,
                    blocks=read.blocks,
                    layers=len(self.worker.device_kv_caches) or None,
                    build_params_us=(t5_ns - read.begun_ns) / 1000,
                    submit_us=None,
                    post_us=sum(part.postDuration for _, part in parts) if whole else None,
                )
            )
        return lines

    def make_received_lines(self, results: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - KVConnectorTransferResults
        """D's worker reports these to the scheduler."""
        return [
            _make_line(t_ns, request, self._remote.pop(request, None), ok=request not in results.failed_recving)
            for request in results.finished_recving
        ]


def _make_line(t_ns: int, request: str, remote_request: str | None, **more: object) -> Line:
    return {"t_ns": t_ns, "request": request, "transfer": None, "remote_request": remote_request, **more}


def _count_blocks(groups: Sequence[Any]) -> int:
    return sum(len(group) for group in groups)


def _wrap_read(side: NixlTransfers, original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def _read_blocks(*args: Any, **kwargs: Any) -> bool:
        t_ns = now()
        side.report.note(PULL_SENT, side.make_asking_lines, args, kwargs, t_ns)
        side.report.note(WRITE, side.note_read, args, kwargs, t_ns)
        try:
            return original(*args, **kwargs)
        finally:
            side.read()

    return _read_blocks


def _parse_read_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str, int]:
    """Request, P's request and number of blocks in a call of `_read_blocks`."""
    arguments = dict(zip(_READ_BLOCKS, args, strict=False)) | dict(kwargs)
    blocks = _count_blocks(arguments["read_spec"].local_block_ids)
    return arguments["request_id"], arguments["remote_request_id"], blocks
