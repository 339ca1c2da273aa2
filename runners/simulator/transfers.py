"""KV that moves between simulated engines, under the router's own rules of admission, time limits and retries.

Migration: a request at the source computes what that no longer has of the prefix, behind what waits there, and retains
its blocks; a request at the target takes blocks, pulls the KV into them and computes the last token; then both are
over, and the target's prefix cache holds the prefix. Handover: the source computes the prompt; the request itself goes
to the target and pulls. A link carries one transfer at a time at each end, the first come first. Blocks that the source
retains are freed when they have been pulled, when the router gives up, or after the link's `abort_s`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from results.records.decisions import KvTransfer
from results.records.router_spec import InstanceSpec, TransferRules
from results.records.simulation_spec import Link
from runners.router.driver import Timer
from runners.router.transfer.move_rules import Admission, MoveRules
from runners.router.transfer.movement import NOT_SERVED, Movement, MoveRequest
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine
from runners.simulator.job import Job


@dataclass(eq=False, slots=True)
class _Course:
    """One transfer from its admission to its end."""

    movement: Movement
    admission: Admission
    keys: tuple[int, ...]
    tokens: int
    priority: int
    done: Callable[[Movement], None]
    limit: Timer
    abort: Timer | None = None
    source_job: Job | None = None
    """Computes the prompt, then retains its blocks; None = nothing is retained."""
    target_job: Job | None = None
    """Pulls a migration's prefix."""
    takes_turns: bool = False
    """It is in the queue of migrations to its target."""


