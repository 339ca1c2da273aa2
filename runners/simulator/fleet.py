"""The router's own code (policy, view, bindings, index, move rules, request lifecycle) before simulated engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from results.records.decisions import DecisionRecord, Role
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import ClientMessage
from runners.router.health import Health
from runners.router.ledger import Ledger, RecordLog
from runners.router.lifecycle import RequestLifecycle
from runners.router.metrics import Counts
from runners.router.policies import may_migrate
from runners.router.policies.policy import Policy
from runners.router.prefix_index import PrefixIndex
from runners.router.response_facts import Usage
from runners.router.sessions.bindings import Bindings
from runners.router.spec import HealthRules, InstanceSpec, KvEndpoint, Limits, TransferRules
from runners.router.traffic import Traffic
from runners.router.view import Cluster, Member
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine, EngineModel, Job
from runners.simulator.engine_file import Link
from runners.simulator.transfers import SimulatedTransfers

NO_BREAKER = HealthRules(failures_to_open=1 << 62)
"""An engine that lets requests wait for too long answers its probes: a live router has it back within a second."""
SWEEP_S = 1.0
"""Between two looks for requests that have waited too long; a live router looks four times as often."""


class Client(Protocol):
    """Who sent a request, and hears what becomes of it. Times are the clock's."""

    def note_first(self, instance: str) -> None:
        """The first token has come."""

    def note_end(self, instance: str, cached_tokens: int | None) -> None:
        """The last token has come."""

    def note_error(self, status: int, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Instances of one kind. The router before them has the defaults of its spec."""

    instances: Mapping[str, Role]
    """Name -> role."""
    model: EngineModel
    block_tokens: int
    link: Link | None = None


class Fleet:
    """One router and its instances in simulated time."""

    def __init__(self, shape: FleetShape, policy: Policy, clock: SimulatedClock, log: RecordLog) -> None:
        self.clock = clock
        self.counts = Counts()
        self.engines = {name: Engine(shape.model, shape.block_tokens, clock) for name in shape.instances}
        self.keys: dict[str, tuple[int, ...]] = {}
        """Of the requests in flight."""
        endpoint = None if shape.link is None else KvEndpoint("nixl", kv_bytes_per_token=shape.link.kv_bytes_per_token)
        specs = {
            name: InstanceSpec(name, f"http://{name}", role, transfer=endpoint)
            for name, role in shape.instances.items()
        }
        capacity = shape.model.kv_capacity_tokens
        members = [
            Member(name, "", role, capacity, shape.block_tokens) for name, role in shape.instances.items()
        ]  # fmt: skip
        bindings = Bindings()
        self.cluster = Cluster(members, clock.now_s, bindings)
        health = Health(self.cluster, NO_BREAKER, clock, _lose, _ignore, _ignore)
        for name in specs:
            health.add_instance(name, "")
        self.transfers = SimulatedTransfers(
            specs, TransferRules(), self.engines, shape.link, clock, self.keys.__getitem__
        )
        blocks = max(1, capacity // shape.block_tokens)
        indexes = {name: PrefixIndex(shape.block_tokens, blocks) for name in specs}
        self.ledger = Ledger(log, self.counts, clock)
        dispatcher = Dispatcher(
            policy, self.cluster, bindings, indexes, self.ledger, self.counts, shape.block_tokens, clock,
            self.transfers.cut_off if may_migrate(policy) else None, TransferRules().min_tokens,
        )  # fmt: skip
        self.traffic = Traffic(dispatcher, health, self.counts, Limits(), self.transfers)
        self._sweeping = False

    def send(self, name: str, session: str, keys: tuple[int, ...], tokens: tuple[int, int], client: Client) -> None:
        """A request with `tokens` (of prompt and answer) reaches the router."""
        turn = self.traffic.dispatcher.count_arrival(session)
        self.keys[name] = keys
        SimulatedRequest(self, Request(name, session, turn, keys, *tokens), client).start_request()
        self._sweep_later()

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.clock.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now_s = self.clock.now_s()
        self.traffic.sweep_waiting(now_s)
        self.cluster.bindings.expire_sessions(now_s)
        if not self.traffic.is_idle:
            self._sweep_later()


class SimulatedRequest(RequestLifecycle):
    """One request of a client over simulated engines."""

    __slots__ = ("_client", "_fleet", "_job")

    def __init__(self, fleet: Fleet, request: Request, client: Client) -> None:
        super().__init__(fleet.traffic, request, ClientMessage(b"", b"", b""))
        self._fleet = fleet
        self._client = client
        self._job: Job | None = None

    def _send_request(self, body: bytes) -> None:
        request = self._request
        engine = self._fleet.engines[self.instance]
        self._job = job = Job(request.keys, request.input_tokens, request.max_tokens, self._begin, self._complete)
        if not engine.can_hold(request.input_tokens, request.max_tokens):
            self._fleet.clock.call_soon(self._refuse_length)
        elif self.is_handed_over and self._movement is not None:
            self.note_sent()
            self._fleet.transfers.pull(self._movement, request.keys, lambda: self._submit(job))
        else:
            engine.submit(job)

    def _submit(self, job: Job) -> None:
        """The KV that a handover's request waited for is there; meanwhile it may have been taken back."""
        if self._job is job:
            self._fleet.engines[self.instance].submit(job)

    def _refuse_length(self) -> None:
        if self._job is not None and self.accept_head(400, 0.0):
            self.start_response()
            self.complete_response()
            self._end()
            self._client.note_error(400, "the prompt and its answer do not fit the KV cache")

    def _begin(self) -> None:
        if self.accept_head(200, 0.0):
            self.start_response()
            self._client.note_first(self.instance)

    def _complete(self) -> None:
        instance, job = self.instance, self._job
        self.complete_response()
        self._end()
        self._client.note_end(instance, None if job is None else job.cached_tokens)

    def _cancel_request(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            self._fleet.engines[self.instance].cancel(job)

    def _refuse_client(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        self._end()
        self._client.note_error(status, message)

    def _break_off(self, message: str) -> None:
        self._end()
        self._client.note_error(502, message)

    def _abort_client(self) -> None:
        raise AssertionError("simulated clients take what comes")

    def _read_usage(self) -> Usage:
        cached = None if self._job is None else self._job.cached_tokens
        return Usage(self._request.input_tokens, cached, self._request.max_tokens)

    def _end(self) -> None:
        self._fleet.keys.pop(self._request.request, None)


def _lose(instance: str, why: str, gone: bool) -> None:
    raise AssertionError(f"simulated engines do not fail: {instance}, {why}")


def _ignore(instance: str) -> None:
    """There is nothing to probe."""


class DecisionList:
    """A decision log in memory."""

    is_open = True

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []

    def append_record(self, record: DecisionRecord) -> None:
        self.records.append(record)


def describe_engines(fleet: Fleet, passed_s: float) -> dict[str, dict[str, Any]]:
    """What each engine did in so many seconds."""
    return {
        name: {
            "steps": engine.steps,
            "busy": engine.busy_ns / 1e9 / passed_s if passed_s > 0 else None,
            "computed_tokens": engine.computed_tokens,
            "evicted_blocks": engine.blocks.evicted,
            "picks": fleet.counts.placed[name],
        }
        for name, engine in fleet.engines.items()
    }
