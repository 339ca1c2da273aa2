"""Adds an engine's first start on a host to a plan: its pre-flight compiles kernels that later starts reuse.

A config that is proven by two engines on one GPU pays it twice: vLLM compiles again for the settings that are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import UNSET

from results.records.plan import CellPlan
from runners.campaign.experiment import DraftPlan
from runners.campaign.plan import Sum
from runners.experiments.gates import PEER_PROOF, share_gpu

PIECE_S = 480.0
"""A host with GPUs is free for this long at a time: a piece of a run must end within it."""


def add_cold_starts(draft: DraftPlan, in_turn: int = 1) -> DraftPlan:
    """The plan with each config's first start as the profile declares it, and a note on pieces beyond PIECE_S.

    Unchanged where the profile declares none. The first of the draft's sums is the one of pre-flight.
    `in_turn`: engines of a cell that start one after the other, of which the grid's `engine_start_s` is the sum.
    """
    launch = draft.profile.launch
    if launch.cold_start_s is UNSET or not draft.needs_engine:
        return draft
    checks_s, release_s = draft.grid.preflight_s, launch.release_wait_s
    start_s = min(launch.cold_start_s, draft.grid.engine_start_s / in_turn)
    second_s = start_s + release_s
    pairs = {config.name for config in draft.configs if PEER_PROOF in config.preflight.proofs}
    once_s = launch.cold_start_s + checks_s + release_s
    cells = [
        replace(cell, estimated_s=once_s + (second_s if cell.config in pairs else 0.0))
        if cell.kind == "preflight"
        else cell
        for cell in draft.cells
    ]
    gates = [cell for cell in cells if cell.kind == "preflight"]
    each = f"{launch.cold_start_s:g} s cold start + {checks_s:g} s checks + {release_s:g} s release"
    again = f" + {len(pairs)} x {second_s:g} s of a second engine" if pairs else ""
    first = Sum(draft.sums[0].stage, f"{len(gates)} config x ({each}){again}", sum(cell.estimated_s for cell in gates))
    recompiling = _list_recompiling(draft, pairs)
    added_s = launch.cold_start_s - start_s
    cells = [replace(cell, estimated_s=cell.estimated_s + added_s) if cell in recompiling else cell for cell in cells]
    sums = (first, *draft.sums[1:], *_sum_recompiling(recompiling, added_s))
    stages = [stage.stage for stage in draft.stages]
    changed = replace(draft, cells=cells, sums=tuple(sorted(sums, key=lambda line: stages.index(line.stage))))
    return replace(changed, notes=(*draft.notes, *_describe_long_pieces(changed)))


def _list_recompiling(draft: DraftPlan, pairs: set[str]) -> list[CellPlan]:
    """The first measured cells of these configs, where pre-flight ran with other settings on a host with as many GPUs
    as the plan needs."""
    if draft.profile.engine.kind != "cuda" or draft.gpus > 1 or share_gpu(draft.profile) is draft.profile:
        return []
    measured = [cell for cell in draft.cells if cell.kind != "preflight"]
    firsts = (next((cell for cell in measured if cell.config == config), None) for config in sorted(pairs))
    return [cell for cell in firsts if cell is not None]


def _sum_recompiling(cells: Sequence[CellPlan], added_s: float) -> Iterator[Sum]:
    for cell in cells:
        text = f"{added_s:g} s more for the first start of {cell.config}: pre-flight on one GPU has other settings"
        yield Sum(cell.stage, text, added_s)


def list_pieces(draft: DraftPlan) -> Iterator[tuple[str, float]]:
    """Each cell with its seconds, the start and release of its engines included whether or not they run already."""
    around_s = draft.grid.engine_start_s + draft.profile.launch.release_wait_s
    for cell in draft.cells:
        alone = cell.config is None or cell.kind == "preflight" or cell.estimated_s >= around_s
        yield cell.cell, cell.estimated_s + (0.0 if alone else around_s)


def _describe_long_pieces(draft: DraftPlan) -> Iterator[str]:
    beyond = {cell: seconds for cell, seconds in list_pieces(draft) if seconds > PIECE_S}
    if beyond:
        longest = max(beyond, key=lambda cell: beyond[cell])
        yield (
            f"{len(beyond)} of {len(draft.cells)} cells take longer than {PIECE_S / 60:g} minutes with the start of "
            f"their engines, {longest} the longest ({beyond[longest]:.0f} s). A cell that is cut is measured again."
        )
