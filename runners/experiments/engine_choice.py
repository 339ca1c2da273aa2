"""The engines of a preset: its settings over those of the profile, and the block size they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from launch.profile import EngineSettings, Profile
from runners.errors import CellFailed
from runners.samplers.engine_counters import CacheShape

CACHED_TOKENS_ARGUMENT = "--enable-prompt-tokens-details"
SCHEDULING_ARGUMENT = "--scheduling-policy"
MOST_REQUESTS_ARGUMENT = "--max-num-seqs"


class EngineChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None, UNSET = as in the profile."""

    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | UnsetType = UNSET
    """Most requests in one step; UNSET stays out of the fingerprint of a plan."""
    scheduling: Literal["fcfs", "priority"] | None = None
    """Order of waiting requests: as they came, or by the `priority` they carry (vLLM's --scheduling-policy)."""
    env: dict[str, str] = {}
    """Added to the profile's."""


def make_counting_profile(profile: Profile, choice: EngineChoice) -> Profile:
    """The profile with the preset's engine settings; its engines report how much of each prompt was cached."""
    named = msgspec.structs.asdict(choice)
    changed = {name: value for name, value in named.items() if value is not None and value is not UNSET}
    arguments = list(dict.fromkeys((*profile.engine.extra_args, CACHED_TOKENS_ARGUMENT)))
    for name, argument in (("scheduling", SCHEDULING_ARGUMENT), ("max_num_seqs", MOST_REQUESTS_ARGUMENT)):
        if name in changed:
            arguments += [argument, str(changed.pop(name))]
    changed["env"] = profile.engine.env | changed["env"]
    settings: EngineSettings = msgspec.structs.replace(profile.engine, **changed, extra_args=tuple(arguments))
    return msgspec.structs.replace(profile, engine=settings)


def require_common_block_tokens(shapes: Iterable[CacheShape], consequence: str) -> int:
    """The block size of all engines. Raises CellFailed, with the consequence, where it is unknown or they differ."""
    sizes = {shape.block_tokens for shape in shapes}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        raise CellFailed(f"the engines report no common KV block size: {consequence}")
    return size
