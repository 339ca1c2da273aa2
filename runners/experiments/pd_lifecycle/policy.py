"""The router's policy in `pd-lifecycle`: `static_pd`, except for the requests of the combined instance.

Both kinds of requests pass the same router process and the same decision, so that both include the router's cost. The
router loads this file by its path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from results.records.decisions import ClusterView, Decision, RoutedRequest
from runners.router.policies.static_pd import StaticPD

COMBINED = "lcb-"
"""Prefix of the names of combined requests."""


class StaticPDOrCombined(StaticPD, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Picks like `static_pd`; for a request whose name begins with COMBINED, the decode instance alone."""

    name: ClassVar[str] = "static_pd"
    source: ClassVar[str] = 'specs/pd_lifecycle, "Overhead vs Co-Located Baseline"'

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        decision = super().decide(request, cluster)
        if not request.request.startswith(COMBINED) or not decision.prefill:
            return decision
        return replace(decision, prefill="", reason="combined")
