"""The router's core under a heap of timers, with instances, clients and transfers that a test drives."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.router_spec import HealthRules, InstanceSpec, Limits, TransferRules
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import ClientMessage, read_facts
from runners.router.failure import Failure
from runners.router.health import Health
from runners.router.ledger import Ledger
from runners.router.policies import make_policy
from runners.router.prefix_index import PrefixIndex
from runners.router.request_lifecycle import RequestLifecycle
from runners.router.response_facts import Usage
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.router.transfer.move_rules import Admission, MoveRules
from runners.router.transfer.movement import Movement, MoveRequest
from runners.simulator.clock import SimulatedClock

TRANSFER_S = 0.25
BLOCK = 4


class SimulatedTransfers:
    """Transfers that take TRANSFER_S each under the router's own rules, and fail where the test says so."""

    def __init__(self, specs: Mapping[str, InstanceSpec], rules: TransferRules, driver: SimulatedClock) -> None:
        self.rules = MoveRules(specs, rules, driver.now_s)
        self.timeout_s = rules.timeout_s
        self.fails = False
        self.now_ns = driver.now_ns
        self._driver = driver

    @property
    def is_configured(self) -> bool:
        return self.rules.is_configured

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        return self.rules.cut_off(source, targets)

    def forget_process(self, instance: str) -> None:
        """Nothing is known of it."""

    def start_movement(self, move: MoveRequest, done: Callable[[Movement], None]) -> Movement:
        purpose, request, source, target, _ = move
        assert not self.rules.explain_refusal(source, target)
        movement = Movement(self, KvTransfer("sim", purpose, "mooncake", source, target, "failed"), b"")
        admission = self.rules.admit_transfer(source, target, purpose)
        prefix = self.rules.find_movable_prefix(request, source, target, request.input_tokens, 1)
        movement.change_transfer(prefix_tokens=prefix.source_tokens)
        end = partial(self._end, movement, admission, done)

        def begin() -> None:
            self._driver.call_later(TRANSFER_S, end)

        self.rules.take_turn(admission, begin)
        return movement

    def _end(self, movement: Movement, admission: Admission, done: Callable[[Movement], None]) -> None:
        self.rules.end_turn(admission)
        self.rules.finish_transfer(admission)
        self.rules.count_end(admission, succeeded=not self.fails, why="it fails" if self.fails else None)
        status = "failed" if self.fails else "transferred"
        movement.change_transfer(status=status, t_done_ns=self.now_ns(), reason="" if not self.fails else "it fails")
        movement.settle_transfer("nothing counts here")
        movement.over = True
        done(movement)

    def abandon_movement(self, movement: Movement) -> None:
        raise AssertionError("no request is abandoned while its KV is moved")

    def serve_handover(self, movement: Movement) -> None:
        raise AssertionError("no handover is open here")

    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        raise AssertionError("no handover is open here")


