"""The grid of `connector-tax` as a profile states it (`[experiment.connector-tax.<preset>]`), checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from results.connector_tax.slo import Slo
from results.records.reference_rates import REF_LOAD, REF_SAFE, Thresholds
from runners.experiments.settings import (
    Tables,
    convert_grid,
    find_preset,
    parse_setting,
    refuse_problems,
    set_key,
)

EXPERIMENT = "connector-tax"
Shape = tuple[int, int]
"""Input and output tokens."""
PLANNED_LAUNCHES = (3, 5, 8)
"""For how many launches per config a plan states hours and precision."""
EXAMPLE = "min_completed=100"
"""Example of a setting, for the error that one needs."""
REMEDY = "correct that key in the profile or in --set; docs/connector-tax.md lists them all"


class PhaseA(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rate sweep at one shape."""

    input_tokens: int
    output_tokens: int
    rates_per_s: tuple[float, ...]

    @property
    def shape(self) -> Shape:
        return self.input_tokens, self.output_tokens


class OwnRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rate of a shape that ref_safe would overload, or hardly load."""

    rate_per_s: float
    min_completed: int = 0
    """Minimum completions in its window; 0 = the preset's."""


class PhaseB(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every input length x every output length at ref_safe; none = no Phase B."""

    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    shape_rates: dict[str, OwnRate] = msgspec.field(default_factory=dict)
    """By shape, as `32768x64`: its own rate in place of ref_safe."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple((i, o) for i in self.input_tokens for o in self.output_tokens)

    def find_own_rate(self, shape: Shape) -> OwnRate | None:
        return self.shape_rates.get("{}x{}".format(*shape))


class PhaseBPrime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A few shapes at ref_load for the configs that matter most, where ref_load differs from ref_safe."""

    configs: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()


class Fidelity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a cell is marked degraded because the client, not the engine, fell behind."""

    lateness_p99_s: float = 0.010
    achieved_ratio: float = 0.98


class Saturation(Thresholds, frozen=True, forbid_unknown_fields=True):
    """The thresholds of "Saturation criteria" in specs/connector_tax, as a preset states them."""


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preset of the experiment."""

    configs: tuple[str, ...]
    phase_a: PhaseA
    min_duration_s: float
    min_completed: int
    warmup_s: float
    inflight_cap: int
    engine_start_s: float
    """Until one engine is ready, for the time estimate."""
    phase_b: PhaseB = PhaseB()
    expected_ref_safe_per_s: float = 0.0
    """What the time estimate assumes for Phase B before Phase A has measured it; not used where the rates are fixed."""
    ref_safe_per_s: float | None = None
    """Fixes ref_safe, so that several runs measure the same loads; None = Phase A gives both reference rates."""
    ref_load_per_s: float | None = None
    """Fixes ref_load; both rates are fixed, or neither."""
    phase_b_prime: PhaseBPrime = PhaseBPrime()
    hard_stop_factor: float = 3.0
    """A cell ends at this multiple of its expected duration whatever it has."""
    drain_s: float = 300.0
    """For the requests in flight when sending stops; what is still open then is cut."""
    arrival: str = "constant"
    confirm: bool = False
    """Measure the reference loads and all shapes with `trials` launches per config; verdicts rest on these."""
    trials: int = 1
    """Launches per config: in the confirm stage, or of every load cell where there is none."""
    preflight_s: float = 30.0
    seed: int = 1
    fidelity: Fidelity = Fidelity()
    saturation: Saturation = Saturation()
    slo: Slo = Slo()

    @property
    def shapes_at_ref_load(self) -> tuple[Shape, ...]:
        """Shapes of B'. A shape with a rate of its own is measured at that one alone."""
        return tuple(shape for shape in self.phase_b_prime.shapes if self.phase_b.find_own_rate(shape) is None)

    @property
    def fixed_rates(self) -> dict[str, float]:
        """Reference rate to its value in req/s; empty where Phase A gives them."""
        rates = {REF_SAFE: self.ref_safe_per_s, REF_LOAD: self.ref_load_per_s}
        return {name: rate for name, rate in rates.items() if rate is not None}

    @property
    def can_rates_differ(self) -> bool:
        """Whether ref_load may be another rate than ref_safe."""
        return len(self.phase_a.rates_per_s) > 1 and (not self.fixed_rates or len(set(self.fixed_rates.values())) > 1)

    def expect_rate(self, reference: str) -> float:
        """The reference rate in req/s that the time estimate assumes."""
        return self.fixed_rates.get(reference) or self.expected_ref_safe_per_s or self.phase_a.rates_per_s[0]


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
            bool(grid.phase_b.input_tokens) and grid.expected_ref_safe_per_s <= 0 and not grid.fixed_rates,
            "phase_b needs expected_ref_safe_per_s, a positive rate, or both reference rates fixed",
        ),
        (bool(grid.phase_b_prime.shapes) and not grid.phase_b.input_tokens, "phase_b_prime needs phase_b"),
        *_check_own_rates(grid),
        *_check_fixed_rates(grid),
    ]
    refuse_problems(problems, where, REMEDY)


def _check_own_rates(grid: Grid) -> Iterator[tuple[bool, str]]:
    shapes = {"{}x{}".format(*shape) for shape in grid.phase_b.shapes}
    swept = "{}x{}".format(*grid.phase_a.shape)
    for shape, own in grid.phase_b.shape_rates.items():
        name = f"phase_b.shape_rates.{shape}"
        yield shape not in shapes, f"{name} is no shape of phase_b: write it as 512x64"
        yield shape == swept, f"{name} is the shape of phase_a, which the reference rates are for"
        yield own.rate_per_s <= 0, f"{name}.rate_per_s must be positive"
        yield own.min_completed < 0, f"{name}.min_completed must be 0 or more"


def _check_fixed_rates(grid: Grid) -> Iterator[tuple[bool, str]]:
    fixed = grid.fixed_rates
    yield len(fixed) == 1, "ref_safe_per_s and ref_load_per_s are fixed together, or neither"
    for name, rate in fixed.items():
        yield rate not in grid.phase_a.rates_per_s, f"{name}_per_s = {rate:g} is no rate of phase_a.rates_per_s"
    yield len(fixed) == 2 and fixed[REF_SAFE] > fixed[REF_LOAD], "ref_safe_per_s must be at most ref_load_per_s"
