"""The tables of a lifecycle report, as text: what each says, whatever it is drawn on."""

from __future__ import annotations

from results.lifecycle.combined_tables import break_even, order, overhead, told
from results.lifecycle.curve import Knee
from results.lifecycle.figures import UNWEIGHTED, WEIGHTED, less_half_step, link_text, slope
from results.lifecycle.findings import LifecycleAnalysis
from results.lifecycle.fits import SLOW, CostModel, Spread
from results.lifecycle.load import Load
from results.lifecycle.record import HANDSHAKE_PARTS, PHASES
from results.lifecycle.summary import ConfigSummary
from results.statistics import Estimate, figure
from results.table import NOT_MEASURED, Table

FIGURES_BEFORE = "Phases"
"""The figures stand between the conclusions and the tables of single configurations, which begin with this title."""


def tables(analysis: LifecycleAnalysis) -> tuple[Table, ...]:
    """Every table that has rows, in reading order."""
    found = (
        criteria(analysis),
        cost_model(analysis),
        bandwidth(analysis),
        overhead(analysis),
        break_even(analysis),
        order(analysis),
        volume(analysis),
        checks(analysis),
        drift(analysis),
        phases(analysis),
        totals(analysis),
        between(analysis),
        filled(analysis),
        clocks(analysis),
        discards(analysis),
        gaps(analysis),
        rules(analysis),
    )
    return tuple(table for table in found if table.rows)


def criteria(analysis: LifecycleAnalysis) -> Table:
    """The success criteria of the specification."""
    rows = tuple((str(one.number), one.title, str(one.outcome), one.reason) for one in analysis.criteria)
    note = "The interval decides; the rules stand at the end."
    return Table("Success criteria", ("", "criterion", "outcome", "why"), rows, note)


def rules(analysis: LifecycleAnalysis) -> Table:
    """How each criterion is decided."""
    rows = tuple((str(one.number), one.rule) for one in analysis.criteria)
    return Table("Rules", ("criterion", "rule"), rows)


def cost_model(analysis: LifecycleAnalysis) -> Table:
    """alpha and beta."""
    fitted = analysis.costs
    models = {
        WEIGHTED: fitted.relative,
        UNWEIGHTED: fitted.ordinary,
        "weighted, with operations": fitted.with_operations,
    }
    rows = tuple(_model(name, model) for name, model in models.items()) if analysis.counted else ()
    note = (
        "rdma_transfer_ms = alpha + beta x bytes (+ gamma x write operations). Intervals of the coefficients: HC3; of "
        f"R^2: transfers resampled within each size. R^2 of the ordinary fit, not judged: {_spread(fitted.spread)}."
    )
    columns = ("fit", "alpha ms", "beta ms per 10^6 bytes", "gamma ms", "1 / beta Gbit/s", "R^2")
    return Table("Cost model of the transfer", columns, rows, note)


def _model(name: str, model: CostModel) -> tuple[str, ...]:
    gamma = NOT_MEASURED if model.gamma_ms is None else told(model.gamma_ms)
    parts = (model.beta_ms_per_mb.text(3), gamma, told(model.bandwidth_gbps), model.r2.text(4))
    if model.alpha_ms.value is None:
        parts = (NOT_MEASURED,) * 4
    return (name, told(model.alpha_ms), *parts)


def _spread(spread: Spread) -> str:
    """R^2 of other sets of the transfers."""
    delay = spread.run_delay_ms
    waited = "" if delay.value is None else f"; a writing thread waited up to {figure(delay.value, 3)} ms for a core"
    return (
        f"of the medians of each C, N and O {told(spread.medians)}; without transfers of more than {SLOW:g} times the "
        f"median of their N ({spread.slow} left out) {told(spread.without_slow)}{waited}"
    )


def bandwidth(analysis: LifecycleAnalysis) -> Table:
    """Bandwidth by size."""
    fitted = analysis.costs
    rows = tuple(
        (
            str(point.new_tokens),
            f"{point.bytes / 1e6:.4g}",
            _operations(point.operations),
            point.gbps.text(3),
            _share(point.of_asymptote),
            _share(point.of_link),
            str(point.gbps.n),
        )
        for point in fitted.curve
    )
    note = (
        "Bandwidth: bytes over the time in which a write was under way. Of link: of the first that is named. "
        f"{_limit(fitted.knee)} {link_text(analysis)}"
    )
    columns = ("N", "10^6 bytes", "operations", "Gbit/s (median)", "of asymptote", "of link", "transfers")
    return Table("Bandwidth by size", columns, rows, note)


