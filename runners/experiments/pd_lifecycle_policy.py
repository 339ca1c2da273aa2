"""The router's policy in `pd-lifecycle`: `static_pd`, but for the requests of the combined instance.

Both kinds of requests take the same way through the same router process and the same decision, so that what the router
costs is in both. The router loads this file by its path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from results.decisions import ClusterView, Decision, RoutedRequest
from runners.router.policies.static_pd import StaticPD

COMBINED = "lcb-"
"""How the names of the combined instance's requests begin."""


class StaticPDOrCombined(StaticPD, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `static_pd` picks; the decode instance alone for a request whose name begins with COMBINED."""

    name: ClassVar[str] = "static_pd"
    source: ClassVar[str] = 'specs/pd_lifecycle, "Overhead vs Co-Located Baseline"'

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """The same pick of the decode instance for both, with or without a prefill instance."""
        decision = super().decide(request, cluster)
        if not request.request.startswith(COMBINED) or not decision.prefill:
            return decision
        return replace(decision, prefill="", reason="combined")
