"""Chooses the GPUs for the engines of a run: other processes may hold some of those that are visible."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

from launch.gpu_checks import STOP_HOLDER, judge_room
from launch.gpu_choice import GpuChoice, choose_gpus
from runners.campaign.experiment import DraftPlan
from runners.errors import RunnerError


def require_free_gpus(draft: DraftPlan) -> None:
    """Raises RunnerError if other processes leave too few GPUs with room for the run's engines."""
    choice, gpus = _choose(draft), _count_gpus(draft)
    if choice is None or not choice.full or not len(choice.free) < gpus <= len(choice.devices):
        return
    raise RunnerError(
        f"other processes hold memory of GPU {', '.join(choice.full)}: {choice.shortage}; vLLM refuses to start there",
        remedy=f"{STOP_HOLDER}; or name other GPUs in CUDA_VISIBLE_DEVICES; or start it anyway: --accept-small-gpus",
    )


def explain_skipped_gpus(draft: DraftPlan) -> str:
    """A sentence where the run's engines skip GPUs that other processes hold; else empty."""
    choice = _choose(draft)
    return "" if choice is None else choice.explain_skipped(_count_gpus(draft))


def take_free_gpus(draft: DraftPlan, used: Sequence[str] = (), environ: MutableMapping[str, str] = os.environ) -> str:
    """Restrict all engines of this process to the GPUs with room; returns a note for the journal, empty = nothing new.

    The note names the GPUs that they skip, and any that the run's engines did not have before (`used`): two GPUs of one
    model differ too. One choice for all engines: a choice per engine would see the memory of the run's own engines.
    """
    choice, gpus = _choose(draft, environ), _count_gpus(draft)
    if choice is None:
        return ""
    environ.update(choice.name_free(gpus))
    sentences = [choice.explain_skipped(gpus)]
    now = choice.free[:gpus] if choice.must_skip(gpus) else choice.devices[:gpus]
    if used and not set(now) <= set(used):
        sentences.append(
            f"The run's engines were on GPU {', '.join(used)} before, and are on GPU {', '.join(now)} now."
        )
    return " ".join(filter(None, sentences))


def _choose(draft: DraftPlan, environ: Mapping[str, str] = os.environ) -> GpuChoice | None:
    if not draft.needs_engine:
        return None
    room = judge_room(draft.profile)
    return choose_gpus(draft.profile, draft.engines_per_gpu, environ, room.small if room is not None else ())


def _count_gpus(draft: DraftPlan) -> int:
    return draft.gpus * draft.profile.engine.tensor_parallel_size
