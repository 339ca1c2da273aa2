"""The status that a router reports once per second."""

from __future__ import annotations

from runners.router.cluster import Cluster
from runners.router.counts import Counts
from runners.router.ledger import Ledger
from runners.router.messages import RouterTick, TickInstance
from runners.router.sessions.bindings import Bindings


def make_tick(
    t_ns: int, policy: str, cluster: Cluster, bindings: Bindings, counts: Counts, ledger: Ledger
) -> RouterTick:
    """Settle the ledger and summarize it; the caller adds `migrations`."""
    ledger.settle_records()
    rows = tuple(
        TickInstance(
            load.instance,
            load.available,
            load.why_unavailable,
            load.num_requests,
            load.pending_prefill_tokens,
            load.ongoing_tokens,
            bindings.count_active(load.instance),
            counts.picks_of[load.instance],
        )
        for load in cluster.take_view().instances
    )
    return RouterTick(
        t_ns=t_ns,
        policy=policy,
        instances=rows,
        sessions=sum(row.sessions for row in rows),
        decisions=dict(counts.decisions),
        latest=ledger.list_latest_picks(),
        retries=counts.retries,
        errors=counts.count_status("error"),
    )
