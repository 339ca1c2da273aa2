"""What the prefix caches of both engines hold: aged, emptied, seeded with C tokens, and seen to hold exactly those.

specs/pd_lifecycle, "Setup: Warm D's Prefix Cache" and "D-Side Cache Verification". An engine is asked by plain
requests of one token, and its own count of cached prompt tokens is the answer: KV usage falls to zero when an engine is
idle, and hit rates are of all requests together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from runners.errors import CellFailed
from runners.sampler import MetricsText

POLL_S = 0.05
EMPTY_WITHIN_S = 10.0
"""Blocks that are still being sent cannot be dropped: it is asked again for so long."""
SEED_TRIES = 3
FRESH_TOKENS = 8
"""Follow the prefix in a request that asks what is held: they fill no block, so it leaves nothing behind."""
AGE_PIECE_TOKENS, AGE_PIECES = 128, 16
"""A pool is aged by prompts of 1 to AGE_PIECES pieces of at least so many tokens."""
AGE_STEP = 7
"""Prime to AGE_PIECES: the lengths come mixed, and each as often as the others."""
AGE_AT_A_TIME = 4
"""Of an engine's: prompts that end in another order than they began mix the free blocks."""


class NotEmptied(CellFailed):
    """An engine's prefix cache cannot be emptied while it lives."""


@dataclass(frozen=True, slots=True)
class Held:
    """What each engine had of a prefix, by its own count, in tokens."""

    prefill: int
    decode: int


@dataclass(frozen=True, slots=True)
class Seeding:
    """How the caches came to hold a prefix: a row of the cell's record."""

    prior_context: int
    emptied: str
    """How they were emptied before, and what showed it."""
    tries: int
    held: Held
    t_unix_s: float


@dataclass(frozen=True, slots=True)
class Aged:
    """What was sent through each engine's KV pool while it was new; `reason`: why nothing was."""

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    reason: str = ""


