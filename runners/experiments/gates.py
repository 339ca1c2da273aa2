"""The pre-flight of a config as a cell: launch it, verify that it works here, record the decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Literal

import msgspec

from launch.errors import HostObstacle, LaunchError
from launch.gpu_checks import read_gpus
from launch.gpu_choice import choose_gpus
from launch.gpu_devices import VISIBLE, choose_second_devices
from launch.gpu_fit import estimate_engine_bytes
from launch.preflight import verify
from launch.preflight_checks import Counterpart
from launch.profile import Profile
from results.records.events import CellState
from results.records.layout import RunLayout, write_indented_json
from results.records.plan import CellPlan
from results.records.preflight import PreflightRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import NOT_POSSIBLE, CellOutcome
from runners.errors import CellFailed, CellSkipped
from runners.experiments.engine_choice import MOST_REQUESTS_ARGUMENT
from state.model import RunView

GIB = 1 << 30
PEER_PROOF = "peer_transfer"
"""The proof that needs a second engine."""
SHARE = 0.46
"""Share of a GPU's memory, for each of two engines that prove a transfer on it."""
SHARED_CONTEXT_TOKENS = 24_576
SHARED_STEP_TOKENS = 4096
SHARED_REQUESTS = 64
"""These fit beside the weights of the 30B model in that share of an H200."""


def list_gates(configs: Iterable[str], stage: str, estimated_s: float) -> Iterator[CellPlan]:
    """The pre-flight cell of each config."""
    return (CellPlan(f"preflight/{config}", stage, "preflight", config, config, {}, estimated_s) for config in configs)


async def verify_config(cell: CellPlan, attempt: int, context: RunContext) -> CellOutcome:
    """Raises CellFailed with the reason where the config does not work, and CellSkipped where two engines that its
    proof needs do not fit on this host; its later cells are skipped. Raises HostObstacle, which decides nothing."""
    assert cell.config is not None
    log = context.layout.preflight_log(cell.config)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        profile, devices = _choose_profile(context, cell.config)
        instance = await context.slot.get(cell.config, f"{cell.stage}/{attempt}", preflight=True, profile=profile)
        folder = log.parent / f"counterpart_{cell.config}"
        counterpart: Counterpart = partial(context.slot.counterpart, cell.config, folder, devices, profile)
        result = await verify(instance, context.configs[cell.config], profile, log, counterpart)
    except CellSkipped as skipped:
        _record_decision(context.layout, cell.config, PreflightRecord("SKIP", str(skipped)))
        raise
    except HostObstacle:
        raise
    except LaunchError as error:
        _record_decision(context.layout, cell.config, PreflightRecord("SKIP", str(error)))
        raise CellFailed(f"{error} {error.remedy}") from error
    finally:
        await context.slot.release("pre-flight is over")
    decision: Literal["include", "SKIP"] = "include" if result.passed else "SKIP"
    _record_decision(context.layout, cell.config, PreflightRecord(decision, result.reason, result.checks))
    if not result.passed:
        raise CellFailed(f"{result.reason}; the log is {log.name}")
    return CellOutcome({"checks_passed": len(result.checks)})


def _choose_profile(context: RunContext, config: str) -> tuple[Profile, dict[str, str]]:
    """The profile of the pre-flight's engines, and the additional environment of a second one.

    Where the proof needs two engines and no other GPU has room for one, each takes SHARE of the memory of one. Raises
    CellSkipped where that is too little.
    """
    profile = context.profile
    if profile.engine.kind != "cuda" or PEER_PROOF not in context.configs[config].preflight.proofs:
        return profile, {}
    choice = choose_gpus(profile)
    full = () if choice is None else choice.full
    if beside := choose_second_devices(profile.engine.tensor_parallel_size, full=full):
        return profile, {VISIBLE: beside}
    shared = share_gpu(profile)
    needed, totals = estimate_engine_bytes(shared), [gpu.total_mib << 20 for gpu in read_gpus()]
    most = int((shared.engine.gpu_memory_utilization or SHARE) * min(totals, default=0))
    if needed is not None and totals and needed > most:
        raise CellSkipped(
            f"{NOT_POSSIBLE}the proof of {config} needs two engines, and one GPU has no room for both: each needs "
            f"about {needed / GIB:.1f} GiB and would have {most / GIB:.1f}. Use a second GPU or a smaller model"
        )
    return shared, {}


def share_gpu(profile: Profile) -> Profile:
    """The profile with settings with which two engines fit on one GPU; unchanged where they already do.

    vLLM compiles for these settings: its kernels are not those of the profile's own settings.
    """
    settings = profile.engine
    if settings.gpu_memory_utilization is not None and settings.gpu_memory_utilization <= SHARE:
        return profile
    smaller = msgspec.structs.replace(
        settings,
        gpu_memory_utilization=SHARE,
        max_model_len=min(SHARED_CONTEXT_TOKENS, settings.max_model_len),
        max_num_batched_tokens=min(SHARED_STEP_TOKENS, settings.max_num_batched_tokens),
        extra_args=(*settings.extra_args, MOST_REQUESTS_ARGUMENT, str(SHARED_REQUESTS)),
    )
    return msgspec.structs.replace(profile, engine=smaller)


def explain_gated(cell: CellPlan, view: RunView) -> str:
    """Why a config's cell is skipped; empty where its pre-flight did not fail."""
    if cell.kind == "preflight" or cell.config is None:
        return ""
    gate = view.cells.get(f"preflight/{cell.config}")
    if gate is not None and gate.state is CellState.FAILED:
        return f"pre-flight failed: {gate.reason}"
    return gate.reason if gate is not None and gate.reason.startswith(NOT_POSSIBLE) else ""


def _record_decision(layout: RunLayout, config: str, row: PreflightRecord) -> None:
    """Add the config's decision to preflight_status.json."""
    path = layout.preflight_status
    rows = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    rows[config] = row
    write_indented_json(path, rows)