def _limit(knee: Knee) -> str:
    """The asymptote and the knee, or why there are none."""
    if knee.asymptote_gbps.value is None:
        return f"No asymptote and no knee: {knee.reason or knee.asymptote_gbps.reason}."
    measured = NOT_MEASURED if knee.measured_bytes is None else f"{knee.measured_bytes / 1e6:.4g} MB"
    return (
        f"Asymptote, for transfers with {knee.operations}: {knee.asymptote_gbps.text(3)} Gbit/s. Knee, the smallest "
        f"transfer with {knee.share:.0%} of it: by the model {told(knee.bytes, 3, 1e-6)} MB, by the measured medians "
        f"{measured}{f' ({knee.reason})' if knee.reason else ''}."
    )


def _share(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1%}"


def checks(analysis: LifecycleAnalysis) -> Table:
    """What could contradict the phases and does or does not."""
    rows = tuple((one.what, f"{one.agree} of {one.of}", one.text) for one in analysis.checks)
    note = "The phases share their stamps and add up to E2E by definition; these are compared with something else."
    return Table("Checks that do not follow from the definitions", ("check", "requests", ""), rows, note)


def drift(analysis: LifecycleAnalysis) -> Table:
    """Whether the machine got slower or faster over the run."""
    rows = tuple(
        (
            one.series,
            one.over_run.percent(),
            NOT_MEASURED if one.span_s is None else f"{one.span_s / 60:.3g}",
            str(one.verdict),
            one.reason,
        )
        for one in analysis.drifts
    )
    note = (
        "Relative change from the run's begin to its end; jackknife over the (C, N). Where cells of a (C, N) came by "
        "rising output length, what that does to TTFT is in it."
    )
    columns = ("", "over the run", "minutes", "", "rests on")
    return Table("Drift over the run", columns, rows if analysis.counted else (), note)


def volume(analysis: LifecycleAnalysis) -> Table:
    """Whether only the new tokens are moved."""
    rows = tuple(
        (
            str(one.new_tokens),
            ", ".join(f"{context}: {moved:.0f}" for context, moved in one.bytes_by_context),
            ", ".join(
                f"{context}: {NOT_MEASURED if n is None else f'{n:g}'}" for context, n in one.operations_by_context
            ),
            f"{one.bytes_per_token:.1f}",
            told(one.slope) if one.slope.value is None else slope(one.slope),
            NOT_MEASURED if one.block_bytes is None else f"{one.spread_bytes / one.block_bytes:.2f}",
            _share(one.of_expected),
        )
        for one in analysis.volumes
    )
    note = (
        "Medians. Of expected: median bytes over N times what a token's keys and values take by the model's "
        "configuration."
    )
    columns = (
        "N", "bytes by C", "operations by C", "bytes per new token", "bytes per token of C", "spread in blocks",
        "of expected",
    )  # fmt: skip
    return Table("Bytes moved by prior context", columns, rows, note)


def _operations(count: float | None) -> str:
    return NOT_MEASURED if count is None else f"{count:g}"


def phases(analysis: LifecycleAnalysis) -> Table:
    """The mean of every phase."""
    names = [name for name in (*PHASES, *HANDSHAKE_PARTS) if _known(analysis, name)]
    rows = tuple(
        (*_lengths(row), *(_mean(row.value(name)) for name in names), _counts(row)) for row in analysis.configs
    )
    note = (
        "Milliseconds, means of the counted repetitions; their intervals stand in results/lifecycle/summary.csv. "
        "The first nine add up to E2E; metadata_wait (from the end of the prefill until the prefill instance has heard "
        "from the decode instance) and zmq_after_metadata are the two parts of zmq_handshake. "
        f"{less_half_step(analysis)}"
    )
    return Table(FIGURES_BEFORE, ("C", "N", "O", *names, "counted"), rows, note.strip())


def _known(analysis: LifecycleAnalysis, name: str) -> bool:
    return any(row.value(name).value is not None for row in analysis.configs)


def _lengths(row: ConfigSummary) -> tuple[str, str, str]:
    config = row.config
    return str(config.prior_context), str(config.current_new_tokens), str(config.output_length)


def _counts(row: ConfigSummary) -> str:
    thrown = f", {row.discarded} discarded" if row.discarded else ""
    return f"{row.counted} (+ {row.warmups} warm-up{thrown})"


