"""Which transfers may begin, and the order of those to one target: pure.

Migrations to one target run one at a time, first come first served. While `TransferRules.queue` of them wait, further
ones are refused: their sessions' KV is computed there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from results.records.decisions import RoutedRequest
from results.records.instance_events import InstanceChange, InstanceEvent
from runners.router.reporting import Report, ignore_event
from runners.router.spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.transfer.quarantine import Pairs
from runners.router.transfer.transports import find_mismatch

Purpose = Literal["migration", "handover"]
Waiting = deque[tuple["Admission", Callable[[], None]]]


@dataclass(eq=False, slots=True)
class Admission:
    """A transfer that may run, from `admit` to `finish`."""

    source: str
    target: str
    purpose: Purpose
    probe: bool
    """It is the one transfer that may end the pair's quarantine."""
    number: int
    """Among all that were admitted, from 1."""
    queue: Waiting = field(default_factory=deque)
    """At its target, with those before and behind it; empty before `take_turn`."""


class Prefix(NamedTuple):
    """The part of a prompt that a migration may move, in tokens of whole blocks."""

    source_tokens: int
    target_tokens: int
    """What the target holds of it already."""

    @property
    def lacking_tokens(self) -> int:
        return self.source_tokens - self.target_tokens


class MoveRules:
    """The admission of one router's transfers. `specs`: its instances, which come and go."""

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
        """Some instance's KV can be moved."""
        return any(spec.transfer is not None for spec in self._specs.values())

    def endpoint_of(self, instance: str) -> KvEndpoint | None:
        spec = self._specs.get(instance)
        return spec.transfer if spec is not None else None

    def why_refused(self, source: str, target: str, purpose: Purpose = "handover") -> str:
        """Why no KV can be moved from one to the other now; empty = it may be tried.

        A migration is also refused where `TransferRules.queue` others wait for the target: it computes instead.
        """
        if source == target:
            return "it is there already"
        mismatch = find_mismatch(self.endpoint_of(source), self.endpoint_of(target))
        why = mismatch or self.pairs.why_refused(source, target)
        if why or purpose != "migration":
            return why
        coming = sum(one.target == target and one.purpose == "migration" for one in self._admitted)
        return f"{coming} sessions are on their way there" if coming > self._rules.queue else ""

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        """Per target that no KV of `source` can be moved to now: why. Empty where no instance has a transport."""
        if not source or not self.is_configured:
            return {}
        why = {target: self.why_refused(source, target, "migration") for target in targets if target != source}
        return {target: text for target, text in why.items() if text}

    def admit_transfer(self, source: str, target: str, purpose: Purpose) -> Admission:
        """Begin a transfer that `why_refused` does not refuse."""
        self._admissions += 1
        probe = self.pairs.begin_transfer(source, target)
        admission = Admission(source, target, purpose, probe, self._admissions)
        self._admitted[admission] = None
        self._report_transfer(admission, "transfer_admitted")
        return admission

    def finish_transfer(self, admission: Admission) -> None:
        """The transfer is no longer on its way; again without effect."""
        if admission in self._admitted:
            del self._admitted[admission]
            self._report_transfer(admission, "transfer_finished")

    def take_turn(self, admission: Admission, ready: Callable[[], None]) -> None:
        """Call `ready` when no other migration runs to its target, maybe at once; `end_turn` must follow."""
        admission.queue = queue = self._queues.setdefault(admission.target, deque())
        queue.append((admission, ready))
        if len(queue) == 1:
            ready()

    def end_turn(self, admission: Admission) -> None:
        """Leave the queue of its target, before or after its turn; the next one is ready."""
        queue = admission.queue
        was_first = queue[0][0] is admission
        position = next(index for index, (other, _) in enumerate(queue) if other is admission)
        del queue[position]
        if was_first and queue:
            queue[0][1]()
        elif not queue and self._queues.get(admission.target) is queue:
            del self._queues[admission.target]

    def count_end(self, admission: Admission, *, succeeded: bool = False, why: str | None = None) -> None:
        """What the transfer's end says of its pair; neither `succeeded` nor a failure (`why`): nothing."""
        self.pairs.count_end(admission.source, admission.target, probe=admission.probe, succeeded=succeeded, why=why)
        failed: InstanceChange = "transfer_inconclusive" if why is None else "transfer_failed"
        self._report_transfer(admission, "transfer_succeeded" if succeeded else failed, why or "")

    def movable_prefix(
        self, request: RoutedRequest, source: str, target: str, prompt_tokens: int, source_block_tokens: int
    ) -> Prefix:
        """What source and target hold of a prompt of `prompt_tokens`, by the index, in whole blocks."""
        block = max(request.block_tokens, source_block_tokens)
        held = [
            held_prefix(request.cached_tokens.get(instance, 0), request.input_tokens, prompt_tokens, block)
            for instance in (source, target)
        ]
        return Prefix(*held)

    def is_worth_moving(self, prefix: Prefix) -> bool:
        """The target lacks at least `min_tokens` of what the source holds."""
        return prefix.lacking_tokens >= max(1, self._rules.min_tokens)

    def recover_instance(self, instance: str) -> None:
        """The instance answers (again), maybe as another process: its pairs may be probed at once."""
        self.pairs.allow_probe(instance)
        self._report(InstanceEvent(instance, "recovered"))

    def remove_instance(self, instance: str) -> None:
        """The instance is gone: forget its pairs, and the order of what was on its way there."""
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


def held_prefix(indexed_tokens: int, indexed_of: int, tokens: int, block_tokens: int) -> int:
    """The part of a prompt of `tokens` that an instance holds, in whole blocks.

    The index counts `indexed_tokens` of the `indexed_of` tokens it took the prompt for: of token ids the same number,
    of text an estimate, so its share of the prompt counts.
    """
    share = indexed_tokens if indexed_of == tokens or indexed_of <= 0 else indexed_tokens * tokens // indexed_of
    return min(share, tokens) // block_tokens * block_tokens