class SimulatedRequest(RequestLifecycle):
    """Sent to no engine: the simulated world answers it."""

    __slots__ = ("refused", "world")

    def __init__(self, world: SimulatedWorld, request: Request) -> None:
        super().__init__(world.traffic, request, ClientMessage(b"", b"", b""))
        self.world = world
        self.refused = 0

    def _send_request(self, body: bytes) -> None:
        self.world.at_instances[self] = self.instance

    def _cancel_request(self) -> None:
        self.world.at_instances.pop(self, None)

    def _refuse_client(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        self.refused = status

    def _break_off(self, message: str) -> None:
        raise AssertionError("no response fails in the middle")

    def _abort_client(self) -> None:
        raise AssertionError("no client stalls")

    def _read_usage(self) -> Usage:
        return Usage(1, 0, 1)

    def answer(self, status: int) -> None:
        """The instance answers with this status, and its whole body."""
        del self.world.at_instances[self]
        if self in self._traffic.streaming:
            self.complete_response()
        elif self.accept_head(status, 0.0):
            self.start_response()
            self.complete_response()


class RecordList:
    """The decision log in memory."""

    is_open = True

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []

    def append_record(self, record: DecisionRecord) -> None:
        self.records.append(record)

    def flush_records(self) -> None:
        """They are there at once."""


class SimulatedWorld:
    """A router's core before instances that answer when the test says so. All methods run without an event loop."""

    def __init__(
        self, policy: str, parameters: Mapping[str, object], specs: Iterable[InstanceSpec], limits: Limits
    ) -> None:
        self.driver = SimulatedClock()
        self.bindings, self.counts, self.log = Bindings(), Counts(), RecordList()
        self.specs = {spec.instance: spec for spec in specs}
        members = [
            Member(spec.instance, spec.url, spec.role, spec.kv_capacity_tokens, spec.block_tokens or 1)
            for spec in self.specs.values()
        ]
        self.cluster = Cluster(members, self.driver.now_s, self.bindings)
        self.health = Health(
            self.cluster, HealthRules(), self.driver, self._lose, lambda instance: None, lambda instance: None
        )
        for name in self.specs:
            self.health.add_instance(name, "")
        self.transfers = SimulatedTransfers(self.specs, TransferRules(), self.driver)
        self.indexes = {
            name: PrefixIndex(BLOCK, max(1, (spec.kv_capacity_tokens or 0) // BLOCK))
            for name, spec in self.specs.items()
        }
        self.ledger = Ledger(self.log, self.counts, self.driver)
        dispatcher = Dispatcher(
            make_policy(policy, parameters), self.cluster, self.bindings, self.indexes, self.ledger, self.counts, BLOCK,
            self.driver, self.transfers.cut_off if policy == "ear" else None, TransferRules().min_tokens,
        )  # fmt: skip
        self.traffic = Traffic(dispatcher, self.health, self.counts, limits, self.transfers)
        self.at_instances: dict[SimulatedRequest, str] = {}
        self.requests: dict[str, SimulatedRequest] = {}
        self._status: dict[str, int] = defaultdict(lambda: 200)

    def _lose(self, instance: str, why: str, gone: bool) -> None:
        self.traffic.lose_instance(instance, why)

    def owner(self, session: str) -> str:
        return self.bindings.find_owner(session)

    async def serve(self, session: str, prompt: list[int]) -> None:
        """A request that is answered, its transfer and retries included."""
        self.start(session, prompt)
        self.driver.advance(2 * TRANSFER_S)
        self.answer(session)

    async def hang(self, session: str, prompt: list[int], *, streams: bool = False) -> None:
        """A request that stays at its instance, after its first token where it `streams`, or is held."""
        self.start(session, prompt)
        request = self.requests[session]
        if streams and request in self.at_instances:
            request.accept_head(200, 0.0)
            request.start_response()

    async def leave(self, session: str) -> None:
        self.requests[session].abandon_request()
        self.driver.advance(0.0)

    async def release(self, sessions: list[str]) -> None:
        """Requests that hang are answered, and those that wait for them, in this order."""
        for session in sessions:
            self.answer(session)
            self.driver.advance(0.0)

    def set_status(self, instance: str, status: int) -> None:
        self._status[instance] = status

    def fail_transfers(self, instance: str, *, fails: bool) -> None:
        self.transfers.fails = fails

    def start(self, session: str, prompt: list[int]) -> None:
        body = json.dumps({"prompt": prompt, "max_tokens": 4}).encode()
        facts = read_facts(body, BLOCK, chat=False)
        turn = self.traffic.dispatcher.count_arrival(session)
        name = f"r-{self.counts.requests - 1}"
        request = SimulatedRequest(self, Request(name, session, turn, facts.keys, facts.input_tokens, facts.max_tokens))
        self.requests[session] = request
        request.start_request()

    def answer(self, session: str) -> None:
        request = self.requests[session]
        for _ in range(10):
            if request not in self.at_instances:
                return
            request.answer(self._status[self.at_instances[request]])

    def lose(self, instance: str) -> None:
        """Its process dies: nothing listens there, and what is open there fails."""
        for request in [one for one, name in self.at_instances.items() if name == instance]:
            del self.at_instances[request]
            request.fail_request(Failure("closed", "connection closed"))
        self.health.note_probe(instance, "refused", gone=True)

    def records(self) -> list[DecisionRecord]:
        self.ledger.settle_records(last=True)
        return sorted(self.log.records, key=lambda record: record.seq)


def run_without_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    with contextlib.suppress(StopIteration):
        work.send(None)
        raise AssertionError("it waits for an event loop")
