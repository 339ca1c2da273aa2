"""What the reason codes of our policies mean, in words."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "turn": "it was its turn",
    "least_load": "it had the fewest requests",
    "no_session": "the request has no session id: it had the fewest requests",
    "least_work": "it had the fewest prompt tokens left to compute",
    "lowest_score": "it had the lowest score",
    "bound": "the session is bound to it",
    "hashed": "the session's hash put it there",
    "owner_down": "the session's instance cannot be picked; it is the next from the session's hash",
    "owner_paused": "the session's instance is paused; this request alone goes elsewhere",
    "affinity": "it is the session's owner and every gate passed",
    "cold": "the session has no owner yet; it had the lowest score",
    "fallback_owner_down": "the session's owner cannot be picked; it had the lowest score of the others",
    "fallback_low_cache": "the session's owner holds too little of the prompt; it had the lowest score",
    "fallback_overload": "the session's owner is overloaded; it had the lowest score",
    "fallback_cost": "the session's owner costs too much more than the best; it had the lowest score",
    "balanced": "turns have no instance of their own here: it had the fewest prompt tokens pending",
    "migrated": "the session's instance is hot; of those that are less busy and have room it had the lowest score",
    "hot_cooldown": "the session's instance is hot, but the session migrated too short a time ago: it stays",
    "hot_moving": "the session's instance is hot, but another of its requests is being migrated: this one stays",
    "hot_no_kv": "the session's instance is hot, but holds too little KV of it that others lack: it stays",
    "hot_no_target": "the session's instance is hot, but no other is both less busy and has room: it stays",
    "owner": "it is the session's owner and still had the best score",
    "left_owner": "another instance's score beat the session's owner",
    "reject_migration": "the session's owner refused it too often; it had the best score of the others",
    "backpressure": "the session's owner has too full a KV pool; this request alone goes elsewhere",
    "decode_alone": "no prefill instance can be picked: the decode instance with the most free KV computes the prompt",
    "pools": "the prefill instance has the least work, the decode instance the most free KV",
    "policy_error": "the policy failed, so the fewest requests decided",
    "no_instance": "no instance can be picked",
    "no_prefill_instance": "there is no prefill pool: no instance has that role, and prefill_count is 0",
    "no_decode_instance": "no instance of the decode pool can be picked",
    "wait_decode_kv": "no decode instance has room for prompt and output: the request may be held and asked for again",
    "reject_decode_kv": "no decode instance has room for prompt and output: the request is refused",
    "wait_prefill_kv": "no prefill instance has room for the prompt: the request may be held and asked for again",
    "reject_prefill_kv": "no prefill instance has room for the prompt: the request is refused",
}
"""A decision without an instance whose reason begins with `wait_` may be made again later; any other is final."""
