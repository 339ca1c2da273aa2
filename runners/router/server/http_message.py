"""HTTP messages between the router's parts: a client's complete request, and the first line of a response."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from runners.router.instances.upstream import HOP_BY_HOP

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"transfer-encoding", b"expect", b"x-request-id"}


def format_status_line(status: int) -> bytes:
    """The first line of a response; an instance may return a status that has no standard phrase."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class HttpRequest(msgspec.Struct, frozen=True):
    """One complete request."""

    method: str
    target: bytes
    """Path and query as received."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    named: Mapping[bytes, bytes]
    """The same by name."""
    body: bytes
    keep_alive: bool
    version: str
    """`1.0` or `1.1`."""

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def query(self) -> str:
        return self.target.partition(b"?")[2].decode("latin-1")

    @property
    def is_json(self) -> bool:
        """Its content type says so."""
        return self.named.get(b"content-type", b"").partition(b";")[0].strip().lower() == b"application/json"

    def forwarded(self, request_id: bytes = b"") -> bytes:
        """The header lines to forward to an instance, with `request_id` as `x-request-id`."""
        pieces: list[bytes] = []
        for name, value in self.headers:
            if name not in NOT_FORWARDED:
                pieces += (name, b": ", value, b"\r\n")
        if request_id:
            pieces += (b"x-request-id: ", request_id, b"\r\n")
        return b"".join(pieces)
