"""The router's policy in `pd-lifecycle`: `static_pd`, except for the requests of the two combined engines.

All requests pass the same router process and the same decision, so that all include the router's cost. The router loads
this file by its path.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from results.records.decisions import ClusterView, Decision, RoutedRequest
from runners.router.policies.policy import decide_nowhere, draft_for, find_pickable, weigh_instances
from runners.router.policies.static_pd import StaticPD

HANDOVER, COLO, PLAIN = "handover", "colo", "plain"
"""The requests of a repetition: with a handover, on the decode engine alone, on the plain combined engine. PLAIN is
also the router's name of that engine."""
COMBINED, ALONE = "lcb-", "lpc-"
BEGINS = {HANDOVER: "lc-", COLO: COMBINED, PLAIN: ALONE}
"""Prefixes of the requests' names. No name contains another, since an engine's request id contains the name."""


class StaticPDOrCombined(StaticPD, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Picks like `static_pd` among the engines with a connector; a request for a combined engine goes to that one."""

    name: ClassVar[str] = "static_pd"
    source: ClassVar[str] = 'specs/pd_lifecycle, "Overhead vs Co-Located Baseline"'

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        wants_plain = request.request.startswith(ALONE)
        own = tuple(load for load in cluster.instances if (load.instance == PLAIN) == wants_plain)
        cluster = msgspec.structs.replace(cluster, instances=own)
        if wants_plain:
            return self._decide_plain(request, cluster)
        picked = super().decide(request, cluster)
        if not request.request.startswith(COMBINED) or not picked.prefill:
            return picked
        return msgspec.structs.replace(picked, prefill="", reason="combined")

    def _decide_plain(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        may = find_pickable(request, cluster)
        if not may.loads:
            return decide_nowhere(self.name, may)
        weighing = weigh_instances(request, may.loads, lambda load, new: (load.num_requests,), "first", 0)
        return draft_for(self.name, may, weighing, ("num_requests", "turns_away"), "plain").complete()
