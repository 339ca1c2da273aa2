"""Stand-ins for what the transfer probe looks at of Mooncake's and NIXL's connectors: their methods, and no work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from . import fake_vllm

Blocks = list[list[int]]


@dataclass
class Request:
    """vLLM's Request; its parameters name its part in a transfer."""

    request_id: str
    kv_transfer_params: dict[str, Any] | None = None
    num_prompt_tokens: int = 640
    num_computed_tokens: int = 639
    num_preemptions: int = 0
    status: Any = field(default_factory=lambda: SimpleNamespace(name="FINISHED_LENGTH_CAPPED"))
    prefill_stats: Any = field(default_factory=lambda: SimpleNamespace(num_local_cached_tokens=256))


def prefill_request(request: str, transfer: str | None = None) -> Request:
    named = {} if transfer is None else {"transfer_id": transfer}
    return Request(request, {"do_remote_decode": True, "do_remote_prefill": False, **named})


def decode_request(request: str, **params: str) -> Request:
    asked = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": "the other", **params}
    return Request(request, asked)


class KVCacheBlocks:
    def __init__(self, unhashed: Blocks) -> None:
        self._unhashed = unhashed

    def get_unhashed_block_ids_all_groups(self) -> Blocks:
        return self._unhashed


class Connector(fake_vllm.Connector):
    """A connector that moves KV; its worker does what there is to do."""

    def __init__(self, worker: object = None) -> None:
        super().__init__()
        self.connector_worker = worker
        self.sends = True

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        self.calls.append("request_finished_all_groups")
        return self.sends, None

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.calls.append("update_state_after_alloc")
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False


class MultiConnector(fake_vllm.MultiConnector):
    def __init__(self, *children: fake_vllm.Connector) -> None:
        super().__init__()
        self._connectors = list(children)


@dataclass
class Pull:
    """Mooncake's PullReqMeta."""

    d_req_id: str
    transfer_id: str
    local_block_ids: Blocks
    pull_tasks_count: int = 1
    failed: bool = False


@dataclass
class Send:
    """Mooncake's SendBlockMeta."""

    p_req_id: str
    transfer_id: str


class Socket:
    def __init__(self) -> None:
        self.sent: list[object] = []

    async def send_multipart(self, parts: object) -> None:
        self.sent.append(parts)


class MooncakeConnectorWorker:
    """P and D in one. `refused` requests fail in P, `code` is what a write returns (an exception: it raises that)."""

    def __init__(self) -> None:
        self.reqs_need_send: dict[str, Send] = {}
        self.registered_layer_names = ["layers.0", "layers.1"]
        self.refused: list[str] = []
        self.code: int | Exception = 0
        self.writes = 0
        self.on_write: Callable[[], object] = lambda: None

    def start_load_kv(self, metadata: object) -> str:
        return "started"

    async def record_send_reqs(self, metadata: Any) -> None:  # noqa: ANN401
        for request, (transfer, _) in metadata.reqs_to_send.items():
            self.reqs_need_send[transfer] = Send(request, transfer)

    async def send_kv_to_decode(self, identity: bytes, sock: Socket, meta: Any) -> None:  # noqa: ANN401
        ready = [(request, self.reqs_need_send.pop(transfer)) for request, (transfer, _) in meta.req_blocks.items()]
        sources, targets, lengths, _, _ = await self._build_transfer_params(ready, meta, [], [])
        if sources:
            self._send_blocks("session", sources, targets, lengths)
        await sock.send_multipart((identity, b"answer"))

    async def _build_transfer_params(
        self,
        ready_reqs: list[Any],
        agent_meta: Any,  # noqa: ANN401
        local_regions: object,
        remote_regions: object,
    ) -> tuple[list[int], list[int], list[int], list[str], None]:
        lengths = [
            len(group) * 65536
            for request, _ in ready_reqs
            if request not in self.refused
            for group in agent_meta.req_blocks[request][1]
            for _ in self.registered_layer_names
            if group
        ]
        return list(range(len(lengths))), list(range(len(lengths))), lengths, self.refused, None

    def _send_blocks(self, remote_session: str, src_ptrs: list[int], dst_ptrs: list[int], lengths: list[int]) -> int:
        self.writes += 1
        self.on_write()
        if isinstance(self.code, Exception):
            raise self.code
        return self.code

    async def receive_kv_from_single_worker(self, worker_addr: str, pull_metas: Mapping[str, Pull]) -> None:
        return

    def process_pulling_result(self, response: Any, pull_metas: Mapping[str, Pull]) -> None:  # noqa: ANN401
        for request in response.ok_reqs or ():
            pull_metas[request].pull_tasks_count -= 1
        if response.err_reqs:
            self._handle_failed_recv(pull_metas, response.err_reqs, response.err_msg)

    def _handle_failed_recv(self, pull_metas: Mapping[str, Pull], req_ids: Collection[str], reason: str) -> None:
        for request in req_ids:
            if request in pull_metas:
                pull_metas[request].failed = True


