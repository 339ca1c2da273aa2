"""Moves KV between instances for the router: one task per movement, one transfer at a time to a target.

Migration: a source leg makes the instance that holds a session keep the blocks of its prefix, a target leg of the same
prefix pulls them into the cache of the instance that is to serve it; then the request is sent there as it came. A
transfer that fails changes nothing but that the target computes. Handover: the source leg is the request's whole
prompt, and the request itself is the target leg.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any, Literal

from results.decisions import KvTransfer, RoutedRequest
from runners.router.spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.transfer.counters import Brought, Ended
from runners.router.transfer.engines import Engines, LegFailed
from runners.router.transfer.job import Done, Job, authorization, leg_headers
from runners.router.transfer.legs import (
    Asked,
    Unfit,
    handover_leg,
    held_prefix,
    prefix_leg,
    read_request,
    require_movable_prefix,
    require_one_prefill,
    splice,
)
from runners.router.transfer.movement import NOT_SERVED, Movement
from runners.router.transfer.quarantine import Pairs
from runners.router.transfer.steps import LEG_PATH, free, pull_params, source_leg, target_leg
from runners.router.transfer.tally import Tally, Uncounted
from runners.router.transfer.transports import TRANSPORTS, mismatch
from runners.router.upstream import Pool

CLOSE_S = 1.0
QUIET_S = 0.25
"""A transfer waits for so long at most until what the one before it brought has been counted."""


class Unneeded(Exception):
    """The target has nearly all that could be moved: how much it lacks."""


class Transfers:
    """The KV transport of one router."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        specs: Mapping[str, InstanceSpec],
        rules: TransferRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = Engines(pools, specs, rules.timeout_s)
        self._specs = specs
        self._rules = rules
        self._clock = clock
        self._pairs = Pairs(rules, clock)
        self._tallies: dict[str, Tally | Uncounted] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._jobs: dict[Movement, Job] = {}
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def timeout_s(self) -> float:
        """From a handover's target leg to the first byte of its answer; then the target is to compute the prompt."""
        return self._rules.timeout_s

    @property
    def configured(self) -> bool:
        """Some instance's KV can be moved."""
        return any(spec.transfer is not None for spec in self._specs.values())

    def between(self, source: str, target: str) -> str:
        """Why no KV can be moved from one to the other now; empty = it may be tried."""
        never = "it is there already" if source == target else mismatch(self._endpoint(source), self._endpoint(target))
        return never or self._pairs.refuses(source, target)

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        """Per target that no KV of `source` can be moved to now: why. Empty where no instance has a transport."""
        if not source or not self.configured:
            return {}
        coming = Counter(job.target for job in self._jobs.values() if job.movement.transfer.purpose == "migration")
        full = {
            target: f"{count} sessions are on their way there"
            for target, count in coming.items()
            if count > self._rules.queue
        }
        why = {target: self.between(source, target) or full.get(target, "") for target in targets if target != source}
        return {target: text for target, text in why.items() if text}

    def quarantined(self) -> Mapping[tuple[str, str], str]:
        """Pairs (source, target) that are left alone: why."""
        return self._pairs.quarantined()

    def migrate(
        self, request: RoutedRequest, source: str, target: str, path: str, headers: bytes, body: bytes, done: Done
    ) -> Movement:
        """Move what `source` holds of the request's prompt to `target`; then `done` is called, never from here."""
        movement = self._movement("migration", source, target, body)
        return self._start(movement, source, target, headers, done, partial(self._migrate, request, path, body))

    def hand_over(
        self, request: RoutedRequest, source: str, target: str, path: str, headers: bytes, body: bytes, done: Done
    ) -> Movement:
        """Have `source` compute the prompt; then `done` is called, and the movement's body is the target leg."""
        movement = self._movement("handover", source, target, body)
        return self._start(movement, source, target, headers, done, partial(self._hand_over, path, body))

    def lost(self, instance: str) -> None:
        """Its process may be gone: what is known of it is asked again."""
        self._engines.forget(instance)
        if instance in self._tallies:
            self._tallies[instance].forget()

    def found(self, instance: str) -> None:
        """It answers (again): its pairs may be probed at once."""
        self.lost(instance)
        self._pairs.released(instance)
        if self._endpoint(instance) is not None:
            self._errand(self._tally(instance).refresh())

    def removed(self, instance: str) -> None:
        """It is behind this router no more, and no request waits for it: nothing of it is remembered."""
        self.lost(instance)
        for job in self._jobs.values():
            if job.target == instance and job.movement.over and job.task is not None:
                job.task.cancel()  # its connection is gone, and it would not hear of that
        self._pairs.removed(instance)
        self._turns.pop(instance, None)
        if instance in self._tallies and self._tallies[instance].quiet:
            del self._tallies[instance]

    async def close(self) -> None:
        """End what is on its way.

        Blocks that sources still keep are freed, and counters of transfers that have ended are read, where that takes
        no longer than CLOSE_S each.
        """
        moving = [job.task for job in self._jobs.values() if job.task is not None]
        for task in moving:
            task.cancel()
        await asyncio.gather(*moving, return_exceptions=True)
        if self._errands:
            await asyncio.wait(self._errands, timeout=CLOSE_S)
        errands = tuple(self._errands)
        for task in errands:
            task.cancel()
        await asyncio.gather(*errands, return_exceptions=True)
        await asyncio.gather(*(tally.close(CLOSE_S) for tally in self._tallies.values()))
        self._engines.close()

    # what a movement's request says
    def abandoned(self, movement: Movement) -> None:
        job = self._jobs.get(movement)
        if job is None or job.pulling:
            return
        if job.task is not None:
            job.task.cancel()
        else:
            self._end_handover(job)
            self._tally(job.target).drop()
            self._count(job, None)

    def served(self, movement: Movement) -> None:
        job = self._end_handover(self._jobs[movement])
        self._arrived(job, Ended(job.prompt_tokens, None), streams=True)

    def failed(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        job = self._end_handover(self._jobs[movement])
        movement.change(t_done_ns=perf_counter_ns())
        self._count(job, movement.transfer.reason if strike else None)
        if strike:
            self._engines.forget(job.source)
        if not freed:
            self._release(job)
        self._tally(job.target).drop()
        movement.settle("the transfer failed")

    def _end_handover(self, job: Job) -> Job:
        job.movement.open = False
        self._jobs.pop(job.movement, None)
        return job

    # beginning and end
    def _movement(self, purpose: Literal["migration", "handover"], source: str, target: str, body: bytes) -> Movement:
        endpoint = self._endpoint(source)
        transport = "" if endpoint is None else endpoint.transport
        transfer = KvTransfer(_new_id(), purpose, transport, source, target, "failed")
        movement = Movement(self, transfer, body)
        movement.block_tokens = self._engines.block_tokens(target)
        if endpoint is not None:
            movement.kv_bytes_per_token = endpoint.kv_bytes_per_token
        return movement

    def _start(
        self, movement: Movement, source: str, target: str, headers: bytes, done: Done,
        move: Callable[[Job], Awaitable[None]],
    ) -> Movement:  # fmt: skip
        endpoint, why = self._endpoint(source), self.between(source, target)
        if why or endpoint is None:
            self._refuse(movement, why)
            asyncio.get_running_loop().call_soon(_tell, movement, done)
            return movement
        probe = self._pairs.begun(source, target)
        transport = TRANSPORTS[endpoint.transport]
        job = Job(movement, source, target, transport, endpoint, authorization(headers), done, probe)
        self._jobs[movement] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, move))
        job.task.add_done_callback(partial(self._cancelled, job))
        return movement

    async def _run(self, job: Job, move: Callable[[Job], Awaitable[None]]) -> None:
        movement, why, strike = job.movement, "", True
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                await move(job)
        except (Unneeded, Unfit) as error:
            self._refuse(movement, str(error), "unneeded" if isinstance(error, Unneeded) else "refused")
            strike = False
        except LegFailed as error:
            why, strike = str(error), error.strike
        except TimeoutError:
            why, strike = f"not done within {self._rules.timeout_s:g} s", movement.transfer.attempts > 0
        except Exception as error:  # noqa: BLE001  (a request waits for this: whatever is wrong here, it goes on)
            why, strike = f"{type(error).__name__}: {error}", False
        job.task = None
        if not movement.open:
            self._jobs.pop(movement, None)
        if why:
            movement.change(reason=why, t_done_ns=perf_counter_ns())
            movement.settle("the transfer failed")
            self._release(job)
        if why or not strike:
            self._count(job, why if strike else None)
        _tell(movement, job.done)

    def _cancelled(self, job: Job, task: asyncio.Task[None]) -> None:
        """It was abandoned before its target leg, maybe before it began."""
        if task.cancelled():
            self._jobs.pop(job.movement, None)
            self._release(job)
            self._count(job, None)

    def _refuse(self, movement: Movement, why: str, status: Literal["refused", "unneeded"] = "refused") -> None:
        movement.change(status=status, reason=why, t_done_ns=perf_counter_ns())
        movement.settle("nothing was transferred")

    # the two kinds
    async def _migrate(self, request: RoutedRequest, path: str, body: bytes, job: Job) -> None:
        asked = read_request(path, body)
        require_movable_prefix(asked)
        ids = asked.ids or await self._engines.tokens(job.target, leg_headers(job), asked)
        block = max(request.block_tokens, self._engines.block_tokens(job.source) or 1)
        told = [request.cached_tokens.get(instance, 0) for instance in (job.source, job.target)]
        prefix, held = (held_prefix(tokens, request.input_tokens, len(ids), block) for tokens in told)
        job.movement.change(prefix_tokens=prefix)
        if prefix - held < max(1, self._rules.min_tokens):
            raise Unneeded(f"nothing to move: of {prefix} tokens the target lacks {max(0, prefix - held)}")
        async with self._turns.setdefault(job.target, asyncio.Lock()):
            await self._again_and_again(job, partial(self._move_prefix, job, asked, ids[:prefix]))

    async def _move_prefix(self, job: Job, asked: Asked, prefix: tuple[int, ...]) -> None:
        tally, priority = self._tally(job.target), self._rules.leg_priority
        reading = self._errand(tally.refresh())
        await source_leg(self._engines, job, LEG_PATH, partial(prefix_leg, asked, prefix, priority=priority))
        assert job.kept is not None
        await asyncio.wait((reading,), timeout=QUIET_S)
        await tally.until_quiet(QUIET_S)
        body = prefix_leg(asked, prefix, await pull_params(self._engines, job, job.kept), priority)
        kept, job.kept, job.pulling = job.kept, None, True
        tally.begin()
        try:
            leg = await target_leg(self._engines, job, body)
            if leg.cached_tokens == 0 and len(prefix) > 1:
                raise LegFailed("no KV came: the target has computed the prefix", strike=True)
        except LegFailed as error:
            tally.drop()
            job.kept = None if error.frees else kept
            raise
        except asyncio.CancelledError:
            tally.drop()
            raise
        finally:
            job.pulling = False
        self._arrived(job, Ended(len(prefix), leg.cached_tokens))

    async def _hand_over(self, path: str, body: bytes, job: Job) -> None:
        asked = read_request(path, body)
        require_one_prefill(asked)
        tally = self._tally(job.target)
        reading = self._errand(tally.refresh())
        await self._again_and_again(job, partial(source_leg, self._engines, job, path, partial(handover_leg, asked)))
        assert job.kept is not None
        await asyncio.wait((reading,), timeout=QUIET_S)
        movement = job.movement
        movement.body, movement.open = splice(body, await pull_params(self._engines, job, job.kept)), True
        tally.begin()
        movement.change(prefix_tokens=job.prompt_tokens or 0, reason=NOT_SERVED)

    async def _again_and_again(self, job: Job, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Try until it works, no further try can help, or the tries are used up. Raises LegFailed."""
        for number in range(1, self._rules.attempts + 1):
            job.movement.change(attempts=number, transfer=_new_id() if number > 1 else job.movement.transfer.transfer)
            try:
                await attempt()
                return
            except LegFailed as error:
                self._engines.forget(job.source)
                self._release(job)
                if not error.again or number == self._rules.attempts or job.movement.over:
                    raise

    def _arrived(self, job: Job, ended: Ended, *, streams: bool = False) -> None:
        """The target has answered its leg, or begins to (`streams`)."""
        job.movement.change(status="transferred", reason="", t_done_ns=perf_counter_ns())
        self._pairs.succeeded(job.source, job.target, probe=job.probe)
        told = partial(self._settle, job, ended)
        job.movement.answered = self._tally(job.target).end(ended, told, streams=streams)

    def _settle(self, job: Job, ended: Ended, brought: Brought) -> None:
        job.movement.block_tokens = self._engines.block_tokens(job.target)
        job.movement.brought(ended, brought)

    def _count(self, job: Job, why: str | None) -> None:
        """A transfer that did not end well, in the books of its pair; `why` None: without evidence."""
        if why is None:
            self._pairs.let_go(job.source, job.target, probe=job.probe)
        else:
            self._pairs.failed(job.source, job.target, why, probe=job.probe)

    def _release(self, job: Job) -> None:
        """Have the source's blocks freed, in the background."""
        kept, job.kept = job.kept, None
        if kept is not None:
            self._errand(free(self._engines, job, kept))

    # what there is
    def _endpoint(self, instance: str) -> KvEndpoint | None:
        spec = self._specs.get(instance)
        return spec.transfer if spec is not None else None

    def _tally(self, instance: str) -> Tally | Uncounted:
        if instance not in self._tallies:
            counted = Tally(partial(self._engines.counters, instance), self._clock)
            self._tallies[instance] = counted if self._rules.count else Uncounted()
        return self._tallies[instance]

    def _errand(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task


def _new_id() -> str:
    return f"kv-{uuid.uuid4().hex}"


def _tell(movement: Movement, done: Done) -> None:
    if not movement.over:
        movement.over = True
        done(movement)
