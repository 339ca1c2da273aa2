"""What policies are compared by (specs/ear section 5.1), each with its unit and the direction in which it is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from results.measures import latency
from results.measures.summary import POINTS, percentile_name


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per cell."""

    name: str
    """As in `RoutedSummary.values`."""
    title: str
    unit: str
    """`s`, `ms`: shown so; `share`: a fraction, shown in per cent; `x`: a ratio."""
    higher_is_better: bool = False
    series: str = ""
    """Whose turns it is computed from; empty = it is one number of a whole cell."""
    point: str = ""
    """`mean`, `p50`, `p90`, `p99` of the series; `median`, `max` over instances of their p90; or `ratio`."""

    @property
    def is_time(self) -> bool:
        """A time or a ratio of times: two policies are compared by the ratio of theirs."""
        return self.unit in ("s", "ms", "x")

    @property
    def scale(self) -> float:
        """From the value to what is shown."""
        return {"ms": 1e3, "share": 100.0}.get(self.unit, 1.0)

    @property
    def shown_unit(self) -> str:
        return {"share": "%", "x": ""}.get(self.unit, self.unit)


def _latencies() -> Iterable[Metric]:
    for series, of in latency.METRICS.items():
        for point in ("mean", *POINTS):
            title = f"{of.title} {point}"
            yield Metric(percentile_name(series, point), title, of.shown_unit, False, series, point)


_OF_CELLS: tuple[Metric, ...] = (
    Metric("worker_ttft_p90_median_s", "instance TTFT p90, median", "ms", False, "ttft_s", "median"),
    Metric("worker_ttft_p90_max_s", "instance TTFT p90, max", "ms", False, "ttft_s", "max"),
    Metric("apc", "APC", "share", True),
    Metric("apc_usage", "APC (responses)", "share", True, "cached_tokens", "ratio"),
    Metric("amplification", "amplification", "x", False),
    Metric("completed_share", "completed", "share", True),
)

HEADLINE = (
    "ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "e2e_p90_s", "apc", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s",
    "amplification",
)  # fmt: skip
"""What the specification claims its policy wins: the five dimensions of contribution C3, and the medians beside."""


def metrics() -> tuple[Metric, ...]:
    """Every metric that a difference of policies is computed of: those of the declared request metrics first."""
    return (*_latencies(), *_OF_CELLS)


def metric(name: str) -> Metric:
    """The metric called `name`. Raises KeyError."""
    return {known.name: known for known in metrics()}[name]
