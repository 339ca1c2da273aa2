"""The terms of the project: name, unit, one sentence. Help, footnotes and `docs/glossary.md` take them from here.

`python -m results.report.terms > docs/glossary.md` writes the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One concept; code, journal, CLI, reports and docs call it `name`."""

    name: str
    unit: str
    """Empty where it is no quantity."""
    meaning: str
    """One sentence without its full stop."""


_LATENCY = (
    Term(
        "TTFT",
        "ms",
        "time to first token: from the moment the client sends a request to the first chunk that carries a token",
    ),
    Term(
        "TPOT",
        "ms per token",
        "time per output token: (last token - first token) / (output tokens - 1); undefined for one output token",
    ),
    Term("ITL", "ms", "inter-token latency: the time between two neighboring chunks that carry tokens"),
    Term("E2E", "ms", "end to end: from the moment the client sends a request to its last token"),
    Term("lateness", "ms", "how late the client sends a request, measured against its schedule"),
)

_ENGINE = (
    Term("engine", "", "the vLLM server and the environment that it runs in"),
    Term("instance", "", "one started engine with its address, to which a router or a client sends requests"),
    Term("KV connector", "", "the part of vLLM that stores KV outside the engine, or moves it between engines"),
    Term("patches", "", "what `tracon patch apply` adds to an engine environment: probes, and what a CPU build needs"),
    Term("probe", "", "code of Tracon inside an engine that records the engine's steps or transfers"),
    Term("running", "requests", "requests in the engine's running batch"),
    Term("waiting", "requests", "requests queued in the engine"),
    Term(
        "pending prefill tokens", "tokens",
        "prompt tokens of the requests sent whose first token has not come back; the router leaves out what its "
        "prefix index says is cached",
    ),
    Term("ongoing tokens", "tokens", "prompt tokens of the requests that have not ended"),
    Term("KV usage", "%", "share of the engine's KV cache blocks in use"),
    Term("APC", "%", "automatic prefix caching: share of the prompt tokens that the engine took from its own cache"),
    Term("step", "ms", "one engine step that processed at least one token, from scheduling to the updated output"),
    Term("step histogram", "share of steps", "the step durations since the instance was launched, in fixed buckets"),
)  # fmt: skip

_RUN = (
    Term("run", "", "one execution of an experiment, in a folder of its own"),
    Term("experiment", "", "what a run measures: connector-tax, routing, pd-lifecycle or capacity"),
    Term("profile", "", "a TOML file: model, hardware, scale, and the presets of each experiment"),
    Term("preset", "", "the settings of an experiment under one name of a profile, such as `demo`"),
    Term("config", "", "a TOML file: the KV connector of an engine, and the role in which the engine runs it"),
    Term("plan", "", "the stages and cells of a run, fixed before it starts"),
    Term("pre-flight", "", "the proof that a config works on this host, before its cells"),
    Term("attempt", "", "one try to measure a cell; the journal has the cause of each that failed"),
    Term("cell", "", "one measurement: one config (or policy) under one load in one trial"),
    Term("stage", "", "a group of cells that run one after the other"),
    Term(
        "trial", "",
        "one pass over all configs (or policies) on fresh engines, in an order of its own: a block of the statistics",
    ),
    Term("sweep", "", "Phase A of connector-tax: one launch per config; finds the reference rates"),
    Term("confirm stage", "", "several launches of every config at the loads that verdicts rest on"),
    Term("launch", "", "one start of an engine; what two launches of one config differ by is noise"),
    Term("progress", "%", "estimated time of the finished cells over that of all cells"),
    Term("ETA", "time", "estimated time of the remaining cells, scaled by how long finished cells took"),
    Term(
        "GPU sample", "",
        "load, clock, power, temperature and memory in use, in one second, of a GPU that engines of the run use, and "
        "what limits its clocks",
    ),
    Term("journal", "", "the append-only events of a run in `state.sqlite`, of which the console shows a view"),
    Term("lease", "age", "the heartbeat of the process that runs the run"),
    Term("dropped request", "requests", "a request that the client did not send because its inflight cap was reached"),
    Term(
        "degraded cell", "",
        "a cell whose client did not keep its schedule, or whose completions had other lengths than asked for; it is "
        "shown and marked, and no tax or verdict uses it",
    ),
)  # fmt: skip

