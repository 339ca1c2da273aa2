"""Pre-flight's checks of every config: launched as configured, requests complete in time, the engine survives them."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx

from launch.death import cause
from launch.dummy_bootstrap import DummyBootstrap
from launch.instance import Served, find_what_is_missing
from launch.profile import ConnectorConfig, Profile
from launch.transfer_request import check_request

PROMPT_TOKENS = 64
TOP_LOGPROBS = 5
FAILURE_COUNTER = "vllm:engine_core_failed_total"
"""The specification's counter; no known vLLM has it, so its absence proves nothing."""
_CREATED = re.compile(r"Creating v1 connector with name: (\w+)")
_DEGRADED = re.compile(r"[^\n.]*degraded mode[^\n\x1b]*")
"""LMCache's words for a connector that is loaded and neither stores nor retrieves."""
_DEAD = re.compile(r"EngineDeadError|EngineCore encountered (?:a fatal error|an issue)|died unexpectedly")

Counterpart = Callable[[], AbstractAsyncContextManager[Served]]
"""Launches a second engine of the same config, ready while the context lasts. Raises LaunchError."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a gate checks."""

    instance: Served
    config: ConnectorConfig
    profile: Profile
    client: httpx.AsyncClient
    pid: int | None
    """The engine's pid when pre-flight began."""
    note: Callable[[str], None]
    """Adds a line to the log."""
    counterpart: Counterpart | None = None
    """Launches a second engine; None where none fits beside this one. Proofs that need one then fail."""
    bootstrap: DummyBootstrap | None = None
    """Runs for configs whose proof needs it."""
    took_s: list[float] = field(default_factory=list)
    """Seconds of each complete request."""


class GateFailed(Exception):
    """A gate does not pass; the message says why."""


