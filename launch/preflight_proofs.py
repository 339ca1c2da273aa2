"""Proofs that a connector works: it stores and retrieves, or moves KV from one engine (or itself) to another.

A config names its proofs in `[preflight] proofs`. An engine's answer is only half of a proof: the engine must also
count the tokens as loaded by the connector, and the answer must be the one it gives without the connector.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from launch.instance import make_http_client
from launch.preflight_checks import (
    Completion,
    Gate,
    GateFailed,
    Subject,
    complete,
    counter,
    draw_prompt,
    read_exposition,
    require_answered,
)
from launch.transfer_request import BOOTSTRAP_PORT, DECODE, PREFILL

PROOF_TOKENS = 4096
"""The prompt of a proof, where the profile's context holds it."""
DEFAULT_CHUNK = 256
"""LMCache's, in tokens; prompts of proofs are whole numbers of it."""
SAME_NATS = 0.5
"""Log probabilities this close are the same answer: bfloat16 logits of a large model are 0.125 apart, contexts more."""
COMPARED_TOKENS = 2
CONTROLS = 3
"""Two contexts may lead to one answer by chance; this many do not."""
ABORT_TIMEOUT = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
DEFAULT_ABORT_TIMEOUT_S = 480.0
POLL_S = 0.05
COUNTERS_SETTLE_S = 3.0
RELEASE_SLACK_S = 10.0
LOADED = "vllm:prompt_tokens_by_source_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
HANDSHAKES = 3
"""Tries of a first transfer between two engines: NIXL gives the handshake 5 s, and a busy host may need more."""
NIXL_BYTES = "vllm:nixl_bytes_transferred_sum"
KV_USAGE = "vllm:kv_cache_usage_perc"


async def store_and_retrieve(subject: Subject) -> str:
    """A prompt comes back from the connector's store after the engine's own prefix cache was emptied."""
    prompt = draw_prompt(subject.profile, count_proof_tokens(subject))
    stored = require_answered(await complete(subject, prompt, "first request"), "the first request")
    await _reset_prefix_cache(subject)
    hits = counter(await read_exposition(subject.client), EXTERNAL_HITS) or 0.0
    retrieved = require_answered(await complete(subject, prompt, "the same again"), "the same request again")
    risen = await _wait_for_rise(subject.client, EXTERNAL_HITS, hits, len(prompt) - 1)
    if risen < len(prompt) - 1:
        raise GateFailed(
            f"of {len(prompt)} tokens sent twice {risen:g} came from the connector ({EXTERNAL_HITS}): "
            "it stores nothing, or what it stores is never matched"
        )
    contents = await _compare_answers(subject, prompt, stored, retrieved)
    times = f"{stored.took_s:.3f} s computed, {retrieved.took_s:.3f} s retrieved"
    return f"{risen:g} of {len(prompt)} tokens retrieved; {times}; {contents}"


async def check_self_transfer(subject: Subject) -> str:
    """One engine plays both roles of Mooncake: its own decode request pulls its prefill request's blocks."""
    prompt = draw_prompt(subject.profile, count_proof_tokens(subject))
    address, engine_id = await _ask_bootstrap(subject)
    transfer_id = f"preflight-{uuid.uuid4().hex}"
    reference = require_answered(await complete(subject, prompt, "reference", salt="reference"), "the reference")
    await _send_prefill_request(subject, prompt, {"transfer_id": transfer_id})
    before = await read_exposition(subject.client)
    decode = {
        DECODE: True, PREFILL: False, "transfer_id": transfer_id, "remote_engine_id": engine_id,
        "remote_bootstrap_addr": address,
    }  # fmt: skip
    answer = await complete(subject, prompt, "decode request", salt="decode", transfer=decode)
    require_answered(answer, "the decode request")
    loaded = await _require_loaded(subject.client, before, prompt)
    contents = await _compare_answers(subject, prompt, reference, answer)
    return f"{loaded:g} of {len(prompt)} tokens pulled from itself in {answer.took_s:.3f} s; {contents}"


async def check_peer_transfer(subject: Subject) -> str:
    """Two engines of the config exchange a prompt's blocks, in both directions."""
    prompt = draw_prompt(subject.profile, count_proof_tokens(subject))
    if subject.counterpart is None:
        blocks = sum(map(len, (await _read_offered_blocks(subject, prompt, subject.client))["remote_block_ids"]))
        raise GateFailed(
            f"the prefill request offers {blocks} blocks, and no byte was moved: "
            "no second engine can run beside this one"
        )
    reference = require_answered(await complete(subject, prompt, "reference", salt="reference"), "the reference")
    async with subject.counterpart() as peer, make_http_client(peer.url) as client:
        subject.note(f"  counterpart: {peer.name} at {peer.url}, pid {peer.pid}")
        # What a first request compiles must not count as time of the transfer.
        warm = draw_prompt(subject.profile, DEFAULT_CHUNK)
        require_answered(await complete(subject, warm, "warm-up", client=client), "the counterpart's warm-up")
        there, outcome = await _move_blocks(subject, prompt, subject.client, client, "to the counterpart")
        back, outcome_back = await _move_blocks(subject, prompt, client, subject.client, "from the counterpart")
        if died := await peer.explain_death():
            raise GateFailed(f"the counterpart {died}")
    return f"{outcome}; {outcome_back}; {await _compare_answers(subject, prompt, reference, there, back)}"


