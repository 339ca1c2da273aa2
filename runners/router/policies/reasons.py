"""The meaning of reason codes and score keys, shared and of each policy module, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from runners.router.policies import MODULES

SHARED_REASONS: Mapping[str, str] = {
    "owner_paused": "the session's instance is paused; this request alone goes elsewhere",
    "cold": "the session has no owner yet; it had the lowest score",
    "fallback_owner_down": "the session's owner cannot be picked; it had the lowest score of the others",
    "policy_error": "the policy failed, so the fewest requests decided",
    "stored_response": "it stores the response that the request continues",
    "no_instance": "no instance can be picked",
}
SHARED_SCORE_KEYS: Mapping[str, str] = {
    "turns_away": "turns until it is next",
    "num_requests": "requests there",
    "ongoing_tokens": "prompt tokens under way",
    "new_tokens": "prompt tokens to compute",
    "active_sessions": "sessions bound there",
    "pending_prefill_tokens": "prompt tokens pending there",
    "work_x_requests": "(pending + new tokens) x requests",
}


def _merge_words(shared: Mapping[str, str], attribute: str) -> Iterator[tuple[str, str]]:
    yield from shared.items()
    for module in MODULES:
        yield from getattr(import_module(f"runners.router.policies.{module}"), attribute, {}).items()


REASONS: Mapping[str, str] = dict(_merge_words(SHARED_REASONS, "REASONS"))
"""A decision without an instance is retried later if its reason begins with `wait_`, else it is final."""
SCORE_KEYS: Mapping[str, str] = dict(_merge_words(SHARED_SCORE_KEYS, "SCORE_KEYS"))