_TAX = (
    Term("tax", "%", "a config's latency over that of `plain` under the same load, minus 1"),
    Term("plain", "", "the baseline: the engine without a KV connector"),
    Term("effective throughput", "req/s", "requests that completed inside the measured window, per second of it"),
    Term("throughput ratio", "", "effective throughput over the requested rate"),
    Term("cohort ratio", "", "completion rate over send rate of the requests due in the measured window"),
    Term("saturated", "", "the cell's cohort ratio, queue or TTFT growth is beyond its limit"),
    Term("goodput", "req/s", "requests per second of the measured window that completed within the SLO"),
    Term("ref_safe", "req/s", "the highest rate at which no config is saturated"),
    Term("own rate", "req/s", "the rate that a preset states for a shape of connector-tax in place of ref_safe"),
    Term("ref_load", "req/s", "the highest rate at which `plain` is not saturated"),
    Term("framework cost", "%", "the tax of noop_connector"),
    Term("implementation cost", "%", "the config's tax - the framework's"),
    Term(
        "amplification by load", "pp",
        "tax(ref_load) - tax(ref_safe): what queueing adds to the cost of the steps themselves",
    ),
    Term(
        "slope of a tax", "pp per doubling",
        "least squares over log2 of the length, each tax weighted by its precision",
    ),
    Term(
        "spread within the launch", "",
        "what varies inside one launch; it does not hold what two launches differ by, so no verdict rests on it",
    ),
    Term("sigma", "%", "the standard deviation of one launch around its config and block"),
)  # fmt: skip

_VERDICTS = (
    Term("holds", "", "the whole interval, or every count, agrees"),
    Term("fails", "", "the whole of it contradicts"),
    Term("undecided", "", "the numbers allow both, or come from too few launches"),
    Term("open", "", "there is no number to judge"),
    Term("stands", "", "a difference or an outcome is significant after Holm's correction over its whole family"),
)

_ROUTING = (
    Term("session", "sessions", "the turns of one conversation; each turn's prompt begins with the turns before it"),
    Term("turn", "turns", "one request of a session"),
    Term("trace", "", "a file of sessions with the times at which their turns are sent"),
    Term("policy", "", "the rule by which the router picks an instance for a request"),
    Term("bound sessions", "sessions", "sessions whose next turn the router sends to the instance by default"),
    Term("router requests", "requests", "requests the router has sent to the instance that have not ended"),
    Term("pick share", "%", "share of the cell's picks that went to the instance"),
    Term("pick", "picks", "one decision of the policy: which instance serves the request"),
    Term(
        "first byte, last byte", "s",
        "from the pick to the first and to the last byte of the response body, at the router; TTFT and E2E are of the "
        "client",
    ),
    Term("trace span", "s", "the time between a trace's first and last turn"),
    Term("replay amplification", "", "wall-clock time of a replay over the span of its trace"),
    Term("hot", "", "an instance with far more pending prefill tokens than the others (under EAR: more than T_hot)"),
    Term("T_hot", "tokens", "pending prefill tokens above which an instance is hot (the policy's `hot_tokens`)"),
    Term(
        "migration", "sessions",
        "the router moves a session from a hot instance to a colder one, with its KV, and binds it there",
    ),
    Term(
        "unneeded migration", "sessions",
        "a migration without a transfer: the target lacked fewer than `min_tokens` of what the source held",
    ),
    Term(
        "recomputed migration", "sessions",
        "a migration served without KV from the source: the target computed the prompt",
    ),
    Term(
        "refused migration", "sessions",
        "the session stays on a hot instance: it is in its cooldown, or no other instance is colder and has room",
    ),
    Term("trigger rate", "%", "share of the requests that asked to migrate"),
    Term(
        "migration accuracy", "%",
        "share of the served migrations whose target was not hot at any of the session's next turns, of those after "
        "which that many turns were seen (judged)",
    ),
    Term(
        "thrash rate", "%",
        "share of the sessions that migrated which did so again within their cooldown; anything but 0 is a defect",
    ),
    Term("cooldown", "s", "after a migration the session stays for this time (the policy's `cooldown_s`)"),
    Term(
        "quarantine", "s",
        "after failed transfers between two instances the router tries none for a while, then one as a probe",
    ),
)  # fmt: skip