async def check_retained_blocks(subject: Subject) -> str:
    """A producer serves its prefill request, holds the blocks for a pull, and frees them when none comes in time."""
    prompt = draw_prompt(subject.profile, count_proof_tokens(subject))
    address, engine_id = await _ask_bootstrap(subject)
    idle = await _read_kv_usage(subject)
    await _send_prefill_request(subject, prompt, {"transfer_id": f"preflight-{uuid.uuid4().hex}"})
    began = time.monotonic()
    held = await _read_kv_usage(subject)
    if held <= idle:
        raise GateFailed(f"no block is held for the decode request: {KV_USAGE} is {held:g}, as before it")
    timeout_s = float(subject.config.preflight.env.get(ABORT_TIMEOUT, DEFAULT_ABORT_TIMEOUT_S))
    while (now := await _read_kv_usage(subject)) > idle:
        if time.monotonic() - began > timeout_s + RELEASE_SLACK_S:
            raise GateFailed(f"unpulled blocks are still held after {ABORT_TIMEOUT} of {timeout_s:g} s: {now:g}")
        await asyncio.sleep(POLL_S)
    held_s = time.monotonic() - began
    return f"{address}/query names engine {engine_id}; blocks held ({held:.4f}), freed after {held_s:.1f} s"


async def check_bootstrap_query(subject: Subject) -> str:
    """A consumer that must pull queries the bootstrap of the request, fails that request alone, and serves on."""
    if subject.bootstrap is None:
        raise GateFailed("no dummy bootstrap runs")
    asked = subject.bootstrap.queries
    decode = {
        DECODE: True, PREFILL: False, "transfer_id": f"preflight-{uuid.uuid4().hex}", "remote_engine_id": "unknown",
        "remote_bootstrap_addr": subject.bootstrap.url,
    }  # fmt: skip
    prompt = draw_prompt(subject.profile, DEFAULT_CHUNK)
    pull = await complete(subject, prompt, "pull from an unknown engine", transfer=decode)
    if subject.bootstrap.queries == asked:
        raise GateFailed(f"the pull was answered {pull.status} and {subject.bootstrap.url} was not asked")
    if pull.status == 200:
        raise GateFailed("a pull from an engine that does not exist was answered 200: nothing was pulled")
    require_answered(await complete(subject, prompt, "request afterwards"), "the request after the failed pull")
    return f"asked {subject.bootstrap.queries - asked} time(s), the pull failed with {pull.status}, the next one passed"


PROOFS: Mapping[str, Gate] = {
    "store_and_retrieve": store_and_retrieve,
    "self_transfer": check_self_transfer,
    "peer_transfer": check_peer_transfer,
    "prefill_request": check_retained_blocks,
    "bootstrap_query": check_bootstrap_query,
}


