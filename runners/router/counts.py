"""The router's counts, and its `/metrics` page. Counting only adds to integers; the page is built on request."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from results.records.decisions import ClusterView, KvTransfer, transfer_s

if TYPE_CHECKING:
    from prometheus_client.core import Metric

DECIDE_BUCKETS_S = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3)
LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
TRIP_BUCKETS_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.5)
DECIDE_TIMES = 1 << 17
"""Percentiles are of this many latest decision times."""
PREFIX = "tracon_router_"
TRANSFERRED_TEXT = "Tokens that targets took from transfers, by their own count."
DISAGREED_TEXT = "Times that the shared table was not asked, or did not agree."


class Histogram:
    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def add_value(self, value: float) -> None:
        self.counts[bisect_left(self._edges, value)] += 1
        self.total += value

    def list_buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus expects."""
        buckets, below = [], 0
        for edge, count in zip((*self._edges, float("inf")), self.counts, strict=True):
            below += count
            buckets.append(("+Inf" if edge == float("inf") else repr(edge), float(below)))
        return buckets


class Counts:
    """Everything counted since the start."""

    def __init__(self) -> None:
        self.requests = 0
        self.picks = 0
        self.retries = 0
        self.cut = 0
        self.policy_errors = 0
        """Picks where the policy raised or named an instance that may not be picked."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By (instance, status); the instance is empty if none was picked."""
        self.decisions: Counter[str] = Counter()
        self.migrations: Counter[str] = Counter()
        """Picks with `migrate_from`, by result: `transferred`, `recomputed`, `unneeded`, `failed`, as in
        RoutedOutcome."""
        self.transfers: Counter[tuple[str, str]] = Counter()
        """By (purpose, status), as in KvTransfer."""
        self.transferred_tokens = 0
        """Prompt tokens that targets took from transfers, as far as they could be counted."""
        self.transferred_bytes = 0
        self.transfer = Histogram(LATENCY_BUCKETS_S)
        """Transfers that moved KV: from the start until the target had the KV."""
        self.picks_of: Counter[str] = Counter()
        """Picks by instance, as a serving or a prefill instance."""
        self.failures: Counter[tuple[str, str]] = Counter()
        """By (instance, kind): `connect`, `closed`, `timeout`, `stall`, `status`, `event`, `protocol`, `refused`,
        `down`, `own`."""
        self.decide = Histogram(DECIDE_BUCKETS_S)
        self.binding_trips: Counter[str] = Counter()
        """Answers of the shared table, by operation."""
        self.binding_failures: Counter[str] = Counter()
        """By kind: `away` (not asked), `timeout`, `lost` (the connection), `refused` (another router was first),
        `unreadable` (the answer is not a row)."""
        self.binding_trip = Histogram(TRIP_BUCKETS_S)
        self.first_byte = Histogram(LATENCY_BUCKETS_S)
        self.last_byte = Histogram(LATENCY_BUCKETS_S)
        self._decide_us = array("d")

    def add_decide_time(self, decide_us: float) -> None:
        self.decide.add_value(decide_us / 1e6)
        if len(self._decide_us) < DECIDE_TIMES:
            self._decide_us.append(decide_us)
        else:
            self._decide_us[self.picks % DECIDE_TIMES] = decide_us

    def decide_quantile_us(self, level: float) -> float | None:
        """A quantile of the latest decision times; None = there were none."""
        values = sorted(self._decide_us)
        return values[min(len(values) - 1, int(level * len(values)))] if values else None

    def add_transfer(self, transfer: KvTransfer) -> None:
        """Count a transfer that has ended and whose counters are read or given up on."""
        self.transfers[transfer.purpose, transfer.status] += 1
        self.transferred_tokens += transfer.external_tokens or 0
        self.transferred_bytes += transfer.bytes or 0
        seconds = transfer_s(transfer)
        if seconds is not None:
            self.transfer.add_value(seconds)

    def make_outcome_fields(self) -> dict[str, Any]:
        """The fields of a RouterOutcome that are counted here."""
        return {
            "requests": self.requests,
            "picks": self.picks,
            "retries": self.retries,
            "errors": self.count_status("error"),
            "aborted": self.count_status("aborted"),
            "cut": self.cut,
            "decisions": dict(self.decisions),
        }

    def count_status(self, status: str) -> int:
        """Requests (attempts, for `retried`) with this status, over all instances."""
        return sum(count for (_, ended), count in self.outcomes.items() if ended == status)


