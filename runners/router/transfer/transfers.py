"""Moves KV between instances for the router: one task per movement, one migration at a time to a target.

Migration: a prefill request makes the session's instance retain the blocks of its prefix, and a decode request of the
same prefix pulls them into the target's cache; then the client's request goes to the target unchanged. If the transfer
fails, the target computes the prefix. Handover: the prefill request carries the client's whole prompt, and the client's
request is the decode request.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from results.records.decisions import KvTransfer
from results.records.router_spec import InstanceSpec, TransferRules
from runners.router.driver import Driver
from runners.router.instances.upstream import Pool
from runners.router.reporting import Report, ignore_event
from runners.router.transfer.accounting import TransferAccounting
from runners.router.transfer.counters import Attribution, TargetAnswer
from runners.router.transfer.engines import Engines, StepFailed, read_beside_loop
from runners.router.transfer.move_rules import Admission, MoveRules
from runners.router.transfer.movement import NOT_SERVED, Movement, MoveRequest
from runners.router.transfer.request_bodies import (
    ClientRequest,
    Unfit,
    add_pull_params,
    make_handover_prefill_body,
    make_prefix_body,
    read_movable_request,
    read_request,
    require_one_prefill,
)
from runners.router.transfer.steps import (
    PATH,
    Done,
    Job,
    free_blocks,
    make_request_headers,
    pull_params,
    select_authorization_lines,
    send_decode_request,
    send_prefill_request,
)
from runners.router.transfer.transports import TRANSPORTS

CLOSE_S = 1.0
QUIET_S = 0.25
"""Longest wait of a transfer until the tokens of the previous one are counted."""


class Unneeded(Exception):
    """The target already holds nearly all tokens that could be moved."""


class Transfers:
    """The KV transport of one router."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        specs: Mapping[str, InstanceSpec],
        rules: TransferRules,
        driver: Driver,
        report: Report = ignore_event,
    ) -> None:
        self.now_ns = driver.now_ns
        self.rules = MoveRules(specs, rules, driver.now_s, report)
        self._engines = Engines(pools, specs, rules.timeout_s)
        self._settings = rules
        self._driver = driver
        self._accounts: dict[str, TransferAccounting] = {}
        self._jobs: dict[Movement, Job] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def timeout_s(self) -> float:
        """From a handover's decode request to the first byte of its answer; then the target computes the prompt."""
        return self._settings.timeout_s

    @property
    def is_configured(self) -> bool:
        return self.rules.is_configured

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        return self.rules.cut_off(source, targets)

    def list_quarantined(self) -> Mapping[tuple[str, str], str]:
        """The quarantined pairs (source, target), with reasons."""
        return self.rules.pairs.list_quarantined()

    def start_movement(self, move: MoveRequest, done: Done) -> Movement:
        """Start a movement; `done` is called at its end, never before this returns.

        Migration: move the source's prefix of the prompt to the target. Handover: make the source compute the prompt;
        the movement's body is the decode request.
        """
        source, target, message = move.source, move.target, move.message
        endpoint, why = self.rules.endpoint_of(source), self.rules.explain_refusal(source, target, move.purpose)
        transport = "" if endpoint is None else endpoint.transport
        transfer = KvTransfer(_make_id(), move.purpose, transport, source, target, "failed")
        movement = Movement(self, transfer, message.body)
        movement.block_tokens = self._engines.block_tokens(target)
        if endpoint is not None:
            movement.kv_bytes_per_token = endpoint.kv_bytes_per_token
        if why or endpoint is None:
            self._refuse_movement(movement, why)
            self._driver.call_soon(partial(_finish_movement, movement, done))
            return movement
        run = self._run_migration if move.purpose == "migration" else self._hand_over
        admission = self.rules.admit_transfer(source, target, move.purpose)
        job = Job(
            movement, admission, TRANSPORTS[transport], endpoint, select_authorization_lines(message.headers), done
        )
        self._jobs[movement] = job
        job.task = asyncio.get_running_loop().create_task(self._run_job(job, partial(run, move)))
        job.task.add_done_callback(partial(self._end_cancelled, job))
        return movement

    def forget_process(self, instance: str) -> None:
        """The instance may be a new process: drop what its engine reported."""
        self._engines.forget_instance(instance)
        if instance in self._accounts:
            self._accounts[instance].forget_counters()

    def recover_instance(self, instance: str) -> None:
        """The instance answers (again): its pairs may be probed at once."""
        self.forget_process(instance)
        self.rules.recover_instance(instance)
        if self.rules.endpoint_of(instance) is not None:
            self._run_in_background(self._find_account(instance).refresh_counters())

    def remove_instance(self, instance: str) -> None:
        """Drop an instance that is removed from the router; no request waits for it."""
        self.forget_process(instance)
        for job in self._jobs.values():
            if job.target == instance and job.movement.over and job.task is not None:
                job.task.cancel()  # its connection was dropped without a notification
        self.rules.remove_instance(instance)
        if instance in self._accounts and self._accounts[instance].is_quiet:
            del self._accounts[instance]

    async def close(self) -> None:
        """Cancel all transfers, then free retained blocks and read the counters of ended ones, for CLOSE_S each."""
        moving = [job.task for job in self._jobs.values() if job.task is not None]
        for task in moving:
            task.cancel()
        await asyncio.gather(*moving, return_exceptions=True)
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_S)
        background = tuple(self._background)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await asyncio.gather(*(account.close(CLOSE_S) for account in self._accounts.values()))
        self._engines.close()

    # the outcome of a movement's request
    def abandon_movement(self, movement: Movement) -> None:
        job = self._jobs.get(movement)
        if job is None or job.pulling:
            return
        if job.task is not None:
            job.task.cancel()
        else:
            self._end_handover(job)
            self._find_account(job.target).fail_transfer()
            self.rules.count_end(job.admission)

    def serve_handover(self, movement: Movement) -> None:
        job = self._end_handover(self._jobs[movement])
        self._note_arrival(job, TargetAnswer(job.prompt_tokens, None), streams=True)

    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        job = self._end_handover(self._jobs[movement])
        movement.change_transfer(t_done_ns=self.now_ns())
        self.rules.count_end(job.admission, why=movement.transfer.reason if strike else None)
        if strike:
            self._engines.forget_instance(job.source)
        if not freed:
            self._free_source(job)
        self._find_account(job.target).fail_transfer()
        movement.settle_transfer("the transfer failed")

    def _end_handover(self, job: Job) -> Job:
        job.movement.open = False
        self._drop_job(job)
        return job

    # beginning and end
    async def _run_job(self, job: Job, work: Callable[[Job], Awaitable[None]]) -> None:
        movement, why, strike = job.movement, "", True
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await work(job)
        except (Unneeded, Unfit) as error:
            self._refuse_movement(movement, str(error), "unneeded" if isinstance(error, Unneeded) else "refused")
            strike = False
        except StepFailed as error:
            why, strike = str(error), error.strike
        except TimeoutError:
            why, strike = f"not done within {self._settings.timeout_s:g} s", movement.transfer.attempts > 0
        except Exception as error:  # noqa: BLE001  (a request waits for this and must continue on any error)
            why, strike = f"{type(error).__name__}: {error}", False
        job.task = None
        if not movement.open:
            self._drop_job(job)
        if why:
            movement.change_transfer(reason=why, t_done_ns=self.now_ns())
            movement.settle_transfer("the transfer failed")
            self._free_source(job)
        if why or not strike:
            self.rules.count_end(job.admission, why=why if strike else None)
        _finish_movement(movement, job.done)

    def _end_cancelled(self, job: Job, task: asyncio.Task[None]) -> None:
        """Clean up a job that was abandoned before its decode request, possibly before it began."""
        if task.cancelled():
            self._drop_job(job)
            self._free_source(job)
            self.rules.count_end(job.admission)

    def _drop_job(self, job: Job) -> None:
        self._jobs.pop(job.movement, None)
        self.rules.finish_transfer(job.admission)

    def _refuse_movement(
        self, movement: Movement, why: str, status: Literal["refused", "unneeded"] = "refused"
    ) -> None:
        movement.change_transfer(status=status, reason=why, t_done_ns=self.now_ns())
        movement.settle_transfer("nothing was transferred")

    # the two kinds
    async def _run_migration(self, move: MoveRequest, job: Job) -> None:
        path = move.message.path.decode("latin-1")
        asked = await read_beside_loop(partial(read_movable_request, path), move.message.body)
        ids = asked.ids or await self._engines.tokenize_prompt(job.target, make_request_headers(job), asked)
        block = self._engines.block_tokens(job.source) or 1
        prefix = self.rules.find_movable_prefix(move.request, job.source, job.target, len(ids), block)
        tokens = prefix.source_tokens
        job.movement.change_transfer(prefix_tokens=tokens)
        if not self.rules.is_worth_moving(prefix):
            lacking = max(0, prefix.lacking_tokens)
            raise Unneeded(f"nothing to move: of {tokens} tokens the target lacks {lacking}")
        async with self._wait_turn(job.admission):
            await self._retry_attempt(job, partial(self._move_prefix, job, asked, ids[:tokens]))

    async def _move_prefix(self, job: Job, asked: ClientRequest, prefix: tuple[int, ...]) -> None:
        account, priority = self._find_account(job.target), self._settings.priority
        reading = self._run_in_background(account.refresh_counters())
        await send_prefill_request(
            self._engines, job, PATH, partial(make_prefix_body, asked, prefix, priority=priority)
        )
        assert job.retained is not None
        await asyncio.wait((reading,), timeout=QUIET_S)
        await account.wait_until_quiet(QUIET_S)
        body = make_prefix_body(asked, prefix, await pull_params(self._engines, job, job.retained), priority)
        retained, job.retained, job.pulling = job.retained, None, True
        account.begin_transfer()
        try:
            answer = await send_decode_request(self._engines, job, body)
            if answer.cached_tokens == 0 and len(prefix) > 1:
                raise StepFailed("no KV came: the target has computed the prefix", strike=True)
        except StepFailed as error:
            account.fail_transfer()
            job.retained = None if error.frees else retained
            raise
        except asyncio.CancelledError:
            account.fail_transfer()
            raise
        finally:
            job.pulling = False
        self._note_arrival(job, TargetAnswer(len(prefix), answer.cached_tokens))

    async def _hand_over(self, move: MoveRequest, job: Job) -> None:
        message = move.message
        path = message.path.decode("latin-1")
        asked = await read_beside_loop(partial(read_request, path), message.body)
        require_one_prefill(asked)
        account = self._find_account(job.target)
        reading = self._run_in_background(account.refresh_counters())
        body = partial(make_handover_prefill_body, asked)
        await self._retry_attempt(job, partial(send_prefill_request, self._engines, job, path, body))
        assert job.retained is not None
        await asyncio.wait((reading,), timeout=QUIET_S)
        movement = job.movement
        movement.body = add_pull_params(message.body, await pull_params(self._engines, job, job.retained))
        movement.open = True
        account.begin_transfer()
        movement.change_transfer(prefix_tokens=job.prompt_tokens or 0, reason=NOT_SERVED)

    @contextlib.asynccontextmanager
    async def _wait_turn(self, admission: Admission) -> AsyncIterator[None]:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rules.take_turn(admission, partial(_set_ready, ready))
        try:
            await ready
            yield
        finally:
            self.rules.end_turn(admission)

    async def _retry_attempt(self, job: Job, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Try until it succeeds, cannot be retried, or the attempts are used up. Raises StepFailed."""
        for number in range(1, self._settings.attempts + 1):
            job.movement.change_transfer(
                attempts=number, transfer=_make_id() if number > 1 else job.movement.transfer.transfer
            )
            try:
                await attempt()
                return
            except StepFailed as error:
                self._engines.forget_instance(job.source)
                self._free_source(job)
                if not error.retryable or number == self._settings.attempts or job.movement.over:
                    raise

    def _note_arrival(self, job: Job, answer: TargetAnswer, *, streams: bool = False) -> None:
        """The target has answered its decode request, or begins to (`streams`)."""
        job.movement.change_transfer(status="transferred", reason="", t_done_ns=self.now_ns())
        self.rules.count_end(job.admission, succeeded=True)
        settle = partial(self._settle_movement, job, answer)
        job.movement.on_answer_end = self._find_account(job.target).end_transfer(answer, settle, streams=streams)

    def _settle_movement(self, job: Job, answer: TargetAnswer, attribution: Attribution) -> None:
        job.movement.block_tokens = self._engines.block_tokens(job.target)
        job.movement.attribute_tokens(answer, attribution)

    def _free_source(self, job: Job) -> None:
        retained, job.retained = job.retained, None
        if retained is not None:
            self._run_in_background(free_blocks(self._engines, job, retained))

    def _find_account(self, instance: str) -> TransferAccounting:
        if instance not in self._accounts:
            fetch = partial(self._engines.fetch_counters, instance) if self._settings.count else None
            self._accounts[instance] = TransferAccounting(fetch, self._driver.now_s)
        return self._accounts[instance]

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _make_id() -> str:
    return f"kv-{uuid.uuid4().hex}"


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _finish_movement(movement: Movement, done: Done) -> None:
    if not movement.over:
        movement.over = True
        done(movement)