def count_proof_tokens(subject: Subject) -> int:
    """A proof's prompt: PROOF_TOKENS, or as many whole chunks of LMCache as half the context holds."""
    engine = subject.profile.engine
    env = {**engine.env, **subject.config.merge_env(engine.kind)}
    chunk = int(env.get("LMCACHE_CHUNK_SIZE", DEFAULT_CHUNK))
    chunks = min(PROOF_TOKENS, engine.max_model_len // 2) // chunk
    if chunks == 0:
        raise GateFailed(
            f"half of max_model_len {engine.max_model_len} holds no chunk of {chunk} tokens to prove it with"
        )
    return chunks * chunk


async def _reset_prefix_cache(subject: Subject) -> None:
    """Blocks that are still being stored cannot be dropped, so this retries for some seconds."""
    deadline = time.monotonic() + COUNTERS_SETTLE_S
    while True:
        answer = await subject.client.post("/reset_prefix_cache")
        if answer.status_code == 404:
            raise GateFailed(
                "the engine has no /reset_prefix_cache: it needs VLLM_SERVER_DEV_MODE=1 in [preflight.env]"
            )
        if answer.status_code == 200 and answer.json().get("success", True):
            return
        if time.monotonic() > deadline:
            raise GateFailed(f"its prefix cache cannot be emptied: {answer.status_code} {answer.text[:200]}")
        await asyncio.sleep(POLL_S)


async def _ask_bootstrap(subject: Subject) -> tuple[str, str]:
    """The address of this engine's Mooncake bootstrap server and the engine id it names."""
    port = subject.instance.ports.get(BOOTSTRAP_PORT)
    if port is None:
        raise GateFailed(f"the port of its bootstrap server ({BOOTSTRAP_PORT}) is not known")
    address = f"http://127.0.0.1:{port}"
    async with make_http_client(address) as client:
        answer = await client.get("/query")
    if answer.status_code != 200 or not answer.json():
        raise GateFailed(f"{address}/query answers {answer.status_code}: {answer.text[:200]}")
    return address, str(next(iter(answer.json().values()))["engine_id"])


async def _send_prefill_request(
    subject: Subject, prompt: Sequence[int], fields: Mapping[str, Any], client: httpx.AsyncClient | None = None
) -> Completion:
    transfer = {PREFILL: True, DECODE: False, **fields}
    answer = await complete(subject, prompt, "prefill request", salt="prefill", transfer=transfer, client=client)
    require_answered(answer, "the prefill request")
    if answer.finish_reason != "length":
        raise GateFailed(f"the prefill request ended by {answer.finish_reason}, not by length: its blocks are not sent")
    return answer


async def _read_offered_blocks(subject: Subject, prompt: Sequence[int], client: httpx.AsyncClient) -> dict[str, Any]:
    """What NIXL's prefill request hands to the decode request."""
    offered = (await _send_prefill_request(subject, prompt, {}, client)).body.get("kv_transfer_params")
    if not offered or not any(offered.get("remote_block_ids") or []):
        raise GateFailed(f"the prefill request offers no blocks: kv_transfer_params is {offered}")
    return dict(offered)


async def _move_blocks(
    subject: Subject, prompt: Sequence[int], source: httpx.AsyncClient, target: httpx.AsyncClient, where: str
) -> tuple[Completion, str]:
    """The prompt's blocks from one engine to the other: the decode request's answer, and what was counted."""
    for again in range(HANDSHAKES):
        offered = await _read_offered_blocks(subject, prompt, source)
        before = await read_exposition(target)
        name, salt = f"decode request {where}", f"decode-{again}"
        answer = await complete(subject, prompt, name, salt=salt, transfer=offered, client=target)
        if answer.status == 200:
            break
    require_answered(answer, f"the decode request {where}, {HANDSHAKES} times,")
    loaded = await _require_loaded(target, before, prompt)
    moved = await _wait_for_rise(target, NIXL_BYTES, counter(before, NIXL_BYTES) or 0.0, 1.0)
    if moved <= 0:
        raise GateFailed(f"{loaded:g} tokens are counted as loaded {where}, but {NIXL_BYTES} did not rise")
    return answer, f"{loaded:g} of {len(prompt)} tokens ({moved:g} bytes) {where} in {answer.took_s:.3f} s"


async def _require_loaded(client: httpx.AsyncClient, before: str, prompt: Sequence[int]) -> float:
    """Tokens the engine counts as loaded by its connector since `before`; nearly the whole prompt, or GateFailed."""
    labels = {"source": "external_kv_transfer"}
    risen = await _wait_for_rise(client, LOADED, counter(before, LOADED, **labels) or 0.0, len(prompt) - 1, **labels)
    if risen < len(prompt) - 1:
        raise GateFailed(
            f"of {len(prompt)} tokens {risen:g} are counted as transferred ({LOADED}): the rest was computed"
        )
    return risen


async def _wait_for_rise(client: httpx.AsyncClient, name: str, before: float, wanted: float, **labels: str) -> float:
    """By how much a counter has risen; waits a little until it has by `wanted`, as it follows the answer."""
    deadline = time.monotonic() + COUNTERS_SETTLE_S
    while True:
        risen = (counter(await read_exposition(client), name, **labels) or 0.0) - before
        if risen >= wanted or time.monotonic() > deadline:
            return risen
        await asyncio.sleep(POLL_S)


async def _read_kv_usage(subject: Subject) -> float:
    usage = counter(await read_exposition(subject.client), KV_USAGE)
    if usage is None:
        raise GateFailed(f"/metrics has no {KV_USAGE}: no metric shows whether blocks are held")
    return usage


async def _compare_answers(subject: Subject, prompt: Sequence[int], reference: Completion, *answers: Completion) -> str:
    """Answers from loaded KV against the one from computed KV.

    A control with another context and the same last token shows whether this model's answers depend on their context.
    Where they do not (made-up weights), equal answers prove nothing, and the check reports that.
    """
    for _ in range(CONTROLS):
        other = [*draw_prompt(subject.profile, len(prompt) - 1), prompt[-1]]
        control = await complete(subject, other, "control with another context", salt="control")
        if measure_distance_nats(reference, require_answered(control, "the control")) > SAME_NATS:
            break
    else:
        return "contents not compared: this model answers alike whatever its context"
    apart = max(measure_distance_nats(reference, answer) for answer in answers)
    if apart > SAME_NATS:
        raise GateFailed(f"the answer from loaded KV is not the one from computed KV: {apart:.3f} nats apart")
    return f"same answer as computed (within {apart:.3f} nats)"


def measure_distance_nats(reference: Completion, answer: Completion) -> float:
    """How far the log probabilities of the reference's likeliest first tokens are off, at least.

    A token that is not among the answer's likeliest is at most as likely as the last of them.
    """
    if not reference.first_token or not answer.first_token:
        raise GateFailed("the engine gives no log probabilities to compare answers by")
    likeliest = sorted(reference.first_token.items(), key=lambda item: -item[1])[:COMPARED_TOKENS]
    floor = min(answer.first_token.values())
    return max(abs(expected - answer.first_token.get(token, floor)) for token, expected in likeliest)
