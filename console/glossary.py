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
        "TTFT p90 (7)",
        "ms",
        "on Routing: time to first token of the requests that one instance answered in the last 5 s",
        "load client's own stamps; the router's answers name the instance",
        "far above the others': the instance is hot, or slow",
    ),
    Term(
        "migration",
        "sessions",
        "on Migrations: a session leaves an instance that is hot (T_hot) for a colder one: its KV is moved there, the "
        "request that asked for it is served there, and the session is bound there from then on",
        "router, told the moment it begins and the moment it ends",
        "failed, or one session again and again: the threshold is too low",
    ),
    Term(
        "transfer",
        "tokens, MB, ms",
        "KV of a prompt's beginning pulled from one instance by another; what moved is what the target's own counter "
        "of prompt tokens by source says; – where that cannot be told",
        "engine counters, router's own stamps",
        "many ms per MB: see bandwidth on Lifecycle",
    ),
    Term(
        "unneeded",
        "sessions",
        "a migration whose target lacked next to nothing of the KV that the source held: none had to be moved",
        "router",
    ),
    Term(
        "recomputed",
        "sessions",
        "a migration that was served at the target without KV from the source: the target computed the prompt",
        "router",
        "the reason beside it: a quarantine, roles that do not fit, a failed transfer",
    ),
    Term(
        "refused",
        "sessions",
        "a session whose instance is hot and that stays: in its cooldown, or no other instance is colder and has room",
        "policy; told once per session and reason",
        "far more than migrations: all are hot, or the cooldown is long",
    ),
    Term(
        "T_hot",
        "tokens",
        "pending prefill tokens from which an instance counts as hot (the policy's `hot_tokens`)",
        "the policy's parameters",
    ),
    Term(
        "cooldown",
        "s",
        "after a migration a session stays for so long (the policy's `cooldown_s`)",
        "the policy's parameters",
    ),
    Term(
        "quarantine",
        "s",
        "after failed transfers between two instances none is tried for a while, then one as a probe",
        "router",
        "recomputed migrations between these two",
    ),
    Term(
        "handover",
        "requests",
        "with prefill and decode pools: one instance computes the prompt, another takes its KV and generates",
        "router",
    ),
    Term(
        "C, N, O",
        "tokens",
        "on Lifecycle: prompt tokens the decode instance held before, new prompt tokens, output tokens",
        "plan",
    ),
    Term(
        "lifecycle phases",
        "ms",
        "routing (arrival to dispatch), queue and prefill at the prefill instance, handshake (KV ready to first "
        "write), in two where that is known: wait for D (nobody has asked for it), prepare (asked to first write); "
        "transfer (the write), signal (write to its word at the decode instance), promotion (until that may schedule "
        "it), first token, decode; the bar's full width is a little more than the slowest time to first token shown, "
        "decode beyond it is cut (»); a phase that was not measured takes no room",
        "stamps of router, both engines and client on one clock",
        "handshake or promotion as long as the transfer: it is not the bytes that cost",
    ),
    Term("move", "ms", "on Lifecycle: end of the prefill to the word that the KV has come", "both engines"),
    Term(
        "write",
        "Gbit/s",
        "on Lifecycle: bytes moved over the time of the write alone",
        "transfer probe inside the engine",
    ),
    Term(
        "residual",
        "%",
        "on Lifecycle: what the phases of a request leave unexplained of its E2E as the client saw it",
        "the record",
        "above 5 %: a stamp is missing or wrong, or the way from client to router is long",
    ),
    Term(
        "overhead",
        "ms",
        "on Lifecycle: TTFT taken apart less TTFT of the same request on one combined instance, mean of the pairs; "
        "where either came first in some, the mean of the two orders' means, as in the report",
        "requests measured so far",
        "below 0 taking them apart pays",
    ),
    Term(
        "w, ✗",
        "",
        "on Lifecycle, before a request: a warm-up, one that was discarded",
        "the record",
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
