"""The transfer probe on Mooncake's worker: P writes its blocks into D's memory after D has said where they belong.

Events, in the order of one transfer: `send_ready` (P), `load_started`, `pull_sent` (D), `metadata_received`, `write`,
`response_sent` (P), `received` (D). P's and D's loops are threads of their own, each write runs in a pool's thread.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns as now
from typing import Any, ClassVar

from .hooks import Method, Wrap, surround
from .transfer_log import Line, Report

WORKER = "MooncakeConnectorWorker"
SEND_READY, LOAD_STARTED, PULL_SENT = "send_ready", "load_started", "pull_sent"
METADATA, WRITE, RESPONSE, RECEIVED = "metadata_received", "write", "response_sent", "received"

HOOKS = (
    Method("", WORKER, "record_send_reqs", (("metadata",),), (SEND_READY,)),
    Method("", WORKER, "start_load_kv", (("metadata",),), (LOAD_STARTED,)),
    Method("", WORKER, "receive_kv_from_single_worker", (("worker_addr", "pull_metas"),), (PULL_SENT,)),
    Method("", WORKER, "send_kv_to_decode", (("identity", "sock", "meta"),), (METADATA, RESPONSE)),
    Method(
        "", WORKER, "_build_transfer_params", (("ready_reqs", "agent_meta", "local_regions", "remote_regions"),),
        (WRITE,),
    ),
    Method("", WORKER, "_send_blocks", (("remote_session", "src_ptrs", "dst_ptrs", "lengths"),), (WRITE,)),
    Method("", WORKER, "process_pulling_result", (("response", "pull_metas"),), (RECEIVED,)),
    Method("", WORKER, "_handle_failed_recv", (("pull_metas", "req_ids", "reason"),), (RECEIVED,)),
)  # fmt: skip

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds this thread has run, nanoseconds it was ready to run and had no core, times it was given one."""
_BUILT = 64
"""Writes kept between being built and being sent; more means that some never were."""


