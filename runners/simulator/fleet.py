"""The router's own code (policy, view, bindings, index, move rules, request lifecycle) before simulated engines."""

from __future__ import annotations

from functools import partial
from typing import BinaryIO, Protocol

import msgspec

from results.records.decisions import DecisionRecord
from results.records.router_spec import HealthRules
from results.records.samples import PromptCounters
from results.records.simulation_spec import EngineModel, SimulationSpec
from results.records.turns import EngineSample
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import ClientMessage
from runners.router.health import Health
from runners.router.ledger import Ledger, RecordLog
from runners.router.messages import RouterOutcome
from runners.router.policies import may_migrate
from runners.router.policies.policy import Policy
from runners.router.prefix_index import PrefixIndex
from runners.router.request_lifecycle import RequestLifecycle
from runners.router.response_facts import Usage
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine
from runners.simulator.job import Job, PromptTally
from runners.simulator.messages import SimulationError
from runners.simulator.step_time import Noise, SharedCores, StepNoise, draw_residuals
from runners.simulator.transfers import SimulatedTransfers

NO_BREAKER = HealthRules(failures_to_open=1 << 62)
"""An engine that lets requests wait for too long answers its probes: a live router has it back within a second."""
SWEEP_S = 1.0
"""Between two looks for requests that have waited too long; a live router looks four times as often."""


class Client(Protocol):
    """The sender of a request: it is notified of the first token and of the end. Times are the clock's."""

    def note_first(self, instance: str) -> None:
        """The first token has come."""

    def note_end(self, instance: str, cached_tokens: int | None) -> None:
        """The last token has come."""

    def note_error(self, status: int, message: str) -> None: ...


