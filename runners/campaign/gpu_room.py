"""Whether an engine of a run fits into a GPU of this host, judged before the run starts by the doctor's estimate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from launch.gpu_checks import SMALL_PROFILE, judge_room
from launch.profile import Profile, load_profile
from results.records.errors import Refusal
from runners.campaign.experiment import DraftPlan, Experiment, RunOptions
from runners.errors import RunnerError


def require_gpu_room(experiment: Experiment, options: RunOptions, draft: DraftPlan) -> None:
    """Raises RunnerError where an engine of the run fits into no GPU that it may take.

    Nothing is refused where it fits into one of them, and where no GPU or no estimate is known.
    """
    room = judge_room(draft.profile) if draft.needs_engine else None
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
        room = judge_room(draft.profile) if draft.needs_engine else None
        if room is not None and room.fitting >= draft.gpus * draft.profile.engine.tensor_parallel_size:
            yield preset
