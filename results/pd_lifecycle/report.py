"""The prose of a lifecycle report: its opening, and the limits of its numbers."""

from __future__ import annotations

from results.pd_lifecycle.analyze import LifecycleAnalysis
from results.pd_lifecycle.figures import describe_half_step, describe_link
from results.pd_lifecycle.tables import build_tables
from results.records.percent import format_percent
from results.report.content import ReportText
from results.report.document import describe_engine
from results.statistics.estimates import LEVEL
from results.statistics.trials import MIN_PAIRED, SPREAD


def build_report(analysis: LifecycleAnalysis) -> ReportText:
    return ReportText(describe_opening(analysis), build_tables(analysis), list_limits(analysis))


def describe_opening(analysis: LifecycleAnalysis) -> str:
    facts = analysis.facts
    transport = f" over {' and '.join(analysis.transports)}" if analysis.transports else ""
    outcomes = "; ".join(f"{one.claim.lower()}: {one.outcome}" for one in analysis.criteria)
    half_step = describe_half_step(analysis)
    brackets = SPREAD if analysis.launches < MIN_PAIRED else f"interval over {analysis.launches} launches"
    measured = f"{facts.label}{describe_engine(facts)}{transport}"
    return (
        f"Profile {measured}: {len(analysis.compared)} requests of {len(analysis.configs)} "
        f"configurations (C, N, O) count; also {sum(record.warmup for record in analysis.records)} warm-ups, "
        f"{len(analysis.discards)} discarded, gaps: {len(analysis.gaps)}. Brackets hold the {format_percent(LEVEL)} "
        f"{brackets}; `-` is a value that was not measured. {half_step}{' ' if half_step else ''}Criteria: {outcomes}."
    )


_ONE_AT_A_TIME = (
    "One request at a time on idle instances: no phase includes the load that other requests add to queues, steps or "
    "the link."
)
_SHARED_STAMPS = (
    "The phases share their stamps: where every stamp exists and is in order, their sum is E2E by definition. "
    "Criterion 1 confirms that they do, and that the client's send and the router's t0 are close. It does not confirm "
    "that a stamp is in the right place: see the checks that do not follow from the definitions."
)
_FEW_LAUNCHES = (
    "Repetitions of a configuration follow one another on the same engines: the brackets cover the variation between "
    "repetitions, not between launches or hosts. So no comparison of times is a verdict: criteria 2, 3 and 5 stay "
    "undecided, and `slower` and `faster` apply to these launches."
)
"""Below three launches of each engine."""


def list_limits(analysis: LifecycleAnalysis) -> tuple[str, ...]:
    """What the numbers of the report do not show."""
    has_overhead = any(cell.overhead_ms.value is not None for cell in analysis.overheads)
    limits = [*analysis.facts.host_notes]
    if analysis.facts.engine_kind == "cpu":
        limits.append(
            "This is a CPU build of the engine with the profile's model. Both instances, the router and the client "
            "share the cores: the durations do not apply to a GPU, and blocks move through memory or a socket, not "
            "RDMA."
        )
    few = [_FEW_LAUNCHES] if analysis.launches < MIN_PAIRED else []
    limits += [_ONE_AT_A_TIME, *few, *_list_order_limits(analysis), _SHARED_STAMPS, *_list_volume_limits(analysis)]
    if has_overhead and any(one.effect_ms.value is None for one in analysis.order_effects):
        limits.append(
            "Not every (C, N) was measured in both orders: there the overhead includes the effect of the first "
            "request of a pair on the second."
        )
    limits += _list_stamp_limits(analysis)
    if not analysis.links:
        limits.append(f"{describe_link(analysis)} No bandwidth is compared with it.")
    if analysis.settings.subtract_half_step:
        limits.append(
            "Half of the decode instance's median step is subtracted from d_promotion, down to zero: the phases add "
            "up to less than E2E. The records hold the full durations."
        )
    if not has_overhead:
        limits.append("No combined instance was measured: ttft_overhead_vs_colo is the specification's estimate alone.")
    return tuple(limits)


def _list_order_limits(analysis: LifecycleAnalysis) -> list[str]:
    """Where the position of a launch drives a result over the launches."""
    moving = [
        f"the {one.arm} over the {one.baseline} by {one.per_launch.percent()}"
        for one in analysis.grid_overheads
        if one.per_launch is not None and one.per_launch.excludes(0)
    ]
    if not moving:
        return []
    return [
        f"Results move with the order of the launches: TTFT of {'; of '.join(moving)} from one launch to the next. The "
        "intervals over launches take the launches for draws in any order."
    ]


def _list_volume_limits(analysis: LifecycleAnalysis) -> list[str]:
    differing = [
        str(one.new_tokens)
        for one in analysis.volumes
        if len({count for _, count in one.operations_by_context if count is not None}) > 1
    ]
    if not differing:
        return []
    return [
        "Transfers of one N take different numbers of write operations at different C (N = "
        f"{', '.join(differing)}): comparisons over C at one N, and the cost model over bytes, include that difference."
    ]


def _list_stamp_limits(analysis: LifecycleAnalysis) -> list[str]:
    limits = []
    if analysis.two_hosts:
        limits.append(
            "Two hosts: the table of clocks bounds the error of durations between them; intervals of means do not "
            "include that error, which is the same in all repetitions."
        )
    late = [one for record in analysis.counted if (one := record.counts.dispatch_late_ms)]
    if late:
        limits.append(
            f"In {len(late)} requests the router stamped its send up to {max(late):.3g} ms after the prefill instance "
            "had scheduled the request: t1 is set to t2 there, so routing is too long and p_queue too short by an "
            "unknown time."
        )
    polled = sum(record.counts.write_end_from in ("poll", "telemetry") for record in analysis.counted)
    if polled:
        limits.append(
            f"In {polled} requests the end of the transfer is the worker's next poll (once a step; NIXL's telemetry "
            "ends a read there too): rdma_transfer includes the wait for it, and the bandwidths are too low."
        )
    return limits