class Fleet:
    """One router and its instances in simulated time."""

    def __init__(self, spec: SimulationSpec, policy: Policy, clock: SimulatedClock, log: RecordLog) -> None:
        router, seed = spec.router, spec.replay.seed
        self.clock = clock
        self.counts = Counts()
        self.policy = policy
        self.block_tokens = block = spec.replay.block_tokens
        cores = SharedCores(spec.contention)
        self.engines = {
            name: Engine(_add_latency(model, spec), block, clock, noise=_make_noise(spec, name), cores=cores)
            for name, model in spec.models.items()
        }
        self.keys: dict[str, tuple[int, ...]] = {}
        """Keys of the requests in flight."""
        specs = {one.instance: one for one in router.instances}
        capacities = {name: model.kv_capacity_tokens for name, model in spec.models.items()}
        members = [Member(name, "", one.role, capacities[name], block) for name, one in specs.items()]
        self.bindings = Bindings(router.max_sessions, router.session_ttl_s)
        self.cluster = Cluster(members, clock.now_s, self.bindings)
        health = Health(self.cluster, NO_BREAKER, clock, _lose, _ignore, _ignore)
        for name in specs:
            health.add_instance(name, "")
        self.transfers = SimulatedTransfers(
            specs, router.transfer, self.engines, spec.link, clock, self.keys.__getitem__, f"{seed}/transfers"
        )
        self.indexes = {name: PrefixIndex(block, max(1, capacities[name] // block)) for name in specs}
        self.ledger = Ledger(log, self.counts, clock)
        dispatcher = Dispatcher(
            policy, self.cluster, self.bindings, self.indexes, self.ledger, self.counts, block, clock,
            self.transfers.cut_off if may_migrate(policy) else None, router.transfer.min_tokens,
            router.reserved_output,
        )  # fmt: skip
        self.traffic = Traffic(dispatcher, health, self.counts, router.limits, self.transfers)
        self._sweeping = False

    def send(
        self, name: str, session: str, keys: tuple[int, ...], tokens: tuple[int, int], client: Client
    ) -> SimulatedRequest:
        """A request with `tokens` (of prompt and answer) reaches the router."""
        turn = self.traffic.dispatcher.count_arrival(session)
        self.keys[name] = keys
        request = SimulatedRequest(self, Request(name, session, turn, keys, *tokens), client)
        request.start_request()
        self._sweep_later()
        return request

    def prewarm_engines(self, keys: tuple[int, ...]) -> None:
        """Have every engine compute this prompt, and insert it into every index; time passes until all have.

        Raises SimulationError for an engine that has no room for it.
        """
        tokens, pending = len(keys) * self.block_tokens, set(self.engines)
        for name, engine in self.engines.items():
            if not engine.can_hold(tokens, 1):
                raise SimulationError(
                    f"prewarm_tokens: {tokens} tokens do not fit the KV cache of {name}", remedy="lower prewarm_tokens"
                )
            engine.submit(Job(keys, tokens, 1, lambda: None, partial(pending.discard, name)))
        self.clock.run()
        assert not pending, "an idle engine with room ends what it is given"
        for index in self.indexes.values():
            index.insert_keys(keys)

    def take_samples(self) -> list[EngineSample]:
        """What a live run's samplers and its router say of each instance once per second."""
        t_ns, samples = self.clock.now_ns(), []
        for load in self.cluster.take_view().instances:
            engine = self.engines[load.instance]
            usage = engine.blocks.used / engine.blocks.capacity
            pending, requests = load.pending_prefill_tokens, load.num_requests
            counted = (engine.running, engine.waiting, usage, pending, requests)
            samples.append(EngineSample(t_ns, load.instance, *counted, simulated=True))
        return samples

    def read_counters(self) -> dict[str, PromptCounters]:
        """Each engine's counters, under the names that vLLM's have."""
        return {name: _name_counters(engine.prompts) for name, engine in self.engines.items()}

    def make_outcome(self, t_start_ns: int) -> RouterOutcome:
        """How the router ended. A pick takes no simulated time."""
        return RouterOutcome(
            t_start_ns=t_start_ns,
            t_end_ns=self.clock.now_ns(),
            policy=self.policy.name,
            index="approximate",
            **self.counts.make_outcome_fields(),
            decide_us_p50=None,
            decide_us_p99=None,
            records_lost=0,
        )

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
            return
        movement = self._reservation.movement
        if self.is_handed_over and movement is not None:
            self.note_sent(self._fleet.clock.now_ns())
            job.on_allocated = partial(self._fleet.transfers.carry, movement, job, self._fail_pull)
        engine.submit(job)

    def drop_request(self, why: str) -> None:
        """Its client waits no longer."""
        self.abandon_request(why)
        self._end()

    def _fail_pull(self) -> None:
        """No KV came for a decode request: its instance answers with an error."""
        self._cancel_request()
        self.accept_head(500, 0.0)

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


def _add_latency(model: EngineModel, spec: SimulationSpec) -> EngineModel:
    """The model as its requests meet it: all of them come through the router."""
    return msgspec.structs.replace(model, frontend_s=model.frontend_s + spec.router_latency_s)


def _make_noise(spec: SimulationSpec, instance: str) -> Noise:
    seed = f"{spec.replay.seed}/{instance}"
    return draw_residuals(spec.residuals, seed) if spec.residuals else StepNoise(spec.step_noise, seed)


def _lose(instance: str, why: str, gone: bool) -> None:
    raise AssertionError(f"simulated engines do not fail: {instance}, {why}")


def _ignore(instance: str) -> None:
    """There is nothing to probe."""


def _name_counters(prompts: PromptTally) -> PromptCounters:
    cached = float(prompts.cached + prompts.external)
    by_source = {
        "local_compute": float(prompts.computed),
        "local_cache_hit": float(prompts.cached),
        "external_kv_transfer": float(prompts.external),
    }
    return PromptCounters(prompts.computed + cached, cached, by_source)


class DecisionFile:
    """A decision log: its records in the order in which their outcomes are known, as live, each marked as simulated.

    None = none is stored.
    """

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def append_record(self, record: DecisionRecord) -> None:
        if self._file is not None:
            self._file.write(self._encode(msgspec.structs.replace(record, simulated=True)) + b"\n")

    def flush_records(self) -> None:
        """Nothing: the file buffers them."""
