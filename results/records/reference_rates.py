"""`reference_rates.json` of a `connector-tax` run: its reference rates, and the saturation that they follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec

from results.records.errors import DAMAGED_JSON, ArtifactError

REF_SAFE, REF_LOAD = "ref_safe", "ref_load"


class Thresholds(msgspec.Struct, frozen=True):
    """Beyond these a saturation criterion fires (strictly)."""

    throughput_ratio: float = 0.95
    """Least cohort ratio."""
    waiting_p50: float = 1.0
    """Most requests waiting, p50 over the samples."""
    ttft_p90_growth: float = 1.5
    """Most growth of TTFT p90 over half the rate."""


SPECIFIED = Thresholds()


@dataclass(frozen=True, slots=True)
class Criterion:
    """One saturation criterion at one cell."""

    number: int
    """1: cohort ratio, 2: requests waiting, 3: growth of TTFT."""
    name: str
    """In words."""
    measured: float | None
    """None = not known."""
    threshold: float
    """Beyond it the criterion fires."""
    fired: bool | None
    """None = not known, and `reason` says why."""
    reason: str | None = None
    """Why `fired` is None."""
    low: float | None = None
    """Lower bound. Criteria 1 and 3: of the spread inside the cells, or in the confirm stage, for 3, of the interval
    over its launches; 2: the least of few samples."""
    high: float | None = None
    """The other end of it."""
    specified: float | None = None
    """The number that the specification judges: of criterion 1 completions inside the window / rate."""
    specified_fired: bool | None = None
    """What the specification's rule gives for it."""
    fired_by_point: bool | None = None
    """What `measured` alone gives, without its spread."""
    n: int | None = None
    """Samples of the queue behind criterion 2."""


@dataclass(frozen=True, slots=True)
class CellSaturation:
    """Whether one cell was saturated, and by what."""

    cell: str
    config: str
    rate_per_s: float
    """Requested rate."""
    trial: int
    saturated: bool | None
    """True: a criterion fired. False: throughput and queue were both measured and nothing fired. None: otherwise."""
    criteria: tuple[Criterion, ...]
    """By number."""
    reason: str | None = None
    """Why `saturated` is None."""

    @property
    def fired(self) -> tuple[int, ...]:
        """Numbers of the criteria that fired."""
        return tuple(criterion.number for criterion in self.criteria if criterion.fired)

    @property
    def fired_by_point(self) -> tuple[int, ...]:
        """Numbers of the criteria that fire by their number alone."""
        return tuple(criterion.number for criterion in self.criteria if criterion.fired_by_point)

    @property
    def specified_fired(self) -> tuple[int, ...]:
        """Numbers of the criteria that fire by the specification's rules."""
        return tuple(criterion.number for criterion in self.criteria if criterion.specified_fired)


@dataclass(frozen=True, slots=True)
class ConfigSaturation:
    """One config's Phase A, rate by rate."""

    config: str
    completed: bool
    """Measured at every rate of the grid up to its saturation."""
    saturation_rate_per_s: float | None
    """The lowest saturated rate; None where none was."""
    fired: tuple[int, ...]
    """Criteria that fired there."""
    clear_rates_per_s: tuple[float, ...]
    """Rates below it that were measured and are not saturated."""
    reason: str | None = None
    """Why it did not complete."""


@dataclass(frozen=True, slots=True)
class ReferenceRates:
    """The rates at which Phase B is run and taxes are quoted."""

    ref_safe_per_s: float | None
    """The highest rate at which every config that completed Phase A is not saturated."""
    ref_load_per_s: float | None
    """The highest rate at which plain is not saturated."""
    ref_safe_reason: str
    """What limits ref_safe, or why there is none; of a fixed rate also what Phase A gives."""
    ref_load_reason: str
    """The same of ref_load."""
    thresholds: Thresholds = SPECIFIED
    """By which the cells were judged."""
    rates_per_s: tuple[float, ...] = ()
    """Every rate of Phase A that any config was measured at."""
    configs: tuple[ConfigSaturation, ...] = ()
    """Those measured in Phase A."""
    cells: tuple[CellSaturation, ...] = ()
    """Cells of Phase A, by config and rate."""
    fixed: bool = False
    """Whether the plan states both rates; Phase A then gives the rest."""

    def explain_rate(self, name: str) -> str:
        return self.ref_safe_reason if name == REF_SAFE else self.ref_load_reason

    def rate(self, name: str) -> float | None:
        return self.ref_safe_per_s if name == REF_SAFE else self.ref_load_per_s

    def to_json(self) -> bytes:
        """`reference_rates.json`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises ArtifactError where the text is no such file."""
        try:
            return msgspec.json.decode(data, type=cls)
        except DAMAGED_JSON as error:
            raise ArtifactError(
                f"reference_rates.json is damaged: {error}",
                remedy="remove it: the analysis makes it again from Phase A",
            ) from error
