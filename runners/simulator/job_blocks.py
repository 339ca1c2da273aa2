"""The KV blocks of one request: those it finds cached, takes as it computes, and leaves at its end or preemption."""

from __future__ import annotations

from collections.abc import Sequence

from runners.simulator.job import Job
from runners.simulator.kv_blocks import KvBlocks


def count_blocks(blocks: KvBlocks, tokens: int) -> int:
    return -(-tokens // blocks.block_tokens)


def count_blocks_ahead(blocks: KvBlocks, decoding: Sequence[Job], steps: int) -> int:
    """Blocks that these requests need for `steps` more tokens each, beyond the blocks they have."""
    size = blocks.block_tokens
    return sum(-(-(job.computed + steps) // size) - len(job.named) - job.anonymous for job in decoding)


def find_cached(blocks: KvBlocks, job: Job) -> Sequence[int]:
    """The keys of its cached prefix. The last token is computed in any case: it gives the next one."""
    most = (job.tokens - 1) // blocks.block_tokens
    return job.keys[: min(blocks.match(job.keys), most)]


def take_prompt(blocks: KvBlocks, job: Job) -> bool:
    """Give a request whose KV comes from another engine blocks for its prompt. False = there is not room."""
    cached = find_cached(blocks, job)
    lacking = count_blocks(blocks, job.tokens) - len(cached)
    if lacking + blocks.count_idle(cached) > blocks.free:
        return False
    blocks.use(cached)
    blocks.take(lacking)
    job.named, job.anonymous = list(cached), lacking
    job.computed = len(cached) * blocks.block_tokens
    return True


def take_first(blocks: KvBlocks, job: Job, budget: int) -> int:
    """Give a waiting request its cached prefix and blocks for as much of the rest as the budget allows.

    Returns the tokens to compute; 0 = there is not room for all that it has to compute, as vLLM asks of one that it
    admits.
    """
    if job.named or job.anonymous:  # its KV came from another engine, into blocks that it has
        return min(job.tokens - job.computed, budget)
    size = blocks.block_tokens
    cached = find_cached(blocks, job)
    own = _count_own(blocks, job, len(cached))
    held = len(cached) + own
    new = min(job.tokens - held * size, budget)
    lacking = count_blocks(blocks, job.tokens) - held
    if lacking + own + blocks.count_idle(cached) > blocks.free:
        return 0
    blocks.use(cached)
    blocks.reclaim(job.left, own)
    job.named, job.anonymous, job.left = list(cached), own, 0
    job.computed = held * size
    if not job.preemptions:
        job.cached_tokens = job.computed
    take_more(blocks, job, new)
    return new


def _count_own(blocks: KvBlocks, job: Job, cached: int) -> int:
    """Blocks behind its keys that it computed before it was preempted, and finds again."""
    if not job.left or cached < len(job.keys):
        return 0
    most = (job.tokens - 1) // blocks.block_tokens - cached
    return min(blocks.count_left(job.left), most)


def take_more(blocks: KvBlocks, job: Job, new: int) -> bool:
    """Blocks for `new` more tokens; False = there are not enough."""
    size = blocks.block_tokens
    lacking = -(-(job.computed + new) // size) - len(job.named) - job.anonymous
    if lacking > 0:
        if not blocks.take(lacking):
            return False
        job.anonymous += lacking
    if job.computed < len(job.keys) * size:
        name_blocks(blocks, job, job.computed + new)
    return True


def name_blocks(blocks: KvBlocks, job: Job, computed: int) -> None:
    """Prompt blocks that are full at the end of this step can be found from now on."""
    size = blocks.block_tokens
    named = blocks.name(job.keys[job.computed // size : computed // size])
    job.named += named
    job.anonymous -= len(named)


def free_blocks(blocks: KvBlocks, job: Job) -> int:
    """Returns as `KvBlocks.release`."""
    full = max(job.computed // blocks.block_tokens, len(job.named))
    partial = max(0, len(job.named) + job.anonymous - full)
    left = blocks.release(job.named, job.anonymous - partial, partial)
    job.named, job.anonymous = [], 0
    return left


def leave_blocks(blocks: KvBlocks, job: Job) -> None:
    """It is preempted: what it computed may be found again, until the places are needed."""
    has_all_keys = len(job.named) == len(job.keys)
    left = free_blocks(blocks, job)
    job.left = left if has_all_keys else 0
    job.computed = 0
