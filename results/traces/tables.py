"""A trace's description as text tables, and the limits of its numbers."""

from __future__ import annotations

from collections import defaultdict

from results.report.table import NOT_MEASURED, Table
from results.traces.description import GIB, TraceDescription

LENGTHS = {
    "input_tokens": "input tokens per request",
    "output_tokens": "output tokens per request",
    "turns": "turns per session",
    "session_input_tokens": "input tokens per session",
    "session_span_s": "session, first send to last, s",
    "think_s": "think time before a turn, s",
}


def format_headline(description: TraceDescription) -> str:
    facts = description.facts
    chained = "a hash stands for its block and all before it" if facts["hashes_chained"] else "hashes of single blocks"
    return (
        f"{facts['source']} ({facts['format']}): {description.requests} requests of {description.sessions} sessions "
        f"over {description.span_s:.1f} s. Blocks of {facts['block_tokens']} tokens, {chained}, a partial last block "
        f"{'has one too' if facts['tail_rule'] == 'ceil' else 'has none'}; equal hashes mean equal content in the "
        f"{'whole trace' if facts['hash_scope'] == 'global' else 'same session'}."
    )


def build_tables(description: TraceDescription) -> tuple[Table, ...]:
    """Every table with rows, in reading order."""
    builders = (_make_totals_table, _make_reuse_table, _make_skew_table, _make_lengths_table, _make_capacity_table)
    candidates = [build(description) for build in builders]
    return tuple(table for table in candidates if table.rows)


def list_limits(description: TraceDescription) -> tuple[str, ...]:
    """What the numbers do not show."""
    names_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in description.reasons.items():
        names_by_reason[reason].append(name)
    lines = [f"{reason[0].upper()}{reason[1:]}: {', '.join(names)}." for reason, names in names_by_reason.items()]
    lines.append(
        "The bounds are those of an infinite cache that holds a prompt from the moment it is sent. They count "
        "prompts only: a trace does not contain the blocks of an engine's output."
    )
    if description.reuse.followed_one_in > 1:
        lines.append(
            "To stay within memory, of the blocks not known to be common one block in "
            f"{description.reuse.followed_one_in} was followed between sessions: reuse between sessions is an "
            "estimate with a standard error. Reuse within a session is exact."
        )
    return tuple(lines)


def _make_totals_table(description: TraceDescription) -> Table:
    ratio = description.input_output_ratio
    rows = (
        ("requests", f"{description.requests}"),
        ("sessions", f"{description.sessions}"),
        ("agents", f"{description.agents}"),
        ("input tokens", f"{description.input_tokens}"),
        ("output tokens", f"{description.output_tokens}"),
        ("input / output", NOT_MEASURED if ratio is None else f"{ratio:.1f}"),
        ("span", f"{description.span_s:.1f} s"),
    )
    return Table("Trace", ("", "value"), rows)


def _make_reuse_table(description: TraceDescription) -> Table:
    reuse = description.reuse
    rows = (
        ("bound, any session", "apc_bound_any", description.apc_bound_any, "of input tokens"),
        ("bound, same session", "apc_bound_intra", description.apc_bound_intra, "of input tokens"),
        ("intra-session", "intra_session_share", reuse.intra_session_share, "of reused tokens"),
        ("cross-session", "cross_session_share", reuse.cross_session_share, "of reused tokens"),
        ("shared prefix", "shared_prefix_share", reuse.shared_prefix_share, "of reused tokens"),
    )
    note = (
        "By who used a block first: the same session, or another (of a block that "
        f"{reuse.shared_from} or more sessions use: shared prefix)."
    )
    shown = tuple((label, _format_share(value, reuse.standard_error.get(name)), of) for label, name, value, of in rows)
    return Table("Reuse of prefixes", ("", "share", ""), shown, note)


def _format_share(value: float | None, error: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    return f"{100 * value:.2f} %" + (f" ± {100 * error:.2g}" if error else "")


def _make_skew_table(description: TraceDescription) -> Table:
    rows = tuple(
        (f"top {100 * top.top_share:g} %", f"{top.sessions}", f"{100 * top.input_share:.1f} %")
        for top in description.skew.top
    )
    return Table("Session skew", ("sessions by input tokens", "sessions", "share of input tokens"), rows)


def _make_lengths_table(description: TraceDescription) -> Table:
    rows = tuple(
        (
            label,
            *map(_format_size, (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)),
            f"{spread.n}",
        )
        for name, label in LENGTHS.items()
        if (spread := description.lengths.get(name)) is not None
    )
    return Table("Lengths", ("", "mean", "p50", "p90", "p95", "p99", "max", "n"), rows)


def _format_size(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"


def _make_capacity_table(description: TraceDescription) -> Table:
    kv = description.kv
    if not kv.capacity:
        return Table("Concurrent decodes", (), ())
    names = tuple(kv.capacity[0].concurrent)
    rows = tuple(
        (
            f"p{row.percentile:g}",
            f"{row.footprint_bytes / GIB:.2f}",
            f"{row.per_instance}",
            *(f"{row.concurrent[name]}" for name in names),
        )
        for row in kv.capacity
    )
    over = kv.larger_than_pool or 0.0
    note = (
        f"A KV pool of {kv.kv_pool_bytes / GIB:.2f} GiB per instance and {kv.bytes_per_token:g} bytes per token; whole "
        f"requests only. {100 * over:.2f} % of the requests are larger than one pool."
    )
    return Table("Concurrent decodes", ("request size", "GiB", "per instance", *names), rows, note)
