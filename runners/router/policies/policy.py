"""What a routing policy is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from results.records.decisions import ClusterView, Decision, RoutedRequest


class Policy(Protocol):
    """A policy. Its parameters are its fields; deciding changes nothing, so that any pick can be made again."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Where its rule comes from: the specification's section or the paper."""

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """Where the request goes and why. Called with at least one instance; never raises for a legal view."""
