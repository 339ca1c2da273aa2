"""Publishes KV events as an engine does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import zmq


BLOCK = 4


def stored(first: int, tokens: list[int], parent: int | None = None) -> dict[str, object]:
    """The event as vLLM 0.32 sends it, blocks named `first`, `first + 1`, ..."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + len(tokens) // BLOCK)),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


class KvPublisher:
    """Numbers its messages; set `number` back to 0 to begin again, as for a subscriber that was not there yet."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.number = 0
        self._socket = socket

    def publish(self, *events: dict[str, object]) -> None:
        """One message."""
        batch = msgspec.msgpack.encode([0.0, list(events), 0])
        self._socket.send_multipart([b"kv-events", self.number.to_bytes(8, "big"), batch])
        self.number += 1


@contextmanager
def kv_publisher(endpoint: str) -> Iterator[KvPublisher]:
    """Connected to the router's subscription at `endpoint`."""
    import zmq

    socket: zmq.Socket[bytes]
    with zmq.Context.instance().socket(zmq.PUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        yield KvPublisher(socket)
