"""Whether a run's engines fit into the GPUs of this host, and which of these they take: other processes hold memory."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace

from launch.gpu_checks import SMALL_PROFILE, STOP_HOLDER, GpuRoom, judge_room
from launch.gpu_choice import GpuChoice, choose_gpus
from launch.profile import Profile, load_profile
from results.records.errors import Refusal
from runners.campaign.experiment import DraftPlan, Experiment, RunOptions
from runners.errors import RunnerError


def require_gpu_room(experiment: Experiment, options: RunOptions, draft: DraftPlan) -> None:
    """Raises RunnerError where an engine of the run fits into no GPU that it may take, by the doctor's estimate.

    Nothing is refused where it fits into one of them, and where no GPU or no estimate is known.
    """
    room = _judge_room(draft)
    if room is None or room.fitting:
        return
    raise RunnerError(
        f"an engine of {options.experiment}, preset {options.preset}, fits into none of the GPUs that it "
        f"may take ({', '.join(room.small)}), by an estimate: {room.sizes}",
        remedy="; or ".join((*_list_remedies(experiment, options), "start it anyway: --accept-small-gpus")),
    )


def _list_remedies(experiment: Experiment, options: RunOptions) -> Iterator[str]:
    profile = load_profile(options.profile)
    if presets := list(_list_fitting_presets(experiment, options, profile)):
        yield f"use a preset that fits: {', '.join(f'--preset {preset}' for preset in presets)}"
    own = judge_room(profile)
    if own is not None and not own.fitting:
        doctor = f'tracon doctor --profile {shlex.quote(options.profile)} --only "GPU memory"'
        yield f"use settings that fit, if `{doctor}` names any"
    if profile.name != SMALL_PROFILE:
        yield f"use a smaller model: --profile {SMALL_PROFILE}"


def _list_fitting_presets(experiment: Experiment, options: RunOptions, profile: Profile) -> Iterator[str]:
    """The other presets of the profile whose engines all have a GPU that they fit into; settings of `--set` apply."""
    for preset in profile.experiments.get(experiment.name, {}):
        try:
            draft = experiment.draft_plan(replace(options, preset=preset), profile)
        except Refusal:  # an option of this run is none of that preset's
            continue
        room = _judge_room(draft)
        if room is not None and room.fitting >= _count_gpus(draft):
            yield preset


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
    room = _judge_room(draft)
    return choose_gpus(draft.profile, draft.engines_per_gpu, environ, room.small if room is not None else ())


def _count_gpus(draft: DraftPlan) -> int:
    return draft.gpus * draft.profile.engine.tensor_parallel_size


def _judge_room(draft: DraftPlan) -> GpuRoom | None:
    return judge_room(draft.profile) if draft.needs_engine else None
