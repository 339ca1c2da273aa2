"""Publishes KV events as an engine does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import zmq


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
