"""What client connections hold in memory: all of it is counted in the server's `held_bytes`, which has a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

PARSED_REQUEST_BYTES = 600
PARSED_HEADER_BYTES = 170
"""What a parsed head takes beyond its bytes on the wire, and what each of its headers adds (107 to 167 measured)."""
LARGE_HEAD_BYTES = 8 << 10
"""A head with more bytes on the wire counts as held while its request is in flight. A head that waits always counts,
and behind one that takes more than this once parsed the router stops reading until it is its turn."""
KEY_BYTES = 56
"""What a key of a prompt's block takes: an integer of 64 bits, and its index in the prompt's keys."""
AHEAD_LIMIT_BYTES = 1 << 20
"""Requests that a client may pipeline on one connection; beyond it the router stops reading until it is their turn."""


class HeldTotal(Protocol):
    """The server behind all connections."""

    held_limit_bytes: int
    held_bytes: int
    """Bytes of all bodies, of heads that are large or wait, and of the keys of prompts, until their request has ended;
    connections add and subtract theirs."""


@dataclass(eq=False, repr=False, slots=True)
class HeldBytes:
    """What one connection has in the total, by the stage of its requests.

    The connection itself adds each piece of a body that arrives: the pieces are too many for a call each.
    """

    _total: HeldTotal
    head_bytes: int = 0
    """Bytes of the request that arrives: its head, parsed; 0 = that head does not count."""
    ahead_bytes: int = 0
    """Bytes of the requests that wait for their turn."""
    serving_bytes: int = 0
    """Bytes of the request being served."""
    _unsent_bytes: int = 0
    """Bytes of complete responses that the client has not read yet."""
    _is_closed: bool = False

    def count_head(self, wire_bytes: int, headers: int) -> bool:
        """Count the head of the request that arrives. False = the server now holds more than it may."""
        self.head_bytes = PARSED_REQUEST_BYTES + wire_bytes + PARSED_HEADER_BYTES * headers
        self._total.held_bytes += self.head_bytes
        return self._total.held_bytes <= self._total.held_limit_bytes

    def end_arrival(self, body_bytes: int) -> int:
        """What the total has of the request, which is complete: from now on as one that waits or is served."""
        request_bytes = body_bytes + self.head_bytes
        self.head_bytes = 0
        return request_bytes

    def drop_arrival(self, body_bytes: int) -> None:
        """`body_bytes`: what has come of its body."""
        self._total.held_bytes -= body_bytes + self.head_bytes
        self.head_bytes = 0

    def count_keys(self, keys: int) -> None:
        """Count the keys of the prompt being served."""
        self.serving_bytes += KEY_BYTES * keys
        self._total.held_bytes += KEY_BYTES * keys

    def end_serving(self) -> None:
        self._total.held_bytes -= self.serving_bytes
        self.serving_bytes = 0

    def count_unsent(self, size_bytes: int) -> None:
        """In place of what was counted before: a refusal may follow a response that the client has not read."""
        self._total.held_bytes += size_bytes - self._unsent_bytes
        self._unsent_bytes = size_bytes

    def drop_unsent(self) -> None:
        self._total.held_bytes -= self._unsent_bytes
        self._unsent_bytes = 0

    def lend_body(self, size_bytes: int) -> None:
        """A thread reads the request's body: it counts as held until `return_body`, even if the client leaves."""
        self.serving_bytes -= size_bytes

    def return_body(self, size_bytes: int) -> None:
        if self._is_closed:
            self._total.held_bytes -= size_bytes
        else:
            self.serving_bytes += size_bytes

    def close(self) -> None:
        """The client has left: only a body that is lent still counts."""
        self._total.held_bytes -= self.ahead_bytes + self.serving_bytes + self._unsent_bytes
        self.ahead_bytes = self.serving_bytes = self._unsent_bytes = 0
        self._is_closed = True


def measure_head(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Bytes of the head on the wire, with its blank line."""
    first_line = len(method) + len(target) + len(b"  HTTP/1.1\r\n")
    texts = sum(map(len, chain.from_iterable(headers)))
    return first_line + texts + len(b": \r\n") * len(headers) + len(b"\r\n")
