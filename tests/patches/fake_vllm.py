"""Stand-ins for what the probe looks at of vLLM: the same modules, classes and signatures, and no work in them."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

SCHEDULER_MODULE = "vllm.v1.core.sched.scheduler"
OUTPUT_MODULE = "vllm.v1.core.sched.output"
FACTORY_MODULE = "vllm.distributed.kv_transfer.kv_connector.factory"
WORKER_MODULE = "vllm.v1.worker.worker_base"


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


@dataclass
class CachedRequestData:
    req_ids: list[str] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[Any]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    kv_connector_metadata: Any = None


@dataclass
class NewRequestData:
    req_id: str
    num_computed_tokens: int = 0


class Metadata:
    """What a connector tells its workers."""


class SlottedMetadata:
    __slots__ = ()


@dataclass
class MultiMetadata:
    metadata: tuple[Any, ...]


class Connector:
    """A connector as vLLM 0.32 defines it; `calls` names the hooks that were reached."""

    metadata: type = Metadata

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bound: Any = None

    def build_connector_meta(self, scheduler_output: object) -> object:
        self.calls.append("build_connector_meta")
        return self.metadata()

    def bind_connector_metadata(self, connector_metadata: object) -> None:
        self.bound = connector_metadata

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        self.calls.append("start_load_kv")

    def wait_for_save(self) -> None:
        self.calls.append("wait_for_save")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, None]:
        self.calls.append("get_finished")
        return None, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> str:
        self.get_finished(finished_req_ids)
        return "results"

    def clear_connector_metadata(self) -> None:
        self.bound = None


class MultiConnector(Connector):
    """Hands everything on to its children, as vLLM's does."""

    def __init__(self) -> None:
        super().__init__()
        self._connectors = [Connector(), Connector()]

    def build_connector_meta(self, scheduler_output: object) -> MultiMetadata:
        return MultiMetadata(tuple(c.build_connector_meta(scheduler_output) for c in self._connectors))

    def bind_connector_metadata(self, connector_metadata: object) -> None:
        assert isinstance(connector_metadata, MultiMetadata)
        for child, metadata in zip(self._connectors, connector_metadata.metadata, strict=True):
            child.bind_connector_metadata(metadata)
        super().bind_connector_metadata(connector_metadata)

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        for child in self._connectors:
            child.start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> str:
        return "+".join(child.get_transfer_results(finished_req_ids) for child in self._connectors)


def make_scheduler(connector: Callable[[], Any] | None = None) -> type:
    """A fresh Scheduler class with vLLM 0.32's signatures; `next_output` is what `schedule` returns."""

    class Scheduler:
        def __init__(self, vllm_config: object, kv_cache_config: object = None, log_stats: bool = False) -> None:
            self.vllm_config = vllm_config
            self.connector = connector() if connector is not None else None
            self.next_output = step_output({})
            self.counts = (0, 0)
            self.busy = True
            self.requests: dict[str, Any] = {}
            self.failed_recving_kv_req_ids: set[str] = set()

        def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
            output = self.next_output
            if self.connector is not None:
                output.kv_connector_metadata = self.connector.build_connector_meta(output)
            return output

        def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: object) -> object:
            return ("updated", model_runner_output)

        def _update_waiting_for_remote_kv(self, request: Any) -> None:  # noqa: ANN401
            self.failed_recving_kv_req_ids.discard(request.request_id)

        def get_request_counts(self) -> tuple[int, int]:
            return self.counts

        def has_requests(self) -> bool:
            return self.busy

    return Scheduler


def make_factory(connector: Callable[[], Any]) -> type:
    class KVConnectorFactory:
        @classmethod
        def create_connector(cls, config: object, role: Role, kv_cache_config: object) -> object:
            return connector()

    return KVConnectorFactory


def make_worker_base() -> type:
    """A fresh WorkerBase class, to be derived from."""

    class WorkerBase:
        def __init__(self, vllm_config: object, rank: int = 0) -> None:
            self.parallel_config = getattr(vllm_config, "parallel_config", None)

    return WorkerBase


def modules(
    scheduler: type,
    factory: type,
    version: str = "0.32.0",
    output: type = SchedulerOutput,
    cached: type = CachedRequestData,
) -> Mapping[str, ModuleType]:
    """What to put into `sys.modules`."""
    content: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": version},
        SCHEDULER_MODULE: {"Scheduler": scheduler},
        OUTPUT_MODULE: {"SchedulerOutput": output, "CachedRequestData": cached, "NewRequestData": NewRequestData},
        FACTORY_MODULE: {"KVConnectorFactory": factory},
        WORKER_MODULE: {"WorkerBase": make_worker_base()},
    }
    made = {name: ModuleType(name) for name in content}
    for name, names in content.items():
        vars(made[name]).update(names)
    return made


def config(batches: int | None = 1) -> SimpleNamespace:
    return SimpleNamespace() if batches is None else SimpleNamespace(max_concurrent_batches=batches)


def step_output(new: Mapping[str, int], cached: Mapping[str, tuple[int, int]] | None = None) -> SchedulerOutput:
    """A step: new requests {id: tokens}, requests known before {id: (tokens, output tokens so far)}."""
    known = cached or {}
    scheduled = {**new, **{request: tokens for request, (tokens, _) in known.items()}}
    return SchedulerOutput(
        scheduled_new_reqs=[NewRequestData(request) for request in new],
        scheduled_cached_reqs=CachedRequestData(list(known), [produced for _, produced in known.values()]),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
    )


def decode_step(requests: int) -> SchedulerOutput:
    """A step in which `requests` requests decode one token each."""
    return step_output({}, {f"request-{index}": (1, index + 1) for index in range(requests)})


def sent_to_worker(metadata: object) -> object:
    """Metadata as it arrives in another process."""
    return pickle.loads(pickle.dumps(metadata))


def work(connector: Connector, metadata: object) -> object:
    """One step of vLLM 0.32's model runner with `connector`; what the runner gets as transfer results."""
    connector.bind_connector_metadata(metadata)
    connector.start_load_kv(None, request_ids=())
    connector.wait_for_save()
    results = connector.get_transfer_results(set())
    connector.clear_connector_metadata()
    return results
