"""A model of one engine: continuous batching with chunked prefill, a token budget, a prefix cache and preemption.

It schedules as vLLM's V1 scheduler does: those that run come first, in the order in which they were admitted, each with
what it lacks, as far as the token budget of the step goes; then those that wait, the first come first or by priority.
Where no block is free, the last of them is preempted and computed again later. A prompt is cached as soon as it is
scheduled. A request whose KV comes from another engine takes the blocks of its prompt before the KV comes, and the
request that computed it there keeps its blocks until they have been read.
Steps in which the same sequences decode and nothing else can happen are taken at once; an arrival cuts that short at
the end of the step in which it comes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from results.records.simulation_spec import EngineModel
from runners.simulator.clock import HeapTimer, SimulatedClock
from runners.simulator.job import Job, PromptTally
from runners.simulator.job_blocks import (
    count_blocks,
    count_blocks_ahead,
    free_blocks,
    leave_blocks,
    name_blocks,
    take_first,
    take_more,
    take_prompt,
)
from runners.simulator.kv_blocks import KvBlocks
from runners.simulator.step_time import (
    STEADY,
    Noise,
    SharedCores,
    StepWork,
    predict_decode_s,
    predict_step_s,
    prefill_context,
)


class Engine:
    """One engine under a simulated clock."""

    def __init__(
        self,
        model: EngineModel,
        block_tokens: int,
        clock: SimulatedClock,
        *,
        jumps: bool = True,
        noise: Noise = STEADY,
        cores: SharedCores | None = None,
    ) -> None:
        """`jumps`: take decode steps in which nothing else can happen at once; without, the same slower.

        `cores`: of all engines of a host, which slow each other step by step; None = they are its own.
        """
        self.model = model
        self.blocks = KvBlocks(max(1, model.kv_capacity_tokens // block_tokens), block_tokens)
        self.steps = 0
        self.computed_tokens = 0
        """Prompt tokens computed, those again after a preemption included."""
        self.prompts = PromptTally()
        self._clock = clock
        self._noise = noise
        self._cores = cores or SharedCores(0.0)
        self._jumps = jumps and not self._cores.share
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._pulling: set[Job] = set()
        """They have blocks, and wait for KV from another engine."""
        self._ready: deque[Job] = deque()
        """Their KV has come; they are admitted before those that wait, who may need the blocks that they hold."""
        self._retained: set[Job] = set()
        """They have ended, and keep their blocks for another engine."""
        self._ended: list[Job] = []
        """With async scheduling: they ended after the step that begins now was scheduled, so that in it they still
        count among those that run, and hold their blocks."""
        self._blocked: tuple[Job, int] | None = None
        """The last one that was first in line and found no room, and the pool's gains by then."""
        self._jobs = self._admissions = 0
        self._batch: list[tuple[Job, int]] = []
        self._timer: HeapTimer | None = None
        self._began_ns = 0
        self._stride = 0
        """Steps that end together at the timer; 0 = none is under way."""
        self._slowdown = 1.0
        """By how much these steps take longer because of other engines."""
        self._work = StepWork(0, 0.0, 0, 0)
        """Work of the first of them."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._pulling) + len(self._ready)

    def can_hold(self, input_tokens: int, output_tokens: int) -> bool:
        """Whether such a request fits the KV cache at all."""
        return count_blocks(self.blocks, input_tokens + output_tokens) <= self.blocks.capacity

    def submit(self, job: Job) -> None:
        """A request comes. Raises ValueError for one that can never be served."""
        if job.input_tokens < 1 or job.output_tokens < 1 or not self.can_hold(job.input_tokens, job.output_tokens):
            raise ValueError(f"{job.input_tokens} + {job.output_tokens} tokens do not fit this engine")
        self._jobs += 1
        job.number = self._jobs
        if self.model.frontend_s:
            self._clock.call_later(self.model.frontend_s, lambda: self._queue(job))
        else:
            self._queue(job)

    def cancel(self, job: Job) -> None:
        """The request is not wanted any more: its blocks are free at once, what the step under way computes is lost."""
        job.is_cancelled = True
        for jobs in (self._waiting, self._pulling, self._ready, self._running, self._retained):
            if job in jobs:  # in none where it has ended, or has not come so far
                self._settle_steps()
                jobs.remove(job)
                free_blocks(self.blocks, job)
                self._wake()
        self._batch = [(one, new) for one, new in self._batch if one is not job]

    def resume(self, job: Job) -> None:
        """The KV of its prompt has come: all but the last token need not be computed."""
        self._settle_steps()  # what they took is not cached any more
        self._pulling.remove(job)
        job.external_tokens = job.input_tokens - job.computed
        name_blocks(self.blocks, job, job.input_tokens)
        job.computed = job.cached_tokens = job.input_tokens - 1
        job.queued_ns = self._clock.now_ns()
        self._ready.append(job)
        self._wake()

    def release(self, job: Job) -> None:
        """Free the blocks that an ended request retains; again without effect."""
        if job in self._retained:
            self._settle_steps()
            self._retained.remove(job)
            free_blocks(self.blocks, job)
            self._wake()

    def _queue(self, job: Job) -> None:
        if job.is_cancelled:
            return
        job.queued_ns = self._clock.now_ns()
        if self.model.scheduling == "priority":
            self._insert_by_rank(job)
        else:
            self._waiting.append(job)
        self._wake()

    def _insert_by_rank(self, job: Job) -> None:
        self._waiting.insert(bisect_right(self._waiting, job.rank, key=lambda one: one.rank), job)

    def _wake(self) -> None:
        """Something has changed: schedule again, after the step under way or with whatever else comes now."""
        if self._stride:
            self._cut_stride()
        else:
            self._clock.call_soon(self._begin_step)

    # a step
    def _begin_step(self, seen_ns: int | None = None) -> None:
        """`seen_ns`: this step was scheduled then, and who came later has to wait for the next; None = now."""
        if self._stride:
            return
        preempted, delayed = self._schedule_running(), False
        while preempted and self._running and not self._batch:  # the one that gave way was to be the first of the step
            preempted = self._schedule_running()
        if not (preempted and self._batch):
            delayed = self._admit_waiting(self._clock.now_ns() if seen_ns is None else seen_ns)
        if not self._batch:
            return
        self._work = self._measure_work()
        self._stride = 1
        if self._jumps and not (preempted or delayed or self._ended or self._work.prefill_tokens):
            self._stride = self._find_stride([job for job, _ in self._batch])
        self._began_ns = self._clock.now_ns()
        self._slowdown = self._cores.begin_step()
        self._timer = self._clock.call_at(self._began_ns + self._predict_stride_ns(self._stride), self._end_step)

    def _measure_work(self) -> StepWork:
        """Work of the batch as it is scheduled."""
        decode_sequences = decode_context = prefill_tokens = 0
        attended = 0.0
        for job, new in self._batch:
            if new == 1 and job.is_decoding:
                decode_sequences += 1
                decode_context += job.computed
            else:
                prefill_tokens += new
                attended += prefill_context(job.computed, new)
        return StepWork(prefill_tokens, attended, decode_sequences, decode_context)

    def _schedule_running(self) -> bool:
        """Give each running request what it lacks; returns whether one had to be preempted."""
        budget, position, preempted = self.model.max_batched_tokens, 0, False
        while position < len(self._running) and budget:
            job = self._running[position]
            new = min(job.tokens - job.computed, budget)
            while not take_more(self.blocks, job, new):
                preempted = True
                victim = self._find_victim()
                if victim in self._ended:
                    self._ended.remove(victim)
                    free_blocks(self.blocks, victim)
                    continue
                index = self._running.index(victim)
                del self._running[index]
                if index < position:  # it was scheduled for this step already
                    budget += self._batch.pop(index)[1]
                    position -= 1
                self._preempt(victim)
                if victim is job:
                    return True
            self._batch.append((job, new))
            budget -= new
            position += 1
        return preempted

    def _find_victim(self) -> Job:
        """With async scheduling it may be one that has ended, which vLLM does not know yet."""
        ended = [job for job in self._ended if not job.retains]
        if self.model.scheduling == "priority":
            return max((*self._running, *ended), key=lambda job: job.rank)
        return max((self._running[-1], *ended), key=lambda job: job.admission)

    def _admit_waiting(self, seen_ns: int) -> bool:
        """Admit whom there is room for; returns whether one waits only because it came after `seen_ns`."""
        if not (self._ready or self._waiting):
            return False
        budget = self.model.max_batched_tokens - sum(new for _, new in self._batch)
        while budget and len(self._running) + len(self._ended) < self.model.max_sequences:
            line = self._ready if self._ready and self._ready[0].queued_ns <= seen_ns else self._waiting
            job = next((one for one in line if one.queued_ns <= seen_ns), None)
            if job is None or self._is_blocked(job):
                break
            if job.on_allocated is not None:
                if not self._allocate_prompt(job):
                    self._blocked = job, self.blocks.gains
                    break
                continue
            new = take_first(self.blocks, job, budget)
            if not new:
                self._blocked = job, self.blocks.gains
                break
            line.remove(job)
            self._admissions += 1
            job.admission = self._admissions
            self._running.append(job)
            self._batch.append((job, new))
            budget -= new
        else:
            return False
        line = self._ready or self._waiting
        return bool(line) and line[0] is not job

    def _is_blocked(self, job: Job) -> bool:
        """It found no room, and nothing has changed since that could give it some: its prompt is not matched again."""
        return self._blocked == (job, self.blocks.gains)

    def _allocate_prompt(self, job: Job) -> bool:
        """Give a request whose KV comes from elsewhere blocks for its prompt, and have it wait for that.

        False = there is not room.
        """
        if not take_prompt(self.blocks, job):
            return False
        self._waiting.remove(job)
        self._pulling.add(job)
        notify, job.on_allocated = job.on_allocated, None
        assert notify is not None
        notify()
        return True

    def _count_prompt(self, job: Job) -> None:
        external = min(job.external_tokens, job.cached_tokens)
        self.prompts.computed += job.input_tokens - job.cached_tokens
        self.prompts.cached += job.cached_tokens - external
        self.prompts.external += external

    def _preempt(self, job: Job) -> None:
        leave_blocks(self.blocks, job)
        job.preemptions += 1
        if self.model.scheduling == "priority":
            self._insert_by_rank(job)
        else:
            self._waiting.appendleft(job)

    # steps taken at once
    def _find_stride(self, decoding: Sequence[Job]) -> int:
        """How many steps in a row differ in nothing but their context: until one ends, or a block cannot be had."""
        low, high = 1, min(job.output_tokens - job.generated for job in decoding)
        free = self.blocks.free
        if len(decoding) * count_blocks(self.blocks, high) <= free:  # none takes more: there is no need to count
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if count_blocks_ahead(self.blocks, decoding, middle) <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def _predict_stride_ns(self, steps: int) -> int:
        """From the begin of the step under way to the end of the last of `steps`.

        A request that is cancelled meanwhile makes it no shorter.
        """
        work, step = self._work, self.model.step
        pace = self._noise.find_factor(steps) * self._slowdown
        if steps == 1:
            return round(1e9 * pace * predict_step_s(step, work))
        return round(1e9 * pace * predict_decode_s(step, steps, work.decode_sequences, work.decode_context))

    def _cut_stride(self) -> None:
        """Something has come: the steps taken at once end with the one under way now."""
        if self._stride <= 1:
            return
        assert self._timer is not None
        passed_ns, span_ns = self._clock.now_ns() - self._began_ns, self._timer.at_ns - self._began_ns
        guess = -(-self._stride * passed_ns // max(1, span_ns))  # steps take about as long as one another
        low, high = 1, self._stride
        for steps in (guess, guess - 1, guess + 1):
            if low <= steps < high:
                low, high = (low, steps) if self._predict_stride_ns(steps) >= passed_ns else (steps + 1, high)
        while low < high:
            middle = (low + high) // 2
            if self._predict_stride_ns(middle) >= passed_ns:
                high = middle
            else:
                low = middle + 1
        self._timer.cancel()
        self._stride = low
        self._timer = self._clock.call_at(self._began_ns + self._predict_stride_ns(low), self._end_step)

    def _settle_steps(self) -> None:
        """End those steps taken at once that are over: they did without blocks that are freed now."""
        self._cut_stride()
        ended_steps = self._stride - 1
        if ended_steps < 1:
            return
        self._began_ns += self._predict_stride_ns(ended_steps)
        for job, _ in self._batch:
            take_more(self.blocks, job, ended_steps + 1)
            job.computed += ended_steps
            job.generated += ended_steps
        self.steps += ended_steps
        self._noise.pass_steps(ended_steps)
        self._stride, self._work = 1, self._measure_work()

    def _end_step(self) -> None:
        stride, batch = self._stride, self._batch
        seen_ns = self._find_last_begin() if self.model.async_scheduling else None
        self._stride, self._batch, self._timer = 0, [], None
        self._noise.pass_steps(stride)
        self._cores.end_step()
        self.steps += stride
        begun, ended = self._give_tokens(batch, stride)
        for job in ended:
            self._end_job(job)
        for job in begun:
            self._count_prompt(job)
            job.on_first()
        for job in ended:
            job.on_end()
        if seen_ns is not None:  # it was scheduled while these ran, and without who has come since
            self._begin_step(seen_ns)
            self._free_ended()
        self._begin_step()

    def _give_tokens(self, batch: Sequence[tuple[Job, int]], steps: int) -> tuple[list[Job], list[Job]]:
        """Those that have their first token, and those that have their last one."""
        begun: list[Job] = []
        ended: list[Job] = []
        for job, new in batch:
            if new == 1 and job.is_decoding:
                if steps > 1:
                    take_more(self.blocks, job, steps)
                job.computed += steps
                job.generated += steps
            else:
                self.computed_tokens += new
                job.computed += new
                if job.computed < job.tokens:
                    continue
                job.generated += 1
                if job.generated == 1:
                    begun.append(job)
            if job.generated == job.output_tokens:
                ended.append(job)
        return begun, ended

    def _find_last_begin(self) -> int:
        """When the last of the steps under way began."""
        return self._began_ns + (self._predict_stride_ns(self._stride - 1) if self._stride > 1 else 0)

    def _end_job(self, job: Job) -> None:
        self._running.remove(job)
        if job.retains:
            self._retained.add(job)
        if self.model.async_scheduling:
            self._ended.append(job)
        elif not job.retains:
            free_blocks(self.blocks, job)

    def _free_ended(self) -> None:
        for job in self._ended:
            if not job.retains:
                free_blocks(self.blocks, job)
        self._ended.clear()