Gate = Callable[[Subject], Awaitable[str]]
"""Returns what it observed; raises GateFailed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion as the engine gave it."""

    status: int
    body: Mapping[str, Any]
    text: str
    took_s: float

    @property
    def finish_reason(self) -> str:
        return str(self.body["choices"][0].get("finish_reason"))

    @property
    def first_token(self) -> Mapping[str, float]:
        """The likeliest first tokens with their log probabilities, the chosen one included; empty unless requested."""
        ranks: list[dict[str, float]] = (self.body["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
        return ranks[0]


def draw_prompt(profile: Profile, tokens: int) -> list[int]:
    """Random token ids that no engine has seen."""
    draw = random.Random()
    return [draw.randrange(profile.model.vocab_low, profile.model.vocab_high) for _ in range(tokens)]


async def complete(
    subject: Subject,
    prompt: Sequence[int],
    what: str,
    *,
    max_tokens: int = 1,
    salt: str = "",
    transfer: Mapping[str, Any] | None = None,
    ranked: bool = True,
    limit_s: float | None = None,
    client: httpx.AsyncClient | None = None,
) -> Completion:
    """One completion. `salt` separates its prefix cache from every other; `transfer` is checked before it is sent;
    `ranked` requests the likeliest first tokens.

    Raises GateFailed when the limit (by default the config's) is reached.
    """
    limit = subject.config.preflight.limit_s if limit_s is None else limit_s
    body: dict[str, Any] = {
        "model": subject.instance.model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    if ranked:
        body |= {"logprobs": TOP_LOGPROBS, "return_tokens_as_token_ids": True}
    if salt:
        body["cache_salt"] = salt
    if transfer is not None:
        body["kv_transfer_params"] = dict(transfer)
    check_request(body, subject.config, subject.profile.engine.kind)
    began = time.perf_counter()
    try:
        answer = await (client or subject.client).post("/v1/completions", json=body, timeout=max(limit, 0.001))
    except httpx.TimeoutException as error:
        limit_text = f"the limit of {subject.config.preflight.limit_s:g} s"
        raise GateFailed(f"{what} was not complete when {limit_text} was reached") from error
    took_s = time.perf_counter() - began
    subject.note(f"  {what}: {answer.status_code} in {took_s:.3f} s")
    return Completion(answer.status_code, answer.json() if answer.status_code == 200 else {}, answer.text, took_s)


def require_answered(answer: Completion, what: str) -> Completion:
    """Raise GateFailed unless it was answered 200."""
    if answer.status != 200:
        raise GateFailed(f"{what} was answered {answer.status}: {answer.text[:200]}")
    return answer


async def read_exposition(client: httpx.AsyncClient) -> str:
    """The text of /metrics."""
    return (await client.get("/metrics")).text


def counter(text: str, name: str, **labels: str) -> float | None:
    """The sum over a metric's samples with these labels; None where there is none."""
    total: float | None = None
    for sample in re.finditer(rf"^{re.escape(name)}(?:{{([^}}]*)}})? (\S+)$", text, re.MULTILINE):
        sample_labels = dict(re.findall(r'(\w+)="([^"]*)"', sample[1] or ""))
        if labels.items() <= sample_labels.items():
            total = (total or 0.0) + float(sample[2])
    return total


async def check_connector_launched(subject: Subject) -> str:
    """The engine's log names the config's connector as created, no other, and as working; none where it has none."""
    log = subject.instance.log()
    if not log:
        raise GateFailed("the engine has no log")
    created, wanted = sorted(set(_CREATED.findall(log))), subject.config.connectors
    if not wanted and created:
        raise GateFailed(f"the log says that {', '.join(created)} was created")
    if wanted and (len(created) != 1 or created[0] not in wanted):
        raise GateFailed(
            f"the log says that {', '.join(created) or 'no connector'} was created, not {' or '.join(wanted)}"
        )
    _require_not_degraded(log)
    role = (subject.config.merge_kv_transfer(subject.profile.engine.kind) or {}).get("kv_role")
    return f"created: {', '.join(created) or 'none'} ({len(_CREATED.findall(log))} times){f', {role}' if role else ''}"


async def check_model_served(subject: Subject) -> str:
    """/v1/models answers 200 and lists the model id."""
    missing = await find_what_is_missing(subject.client, subject.instance.model)
    if missing:
        raise GateFailed(missing)
    return f"/v1/models lists {subject.instance.model}"


async def check_requests_answered(subject: Subject) -> str:
    """The config's number of sequential requests with random content are all answered 200, with every token."""
    settings = subject.config.preflight
    for number in range(1, settings.requests + 1):
        what, left_s = f"request {number}", settings.limit_s - sum(subject.took_s)
        prompt = draw_prompt(subject.profile, PROMPT_TOKENS)
        answer = await complete(subject, prompt, what, max_tokens=settings.max_tokens, ranked=False, limit_s=left_s)
        tokens = require_answered(answer, what).body.get("usage", {}).get("completion_tokens")
        if tokens != settings.max_tokens:
            raise GateFailed(f"{what} returned {tokens} tokens, not {settings.max_tokens}")
        subject.took_s.append(answer.took_s)
    return f"{settings.requests} of {settings.requests}, {settings.max_tokens} tokens each"


async def check_requests_in_time(subject: Subject) -> str:
    """All of them were complete within the config's limit."""
    settings, total_s = subject.config.preflight, sum(subject.took_s)
    if len(subject.took_s) < settings.requests:
        raise GateFailed(f"{len(subject.took_s)} of {settings.requests} requests were complete")
    if total_s >= settings.limit_s:
        raise GateFailed(f"{settings.requests} requests took {total_s:.1f} s, the limit is {settings.limit_s:g} s")
    return f"{total_s:.3f} s of {settings.limit_s:g} s, the slowest {max(subject.took_s):.3f} s"


async def check_requests(subject: Subject) -> str:
    """`check_requests_answered` and `check_requests_in_time` as one check."""
    return f"{await check_requests_answered(subject)}; {await check_requests_in_time(subject)}"


async def check_dummy_bootstrap(subject: Subject) -> str:
    """The stand-in for a consumer's bootstrap peer runs."""
    if subject.bootstrap is None:
        raise GateFailed("it could not be started")
    return f"at {subject.bootstrap.url}; a consumer asks it only when a request names it"


async def check_engine_survived(subject: Subject) -> str:
    """The same process lives, /health answers 200, its log shows no dead engine, and no failure is counted."""
    instance = subject.instance
    if died := await instance.explain_death():
        raise GateFailed(f"the engine {died}")
    if instance.pid != subject.pid:
        raise GateFailed(f"the engine is another process now: pid {instance.pid}, it was {subject.pid}")
    health = await subject.client.get("/health")
    if health.status_code != 200:
        raise GateFailed(f"/health answers {health.status_code}")
    log = instance.log()
    dead = _DEAD.search(log)
    if dead:
        raise GateFailed(f"its log says {dead[0]!r}")
    _require_not_degraded(log)
    failures = counter(await read_exposition(subject.client), FAILURE_COUNTER)
    if failures:
        raise GateFailed(f"{FAILURE_COUNTER} is {failures:g}")
    counted = "no failure counter in /metrics" if failures is None else f"{FAILURE_COUNTER} is 0"
    return f"pid {instance.pid} lives, /health 200, log clean; {counted}"


def _require_not_degraded(log: str) -> None:
    degraded = _DEGRADED.search(log)
    if degraded:
        why = f" ({cause(log)})" if cause(log) else ""
        raise GateFailed(f"its connector is loaded and does not work: {degraded[0].strip()}{why}")