_TRANSFER = (
    Term(
        "transfer", "tokens, MB, ms",
        "one instance pulls the KV of a prompt's beginning from another; its size is the target's own count of prompt "
        "tokens by source",
    ),
    Term(
        "prefill request, decode request", "",
        "the two requests of a transfer: the source computes or holds the prompt's KV, the target pulls it",
    ),
    Term(
        "disaggregation", "", "prefill and decode of one request on two instances: the prefill instance P computes the "
        "prompt, the decode instance D takes its KV and generates",
    ),
    Term(
        "handover", "",
        "a transfer of a request's whole prompt: the prefill instance computes it, then the decode instance takes its "
        "KV and generates",
    ),
    Term("combined instance", "", "one instance that does prefill and decode of a request"),
    Term(
        "C, N, O", "tokens",
        "prompt tokens that the decode instance already holds, new prompt tokens, output tokens",
    ),
    Term("routing phase", "ms", "from the request's arrival at the router to its dispatch"),
    Term("queue phase", "ms", "from the dispatch to the start of the prefill, on P"),
    Term("prefill phase", "ms", "the prefill, on P"),
    Term(
        "handshake phase", "ms",
        "from the end of the prefill to the first write: first P waits for D's request, then it prepares the write",
    ),
    Term("transfer phase", "ms", "the write itself"),
    Term("signal phase", "ms", "from the end of the write to its notification on D"),
    Term("promotion phase", "ms", "from the notification to the moment D may schedule the request"),
    Term("first token phase", "ms", "from there to the first token"),
    Term("decode phase", "ms", "from the first token to the last"),
    Term("move", "ms", "from the end of the prefill on P to the notification on D that the KV is complete"),
    Term("write bandwidth", "Gbit/s", "bytes over the time in which a write was in progress"),
    Term("residual", "%", "the part of a request's E2E, as the client measures it, that no phase explains"),
    Term(
        "disaggregation overhead", "ms",
        "TTFT with disaggregation minus TTFT of the same request on one combined instance; below 0 disaggregation pays",
    ),
    Term("warm-up", "requests", "a request sent before the measurement; it does not count"),
)  # fmt: skip

SECTIONS: Mapping[str, tuple[Term, ...]] = {
    "Latency": _LATENCY,
    "Engine": _ENGINE,
    "Runs": _RUN,
    "Connector tax": _TAX,
    "Verdicts": _VERDICTS,
    "Routing": _ROUTING,
    "Transfers and disaggregation": _TRANSFER,
}
"""Every term, by the part of the project it belongs to."""

TERMS: Mapping[str, Term] = {term.name: term for terms in SECTIONS.values() for term in terms}


def term(name: str) -> Term:
    """The term of that name; raises KeyError where there is none."""
    return TERMS[name]


def begin_sentence(name: str) -> str:
    """The term's meaning with a capital first letter, without a full stop. Raises KeyError where there is no term."""
    meaning = term(name).meaning
    return f"{meaning[0].upper()}{meaning[1:]}"


def define_terms(*names: str) -> str:
    """`Name: its meaning.` of each, as a footnote. Raises KeyError where there is no such term."""
    return " ".join(f"{name[0].upper()}{name[1:]}: {term(name).meaning}." for name in names)


def make_glossary_page() -> str:
    """`docs/glossary.md`."""
    lines = [
        "# Glossary",
        "",
        "One name per concept, in code, journal, CLI, reports and these pages. Written by",
        "`python -m results.report.terms > docs/glossary.md`; edit `results/report/terms.py` instead of this page.",
    ]
    for title, terms in SECTIONS.items():
        lines += ["", f"## {title}", "", "| term | unit | meaning |", "|---|---|---|"]
        lines += [f"| {each.name} | {each.unit} | {each.meaning} |" for each in terms]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(make_glossary_page(), end="")
