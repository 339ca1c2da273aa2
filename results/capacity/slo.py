"""A latency objective: `ttft_p90=2s,tpot_p90=50ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from results.measures.latency import METRICS

_LIMIT = re.compile(r"(\w+)_p(\d\d)=(\d+(?:\.\d+)?)(ms|s)", re.ASCII)
_UNITS = {"s": 1.0, "ms": 1e-3}


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a percentile may be."""

    metric: str
    """Name of a declared metric without its unit, seconds: `ttft`."""
    percent: int
    """Percentile of the turns: 90 for p90."""
    limit_s: float

    @property
    def name(self) -> str:
        return f"{self.metric}_p{self.percent}"

    @property
    def title(self) -> str:
        return name_limit(self.name)


def name_limit(name: str) -> str:
    """As tables and figures show the limit with this name."""
    metric, _, percentile = name.rpartition("_")
    return f"{METRICS[f'{metric}_s'].title} {percentile}"


def parse_slo(text: str) -> tuple[Limit, ...]:
    """Raises ValueError naming the part that is none."""
    limits = []
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or f"{match[1]}_s" not in METRICS or float(match[3]) <= 0 or int(match[2]) == 0:
            raise ValueError(f"{part.strip()!r} is no limit such as ttft_p90=2s or tpot_p90=50ms")
        limits.append(Limit(match[1], int(match[2]), float(match[3]) * _UNITS[match[4]]))
    names = [limit.name for limit in limits]
    if len(set(names)) < len(names):
        raise ValueError(f"{text!r} limits one percentile twice")
    return tuple(limits)