class EngineCache:
    """The prefix cache of one engine, through its HTTP API."""

    def __init__(self, name: str, client: httpx.AsyncClient, model: str, timeout_s: float) -> None:
        self.name = name
        self._client = client
        self._model = model
        self._timeout_s = timeout_s
        self._text = MetricsText()

    async def compute(self, tokens: Sequence[int]) -> int:
        """Have the prompt computed, with one token generated; returns how much of it was cached.

        Raises CellFailed where the engine does not answer, or does not say.
        """
        body = {
            "model": self._model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = await self._post("/v1/completions", body)
        usage: dict[str, Any] = answer.json().get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None:
            raise CellFailed(f"the {self.name} engine does not say how many prompt tokens were cached")
        return int(cached)

    async def empty(self) -> None:
        """Drop all it holds. Raises NotEmptied where it does not."""
        deadline = time.monotonic() + EMPTY_WITHIN_S
        while True:
            answer = await self._post("/reset_prefix_cache", None)
            if _reset(answer):
                return
            if time.monotonic() > deadline:
                raise NotEmptied(
                    f"the {self.name} engine's prefix cache is not emptied within {EMPTY_WITHIN_S:g} s: "
                    f"{answer.status_code} {answer.text[:200]}"
                )
            await asyncio.sleep(POLL_S)

    async def metrics(self) -> Mapping[str, float]:
        """The samples of its metrics page. Raises CellFailed where it does not answer."""
        try:
            page = (await self._client.get("/metrics", timeout=self._timeout_s)).text
            return self._text.values(page)
        except (httpx.HTTPError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise CellFailed(f"the {self.name} engine's /metrics cannot be read: {why}") from error

    async def _post(self, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            answer = await self._client.post(path, json=body, timeout=self._timeout_s)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise CellFailed(f"the {self.name} engine does not answer {path}: {why}") from error
        if answer.status_code != 200:
            text = " ".join(answer.text.split())[:300]
            raise CellFailed(f"the {self.name} engine answers {path} with {answer.status_code}: {text}")
        return answer


class Caches:
    """Both engines' prefix caches. At a time they hold one prefix of C tokens, and what was sent since."""

    def __init__(
        self, engines: tuple[EngineCache, EngineCache], block_tokens: int, fresh: Callable[[int], list[int]]
    ) -> None:
        """The prefill engine's and the decode engine's; `fresh` draws so many tokens that no request had before."""
        self._engines = engines
        self._block_tokens = block_tokens
        self._fresh = fresh
        self._prefix: list[int] | None = None
        self._sent: list[int] = []
        """The beginning of a prompt that was sent: gone when the caches are empty."""
        self._emptied = "fresh engines"

    @property
    def used(self) -> bool:
        """They were seeded before, with whatever C."""
        return self._prefix is not None

    def seeded(self, prior_context: int) -> bool:
        """The last prefix they were seeded with has so many tokens."""
        return self._prefix is not None and len(self._prefix) == prior_context

    @property
    def prefix(self) -> list[int]:
        """The tokens that both hold."""
        return self._prefix or []

    async def age(self, capacity_tokens: int) -> Aged:
        """Send random prompts of many lengths through both engines until each has filled its pool once.

        A new engine hands its blocks out in their order, and moves neighbouring ones in one operation; a used one does
        not. Raises CellFailed.
        """
        t_s, piece, tokens = time.monotonic(), max(AGE_PIECE_TOKENS, self._block_tokens), 0
        prompts: list[list[int]] = []
        while tokens < capacity_tokens:
            prompts.append(self._fresh(piece * (1 + AGE_STEP * len(prompts) % AGE_PIECES)))
            tokens += len(prompts[-1])
        await _both([_each(engine, prompts) for engine in self._engines])
        self.sent(max(prompts, key=len, default=[]))
        return Aged(len(prompts), tokens, time.monotonic() - t_s)

    async def metrics(self) -> list[Mapping[str, float]]:
        """The prefill engine's metrics page, then the decode engine's. Raises CellFailed."""
        return await _both([engine.metrics() for engine in self._engines])

    async def empty(self) -> None:
        """Drop what both hold, and see by their counts that it is gone. Raises NotEmptied, or CellFailed."""
        await _both([engine.empty() for engine in self._engines])
        self._prefix = None
        self._emptied = "POST /reset_prefix_cache"
        sample = self._sent[: 2 * self._block_tokens]
        if len(sample) <= self._block_tokens:
            return
        left = await _both([engine.compute(sample) for engine in self._engines])
        for engine, tokens in zip(self._engines, left, strict=True):
            if tokens:
                raise NotEmptied(f"the {engine.name} engine still holds {tokens} tokens of a prompt after it was reset")
        self._emptied += f", then 0 of {len(sample)} tokens of an earlier prompt were cached"

    async def seed(self, prefix: list[int]) -> Seeding:
        """Have both engines compute the prefix, until both say that they hold all of it.

        Raises CellFailed where they do not hold it after SEED_TRIES.
        """
        self._prefix = prefix
        self._sent = prefix or self._sent
        for number in range(1, SEED_TRIES + 1):
            if prefix:
                await _both([engine.compute(prefix) for engine in self._engines])
            held = await self.held()
            if held == Held(len(prefix), len(prefix)):
                return Seeding(len(prefix), self._emptied, number, held, time.time())
        raise CellFailed(
            f"seeded {SEED_TRIES} times with {len(prefix)} tokens, the prefill engine holds {held.prefill} of them and "
            f"the decode engine {held.decode}"
        )

    async def held(self) -> Held:
        """How much of the prefix each engine holds now; asking makes it the last that either would evict.

        Without a prefix both are asked too: every request that is measured comes after the same.
        """
        asked = [*self.prefix, *self._fresh(FRESH_TOKENS)]
        prefill, decode = await _both([engine.compute(asked) for engine in self._engines])
        return Held(prefill, decode)

    async def hold(self) -> Seeding | None:
        """See that both hold the whole prefix, seeding again what was evicted; returns that seeding, if there was one.

        Raises CellFailed as `seed` does.
        """
        if await self.held() == Held(len(self.prefix), len(self.prefix)):
            return None
        self._emptied = "not emptied: part of the prefix had been evicted"
        return await self.seed(self.prefix)

    def sent(self, prompt: list[int]) -> None:
        """A prompt went to both engines."""
        self._sent = prompt[: 2 * self._block_tokens]


async def _each(engine: EngineCache, prompts: Sequence[list[int]]) -> None:
    """Have all of them computed, AGE_AT_A_TIME at a time."""
    left = iter(prompts)

    async def some() -> None:
        for prompt in left:
            await engine.compute(prompt)

    await asyncio.gather(*(some() for _ in range(AGE_AT_A_TIME)))


async def _both(asked: Sequence[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*asked))


def _reset(answer: httpx.Response) -> bool:
    """vLLM answers 200 whether or not it could; newer ones say which in the body."""
    said = answer.json() if answer.content else {}
    return bool(said.get("success", True)) if isinstance(said, dict) else True
