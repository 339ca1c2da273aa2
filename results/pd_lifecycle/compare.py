"""Two runs of pd-lifecycle are compared by overheads, the cost of a transfer, and durations by load cell."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from results.pd_lifecycle.analyze import LifecycleAnalysis
from results.pd_lifecycle.overheads import PLAIN_ENGINE
from results.report.comparison import Comparable, Measure

DURATIONS = ("e2e", "p_prefill", "rdma_transfer", "transfer_total", "d_decode")
"""Compared by load cell: the specification's columns of summary.csv."""


def build_comparable(analysis: LifecycleAnalysis) -> Comparable:
    return Comparable(
        facts=analysis.facts,
        measures=(
            *_list_grid(analysis),
            *_list_overheads(analysis),
            *_list_costs(analysis),
            *_list_durations(analysis),
        ),
        judgements=analysis.criteria,
        loads=_name_grids(analysis),
        stated={
            "transport": ", ".join(analysis.transports),
            "link": ", ".join(link.text for link in analysis.links) or analysis.no_link,
            "hosts": "two" if analysis.two_hosts else "one",
        },
    )


def _name_grids(analysis: LifecycleAnalysis) -> dict[str, str]:
    """What each criterion is judged over: 2 its N and above, 4 each N with several C, the others every (C, N, O)."""
    whole = {one.config.key for one in analysis.configs}
    contexts: dict[int, set[int]] = {}
    for prior_context, new_tokens, _ in whole:
        contexts.setdefault(new_tokens, set()).add(prior_context)
    own = {
        "2": {size for size in whole if size[1] >= analysis.settings.min_new_tokens},
        "4": {size for size in whole if len(contexts[size[1]]) > 1},
    }
    return {one.name: _describe_grid(own.get(one.name, whole)) for one in analysis.criteria}


def _describe_grid(sizes: Collection[tuple[int, int, int]]) -> str:
    """By the values of C, N and O, or one by one where not all of their combinations are there; empty without any."""
    axes = [sorted(set(axis)) for axis in zip(*sizes, strict=True)]
    if math.prod(map(len, axes)) != len(sizes):
        return "; ".join(f"C={size[0]} N={size[1]} O={size[2]}" for size in sorted(sizes))
    return ", ".join(f"{name}={'/'.join(map(str, axis))}" for name, axis in zip("CNO", axes, strict=True))


def _list_durations(analysis: LifecycleAnalysis) -> Iterator[Measure]:
    for row in analysis.configs:
        config = row.config
        load = {"C": str(config.prior_context), "N": str(config.current_new_tokens), "O": str(config.output_length)}
        for name in DURATIONS:
            own = f"{name} at C={config.prior_context} N={config.current_new_tokens} O={config.output_length}"
            value = row.value(name)
            key = {**load, "duration": name}
            yield Measure("Durations", key, value, "ms", degrees=value.launches - 1, id=own)


def _list_grid(analysis: LifecycleAnalysis) -> Iterator[Measure]:
    """Over all (C, N), of which a launch has one mean: the least uncertain numbers of a run with few launches.

    Means over unlike grids are no pair, so the grid is part of what identifies one.
    """
    grid = _describe_grid({one.config.key for one in analysis.configs})
    for one in analysis.grid_overheads:
        if one.change.value is not None:
            key = {"arm": one.arm, "over": one.baseline, "(C, N)": str(one.sizes)}
            degrees = one.change.launches - 1
            own = f"TTFT of the {one.arm} over the {one.baseline}, {one.sizes} (C, N) of {grid}"
            table = "TTFT over the whole grid"
            yield Measure(table, key, one.change, unit="%", ratio=False, degrees=degrees, id=own)


def _list_overheads(analysis: LifecycleAnalysis) -> Iterator[Measure]:
    for cell in (*analysis.plain_overheads, *analysis.overheads):
        key = {"over": cell.baseline, "C": str(cell.prior_context), "N": str(cell.new_tokens)}
        plain = "plain" if cell.baseline == PLAIN_ENGINE else "combined"
        own = f"overhead over {plain} at C={cell.prior_context} N={cell.new_tokens}"
        table, degrees = "TTFT over that of a combined instance", cell.overhead_ms.launches - 1
        yield Measure(table, key, cell.overhead_ms, "ms", ratio=False, degrees=degrees, id=own)


def _list_costs(analysis: LifecycleAnalysis) -> Iterator[Measure]:
    model = analysis.costs.relative
    numbers = (("alpha", model.alpha_ms, "ms"), ("beta", model.beta_ms_per_mb, "ms per 10^6 bytes"))
    for name, estimate, unit in numbers:
        own, degrees = f"{name} of a transfer", estimate.launches - 1
        yield Measure("Cost of a transfer", {"": name}, estimate, unit, ratio=False, degrees=degrees, id=own)