class _Page:
    """A collector of fixed values for prometheus_client's text encoder."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class Held(NamedTuple):
    """What the router holds at a moment: where its memory is."""

    connections: int
    """Connections of clients."""
    sessions: int
    unsettled: int
    """Picks and outcomes that are not counted and logged yet."""
    backlog_bytes: int
    """Unwritten bytes of the decision log."""
    index_blocks: Mapping[str, int]
    """By instance."""


def make_metrics_page(
    counts: Counts, view: ClusterView, sessions: Mapping[str, int], held: Held, records_lost: int
) -> bytes:
    """The metrics as Prometheus text; `sessions`: bound sessions by instance."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(
        _Page(
            [
                *_make_totals(counts, records_lost),
                *_make_held(held),
                *_make_gauges(view, sessions, held.index_blocks),
                *_make_histograms(counts),
            ]
        )
    )
    return generate_latest(registry)


def _make_totals(counts: Counts, records_lost: int) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    totals = (
        ("requests", "Requests that came to be routed.", counts.requests),
        ("picks", "Decisions made, repeated ones included.", counts.picks),
        ("retries", "Decisions repeated because an instance failed before the first byte.", counts.retries),
        ("policy_errors", "Picks where the policy failed and the fewest requests decided.", counts.policy_errors),
        ("records_lost", "Decision records that could not be written.", records_lost),
        ("transferred_tokens", TRANSFERRED_TEXT, counts.transferred_tokens),
        ("transferred_bytes", "Bytes of KV moved, where they are known.", counts.transferred_bytes),
    )
    for name, text, value in totals:
        yield CounterMetricFamily(PREFIX + name, text, value=value)
    labeled: tuple[tuple[str, str, tuple[str, ...], Counter[Any]], ...] = (
        ("outcomes", "Ends of attempts.", ("instance", "status"), counts.outcomes),
        ("decisions", "Picks by what decided.", ("reason",), counts.decisions),
        ("migrations", "Migrations by what came of them.", ("status",), counts.migrations),
        ("transfers", "KV transfers asked for.", ("purpose", "status"), counts.transfers),
        ("bindings_round_trips", "Answers of the table that routers share.", ("operation",), counts.binding_trips),
        ("bindings_failures", DISAGREED_TEXT, ("kind",), counts.binding_failures),
        ("failures", "Failed attempts by kind.", ("instance", "kind"), counts.failures),
    )
    for name, text, labels, counter in labeled:
        family = CounterMetricFamily(PREFIX + name, text, labels=labels)
        for key, value in counter.items():
            family.add_metric([key] if isinstance(key, str) else key, value)
        yield family


def _make_held(held: Held) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text, value in (
        ("client_connections", "Client connections open.", held.connections),
        ("sessions_known", "Sessions in the table of bindings.", held.sessions),
        ("unsettled_records", "Picks and outcomes that are not counted and logged yet.", held.unsettled),
        ("log_backlog_bytes", "Records of the decision log that wait for the disk.", held.backlog_bytes),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)


def _make_gauges(view: ClusterView, sessions: Mapping[str, int], blocks: Mapping[str, int]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    rows = (
        ("available", "1 = it may be picked.", lambda load: float(load.available)),
        ("num_requests", "Requests sent there that have not ended.", lambda load: load.num_requests),
        (
            "pending_prefill_tokens",
            "Uncached prompt tokens of requests without a first token.",
            lambda load: load.pending_prefill_tokens,
        ),
        ("ongoing_tokens", "Prompt tokens of requests that have not ended.", lambda load: load.ongoing_tokens),
        ("retained_tokens", "Prompt tokens retained for the pull of a handover.", lambda load: load.retained_tokens),
        ("sessions", "Sessions bound there.", lambda load: sessions.get(load.instance, 0)),
        ("index_blocks", "Blocks in its prefix index.", lambda load: blocks.get(load.instance, 0)),
    )
    for name, text, value in rows:
        family = GaugeMetricFamily(PREFIX + "instance_" + name, text, labels=["instance"])
        for load in view.instances:
            family.add_metric([load.instance], value(load))
        yield family


def _make_histograms(counts: Counts) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, text, histogram in (
        ("decide_seconds", "Time to decide.", counts.decide),
        ("bindings_seconds", "A question to the shared table until its answer.", counts.binding_trip),
        ("first_byte_seconds", "Pick to the first body byte.", counts.first_byte),
        ("last_byte_seconds", "Pick to the last body byte.", counts.last_byte),
        ("transfer_seconds", "A transfer that moved KV, from begin to end.", counts.transfer),
    ):
        yield HistogramMetricFamily(PREFIX + name, text, buckets=histogram.list_buckets(), sum_value=histogram.total)