def wanted(*pulls: Pull) -> SimpleNamespace:
    """What D sends to P."""
    blocks = {pull.d_req_id: (pull.transfer_id, pull.local_block_ids) for pull in pulls}
    return SimpleNamespace(req_blocks=blocks, registered_layer_names=["layers.0", "layers.1"])


def metadata(send: Mapping[str, tuple[str, Blocks]] | None = None, pulls: Collection[Pull] = ()) -> SimpleNamespace:
    """What Mooncake's scheduler side tells its worker in a step."""
    named = {pull.d_req_id: pull for pull in pulls}
    return SimpleNamespace(reqs_to_send=send or {}, reqs_to_recv={"the other": named} if named else {})


@dataclass
class Telemetry:
    """What NIXL says of a transfer that is over, in microseconds and bytes."""

    xferDuration: int = 1
    postDuration: int = 300
    totalBytes: int = 196608
    descCount: int = 2


class Handle:
    """NIXL's handle: no attributes can be added."""

    __slots__ = ()


class Agent:
    """NIXL's agent."""

    def __init__(self) -> None:
        self.telemetry: Telemetry | None = Telemetry()

    def transfer(self, handle: Handle, notif_msg: bytes = b"") -> str:
        return "PROC"

    def get_xfer_telemetry(self, handle: Handle) -> Telemetry | None:
        return self.telemetry


class NixlPullConnectorWorker:
    """D: reads from `ranks` workers of P; what is in `broken` fails when it is asked after."""

    def __init__(self, ranks: int = 1) -> None:
        self.nixl_wrapper = Agent()
        self.device_kv_caches = {"layers.0": None, "layers.1": None}
        self.broken: set[str] = set()
        self._ranks = ranks
        self._recving_transfers: dict[str, list[Handle]] = {}

    def start_load_kv(self, metadata: Any) -> None:  # noqa: ANN401
        for request, meta in metadata.reqs_to_recv.items():
            self._recving_transfers[request] = []
            for _ in range(self._ranks):
                self._read_blocks(
                    read_spec=SimpleNamespace(local_block_ids=meta.local_block_ids), dst_engine_id="the other",
                    request_id=request, remote_request_id=meta.remote.request_id, local_xfer_side_handle=1,
                    local_dram_handle=None, remote_xfer_side_handle=2, expected_consumers=1, awaiting_kvs=True,
                )  # fmt: skip

    def _read_blocks(
        self, read_spec: Any, dst_engine_id: str, request_id: str, remote_request_id: str,  # noqa: ANN401
        local_xfer_side_handle: int, local_dram_handle: int | None, remote_xfer_side_handle: int,
        expected_consumers: int, awaiting_kvs: bool,
    ) -> bool:  # fmt: skip
        if any(read_spec.local_block_ids):
            handle = Handle()
            self.nixl_wrapper.transfer(handle)
            self._recving_transfers[request_id].append(handle)
        return True

    def _pop_done_transfers(self, transfers: dict[str, list[Handle]]) -> tuple[set[str], set[str]]:
        done = set(transfers)
        for request, handles in transfers.items():
            for handle in handles:
                if request not in self.broken:
                    self.nixl_wrapper.get_xfer_telemetry(handle)
        transfers.clear()
        return done, done & self.broken

    def get_transfer_results(self) -> SimpleNamespace:
        done, failed = self._pop_done_transfers(self._recving_transfers)
        return SimpleNamespace(finished_recving=done, finished_sending=set(), failed_recving=failed)


def nixl_metadata(recv: Mapping[str, tuple[str, Blocks]], send: Collection[str] = ()) -> SimpleNamespace:
    """What NIXL's scheduler side tells its worker: D's requests with P's request and D's blocks; P's finished ones."""
    asked = {
        request: SimpleNamespace(remote=SimpleNamespace(request_id=remote), local_block_ids=blocks)
        for request, (remote, blocks) in recv.items()
    }
    return SimpleNamespace(reqs_to_recv=asked, reqs_to_send=dict.fromkeys(send, 1.0))
