"""Admission of transfers, and the order of migrations to one target: pure.

Migrations to one target run one at a time, first come first served. While `TransferRules.queue` of them wait, further
ones are refused, and the target computes the prompt instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from results.records.decisions import RoutedRequest
from results.records.instance_events import InstanceChange, InstanceEvent
from results.records.router_spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.reporting import Report, ignore_event
from runners.router.transfer.quarantine import Pairs
from runners.router.transfer.transports import find_mismatch

Purpose = Literal["migration", "handover"]
Waiting = deque[tuple["Admission", Callable[[], None]]]


@dataclass(eq=False, slots=True)
class Admission:
    """An admitted transfer, from `admit_transfer` to `finish_transfer`."""

    source: str
    target: str
    purpose: Purpose
    probe: bool
    """It is the one transfer that may end the pair's quarantine."""
    number: int
    """Sequence number of the admission, from 1."""
    queue: Waiting = field(default_factory=deque)
    """The queue of its target, itself included; empty before `take_turn`."""


class Prefix(NamedTuple):
    """The part of a prompt that a migration may move, in tokens of whole blocks."""

    source_tokens: int
    target_tokens: int
    """Tokens of it that the target already holds."""

    @property
    def lacking_tokens(self) -> int:
        return self.source_tokens - self.target_tokens


class MoveRules:
    """Admits the transfers of one router. `specs`: its current instances, by name."""

    def __init__(
        self,
        specs: Mapping[str, InstanceSpec],
        rules: TransferRules,
        now_s: Callable[[], float],
        report: Report = ignore_event,
    ) -> None:
        self.pairs = Pairs(rules, now_s)
        self._specs = specs
        self._rules = rules
        self._report = report
        self._admissions = 0
        self._admitted: dict[Admission, None] = {}
        self._queues: dict[str, Waiting] = {}

    @property
    def is_configured(self) -> bool:
        """Whether any instance has a KV transport."""
        return any(spec.transfer is not None for spec in self._specs.values())

    def endpoint_of(self, instance: str) -> KvEndpoint | None:
        spec = self._specs.get(instance)
        return spec.transfer if spec is not None else None

    def explain_refusal(self, source: str, target: str, purpose: Purpose = "handover") -> str:
        """Why no KV can be moved from `source` to `target` now; empty = it may be tried.

        A migration is also refused while `TransferRules.queue` others wait for the target.
        """
        if source == target:
            return "it is there already"
        mismatch = find_mismatch(self.endpoint_of(source), self.endpoint_of(target))
        why = mismatch or self.pairs.explain_refusal(source, target)
        if why or purpose != "migration":
            return why
        coming = sum(one.target == target and one.purpose == "migration" for one in self._admitted)
        return f"{coming} sessions are on their way there" if coming > self._rules.queue else ""

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        """The targets that `source`'s KV cannot be moved to now, with reasons. Empty if no instance has a transport."""
        if not source or not self.is_configured:
            return {}
        why = {target: self.explain_refusal(source, target, "migration") for target in targets if target != source}
        return {target: text for target, text in why.items() if text}

    def admit_transfer(self, source: str, target: str, purpose: Purpose) -> Admission:
        """Begin a transfer that `explain_refusal` does not refuse."""
        self._admissions += 1
        probe = self.pairs.begin_transfer(source, target)
        admission = Admission(source, target, purpose, probe, self._admissions)
        self._admitted[admission] = None
        self._report_transfer(admission, "transfer_admitted")
        return admission

    def finish_transfer(self, admission: Admission) -> None:
        """The transfer has ended; idempotent."""
        if admission in self._admitted:
            del self._admitted[admission]
            self._report_transfer(admission, "transfer_finished")

    def take_turn(self, admission: Admission, ready: Callable[[], None]) -> None:
        """Call `ready` once no other migration runs to its target, possibly at once; `end_turn` must follow."""
        admission.queue = queue = self._queues.setdefault(admission.target, deque())
        queue.append((admission, ready))
        if len(queue) == 1:
            ready()

    def end_turn(self, admission: Admission) -> None:
        """Leave the queue of its target, before or after its turn, and start the next migration."""
        queue = admission.queue
        was_first = queue[0][0] is admission
        position = next(index for index, (other, _) in enumerate(queue) if other is admission)
        del queue[position]
        if was_first and queue:
            queue[0][1]()
        elif not queue and self._queues.get(admission.target) is queue:
            del self._queues[admission.target]

    def count_end(self, admission: Admission, *, succeeded: bool = False, why: str | None = None) -> None:
        """Update its pair at the end of a transfer; neither `succeeded` nor a failure (`why`) = no evidence."""
        self.pairs.count_end(admission.source, admission.target, probe=admission.probe, succeeded=succeeded, why=why)
        failed: InstanceChange = "transfer_inconclusive" if why is None else "transfer_failed"
        self._report_transfer(admission, "transfer_succeeded" if succeeded else failed, why or "")

    def find_movable_prefix(
        self, request: RoutedRequest, source: str, target: str, prompt_tokens: int, source_block_tokens: int
    ) -> Prefix:
        """The prefix of a prompt of `prompt_tokens` that source and target hold, by the index, in whole blocks."""
        block = max(request.block_tokens, source_block_tokens)
        held = [
            measure_held_prefix(request.cached_tokens.get(instance, 0), request.input_tokens, prompt_tokens, block)
            for instance in (source, target)
        ]
        return Prefix(*held)

    def is_worth_moving(self, prefix: Prefix) -> bool:
        """Whether the target lacks at least `min_tokens` of the source's prefix."""
        return prefix.lacking_tokens >= max(1, self._rules.min_tokens)

    def recover_instance(self, instance: str) -> None:
        """The instance answers (again), possibly as a new process: its pairs may be probed at once."""
        self.pairs.allow_probe(instance)
        self._report(InstanceEvent(instance, "recovered"))

    def remove_instance(self, instance: str) -> None:
        """Drop the instance's pairs and its queue."""
        self.pairs.remove_instance(instance)
        self._queues.pop(instance, None)

    def _report_transfer(self, admission: Admission, what: InstanceChange, why: str = "") -> None:
        event = InstanceEvent(
            admission.source,
            what,
            why=why,
            transfer=admission.number,
            target=admission.target,
            purpose=admission.purpose,
        )
        self._report(event)


def measure_held_prefix(indexed_tokens: int, indexed_of: int, tokens: int, block_tokens: int) -> int:
    """The prefix of a prompt of `tokens` that an instance holds, in tokens of whole blocks.

    The index holds `indexed_tokens` of `indexed_of`. For token ids `indexed_of` equals `tokens`; for text it is an
    estimate, so the indexed share is scaled to `tokens`.
    """
    share = indexed_tokens if indexed_of == tokens or indexed_of <= 0 else indexed_tokens * tokens // indexed_of
    return min(share, tokens) // block_tokens * block_tokens
