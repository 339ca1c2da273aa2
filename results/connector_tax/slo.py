"""The latency objective of a run, as its preset states it."""

from __future__ import annotations

import msgspec


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must meet to count in the goodput. None = no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __str__(self) -> str:
        limits = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return " and ".join(f"{name} <= {limit * 1e3:g} ms" for name, limit in limits if limit is not None)
