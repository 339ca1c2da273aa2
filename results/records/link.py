"""`link.json`: what the link between the two instances of a `pd-lifecycle` run carries."""

from __future__ import annotations

import msgspec


class LinkRecord(msgspec.Struct, frozen=True):
    """Bandwidth in 10^9 bits per second. None = unknown, `reason` says why."""

    gbps: float | None = None
    """Stated, or the median over the rounds."""
    low: float | None = None
    """The lowest round; None = not measured."""
    high: float | None = None
    """The highest round; None = not measured."""
    method: str = ""
    """How it was measured, or what states it."""
    known_from: str = msgspec.field(default="", name="from")
    """`measured`, or `given` by the profile."""
    reason: str = ""
    """Why it is not known."""
    transport: tuple[str, ...] = ()
    """What the connector of the pre-flight engine logged about its transport: protocol, RDMA adapters. Empty = nothing:
    Mooncake alone logs it."""
