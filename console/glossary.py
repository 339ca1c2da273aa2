"""What every number on the screen means: its unit, where it comes from, and when to worry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One number of the console."""

    term: str
    """As the column or plot calls it."""
    unit: str
    meaning: str
    source: str
    watch: str = ""
    """What is worth a second look."""


TERMS: tuple[Term, ...] = (
    Term(
        "TTFT p50, p90",
        "ms",
        "time to first token: from the moment a request was really sent to the first chunk that carries a token",
        "load client's own stamps, requests of the last second",
        "p90 far above p50: requests queue before their prefill",
    ),
    Term(
        "TPOT p50, p90",
        "ms/token",
        "time per output token: (last token - first token) / (tokens - 1); undefined for one token",
        "load client's own stamps, requests that ended in the last second",
    ),
    Term("run", "requests", "requests in the engine's running batch", "engine gauge vllm:num_requests_running"),
    Term(
        "wait",
        "requests",
        "requests queued in the engine",
        "engine gauge vllm:num_requests_waiting",
        "growing second by second: the load is above what this config can serve",
    ),
    Term(
        "pend",
        "tokens",
        "pending prefill tokens: prompt tokens of requests sent whose first token has not come back",
        "load client's own count",
    ),
    Term(
        "KV",
        "%",
        "share of the KV cache blocks in use",
        "engine gauge vllm:kv_cache_usage_perc",
        "near 100: preemptions follow",
    ),
    Term(
        "step p50, p90",
        "ms",
        "duration of an engine step that processed at least one token",
        "step probe inside the engine, steps of the last second",
        "shown as – where the probe does not fit this engine; the feed says why",
    ),
    Term(
        "step histogram",
        "share of steps",
        "all non-empty steps since the instance was launched, in fixed buckets; the axis gives upper edges",
        "step probe inside the engine",
    ),
    Term(
        "late p99",
        "ms",
        "how late the load client sent, against its schedule",
        "load client",
        "large: the client, not the engine, was slow",
    ),
    Term(
        "dropped",
        "requests",
        "requests not sent because the inflight cap was reached",
        "load client",
        "more than 0: offered load was not delivered",
    ),
    Term(
        "BS",
        "requests",
        "on Routing: requests the router sent to the instance that have not ended",
        "router's own counter, read once a second",
        "far above the others': look at the reasons of the latest decisions",
    ),
    Term(
        "PP",
        "tokens",
        "on Routing: prompt tokens, less what the prefix index says is cached, of requests whose first token has not "
        "come back; the bar's full length is the most any instance had in the past minute",
        "router's own counter, read once a second",
        "hot: more than 3 times the mean of the others for 5 s, from at least 2 requests",
    ),
    Term(
        "OT",
        "tokens",
        "on Routing: prompt tokens of requests that have not ended",
        "router's own counter, read once a second",
    ),
    Term(
        "sess",
        "sessions",
        "on Routing: sessions bound to the instance now",
        "router's bindings",
        "never rebalanced: it came back 10 s ago or more, has had no request since, and the others are loaded",
    ),
    Term(
        "picks",
        "%",
        "on Routing: share of the picks that went to the instance since the cell began (of the decisions listed, "
        "where the router does not count by instance)",
        "router's own counter",
        "cold: no pick and no request for 10 s while the others held 2 requests each",
    ),
    Term(
        "progress", "%", "work of finished cells / work of all cells, by the plan's time estimates", "plan and journal"
    ),
    Term(
        "ETA",
        "time",
        "estimated time of the cells left, scaled by how long finished cells really took",
        "plan and journal",
    ),
    Term(
        "lease",
        "age",
        "heartbeat of the process that runs this run",
        "state file",
        "dead: nothing is being measured; resume goes on from here",
    ),
)
"""A value that was not measured is shown as –, never as 0."""


def lines() -> list[str]:
    """The terms as Markdown table rows, for the documentation."""
    head = ["| number | unit | meaning | source | worth a second look |", "|---|---|---|---|---|"]
    return head + [f"| {t.term} | {t.unit} | {t.meaning} | {t.source} | {t.watch} |" for t in TERMS]