class SimulatedTransfers:
    """The KV transport of a simulated router. `keys_of`: the keys of a request's full blocks."""

    def __init__(
        self,
        specs: Mapping[str, InstanceSpec],
        rules: TransferRules,
        engines: Mapping[str, Engine],
        link: Link | None,
        clock: SimulatedClock,
        keys_of: Callable[[str], tuple[int, ...]],
        seed: str,
    ) -> None:
        """`seed`: of the draws which transfers fail."""
        self.rules = MoveRules(specs, rules, clock.now_s)
        self.timeout_s = rules.timeout_s
        self.now_ns = clock.now_ns
        self._settings = rules
        self._engines = engines
        self._link = link
        self._clock = clock
        self._keys_of = keys_of
        self._random = random.Random(seed)
        self._link_free_ns: dict[str, int] = {}
        """Per instance: when its end of the link has carried what was given to it."""
        self._courses: dict[Movement, _Course] = {}
        self._numbers = 0

    @property
    def is_configured(self) -> bool:
        return self._link is not None

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        return self.rules.cut_off(source, targets)

    def forget_process(self, instance: str) -> None:
        """Simulated engines do not fail."""

    def start_movement(self, move: MoveRequest, done: Callable[[Movement], None]) -> Movement:
        """As `KvTransport.start_movement`."""
        self._numbers += 1
        transfer = KvTransfer(f"sim-{self._numbers}", move.purpose, "simulated", move.source, move.target, "failed")
        movement = Movement(self, transfer, b"")
        why = self.rules.explain_refusal(move.source, move.target, move.purpose)
        if why:
            self._refuse(movement, "refused", why)
            self._clock.call_soon(partial(_finish, movement, done))
            return movement
        admission = self.rules.admit_transfer(move.source, move.target, move.purpose)
        limit = self._clock.call_later(self.timeout_s, lambda: self._time_out(course))
        request = move.request
        course = _Course(
            movement, admission, self._keys_of(request.request), request.input_tokens, 0, done, limit,
        )  # fmt: skip
        self._courses[movement] = course
        if move.purpose == "handover":
            self._clock.call_soon(partial(self._prefill, course))
        else:
            self._clock.call_soon(partial(self._begin_migration, course, move))
        return movement

    def _refuse(self, movement: Movement, status: str, why: str) -> None:
        movement.change_transfer(status=status, reason=why, t_done_ns=self.now_ns())
        movement.settle_transfer("nothing was transferred")

    def _begin_migration(self, course: _Course, move: MoveRequest) -> None:
        if course.movement not in self._courses:
            return
        block = self._engines[move.source].blocks.block_tokens
        prefix = self.rules.find_movable_prefix(move.request, move.source, move.target, course.tokens, block)
        course.tokens = prefix.source_tokens
        course.movement.change_transfer(prefix_tokens=course.tokens)
        if not self.rules.is_worth_moving(prefix):
            lacking = max(0, prefix.lacking_tokens)
            why = f"nothing to move: of {course.tokens} tokens the target lacks {lacking}"
            self._refuse(course.movement, "unneeded", why)
            self._close(course)
            self.rules.count_end(course.admission)
            _finish(course.movement, course.done)
            return
        course.keys = course.keys[: course.tokens // block]
        course.priority = self._settings.priority or 0
        course.takes_turns = True
        self.rules.take_turn(course.admission, partial(self._prefill, course))

    # the source
    def _prefill(self, course: _Course) -> None:
        """The source computes what it lacks of the prompt, and retains it."""
        movement = course.movement
        if movement not in self._courses:
            return
        attempts = movement.transfer.attempts + 1
        movement.change_transfer(attempts=attempts, t_source_sent_ns=self.now_ns())
        source = self._engines[movement.transfer.source]
        if not source.can_hold(course.tokens, 1):
            self._fail(course, "the prompt does not fit the source's KV cache", strike=False)
            return
        end = partial(self._end_prefill, course)
        course.source_job = Job(course.keys, course.tokens, 1, _nothing, end, priority=course.priority, retains=True)
        source.submit(course.source_job)

    def _end_prefill(self, course: _Course) -> None:
        movement, job = course.movement, course.source_job
        assert job is not None
        assert self._link is not None
        movement.change_transfer(t_source_done_ns=self.now_ns(), source_cached_tokens=job.cached_tokens)
        course.abort = self._clock.call_later(self._link.abort_s, partial(self._free_source, course))
        if course.takes_turns:
            self._pull_prefix(course)
            return
        course.limit.cancel()
        movement.open = True
        movement.change_transfer(prefix_tokens=course.tokens, reason=NOT_SERVED)
        _finish(movement, course.done)

    def _free_source(self, course: _Course) -> None:
        """Its blocks have been pulled, or will not be."""
        job, course.source_job = course.source_job, None
        if course.abort is not None:
            course.abort.cancel()
        if job is not None:
            self._engines[course.movement.transfer.source].cancel(job)

    # the target
    def _pull_prefix(self, course: _Course) -> None:
        movement = course.movement
        target = self._engines[movement.transfer.target]
        if not target.can_hold(course.tokens, 1):
            self._fail(course, "the prompt does not fit the target's KV cache", strike=False)
            return
        end = partial(self._end_migration, course)
        course.target_job = job = Job(course.keys, course.tokens, 1, _nothing, end, priority=course.priority)
        job.on_allocated = partial(self.carry, movement, job, partial(self._retry, course))
        movement.note_sent(self.now_ns())
        target.submit(job)

    def carry(self, movement: Movement, job: Job, fail: Callable[[], None]) -> None:
        """`job` has blocks at the target: move what it lacks of the prompt, when both ends of the link are free.

        Then the job goes on, or `fail` is called.
        """
        assert self._link is not None
        source, target = movement.transfer.source, movement.transfer.target
        free_ns = max(self.now_ns(), *(self._link_free_ns.get(end, 0) for end in (source, target)))
        end_ns = free_ns + round(1e9 * predict_transfer_s(self._link, job.input_tokens - job.computed))
        self._link_free_ns[source] = self._link_free_ns[target] = end_ns
        self._clock.call_at(end_ns, partial(self._end_carriage, movement, job, fail))

    def _end_carriage(self, movement: Movement, job: Job, fail: Callable[[], None]) -> None:
        """The link has carried it, unless the transfer fails or the source has freed the blocks."""
        if job.is_cancelled:
            return
        course = self._courses.get(movement)
        assert self._link is not None
        fails = self._link.failure_share > 0 and self._random.random() < self._link.failure_share
        if course is None or course.source_job is None or fails:
            fail()
            return
        self._free_source(course)
        engine = self._engines[movement.transfer.target]
        tokens = job.input_tokens - job.computed
        movement.change_transfer(
            external_tokens=tokens, local_tokens=job.computed, blocks=-(-tokens // engine.blocks.block_tokens),
            bytes=tokens * self._link.kv_bytes_per_token, bytes_from="tokens", counted_by="model",
        )  # fmt: skip
        engine.resume(job)

    # the end
    def _end_migration(self, course: _Course) -> None:
        self._close(course)
        self._succeed(course)
        _finish(course.movement, course.done)

    def _succeed(self, course: _Course) -> None:
        course.movement.change_transfer(status="transferred", reason="", t_done_ns=self.now_ns())
        self.rules.count_end(course.admission, succeeded=True)
        course.movement.settle_transfer()

    def _retry(self, course: _Course) -> None:
        """No KV came: try again, as often as the rules allow."""
        movement = course.movement
        if movement.transfer.attempts >= self._settings.attempts or movement.over:
            self._fail(course, "no KV came", strike=True)
            return
        self._end_jobs(course)
        self._prefill(course)

    def _time_out(self, course: _Course) -> None:
        self._fail(course, f"not done within {self.timeout_s:g} s", strike=course.movement.transfer.attempts > 0)

    def _fail(self, course: _Course, why: str, *, strike: bool) -> None:
        course.movement.change_transfer(reason=why, t_done_ns=self.now_ns())
        course.movement.settle_transfer("the transfer failed")
        self._close(course)
        self.rules.count_end(course.admission, why=why if strike else None)
        _finish(course.movement, course.done)

    def _close(self, course: _Course) -> None:
        """Nothing of it is on its way any longer."""
        del self._courses[course.movement]
        course.limit.cancel()
        self._end_jobs(course)
        self.rules.finish_transfer(course.admission)
        if course.takes_turns:
            self.rules.end_turn(course.admission)

    def _end_jobs(self, course: _Course) -> None:
        self._free_source(course)
        job, course.target_job = course.target_job, None
        if job is not None:
            self._engines[course.movement.transfer.target].cancel(job)

    # what becomes of a movement's request
    def serve_handover(self, movement: Movement) -> None:
        movement.open = False
        course = self._courses[movement]
        self._close(course)
        self._succeed(course)

    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        movement.open = False
        movement.change_transfer(t_done_ns=self.now_ns())
        course = self._courses[movement]
        self._close(course)
        self.rules.count_end(course.admission, why=movement.transfer.reason if strike else None)
        movement.settle_transfer("the transfer failed")

    def abandon_movement(self, movement: Movement) -> None:
        course = self._courses.get(movement)
        if course is not None and course.target_job is None:  # once the target pulls, that goes on
            self._close(course)
            self.rules.count_end(course.admission)


def _finish(movement: Movement, done: Callable[[Movement], None]) -> None:
    if not movement.over:
        movement.over = True
        done(movement)


def _nothing() -> None:
    """A prefill request's first token is its last."""


def predict_transfer_s(link: Link, tokens: int) -> float:
    """How long the KV of this many tokens takes on a free link."""
    return link.latency_s + tokens * link.kv_bytes_per_token / link.bytes_per_s
