"""Changes at a router's instances other than its picks: a row of `instance_events.jsonl` each.

Together with the decision log they hold everything that a router learns, so that its core can be replayed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from results.records.decisions import Role

InstanceChange = Literal[
    "added",
    "removed",
    "available",
    "unavailable",
    "draining",
    "resumed",
    "paused",
    "capacity",
    "lost",
    "recovered",
    "blocks_stored",
    "blocks_removed",
    "blocks_cleared",
    "transfer_admitted",
    "transfer_finished",
    "transfer_succeeded",
    "transfer_failed",
    "transfer_inconclusive",
]


class InstanceEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change at one instance, at the moment when the router learned of it: a row of `instance_events.jsonl`."""

    instance: str
    """By the router's name; of a transfer, its source."""
    what: InstanceChange
    """`lost`: nothing listens there, so its blocks and its sessions' bindings are gone. `recovered`: it answers, and
    pairs with it may be probed. `blocks_*`: its prefix index. `transfer_admitted` to `transfer_finished`: a transfer is
    on its way. `transfer_succeeded`, `transfer_failed`: evidence for or against its pair; `transfer_inconclusive`:
    neither. All else is membership, health and back-pressure."""
    t_ns: int = 0
    """`time.perf_counter_ns()`, the clock of `DecisionRecord.t_ns`."""
    why: str = ""
    """With `unavailable` and `transfer_failed`: the reason."""
    pause_s: float = 0.0
    """With `paused`: not to be picked for this long from then on; 0 ends a pause."""
    role: Role = "both"
    """With `added`: its role."""
    kv_capacity_tokens: int | None = None
    """With `added` and `capacity`: size of its KV cache; None = not known."""
    block_tokens: int = 1
    """With `added`: block size of its KV cache."""
    transport: str = ""
    """With `added`: `mooncake` or `nixl`; empty = its KV cannot be moved."""
    kv_role: str = ""
    """With `added`: the role of its connector."""
    bootstrap: str = ""
    """With `added`: base URL of its Mooncake bootstrap server; empty = it has none."""
    keys: tuple[int, ...] = ()
    """With `blocks_stored` and `blocks_removed`: the blocks' keys in the router's index."""
    transfer: int = 0
    """Number of a transfer among the router's, from 1."""
    target: str = ""
    """Target of a transfer."""
    purpose: Literal["migration", "handover"] = "migration"
    """Purpose of a transfer, as in KvTransfer."""
