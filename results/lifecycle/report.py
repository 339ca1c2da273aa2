"""What a lifecycle run says in words: its opening, and what its numbers do not say."""

from __future__ import annotations

from rich.console import RenderableType

from results.lifecycle.figures import less_half_step, link_text
from results.lifecycle.findings import LifecycleAnalysis
from results.lifecycle.tables import tables
from results.report import rich_tables
from results.statistics import LEVEL


def terminal_tables(analysis: LifecycleAnalysis) -> RenderableType:
    """The report for a terminal."""
    return rich_tables(opening(analysis), tables(analysis), limits(analysis))


def opening(analysis: LifecycleAnalysis) -> str:
    """What was measured, how to read the numbers, and what they say."""
    facts = analysis.facts
    where = {"cpu": ", on a CPU build of the engine", "cuda": ", on a GPU"}.get(facts.engine_kind, "")
    transport = f" over {' and '.join(analysis.transports)}" if analysis.transports else ""
    told = "; ".join(f"{one.title.lower()}: {one.outcome}" for one in analysis.criteria)
    half_step = less_half_step(analysis)
    return (
        f"Profile {facts.label}{where}{transport}: {len(analysis.counted)} requests of {len(analysis.configs)} "
        f"configurations (C, N, O) count, {sum(record.warmup for record in analysis.records)} warm-ups and "
        f"{len(analysis.discards)} discarded beside them, gaps: {len(analysis.gaps)}. Brackets hold {LEVEL:.0%} "
        f"intervals; `-` is a value that was not measured. {half_step}{' ' if half_step else ''}Criteria: {told}."
    )


def limits(analysis: LifecycleAnalysis) -> tuple[str, ...]:
    """What these numbers do not say: part of every report."""
    found = []
    if analysis.facts.engine_kind == "cpu":
        found.append(
            "This is a CPU build of the engine with the profile's model, and both instances, router and client share "
            "its cores: the sizes say nothing about a GPU, and blocks are moved through memory or a socket, not RDMA."
        )
    found.append(
        "One request at a time on idle instances: no phase holds what other requests would add to queues, steps or the "
        "link."
    )
    found.append(
        "Repetitions of a configuration follow one another on the same engines: the intervals hold what varies between "
        "them, not what varies between launches or hosts."
    )
    found.append(
        "The phases share their stamps, so that their sum is E2E by definition wherever every stamp is there and in "
        "order: criterion 1 says that they are, and that the client's send and the router's t0 lie close. It does not "
        "say that a stamp is where it should be; see the checks that do not follow from the definitions."
    )
    differing = [
        str(one.new_tokens)
        for one in analysis.volumes
        if len({count for _, count in one.operations_by_context if count is not None}) > 1
    ]
    if differing:
        found.append(
            "Transfers of one N take different numbers of write operations at different C (N = "
            f"{', '.join(differing)}): what is compared over C at one N, and the cost model over bytes, hold that too."
        )
    if any(one.effect_ms.value is None for one in analysis.orders) and any(
        cell.overhead_ms.value is not None for cell in analysis.overheads
    ):
        found.append(
            "Not every (C, N) was measured in both orders: there the overhead holds what the second request of a pair "
            "owes to the first."
        )
    if analysis.two_hosts:
        found.append(
            "Two hosts: durations between them are right to within what the table of clocks says; intervals of means "
            "do not hold that error, which is the same in all repetitions."
        )
    late = [one for record in analysis.counted if (one := record.counts.dispatch_late_ms)]
    if late:
        found.append(
            f"In {len(late)} requests the router stamped that it had sent the request, up to {max(late):.3g} ms after "
            "the prefill instance had scheduled it: t1 is t2 there, routing too long and p_queue too short by what is "
            "not known."
        )
    polled = sum(record.counts.write_end_from in ("poll", "telemetry") for record in analysis.counted)
    if polled:
        found.append(
            f"In {polled} requests the end of the transfer is when the worker next looked (once a step; NIXL ends its "
            "own account of a read then, too): rdma_transfer holds the wait for that, and bandwidths are too low by it."
        )
    if not analysis.links:
        found.append(f"{link_text(analysis)} No bandwidth is set against it.")
    if analysis.settings.subtract_half_step:
        found.append(
            "Half of the decode instance's median step was taken off d_promotion, down to zero: phases then add up to "
            "less than E2E. Records keep the whole."
        )
    if not any(cell.overhead_ms.value is not None for cell in analysis.overheads):
        found.append("No combined instance was measured: ttft_overhead_vs_colo is the specification's estimate alone.")
    return (*analysis.facts.host_notes, *found)
