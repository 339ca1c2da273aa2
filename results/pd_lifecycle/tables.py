"""The tables of a lifecycle report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from results.pd_lifecycle.analyze import LifecycleAnalysis
from results.pd_lifecycle.bandwidth_curve import BandwidthPoint, Knee
from results.pd_lifecycle.consistency import Check, RunDrift
from results.pd_lifecycle.cost_model import SLOW, CostModel, Spread
from results.pd_lifecycle.figures import UNWEIGHTED, WEIGHTED, describe_half_step, describe_link, format_slope
from results.pd_lifecycle.first_repetitions import FirstRepetitions
from results.pd_lifecycle.overheads import COMBINED_ENGINE, PLAIN_ENGINE, BreakEven, GridOverhead, OverheadCell
from results.pd_lifecycle.paired_requests import COMBINED, OVERHEAD, TTFT, OrderEffect
from results.pd_lifecycle.summary import ConfigSummary
from results.pd_lifecycle.volumes import Volume
from results.records.estimate import Estimate, figure
from results.records.lifecycle import HANDSHAKE_PARTS, PHASES, PLAIN_OVERHEAD
from results.records.percent import format_percent
from results.report.judgements import make_judgement_table, rules_table
from results.report.table import NOT_MEASURED, Column, Table, format_or_reason, make_gap_table, make_table
from results.report.terms import term
from results.statistics.judgement import explain_few_launches
from results.statistics.trials import MIN_PAIRED

FIGURES_BEFORE = "Phases"
"""Title of the first table after the figures, which separate conclusions from single configurations."""


def build_tables(analysis: LifecycleAnalysis) -> tuple[Table, ...]:
    """Every table with rows, in reading order."""
    candidates = (
        make_judgement_table("Success criteria", "criterion", analysis.criteria, _CRITERIA_NOTE),
        make_cost_model_table(analysis),
        make_bandwidth_table(analysis),
        make_grid_table(analysis),
        make_overhead_table(analysis, analysis.plain_overheads),
        make_table(f"Break-even along N, {PLAIN_ENGINE}", BREAK_EVEN_COLUMNS, analysis.plain_break_evens),
        make_overhead_table(analysis, analysis.overheads),
        make_table(f"Break-even along N, {COMBINED_ENGINE}", BREAK_EVEN_COLUMNS, analysis.break_evens),
        make_order_table(analysis),
        make_table("Bytes moved by prior context", VOLUME_COLUMNS, analysis.volumes, _VOLUME_NOTE),
        make_table("Checks that do not follow from the definitions", CHECK_COLUMNS, analysis.checks, _CHECKS_NOTE),
        make_table("First repetitions", FIRST_COLUMNS, analysis.first_repetitions, _FIRST_NOTE),
        make_table("Drift over a launch", DRIFT_COLUMNS, analysis.drifts if analysis.counted else (), _DRIFT_NOTE),
        make_phases_table(analysis),
        make_totals_table(analysis),
        make_medians_table(analysis, "Medians of the phases", (*PHASES, *HANDSHAKE_PARTS)),
        make_medians_table(analysis, "Medians of the totals", _TOTALS),
        make_between_stamps_table(analysis),
        make_clocks_table(analysis),
        make_discards_table(analysis),
        make_gap_table(analysis.gaps),
        rules_table(analysis.criteria),
    )
    return tuple(table for table in candidates if table.rows)


_CRITERIA_NOTE = "Comparisons of times are decided from three launches of each engine on."


def make_cost_model_table(analysis: LifecycleAnalysis) -> Table:
    fitted = analysis.costs
    models = {
        WEIGHTED: fitted.relative,
        UNWEIGHTED: fitted.ordinary,
        "weighted, with operations": fitted.with_operations,
    }
    note = (
        "rdma_transfer_ms = alpha + beta x bytes (+ gamma x write operations). Brackets: from three launches on over "
        "the fits of the launches; within fewer, of the coefficients over cells (CR3), of R^2 cells resampled within "
        "each size. R^2 of the ordinary fit, not judged: "
        f"{_spread_text(fitted.spread)}.{_note_cut(model.r2 for model in models.values())}"
    )
    return make_table("Cost model of the transfer", MODEL_COLUMNS, models.items() if analysis.counted else (), note)


def _note_cut(estimates: Iterable[Estimate]) -> str:
    """What a note says of a time, size or share whose interval was cut at zero; else empty."""
    cut = any(one.low == 0 and one.value for one in estimates)
    return " A lower bound of 0 is cut there: the interval would reach below it." if cut else ""


def _show_if_fitted(model: CostModel, estimate: Estimate | None, digits: int = 3) -> str | None:
    """A missing alpha has the reason already."""
    return None if estimate is None or model.alpha_ms.value is None else format_or_reason(estimate, digits)


MODEL_COLUMNS: tuple[Column[tuple[str, CostModel]], ...] = (
    Column("fit", lambda row: row[0]),
    Column("alpha ms", lambda row: format_or_reason(row[1].alpha_ms)),
    Column("beta ms per 10^6 bytes", lambda row: _show_if_fitted(row[1], row[1].beta_ms_per_mb)),
    Column("gamma ms", lambda row: _show_if_fitted(row[1], row[1].gamma_ms)),
    Column("1 / beta Gbit/s", lambda row: _show_if_fitted(row[1], row[1].bandwidth_gbps)),
    Column("R^2", lambda row: _show_if_fitted(row[1], row[1].r2, 4)),
)


def _spread_text(spread: Spread) -> str:
    delay = spread.run_delay_ms
    waited = "" if delay.value is None else f"; a writing thread waited up to {figure(delay.value, 3)} ms for a core"
    return (
        f"of the medians of each C, N and O {format_or_reason(spread.medians)}; without the {spread.slow} transfers of "
        f"more than {SLOW:g} times the median of their N {format_or_reason(spread.without_slow)}{waited}"
    )


def make_bandwidth_table(analysis: LifecycleAnalysis) -> Table:
    note = (
        f"Bandwidth: {term('write bandwidth').meaning}. Of link: of the first bandwidth named here. "
        f"{_describe_limit(analysis.costs.knee)}{_note_cut((analysis.costs.knee.bytes,))} {describe_link(analysis)}"
    )
    return make_table("Bandwidth by size", BANDWIDTH_COLUMNS, analysis.costs.curve, note)


BANDWIDTH_COLUMNS: tuple[Column[BandwidthPoint], ...] = (
    Column("N", lambda row: row.new_tokens),
    Column("10^6 bytes", lambda row: row.bytes / 1e6, form=".4g"),
    Column("operations", lambda row: row.operations, form="g"),
    Column("Gbit/s (median)", lambda row: row.gbps, digits=3),
    Column("of asymptote", lambda row: row.of_asymptote, form=".1%"),
    Column("of link", lambda row: row.of_link, form=".1%"),
    Column("cells", lambda row: row.gbps.n),
)


def _describe_limit(knee: Knee) -> str:
    if knee.asymptote_gbps.value is None:
        return f"No asymptote and no knee: {knee.reason or knee.asymptote_gbps.reason}."
    measured = NOT_MEASURED if knee.measured_bytes is None else f"{knee.measured_bytes / 1e6:.4g} MB"
    return (
        f"Asymptote, for transfers with {knee.operations}: {knee.asymptote_gbps.text(3)} Gbit/s. Knee, the smallest "
        f"transfer with {format_percent(knee.share)} of it: by the model {format_or_reason(knee.bytes, 3, 1e-6)} MB, "
        f"by the measured medians {measured}{f' ({knee.reason})' if knee.reason else ''}."
    )


def make_grid_table(analysis: LifecycleAnalysis) -> Table:
    note = (
        "TTFT of one arm over that of another, less 1: medians per (C, N) and launch, the mean over the (C, N) that "
        "every launch measured, Student's t over the launches. From launch to launch: by how much the ratio changes "
        "with the position of a launch, least squares; the position drives it where the interval excludes 0. The last "
        "row is what the connector costs a combined engine."
    )
    rows = [one for one in analysis.grid_overheads if one.change.value is not None]
    return make_table("TTFT over the whole grid", GRID_COLUMNS, rows, note)


GRID_COLUMNS: tuple[Column[GridOverhead], ...] = (
    Column("arm", lambda row: row.arm),
    Column("over", lambda row: row.baseline),
    Column("change of TTFT", lambda row: row.change.percent()),
    Column("from launch to launch", lambda row: None if row.per_launch is None else row.per_launch.percent()),
    Column("launches", lambda row: row.change.launches),
    Column("(C, N)", lambda row: row.sizes),
    Column("", lambda row: row.change.reason),
)


def make_overhead_table(analysis: LifecycleAnalysis, cells: Sequence[OverheadCell]) -> Table:
    baseline = cells[0].baseline if cells else ""
    few = explain_few_launches(analysis.launches, "engine")
    ttfts = [ttft for cell in cells for ttft in (cell.pdsep_ttft_ms, cell.colo_ttft_ms)]
    within = f"Slower and faster hold within these launches and are no verdict: {few}. " if few else ""
    units = (
        "Change: ratio of the medians of both TTFTs less 1, its bounds and its sign over the launches, their spread "
        "pooled over all (C, N). Milliseconds: means over the launches with their own spread. "
    )
    note = (
        "Both TTFTs by the client's clock from its send; the difference pairs each repetition with the same request on "
        f"the {baseline}, both orders weighted equally. {_route_text(analysis)}{within or units}n.s.: sign not "
        f"significant, all (C, N) tested (Holm). {_describe_lengths(cells, analysis.launches)}{_note_cut(ttfts)}"
    )
    return make_table(f"Overhead over the {baseline}", OVERHEAD_COLUMNS, cells, note)


_SIGN_WORDS: Mapping[int | None, str] = {1: "slower", -1: "faster", None: "n.s."}
OVERHEAD_COLUMNS: tuple[Column[OverheadCell], ...] = (
    Column("C", lambda row: row.prior_context),
    Column("N", lambda row: row.new_tokens),
    Column("TTFT", lambda row: row.pdsep_ttft_ms, "ms", 3),
    Column("combined TTFT", lambda row: row.colo_ttft_ms, "ms", 3),
    Column("overhead", lambda row: format_or_reason(row.overhead_ms), "ms"),
    Column("median", lambda row: row.median_ms, "ms", 3),
    Column("change", lambda row: row.change.percent()),
    Column("sign", lambda row: _SIGN_WORDS[row.sign]),
)
BREAK_EVEN_COLUMNS: tuple[Column[BreakEven], ...] = (
    Column("C", lambda row: row.prior_context),
    Column("N", lambda row: row.new_tokens),
    Column("", lambda row: row.text),
)
_FIRST_NOTE = (
    "How much longer the first repetitions of a cell take than those that count, by the medians of each cell. "
    "Connections are set up before the first cell."
)
FIRST_COLUMNS: tuple[Column[FirstRepetitions], ...] = (
    Column("", lambda row: row.series),
    Column("first over counted", lambda row: row.change.percent()),
    Column("cells", lambda row: row.cells),
)


def _route_text(analysis: LifecycleAnalysis) -> str:
    ways = {record.colo.through for record in analysis.counted if record.colo.ttft_ms is not None}
    if ways == {"router"}:
        return "The combined request goes through the same router. "
    return "The combined request goes directly to the engine: the overhead includes the router. " if ways else ""


def _describe_lengths(cells: Sequence[OverheadCell], launches: int) -> str:
    known = [cell.lengths_f for cell in cells if cell.lengths_f is not None]
    if not known:
        return "One output length, or one repetition: whether output lengths differ cannot be tested."
    apart = [f"C={cell.prior_context} N={cell.new_tokens}" for cell in cells if cell.lengths_differ]
    used = "the variances of the intervals are multiplied by it", ", intervals over the means of the lengths"
    inflation, means = used if launches < MIN_PAIRED else ("the intervals over the launches do not depend on it", "")
    own = f" Significantly different{means}: {', '.join(apart)}." if apart else ""
    return (
        "Variance between output lengths over the variance within them, about 1 where they do not differ: mean "
        f"{sum(known) / len(known):.2f}; {inflation}.{own}"
    )


def make_order_table(analysis: LifecycleAnalysis) -> Table:
    known = [one for one in analysis.order_effects if one.effect_ms.value is not None]
    shown = known or analysis.order_effects[:1]
    over = "" if analysis.launches < MIN_PAIRED else " over the launches"
    note = (
        f"Milliseconds; mean over the (C, N) with Student's t{over}. It cancels in the tables above, which weight both "
        "orders equally."
    )
    return make_table("Order effect", ORDER_COLUMNS, shown if analysis.overheads else (), note)


_PAIRED_WORDS = {OVERHEAD: "overhead", TTFT: "client TTFT", COMBINED: "combined TTFT"}
ORDER_COLUMNS: tuple[Column[OrderEffect], ...] = (
    Column("", lambda row: f"order effect: combined first minus handover first, {_PAIRED_WORDS[row.name]}"),
    Column("C", lambda row: "all" if row.prior_context is None else row.prior_context),
    Column("ms", lambda row: format_or_reason(row.effect_ms)),
    Column("(C, N)", lambda row: row.effect_ms.n),
)


def _list_by_context(medians: Sequence[tuple[int, float | None]], form: str) -> str:
    return ", ".join(f"{context}: {NOT_MEASURED if one is None else format(one, form)}" for context, one in medians)


_VOLUME_NOTE = "Medians. Of expected: median bytes over N times the KV bytes of a token by the model's configuration."
VOLUME_COLUMNS: tuple[Column[Volume], ...] = (
    Column("N", lambda row: row.new_tokens),
    Column("bytes by C", lambda row: _list_by_context(row.bytes_by_context, ".0f")),
    Column("operations by C", lambda row: _list_by_context(row.operations_by_context, "g")),
    Column("bytes per new token", lambda row: row.bytes_per_token, form=".1f"),
    Column("bytes per token of C", lambda row: format_slope(row.slope)),
    Column("spread in blocks", lambda row: row.spread_blocks, form=".2f"),
    Column("of expected", lambda row: row.of_expected, form=".1%"),
)
_CHECKS_NOTE = (
    "The phases share their stamps and add up to E2E by definition; these checks compare independent sources."
)
CHECK_COLUMNS: tuple[Column[Check], ...] = (
    Column("check", lambda row: row.what),
    Column("requests", lambda row: f"{row.agree} of {row.of}"),
    Column("", lambda row: row.text),
)
_DRIFT_NOTE = (
    "Relative change from the begin of a launch to its end; jackknife over the launches. Where the cells of a (C, N) "
    "ran by rising output length, the change includes the effect of that on TTFT."
)
DRIFT_COLUMNS: tuple[Column[RunDrift], ...] = (
    Column("", lambda row: row.series),
    Column("over a launch", lambda row: row.over_run.percent()),
    Column("minutes", lambda row: row.span_s, scale=1 / 60, form=".3g"),
    Column("", lambda row: str(row.verdict)),
    Column("rests on", lambda row: row.reason),
)
CONFIG_COLUMNS: tuple[Column[ConfigSummary], ...] = (
    Column("C", lambda row: row.config.prior_context),
    Column("N", lambda row: row.config.current_new_tokens),
    Column("O", lambda row: row.config.output_length),
)


def _make_mean_column(name: str, heading: str = "", *, scale: float = 1.0, form: str = "") -> Column[ConfigSummary]:
    """The mean of a value without its interval, which summary.csv has."""
    return Column(heading or name, lambda row: row.value(name).value, digits=3, scale=scale, form=form)


def _make_known_columns(analysis: LifecycleAnalysis, names: tuple[str, ...]) -> tuple[Column[ConfigSummary], ...]:
    known = (name for name in names if any(row.value(name).value is not None for row in analysis.configs))
    return tuple(_make_mean_column(name) for name in known)


def make_phases_table(analysis: LifecycleAnalysis) -> Table:
    phases = _make_known_columns(analysis, (*PHASES, *HANDSHAKE_PARTS))
    bounds = "spreads" if analysis.launches < MIN_PAIRED else "intervals"
    note = (
        f"Milliseconds, means of the counted repetitions; results/lifecycle/summary.csv has their {bounds}. The first "
        "nine add up to E2E; metadata_wait (from the end of the prefill until the prefill instance receives the "
        "metadata of the decode instance) and zmq_after_metadata are the two parts of zmq_handshake. "
        f"{describe_half_step(analysis)} {analysis.half_step.text}"
    )
    columns = (*CONFIG_COLUMNS, *phases, Column("counted", _count_text))
    return make_table(FIGURES_BEFORE, columns, analysis.configs, note.strip())


def _count_text(row: ConfigSummary) -> str:
    discarded = f", {row.discarded} discarded" if row.discarded else ""
    return f"{row.counted} (+ {row.warmups} warm-up{discarded})"


_TOTALS = (
    "transfer_total", "ttft_overhead_vs_colo", "client_ttft", "colo_ttft", "pdsep_overhead", "plain_ttft",
    PLAIN_OVERHEAD, "e2e",
)  # fmt: skip


def make_totals_table(analysis: LifecycleAnalysis) -> Table:
    note = (
        "Milliseconds. transfer_total = t7 - t3. ttft_overhead_vs_colo = t9 - t0 - p_prefill, the specification's "
        "estimate from this run alone; pdsep_overhead = client_ttft - colo_ttft, over the combined engine with the "
        f"connector; {PLAIN_OVERHEAD} = client_ttft - plain_ttft, over the plain one. Residuals: shares of E2E."
    )
    columns = (
        *CONFIG_COLUMNS,
        *map(_make_mean_column, _TOTALS),
        _make_mean_column("bytes_gb", "10^6 bytes", scale=1e3),
        _make_mean_column("bw_gbps", "Gbit/s"),
        _make_mean_column("residual_share", "residual", form=".2%"),
        _make_mean_column("client_residual_share", "residual from the client's send", form=".2%"),
    )
    return make_table("Totals", columns, analysis.configs, note)


def make_medians_table(analysis: LifecycleAnalysis, title: str, names: Sequence[str]) -> Table:
    """Medians beside the means of another table: the same durations of the same configurations."""
    known = [name for name in names if any(name in row.medians for row in analysis.configs)]
    note = (
        "Milliseconds, medians of the counted repetitions of all launches. A few slow repetitions move the means and "
        "not these; medians do not add up."
    )
    columns = (*CONFIG_COLUMNS, *map(_make_median_column, known))
    return make_table(title, columns, analysis.configs if known else (), note)


def _make_median_column(name: str) -> Column[ConfigSummary]:
    return Column(name, lambda row: row.medians.get(name), digits=3)


_BETWEEN = (
    "p_send_ready", "p_reply", "d_block_alloc", "d_pull_request", "zmq_request", "zmq_response", "d_schedule",
    "d_first_decode",
)  # fmt: skip


def make_between_stamps_table(analysis: LifecycleAnalysis) -> Table:
    """Phases between the specification's stamps. They overlap and have no sum."""
    phases = _make_known_columns(analysis, _BETWEEN)
    note = "Milliseconds. Parts of the phases above; with concurrent requests some end before the prefill does."
    columns = (*CONFIG_COLUMNS, *phases)
    return make_table("Between the stamps", columns, analysis.configs if phases else (), note)


def make_clocks_table(analysis: LifecycleAnalysis) -> Table:
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


def make_discards_table(analysis: LifecycleAnalysis) -> Table:
    counts = Counter((one.config.label, one.reason) for one in analysis.discards)
    rows = tuple((label, str(count), reason) for (label, reason), count in sorted(counts.items()))
    return Table("Discarded measurements", ("configuration", "times", "why"), rows)
