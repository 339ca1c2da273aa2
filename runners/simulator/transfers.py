"""KV that moves between simulated engines, under the router's own rules of admission.

Migration: the source computes what it no longer has of the prefix, behind what waits there; then the blocks cross the
link, and the target holds them. Handover: the source computes the prompt; the request goes to the target, which begins
when the blocks have come. A link carries one transfer at a time at each end, the first come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from results.records.decisions import KvTransfer
from runners.router.spec import InstanceSpec, TransferRules
from runners.router.transfer.move_rules import Admission, MoveRules
from runners.router.transfer.movement import NOT_SERVED, Movement, MoveRequest
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine, Job
from runners.simulator.engine_file import Link

UNCOUNTED = "a simulated transfer is counted by its blocks"


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
    ) -> None:
        self.rules = MoveRules(specs, rules, clock.now_s)
        self.timeout_s = rules.timeout_s
        self.now_ns = clock.now_ns
        self._engines = engines
        self._link = link
        self._clock = clock
        self._keys_of = keys_of
        self._link_free_ns: dict[str, int] = {}
        """Per instance: when its end of the link has carried what was given to it."""
        self._admissions: dict[Movement, Admission] = {}
        self._jobs: dict[Movement, tuple[Engine, Job]] = {}
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
        why = self.rules.why_refused(move.source, move.target)
        if why:
            self._refuse(movement, "refused", why, done)
        elif move.purpose == "handover":
            self._admissions[movement] = self.rules.admit_transfer(move.source, move.target, move.purpose)
            self._prefill(movement, self._keys_of(move.request.request), move.request.input_tokens,
                          partial(self._offer, movement, done, move.request.input_tokens))  # fmt: skip
        else:
            self._migrate(movement, move, done)
        return movement

    def _migrate(self, movement: Movement, move: MoveRequest, done: Callable[[Movement], None]) -> None:
        request, block = move.request, self._engines[move.source].blocks.block_tokens
        prefix = self.rules.movable_prefix(request, move.source, move.target, request.input_tokens, block)
        movement.change_transfer(prefix_tokens=prefix.source_tokens)
        if not self.rules.is_worth_moving(prefix):
            lacking = max(0, prefix.lacking_tokens)
            why = f"nothing to move: of {prefix.source_tokens} tokens the target lacks {lacking}"
            self._refuse(movement, "unneeded", why, done)
            return
        admission = self._admissions[movement] = self.rules.admit_transfer(move.source, move.target, "migration")
        keys = self._keys_of(request.request)[: prefix.source_tokens // block]

        def carry() -> None:
            movement.change_transfer(t_target_sent_ns=self.now_ns())
            self._carry(movement, keys, partial(self._end_migration, movement, keys, done))

        begin = partial(self._prefill, movement, keys, prefix.source_tokens, carry)
        self.rules.take_turn(admission, begin)

    def _refuse(self, movement: Movement, status: str, why: str, done: Callable[[Movement], None]) -> None:
        movement.change_transfer(status=status, reason=why, t_done_ns=self.now_ns())
        movement.settle_transfer("nothing was transferred")
        self._clock.call_soon(partial(_finish, movement, done))

    def _prefill(self, movement: Movement, keys: tuple[int, ...], tokens: int, then: Callable[[], None]) -> None:
        """The source computes what it lacks of the prompt, and keeps it."""
        movement.change_transfer(attempts=1, t_source_sent_ns=self.now_ns())
        source = self._engines[movement.transfer.source]

        def answer() -> None:
            movement.change_transfer(t_source_done_ns=self.now_ns(), source_cached_tokens=job.cached_tokens)
            then()

        job = Job(keys, tokens, 1, _nothing, answer)
        self._jobs[movement] = (source, job)
        source.submit(job)

    def _carry(self, movement: Movement, keys: tuple[int, ...], then: Callable[[], None]) -> None:
        """Move what the target lacks of these blocks, when both ends of the link are free."""
        self._jobs.pop(movement, None)
        assert self._link is not None
        source, target = movement.transfer.source, movement.transfer.target
        blocks = self._engines[target].blocks
        lacking = len(keys) - blocks.match(keys)
        free_ns = max(self.now_ns(), *(self._link_free_ns.get(end, 0) for end in (source, target)))
        end_ns = free_ns + round(1e9 * self._link.transfer_s(lacking * blocks.block_tokens))
        self._link_free_ns[source] = self._link_free_ns[target] = end_ns
        self._clock.call_at(end_ns, then)

    def _land(self, movement: Movement, keys: tuple[int, ...]) -> int:
        """The blocks have come; returns how many tokens the target has taken."""
        assert self._link is not None
        engine = self._engines[movement.transfer.target]
        new = engine.fill(keys)
        tokens = new * engine.blocks.block_tokens
        movement.change_transfer(
            status="transferred", reason="", t_done_ns=self.now_ns(), external_tokens=tokens, blocks=new,
            bytes=tokens * self._link.kv_bytes_per_token, bytes_from="tokens", counted_by="model",
        )  # fmt: skip
        return tokens

    def _end_migration(self, movement: Movement, keys: tuple[int, ...], done: Callable[[Movement], None]) -> None:
        if movement.closed:
            return
        tokens, target = self._land(movement, keys), self._engines[movement.transfer.target]
        target.prompts.external += tokens
        target.prompts.cached += movement.transfer.prefix_tokens - tokens
        admission = self._admissions.pop(movement)
        self.rules.end_turn(admission)
        self.rules.finish_transfer(admission)
        self.rules.count_end(admission, succeeded=True)
        movement.settle_transfer()
        _finish(movement, done)

    # handovers
    def _offer(self, movement: Movement, done: Callable[[Movement], None], tokens: int) -> None:
        """The source has computed the prompt: the request may go to the target."""
        movement.open = True
        movement.change_transfer(prefix_tokens=tokens, reason=NOT_SERVED)
        _finish(movement, done)

    def pull(self, movement: Movement, keys: tuple[int, ...], then: Callable[[int], None]) -> None:
        """The target has the decode request of an open handover: `then` it holds the prompt's blocks.

        `then` gets the number of tokens that came.
        """

        def land() -> None:
            then(0 if movement.closed else self._land(movement, keys))

        self._carry(movement, keys, land)

    def serve_handover(self, movement: Movement) -> None:
        movement.open = False
        admission = self._admissions.pop(movement)
        self.rules.finish_transfer(admission)
        self.rules.count_end(admission, succeeded=True)
        movement.settle_transfer()

    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        movement.open = False
        movement.change_transfer(status="failed", t_done_ns=self.now_ns())
        admission = self._admissions.pop(movement)
        self.rules.finish_transfer(admission)
        self.rules.count_end(admission, why=movement.transfer.reason if strike else None)
        movement.settle_transfer("the transfer failed")

    def abandon_movement(self, movement: Movement) -> None:
        if movement in self._jobs:
            engine, job = self._jobs[movement]
            engine.cancel(job)
        admission = self._admissions.pop(movement, None)
        if admission is not None:
            if movement.transfer.purpose == "migration":
                self.rules.end_turn(admission)
            self.rules.finish_transfer(admission)
            self.rules.count_end(admission)


def _finish(movement: Movement, done: Callable[[Movement], None]) -> None:
    if not movement.over:
        movement.over = True
        done(movement)


def _nothing() -> None:
    """A prefill request's first token is its last."""
