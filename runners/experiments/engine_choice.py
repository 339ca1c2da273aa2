"""The engines of a preset: its settings over those of the profile, and the block size they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from launch.profile import EngineSettings, Profile
from runners.errors import CellFailed
from runners.samplers.engine_counters import CacheShape

CACHED_TOKENS_ARGUMENT = "--enable-prompt-tokens-details"
SCHEDULING_ARGUMENT = "--scheduling-policy"


class EngineChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None = as in the profile."""

    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    scheduling: Literal["fcfs", "priority"] | None = None
    """Order of waiting requests: as they came, or by the `priority` they carry (vLLM's --scheduling-policy)."""
    env: dict[str, str] = {}
    """Added to the profile's."""


def counting_profile(profile: Profile, choice: EngineChoice) -> Profile:
    """The profile with the preset's engine settings; its engines report how much of each prompt was cached."""
    changed = {name: value for name, value in msgspec.structs.asdict(choice).items() if value is not None}
    scheduling = changed.pop("scheduling", None)
    ordered = () if scheduling is None else (SCHEDULING_ARGUMENT, scheduling)
    arguments = (*dict.fromkeys((*profile.engine.extra_args, CACHED_TOKENS_ARGUMENT)), *ordered)
    changed["env"] = profile.engine.env | changed["env"]
    settings: EngineSettings = msgspec.structs.replace(profile.engine, **changed, extra_args=arguments)
    return msgspec.structs.replace(profile, engine=settings)


def common_block_tokens(shapes: Iterable[CacheShape], consequence: str) -> int:
    """The engines' one block size. Raises CellFailed, with what follows, where it is unknown or they differ."""
    sizes = {shape.block_tokens for shape in shapes}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        raise CellFailed(f"the engines report no common KV block size: {consequence}")
    return size
