"""The tables of a lifecycle report."""

from __future__ import annotations

from results.pd_lifecycle.analyse import LifecycleAnalysis
from results.pd_lifecycle.bandwidth_curve import Knee
from results.pd_lifecycle.cost_model import SLOW, CostModel, Spread
from results.pd_lifecycle.figures import UNWEIGHTED, WEIGHTED, format_slope, half_step_text, link_text
from results.pd_lifecycle.load import EngineLoad
from results.pd_lifecycle.overhead_tables import break_even_table, format_or_reason, order_table, overhead_table
from results.pd_lifecycle.summary import ConfigSummary
from results.records.lifecycle import HANDSHAKE_PARTS, PHASES
from results.report.judgements import judgement_table, rules_table
from results.report.table import NOT_MEASURED, Table
from results.statistics.estimates import Estimate, figure

FIGURES_BEFORE = "Phases"
"""Title of the first table after the figures, which separate conclusions from single configurations."""


def build_tables(analysis: LifecycleAnalysis) -> tuple[Table, ...]:
    """Every table with rows, in reading order."""
    candidates = (
        criteria_table(analysis),
        cost_model_table(analysis),
        bandwidth_table(analysis),
        overhead_table(analysis),
        break_even_table(analysis),
        order_table(analysis),
        volume_table(analysis),
        checks_table(analysis),
        drift_table(analysis),
        phases_table(analysis),
        totals_table(analysis),
        between_stamps_table(analysis),
        kv_caches_table(analysis),
        clocks_table(analysis),
        discards_table(analysis),
        gaps_table(analysis),
        rules_table(analysis.criteria),
    )
    return tuple(table for table in candidates if table.rows)


def criteria_table(analysis: LifecycleAnalysis) -> Table:
    note = "Comparisons of times are decided from three launches of each engine on."
    return judgement_table("Success criteria", "criterion", analysis.criteria, note)


def cost_model_table(analysis: LifecycleAnalysis) -> Table:
    fitted = analysis.costs
    models = {
        WEIGHTED: fitted.relative,
        UNWEIGHTED: fitted.ordinary,
        "weighted, with operations": fitted.with_operations,
    }
    rows = tuple(_model_row(name, model) for name, model in models.items()) if analysis.counted else ()
    note = (
        "rdma_transfer_ms = alpha + beta x bytes (+ gamma x write operations). Intervals of the coefficients: HC3; of "
        "R^2: transfers resampled within each size. R^2 of the ordinary fit, not judged: "
        f"{_spread_text(fitted.spread)}."
    )
    columns = ("fit", "alpha ms", "beta ms per 10^6 bytes", "gamma ms", "1 / beta Gbit/s", "R^2")
    return Table("Cost model of the transfer", columns, rows, note)


def _model_row(name: str, model: CostModel) -> tuple[str, ...]:
    gamma = NOT_MEASURED if model.gamma_ms is None else format_or_reason(model.gamma_ms)
    parts = (model.beta_ms_per_mb.text(3), gamma, format_or_reason(model.bandwidth_gbps), model.r2.text(4))
    if model.alpha_ms.value is None:
        parts = (NOT_MEASURED,) * 4
    return (name, format_or_reason(model.alpha_ms), *parts)


def _spread_text(spread: Spread) -> str:
    delay = spread.run_delay_ms
    waited = "" if delay.value is None else f"; a writing thread waited up to {figure(delay.value, 3)} ms for a core"
    return (
        f"of the medians of each C, N and O {format_or_reason(spread.medians)}; without the {spread.slow} transfers of "
        f"more than {SLOW:g} times the median of their N {format_or_reason(spread.without_slow)}{waited}"
    )


def bandwidth_table(analysis: LifecycleAnalysis) -> Table:
    fitted = analysis.costs
    rows = tuple(
        (
            str(point.new_tokens),
            f"{point.bytes / 1e6:.4g}",
            _format_count(point.operations),
            point.gbps.text(3),
            _format_share(point.of_asymptote),
            _format_share(point.of_link),
            str(point.gbps.n),
        )
        for point in fitted.curve
    )
    note = (
        "Bandwidth: bytes over the time in which a write was in progress. Of link: of the first bandwidth named here. "
        f"{_limit_text(fitted.knee)} {link_text(analysis)}"
    )
    columns = ("N", "10^6 bytes", "operations", "Gbit/s (median)", "of asymptote", "of link", "transfers")
    return Table("Bandwidth by size", columns, rows, note)


