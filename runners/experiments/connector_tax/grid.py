"""The grid of `connector-tax` as a profile states it (`[experiment.connector-tax.<preset>]`), checked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runners.experiments.settings import (
    Tables,
    convert_grid,
    find_preset,
    parse_setting,
    refuse_problems,
    set_key,
)

EXPERIMENT = "connector-tax"
EXAMPLE = "min_completed=100"
"""Of a setting, for the error that one needs."""
REMEDY = "correct that key in the profile or in --set; docs/connector-tax.md lists them all"


class PhaseA(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate sweep at one shape."""

    input_tokens: int
    output_tokens: int
    rates_per_s: tuple[float, ...]


class PhaseB(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every input length x every output length at ref_safe; none = no Phase B."""

    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()


class PhaseBPrime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A few shapes at ref_load for the configs that matter most, where ref_load differs from ref_safe."""

    configs: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()
    """(input tokens, output tokens)."""


class Fidelity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a cell is marked degraded because the client, not the engine, fell behind."""

    lateness_p99_s: float = 0.010
    achieved_ratio: float = 0.98


class Saturation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of specs/connector_tax, "Saturation criteria"."""

    throughput_ratio: float = 0.95
    waiting_p50: float = 1.0
    ttft_p90_growth: float = 1.5


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must meet to count in the goodput (null = no limit)."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preset of the experiment."""

    configs: tuple[str, ...]
    phase_a: PhaseA
    min_duration_s: float
    min_completed: int
    warmup_s: float
    inflight_cap: int
    engine_start_s: float
    """What one engine takes until it is ready, for the time estimate."""
    phase_b: PhaseB = PhaseB()
    expected_ref_safe_per_s: float = 0.0
    """What the time estimate assumes for Phase B before Phase A has measured it."""
    phase_b_prime: PhaseBPrime = PhaseBPrime()
    hard_stop_factor: float = 3.0
    """A cell ends at this multiple of its expected duration whatever it has."""
    drain_s: float = 300.0
    """How long the requests in flight when sending stops may take at most; what is still open then is cut."""
    arrival: str = "constant"
    confirm: bool = False
    """Measure the reference loads and all shapes again, with `trials` launches per config; verdicts rest on these."""
    trials: int = 1
    """Launches per config: in the confirm stage, or of every load cell where there is none."""
    preflight_s: float = 30.0
    seed: int = 1
    fidelity: Fidelity = Fidelity()
    saturation: Saturation = Saturation()
    slo: Slo = Slo()


def read_grid(tables: Tables, profile: str, preset: str, *, settings: Sequence[str] = ()) -> Grid:
    """The validated grid of a preset with the user's settings (`KEY=VALUE`, dotted keys of a grid).

    Raises RunnerError naming the profile, the preset and the wrong key.
    """
    raw, where = find_preset(tables, EXPERIMENT, profile, preset)
    for text in settings:
        set_key(raw, *parse_setting(text, EXAMPLE))
    grid = convert_grid(raw, Grid, where, REMEDY)
    _check_grid(grid, where)
    return grid


def _check_grid(grid: Grid, where: str) -> None:
    rates = grid.phase_a.rates_per_s
    problems = [
        (not rates or any(rate <= 0 for rate in rates), "phase_a.rates_per_s must hold positive rates"),
        (list(rates) != sorted(set(rates)), "phase_a.rates_per_s must rise without repeats"),
        (grid.inflight_cap < 1, "inflight_cap must be at least 1"),
        (grid.min_completed < 1, "min_completed must be at least 1"),
        (grid.trials < 1, "trials must be at least 1"),
        (grid.hard_stop_factor < 1, "hard_stop_factor must be at least 1"),
        (grid.drain_s < 0, "drain_s must be 0 or more"),
        (grid.arrival not in ("constant", "poisson"), "arrival must be constant or poisson"),
        (
            bool(grid.phase_b.input_tokens) != bool(grid.phase_b.output_tokens),
            "phase_b needs input and output lengths, or neither",
        ),
        (
            bool(grid.phase_b.input_tokens) and grid.expected_ref_safe_per_s <= 0,
            "phase_b needs expected_ref_safe_per_s, a positive rate",
        ),
        (bool(grid.phase_b_prime.shapes) and not grid.phase_b.input_tokens, "phase_b_prime needs phase_b"),
    ]
    refuse_problems(problems, where, REMEDY)