def totals(analysis: LifecycleAnalysis) -> Table:
    """What is made of several phases."""
    names = ("transfer_total", "ttft_overhead_vs_colo", "client_ttft", "colo_ttft", "pdsep_overhead", "e2e")
    rows = tuple(
        (
            *_lengths(row),
            *(_mean(row.value(name)) for name in names),
            _mean(row.value("bytes_gb"), 1e3),
            _mean(row.value("bw_gbps")),
            _residual(row.value("residual_share")),
            _residual(row.value("client_residual_share")),
        )
        for row in analysis.configs
    )
    note = (
        "Milliseconds. transfer_total = t7 - t3. ttft_overhead_vs_colo = t9 - t0 - p_prefill, the specification's "
        "estimate from this run alone; pdsep_overhead = client_ttft - colo_ttft, as measured. Residuals: of E2E."
    )
    columns = ("C", "N", "O", *names, "10^6 bytes", "Gbit/s", "residual", "residual from the client's send")
    return Table("Totals", columns, rows, note)


def _mean(found: Estimate, scale: float = 1.0) -> str:
    return NOT_MEASURED if found.value is None else figure(found.value * scale, 3)


def _residual(found: Estimate) -> str:
    return NOT_MEASURED if found.value is None else f"{found.value:.2%}"


_BETWEEN = (
    "p_send_ready", "p_reply", "d_block_alloc", "d_pull_request", "zmq_request", "zmq_response", "d_schedule",
    "d_first_decode",
)  # fmt: skip


def between(analysis: LifecycleAnalysis) -> Table:
    """Phases between the specification's stamps; they overlap, and do not add up to anything."""
    names = [name for name in _BETWEEN if _known(analysis, name)]
    rows = tuple((*_lengths(row), *(_mean(row.value(name)) for name in names)) for row in analysis.configs)
    note = "Milliseconds. Parts of the phases above; with concurrent legs some pass before the prefill has ended."
    return Table("Between the stamps", ("C", "N", "O", *names), rows if names else (), note)


def filled(analysis: LifecycleAnalysis) -> Table:
    """How full the KV caches were."""
    rows = []
    for key, cell in sorted(analysis.cells.items()):
        loads = [cell.load[side] for side in ("prefill", "decode") if side in cell.load]
        if len(loads) == 2:
            usage = (_usage(load) for load in loads)
            preempted = (NOT_MEASURED if load.preemptions is None else f"{load.preemptions:g}" for load in loads)
            rows.append((*map(str, key), *usage, *preempted))
    note = "Read before the first and after the last request of a cell, when no request is under way."
    columns = ("C", "N", "O", "KV usage of P", "KV usage of D", "preemptions at P", "preemptions at D")
    return Table("KV caches", columns, tuple(rows), note)


def _usage(load: Load) -> str:
    shares = (load.begin.kv_usage, load.end.kv_usage)
    return " to ".join(NOT_MEASURED if share is None else f"{share:.1%}" for share in shares)


def clocks(analysis: LifecycleAnalysis) -> Table:
    """How well durations between two hosts are known."""
    if not analysis.two_hosts:
        return Table("Clocks", (), ())
    worst: dict[str, float] = {}
    for record in analysis.counted:
        for name, error in record.error_ms.items():
            worst[name] = max(worst.get(name, 0.0), error)
    unknown = sum(record.clock.offset_ns is None for record in analysis.records)
    rows = [(name, f"+- {error:.3g} ms") for name, error in sorted(worst.items())]
    rows += [("requests without an offset", str(unknown))] if unknown else []
    rows += [("a clock was set", step.text) for step in analysis.steps]
    note = "Durations between two hosts, and by how much the largest of them may be wrong; others lie on one clock."
    return Table("Clocks", ("duration", "error"), tuple(rows), note)


def discards(analysis: LifecycleAnalysis) -> Table:
    """What was thrown away."""
    counts: dict[tuple[str, str], int] = {}
    for one in analysis.discards:
        key = one.config.label, one.reason
        counts[key] = counts.get(key, 0) + 1
    rows = tuple((label, str(count), reason) for (label, reason), count in sorted(counts.items()))
    return Table("Discarded measurements", ("configuration", "times", "why"), rows)


def gaps(analysis: LifecycleAnalysis) -> Table:
    """What is missing or damaged."""
    return Table("Gaps", ("artifact", "what is wrong"), tuple((gap.artifact, gap.reason) for gap in analysis.gaps))