def _limit_text(knee: Knee) -> str:
    if knee.asymptote_gbps.value is None:
        return f"No asymptote and no knee: {knee.reason or knee.asymptote_gbps.reason}."
    measured = NOT_MEASURED if knee.measured_bytes is None else f"{knee.measured_bytes / 1e6:.4g} MB"
    return (
        f"Asymptote, for transfers with {knee.operations}: {knee.asymptote_gbps.text(3)} Gbit/s. Knee, the smallest "
        f"transfer with {knee.share:.0%} of it: by the model {format_or_reason(knee.bytes, 3, 1e-6)} MB, by the "
        f"measured medians {measured}{f' ({knee.reason})' if knee.reason else ''}."
    )


def _format_share(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1%}"


def checks_table(analysis: LifecycleAnalysis) -> Table:
    rows = tuple((one.what, f"{one.agree} of {one.of}", one.text) for one in analysis.checks)
    note = "The phases share their stamps and add up to E2E by definition; these checks compare independent sources."
    return Table("Checks that do not follow from the definitions", ("check", "requests", ""), rows, note)


def drift_table(analysis: LifecycleAnalysis) -> Table:
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
        "Relative change from the begin of the run to its end; jackknife over the (C, N). Where the cells of a (C, N) "
        "ran by rising output length, the change includes the effect of that on TTFT."
    )
    columns = ("", "over the run", "minutes", "", "rests on")
    return Table("Drift over the run", columns, rows if analysis.counted else (), note)


def volume_table(analysis: LifecycleAnalysis) -> Table:
    rows = tuple(
        (
            str(one.new_tokens),
            ", ".join(f"{context}: {moved:.0f}" for context, moved in one.bytes_by_context),
            ", ".join(
                f"{context}: {NOT_MEASURED if n is None else f'{n:g}'}" for context, n in one.operations_by_context
            ),
            f"{one.bytes_per_token:.1f}",
            format_or_reason(one.slope) if one.slope.value is None else format_slope(one.slope),
            NOT_MEASURED if one.block_bytes is None else f"{one.spread_bytes / one.block_bytes:.2f}",
            _format_share(one.of_expected),
        )
        for one in analysis.volumes
    )
    note = "Medians. Of expected: median bytes over N times the KV bytes of a token by the model's configuration."
    columns = (
        "N", "bytes by C", "operations by C", "bytes per new token", "bytes per token of C", "spread in blocks",
        "of expected",
    )  # fmt: skip
    return Table("Bytes moved by prior context", columns, rows, note)


def _format_count(count: float | None) -> str:
    return NOT_MEASURED if count is None else f"{count:g}"


def phases_table(analysis: LifecycleAnalysis) -> Table:
    names = [name for name in (*PHASES, *HANDSHAKE_PARTS) if _is_known(analysis, name)]
    rows = tuple(
        (*_config_cells(row), *(_format_mean(row.value(name)) for name in names), _count_cell(row))
        for row in analysis.configs
    )
    note = (
        "Milliseconds, means of the counted repetitions; results/lifecycle/summary.csv has their intervals. The first "
        "nine add up to E2E; metadata_wait (from the end of the prefill until the prefill instance receives the "
        "metadata of the decode instance) and zmq_after_metadata are the two parts of zmq_handshake. "
        f"{half_step_text(analysis)}"
    )
    return Table(FIGURES_BEFORE, ("C", "N", "O", *names, "counted"), rows, note.strip())


def _is_known(analysis: LifecycleAnalysis, name: str) -> bool:
    return any(row.value(name).value is not None for row in analysis.configs)


def _config_cells(row: ConfigSummary) -> tuple[str, str, str]:
    config = row.config
    return str(config.prior_context), str(config.current_new_tokens), str(config.output_length)


def _count_cell(row: ConfigSummary) -> str:
    discarded = f", {row.discarded} discarded" if row.discarded else ""
    return f"{row.counted} (+ {row.warmups} warm-up{discarded})"


