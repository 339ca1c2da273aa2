"""Ages, empties and seeds the prefix caches of all engines, and verifies that they hold exactly C tokens.

specs/pd_lifecycle, "Setup: Warm D's Prefix Cache" and "D-Side Cache Verification". To check an engine, send a request
with one output token and read its count of cached prompt tokens: KV usage is zero on an idle engine, and hit rates
cover all requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from results.records.lifecycle_cells import Aged, HeldTokens, Seeding
from runners.errors import CellFailed
from runners.samplers.engine import MetricsText

POLL_S = 0.05
EMPTY_WITHIN_S = 10.0
"""Limit of the retries: an engine cannot drop blocks that are still being sent."""
SEED_TRIES = 3
FRESH_TOKENS = 8
"""Tokens after the prefix in a request that checks a cache: they fill no block, so they leave the cache unchanged."""
AGE_PIECE_TOKENS, AGE_PIECES = 128, 16
"""Prompts that age a pool have 1 to AGE_PIECES pieces of at least AGE_PIECE_TOKENS tokens."""
AGE_STEP = 7
"""Coprime to AGE_PIECES: the lengths alternate, and each occurs equally often."""
AGE_AT_A_TIME = 4
"""Concurrent prompts per engine: they end in another order than they began, which mixes the free blocks."""


class NotEmptied(CellFailed):
    """The engine does not empty its prefix cache; only a restart does."""


class EngineCache:
    """The prefix cache of one engine, through its HTTP API."""

    def __init__(self, name: str, client: httpx.AsyncClient, model: str, timeout_s: float) -> None:
        self.name = name
        self._client = client
        self._model = model
        self._timeout_s = timeout_s
        self._text = MetricsText()

    async def compute_prompt(self, tokens: Sequence[int]) -> int:
        """Compute the prompt with one output token; returns the number of prompt tokens that were cached.

        Raises CellFailed where the engine does not answer, or does not report the count.
        """
        body = {
            "model": self._model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = await self._post_json("/v1/completions", body)
        usage: dict[str, Any] = answer.json().get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None:
            raise CellFailed(f"the {self.name} engine does not report the number of cached prompt tokens")
        return int(cached)

    async def empty(self) -> None:
        """Empty the cache. Raises NotEmptied where the engine does not."""
        deadline = time.monotonic() + EMPTY_WITHIN_S
        while True:
            answer = await self._post_json("/reset_prefix_cache", None)
            if _was_reset(answer):
                return
            if time.monotonic() > deadline:
                raise NotEmptied(
                    f"the {self.name} engine's prefix cache is not emptied within {EMPTY_WITHIN_S:g} s: "
                    f"{answer.status_code} {answer.text[:200]}"
                )
            await asyncio.sleep(POLL_S)

    async def read_metrics(self) -> Mapping[str, float]:
        """The samples of its metrics page. Raises CellFailed where it does not answer."""
        try:
            page = (await self._client.get("/metrics", timeout=self._timeout_s)).text
            return self._text.values(page)
        except (httpx.HTTPError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise CellFailed(f"the {self.name} engine's /metrics cannot be read: {why}") from error

    async def _post_json(self, path: str, body: dict[str, Any] | None) -> httpx.Response:
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
    """The prefix caches of all engines. They hold one prefix of C tokens, and the requests sent since."""

    def __init__(self, engines: Sequence[EngineCache], block_tokens: int, fresh: Callable[[int], list[int]]) -> None:
        """engines: prefill, decode, and the plain one if any. fresh: draws N tokens that no earlier request had."""
        self._engines = engines
        self._block_tokens = block_tokens
        self._fresh = fresh
        self._prefix: list[int] | None = None
        self._sent: list[int] = []
        """The beginning of a prompt that was sent: not cached once the caches are empty."""
        self._emptied = "fresh engines"

    @property
    def used(self) -> bool:
        """Whether they were seeded before, with any C."""
        return self._prefix is not None

    def is_seeded_with(self, prior_context: int) -> bool:
        """Whether the current prefix has `prior_context` tokens."""
        return self._prefix is not None and len(self._prefix) == prior_context

    @property
    def prefix(self) -> list[int]:
        """The tokens that all engines hold."""
        return self._prefix or []

    async def age_pools(self, capacity_tokens: int) -> Aged:
        """Send random prompts of many lengths through every engine until each has filled its pool once.

        A new engine allocates its blocks in order, and moves adjacent blocks in one operation; a used engine does not.
        Raises CellFailed.
        """
        t_s, piece, tokens = time.monotonic(), max(AGE_PIECE_TOKENS, self._block_tokens), 0
        prompts: list[list[int]] = []
        while tokens < capacity_tokens:
            prompts.append(self._fresh(piece * (1 + AGE_STEP * len(prompts) % AGE_PIECES)))
            tokens += len(prompts[-1])
        await asyncio.gather(*(_compute_all(engine, prompts) for engine in self._engines))
        self.note_sent(max(prompts, key=len, default=[]))
        return Aged(len(prompts), tokens, time.monotonic() - t_s)

    async def read_metrics(self) -> list[Mapping[str, float]]:
        """The metrics page of each engine, in their order. Raises CellFailed."""
        return await asyncio.gather(*(engine.read_metrics() for engine in self._engines))

    async def empty(self) -> None:
        """Empty all caches, and verify it by the engines' counts. Raises NotEmptied or CellFailed."""
        await asyncio.gather(*(engine.empty() for engine in self._engines))
        self._prefix = None
        self._emptied = "POST /reset_prefix_cache"
        sample = self._sent[: 2 * self._block_tokens]
        if len(sample) <= self._block_tokens:
            return
        left = await asyncio.gather(*(engine.compute_prompt(sample) for engine in self._engines))
        for engine, tokens in zip(self._engines, left, strict=True):
            if tokens:
                raise NotEmptied(f"the {engine.name} engine still holds {tokens} tokens of a prompt after a reset")
        self._emptied += f", then 0 of {len(sample)} tokens of an earlier prompt were cached"

    async def seed(self, prefix: list[int]) -> Seeding:
        """Have every engine compute the prefix, until each reports that it holds all of it.

        Raises CellFailed where they do not hold it after SEED_TRIES.
        """
        self._prefix = prefix
        self._sent = prefix or self._sent
        for number in range(1, SEED_TRIES + 1):
            if prefix:
                await asyncio.gather(*(engine.compute_prompt(prefix) for engine in self._engines))
            held = await self.count_held()
            if held == self._expect_whole():
                return Seeding(len(prefix), self._emptied, number, held, time.time())
        plain = "" if held.plain is None else f" and the plain engine {held.plain}"
        raise CellFailed(
            f"seeded {SEED_TRIES} times with {len(prefix)} tokens, the prefill engine holds {held.prefill} of them and "
            f"the decode engine {held.decode}{plain}"
        )

    async def count_held(self) -> HeldTokens:
        """Tokens of the prefix that each engine holds; the check makes it the last to be evicted.

        It runs without a prefix too, so that every measured request follows the same requests.
        """
        prompt = [*self.prefix, *self._fresh(FRESH_TOKENS)]
        return HeldTokens(*await asyncio.gather(*(engine.compute_prompt(prompt) for engine in self._engines)))

    async def ensure_held(self) -> Seeding | None:
        """Verify that all hold the whole prefix, and seed again after an eviction; returns that seeding, if any.

        Raises CellFailed as `seed` does.
        """
        if await self.count_held() == self._expect_whole():
            return None
        self._emptied = "not emptied: part of the prefix had been evicted"
        return await self.seed(self.prefix)

    def note_sent(self, prompt: list[int]) -> None:
        self._sent = prompt[: 2 * self._block_tokens]

    def _expect_whole(self) -> HeldTokens:
        """What each engine holds where none of the prefix is evicted."""
        return HeldTokens(*(len(self.prefix) for _ in self._engines))


async def _compute_all(engine: EngineCache, prompts: Sequence[list[int]]) -> None:
    """Compute all prompts, AGE_AT_A_TIME at a time."""
    left = iter(prompts)

    async def compute_next() -> None:
        for prompt in left:
            await engine.compute_prompt(prompt)

    await asyncio.gather(*(compute_next() for _ in range(AGE_AT_A_TIME)))


def _was_reset(answer: httpx.Response) -> bool:
    """vLLM always answers 200; newer versions report the success in the body."""
    body = answer.json() if answer.content else {}
    return bool(body.get("success", True)) if isinstance(body, dict) else True