class MooncakeTransfers:
    """What this worker has built and not yet written."""

    unseen: ClassVar[Mapping[str, str]] = {
        "write_submit": "batch_transfer_sync_write returns when all is written; nothing says when the first piece was"
    }
    """Event or field that cannot be measured, and why."""

    def __init__(self, worker: Any, report: Report) -> None:  # noqa: ANN401 - a class of vLLM's
        self.worker = worker
        self.report = report
        self._built: dict[int, dict[str, Any]] = {}
        """By the identity of the list of source addresses: each is built, and so entered here, before it is sent."""

    def targets(self) -> tuple[tuple[object, tuple[Method, ...], tuple[Wrap, ...]], ...]:
        """What to replace: the instance, its methods, and a wrapper for each."""
        note = self.report.note
        wraps = (
            surround(after=lambda _, metadata: note(SEND_READY, self.make_ready_lines, metadata, now())),
            surround(before=lambda metadata: note(LOAD_STARTED, self.make_loading_lines, metadata, now())),
            surround(before=lambda _, pull_metas: note(PULL_SENT, self.make_pulling_lines, pull_metas, now())),
            functools.partial(_wrap_serve, self),
            functools.partial(_wrap_build, self),
            functools.partial(_wrap_write, self),
            surround(after=lambda _, response, metas: note(RECEIVED, self.make_received_lines, response, metas, now())),
            surround(
                before=lambda metas, requests, why: note(RECEIVED, self.make_failed_lines, requests, metas, why, now())
            ),
        )
        return ((self.worker, HOOKS, wraps),)

    def make_ready_lines(self, metadata: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - MooncakeConnectorMetadata
        """P's worker knows the blocks of a finished prefill."""
        return [
            _make_line(t_ns, request, transfer, blocks=_count_blocks(groups))
            for request, (transfer, groups) in metadata.reqs_to_send.items()
            if groups
        ]

    def make_loading_lines(self, metadata: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - MooncakeConnectorMetadata
        """D's worker knows of blocks to fetch."""
        if not metadata.reqs_to_recv:
            return []  # nearly every step
        metas = [pull for pulls in metadata.reqs_to_recv.values() for pull in pulls.values()]
        return self.make_pulling_lines({pull.d_req_id: pull for pull in metas}, t_ns)

    def make_pulling_lines(self, pull_metas: Mapping[str, Any], t_ns: int) -> list[Line]:
        """D names its blocks to P."""
        return [
            _make_line(t_ns, request, pull.transfer_id, blocks=_count_blocks(pull.local_block_ids))
            for request, pull in pull_metas.items()
        ]

    def make_asked_lines(self, meta: Any, t_ns: int) -> list[Line]:  # noqa: ANN401 - MooncakeXferMetadata
        """P has D's metadata, or has answered it. P's own request is unknown as long as it has not been scheduled."""
        lines = []
        for decode_request, (transfer, groups) in meta.req_blocks.items():
            send = self.worker.reqs_need_send.get(transfer)
            request = (send.p_req_id or None) if send is not None else None
            blocks = _count_blocks(groups)
            lines.append(_make_line(t_ns, request, transfer, decode_request=decode_request, blocks=blocks))
        return lines

    def note_built(self, ready: Sequence[Any], meta: Any, result: Sequence[Any], build_ns: int) -> list[Line]:  # noqa: ANN401
        """The parts of one write, held until it happens."""
        sources, _, _, refused, _ = result
        if not sources:
            return []
        sent = [
            (decode_request, send, _count_blocks(meta.req_blocks[decode_request][1]))
            for decode_request, send in ready
            if decode_request not in refused
        ]
        sent = [part for part in sent if part[2]]
        layers = set(self.worker.registered_layer_names)
        if meta.registered_layer_names:
            layers &= set(meta.registered_layer_names)
        if len(self._built) >= _BUILT:
            self._built.clear()
        self._built[id(sources)] = {
            "request": sent[0][1].p_req_id if len(sent) == 1 else None,
            "transfer": sent[0][1].transfer_id if len(sent) == 1 else None,
            "transfers": [send.transfer_id for _, send, _ in sent],
            "decode_requests": [decode_request for decode_request, _, _ in sent],
            "blocks": sum(blocks for _, _, blocks in sent),
            "layers": len(layers),
            "build_params_us": build_ns / 1000,
        }
        return []

    def make_written_lines(
        self,
        sources: Sequence[int],
        lengths: Sequence[int],
        code: int | None,
        t5_ns: int,
        t6_ns: int,
        delay_ns: int | None,
    ) -> list[Line]:
        """One call of Mooncake's write is over; `code` is what it returned, None where it raised.

        `delay_ns`: how long its thread was ready to run meanwhile and had no core; None = the kernel does not say.
        """
        known = self._built.pop(id(sources))
        return [
            {
                "t_ns": t6_ns,
                **known,
                "t5_ns": t5_ns,
                "t6_ns": t6_ns,
                "t6_from": "return",
                "ok": code == 0,
                "code": code,
                "bytes": sum(lengths),
                "operations": len(sources),
                "submit_us": None,
                "run_delay_us": None if delay_ns is None else delay_ns / 1000,
            }
        ]

    def make_received_lines(self, response: Any, pull_metas: Mapping[str, Any], t_ns: int) -> list[Line]:  # noqa: ANN401
        """D has P's answer: of the requests in it, those that wait for no other worker of P and have not failed."""
        lines = []
        for request in response.ok_reqs or ():
            pull = pull_metas[request]
            if pull.pull_tasks_count == 0 and not pull.failed:
                blocks = _count_blocks(pull.local_block_ids)
                lines.append(_make_line(t_ns, request, pull.transfer_id, ok=True, blocks=blocks))
        return lines

    def make_failed_lines(
        self, requests: Collection[str], pull_metas: Mapping[str, Any], reason: str, t_ns: int
    ) -> list[Line]:
        """D gives up on these, but for those it has given up on before."""
        lines = []
        for request in requests:
            pull = pull_metas.get(request)
            if pull is not None and not pull.failed:
                blocks = _count_blocks(pull.local_block_ids)
                lines.append(_make_line(t_ns, request, pull.transfer_id, ok=False, reason=str(reason), blocks=blocks))
        return lines


def _read_run_delay_ns() -> int | None:
    """How long this thread has waited for a core so far; None where the kernel does not say."""
    try:
        return int(SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _make_line(t_ns: int, request: str | None, transfer: str, **more: object) -> Line:
    return {"t_ns": t_ns, "request": request, "transfer": transfer, **more}


def _count_blocks(groups: Sequence[Any]) -> int:
    """Blocks of all KV cache groups; before 0.22 there was one list of them."""
    return sum(1 if isinstance(group, int) else len(group) for group in groups)


class _Answers:
    """P's socket for one request of D's. `t_ns`: before its last answer was sent, 0 where none was.

    A stamp after the send may be later than D's receipt, and would then bound the offset of the two clocks wrongly.
    """

    def __init__(self, sock: Any) -> None:  # noqa: ANN401 - zmq.asyncio.Socket
        self._sock = sock
        self.t_ns = 0

    def send_multipart(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self.t_ns = now()
        return self._sock.send_multipart(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._sock, name)


def _wrap_serve(side: MooncakeTransfers, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def send_kv_to_decode(identity: object, sock: object, meta: object) -> object:
        side.report.note(METADATA, side.make_asked_lines, meta, now())
        answers = _Answers(sock)
        result = await original(identity, answers, meta)
        if answers.t_ns:
            side.report.note(RESPONSE, side.make_asked_lines, meta, answers.t_ns)
        return result

    return send_kv_to_decode


def _wrap_build(side: MooncakeTransfers, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def _build_transfer_params(
        ready_reqs: Sequence[Any], agent_meta: object, local_regions: object, remote_regions: object
    ) -> object:
        t_ns = now()
        result = await original(ready_reqs, agent_meta, local_regions, remote_regions)
        side.report.note(WRITE, side.note_built, ready_reqs, agent_meta, result, now() - t_ns)
        return result

    return _build_transfer_params


def _wrap_write(side: MooncakeTransfers, original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def _send_blocks(remote_session: str, src_ptrs: list[int], dst_ptrs: list[int], lengths: list[int]) -> int:
        code, waited_ns = None, _read_run_delay_ns()
        t5_ns = now()
        try:
            code = original(remote_session, src_ptrs, dst_ptrs, lengths)
            return code
        finally:
            t6_ns, after_ns = now(), _read_run_delay_ns()
            delay_ns = None if waited_ns is None or after_ns is None else after_ns - waited_ns
            side.report.note(WRITE, side.make_written_lines, src_ptrs, lengths, code, t5_ns, t6_ns, delay_ns)

    return _send_blocks