def totals_table(analysis: LifecycleAnalysis) -> Table:
    names = ("transfer_total", "ttft_overhead_vs_colo", "client_ttft", "colo_ttft", "pdsep_overhead", "e2e")
    rows = tuple(
        (
            *_config_cells(row),
            *(_format_mean(row.value(name)) for name in names),
            _format_mean(row.value("bytes_gb"), 1e3),
            _format_mean(row.value("bw_gbps")),
            _format_residual(row.value("residual_share")),
            _format_residual(row.value("client_residual_share")),
        )
        for row in analysis.configs
    )
    note = (
        "Milliseconds. transfer_total = t7 - t3. ttft_overhead_vs_colo = t9 - t0 - p_prefill, the specification's "
        "estimate from this run alone; pdsep_overhead = client_ttft - colo_ttft, as measured. Residuals: shares of E2E."
    )
    columns = ("C", "N", "O", *names, "10^6 bytes", "Gbit/s", "residual", "residual from the client's send")
    return Table("Totals", columns, rows, note)


def _format_mean(estimate: Estimate, scale: float = 1.0) -> str:
    return NOT_MEASURED if estimate.value is None else figure(estimate.value * scale, 3)


def _format_residual(estimate: Estimate) -> str:
    return NOT_MEASURED if estimate.value is None else f"{estimate.value:.2%}"


_BETWEEN = (
    "p_send_ready", "p_reply", "d_block_alloc", "d_pull_request", "zmq_request", "zmq_response", "d_schedule",
    "d_first_decode",
)  # fmt: skip


def between_stamps_table(analysis: LifecycleAnalysis) -> Table:
    """Phases between the specification's stamps. They overlap and have no sum."""
    names = [name for name in _BETWEEN if _is_known(analysis, name)]
    rows = tuple((*_config_cells(row), *(_format_mean(row.value(name)) for name in names)) for row in analysis.configs)
    note = "Milliseconds. Parts of the phases above; with concurrent requests some end before the prefill does."
    return Table("Between the stamps", ("C", "N", "O", *names), rows if names else (), note)


def kv_caches_table(analysis: LifecycleAnalysis) -> Table:
    rows = []
    for key, cell in sorted(analysis.cells.items()):
        loads = [cell.load[side] for side in ("prefill", "decode") if side in cell.load]
        if len(loads) == 2:
            usage = (_format_usage(load) for load in loads)
            preempted = (NOT_MEASURED if load.preemptions is None else f"{load.preemptions:g}" for load in loads)
            rows.append((*map(str, key), *usage, *preempted))
    note = "Read before the first and after the last request of a cell, while the engines are idle."
    columns = ("C", "N", "O", "KV usage of P", "KV usage of D", "preemptions at P", "preemptions at D")
    return Table("KV caches", columns, tuple(rows), note)


def _format_usage(load: EngineLoad) -> str:
    shares = (load.begin.kv_usage, load.end.kv_usage)
    return " to ".join(NOT_MEASURED if share is None else f"{share:.1%}" for share in shares)


def clocks_table(analysis: LifecycleAnalysis) -> Table:
    if not analysis.two_hosts:
        return Table("Clocks", (), ())
    worst: dict[str, float] = {}
    for record in analysis.counted:
        for name, error in record.error_ms.items():
            worst[name] = max(worst.get(name, 0.0), error)
    unknown = sum(record.clock.offset_ns is None for record in analysis.records)
    rows = [(name, f"+- {error:.3g} ms") for name, error in sorted(worst.items())]
    rows += [("requests without an offset", str(unknown))] if unknown else []
    rows += [("a clock was set", step.text) for step in analysis.clock_steps]
    note = "Durations between two hosts, and their largest error; other durations are on one clock."
    return Table("Clocks", ("duration", "error"), tuple(rows), note)


def discards_table(analysis: LifecycleAnalysis) -> Table:
    counts: dict[tuple[str, str], int] = {}
    for one in analysis.discards:
        key = one.config.label, one.reason
        counts[key] = counts.get(key, 0) + 1
    rows = tuple((label, str(count), reason) for (label, reason), count in sorted(counts.items()))
    return Table("Discarded measurements", ("configuration", "times", "why"), rows)


def gaps_table(analysis: LifecycleAnalysis) -> Table:
    return Table("Gaps", ("artifact", "what is wrong"), tuple((gap.artifact, gap.reason) for gap in analysis.gaps))
