"""The pre-flight of a config as a cell: launch it, verify that it works here, record the decision."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from launch.errors import LaunchError
from launch.gpu_devices import second_devices
from launch.preflight import verify
from launch.preflight_checks import Counterpart
from results.records.events import CellState
from results.records.layout import RunLayout, write_indented_json
from results.records.plan import CellPlan
from results.records.preflight import PreflightRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed
from state.model import RunView


async def verify_config(cell: CellPlan, attempt: int, context: RunContext) -> CellOutcome:
    """Raises CellFailed with the reason where the config does not work; its later cells are then skipped."""
    assert cell.config is not None
    log = context.layout.preflight_log(cell.config)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        instance = await context.slot.get(cell.config, f"{cell.stage}/{attempt}", preflight=True)
        counterpart = _counterpart_of(context, cell.config)
        result = await verify(instance, context.configs[cell.config], context.profile, log, counterpart)
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


def _counterpart_of(context: RunContext, config: str) -> Counterpart | None:
    """A second engine of the config for a proof that needs one; None where the first has every GPU, as it has all of
    one's memory."""
    devices: dict[str, str] = {}
    if context.profile.engine.kind == "cuda":
        beside = second_devices(context.profile.engine.tensor_parallel_size)
        if not beside:
            return None
        devices = {"CUDA_VISIBLE_DEVICES": beside}
    folder = context.layout.preflight_log(config).parent / f"counterpart_{config}"
    return partial(context.slot.counterpart, config, folder, devices)


def why_gated(cell: CellPlan, view: RunView) -> str:
    """Why a config's cell is skipped; empty where its pre-flight did not fail."""
    if cell.kind == "preflight" or cell.config is None:
        return ""
    gate = view.cells.get(f"preflight/{cell.config}")
    if gate is not None and gate.state is CellState.FAILED:
        return f"pre-flight failed: {gate.reason}"
    return ""


def _record_decision(layout: RunLayout, config: str, row: PreflightRecord) -> None:
    """Add the config's decision to preflight_status.json."""
    path = layout.preflight_status
    rows = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    rows[config] = row
    write_indented_json(path, rows)
