"""Moving KV between instances: a session's prefix to where it is served next, or a prompt from prefill to decode.

`Transfers` is asked by the router's proxy; what it finds out is in the `Movement` it gives back. docs/transfer.md.
"""

from __future__ import annotations

from runners.router.transfer.movement import Movement
from runners.router.transfer.moving import Transfers

__all__ = ["Movement", "Transfers"]
