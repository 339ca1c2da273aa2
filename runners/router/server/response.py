"""The client's side of a response, and what of it the router writes itself: its head, and a broken stream's end."""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

import msgspec

from runners.router.instances.link import Answer

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Client(Protocol):
    """The client's side of an exchange."""

    keep_alive: bool
    """Its connection is kept after the response, as far as the client is concerned."""

    def write(self, data: bytes) -> None: ...
    def finish(self, *, keep: bool) -> None:
        """The response is whole."""

    def abort(self) -> None:
        """The response cannot be made whole: cut the connection, so that the client sees it."""

    def refuse(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        """An error of the router's own."""


def response_head(answer: Answer, instance: str, request: str, *, keep_alive: bool) -> bytes:
    """The head that a client gets for an instance's `answer` to its `request`."""
    lines = [STATUS_LINES.get(answer.status) or b"HTTP/1.1 %d \r\n" % answer.status]
    named = False
    for name, value in answer.headers:
        named |= name == b"x-request-id"
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"x-tracon-instance: %b\r\n" % instance.encode())
    if not named:
        lines.append(b"x-request-id: %b\r\n" % request.encode("latin-1"))
    ends_with_it = not answer.chunked and not answer.sized
    if ends_with_it or not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def last_event(message: str, instance: str, tail: bytes, *, chunked: bool) -> bytes:
    """The end of an event stream that cannot go on, with an event that says so; `tail`: what the client had last."""
    error = {"message": message, "type": "instance_failed", "code": 502, "instance": instance}
    event = b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    body = tail.removesuffix(b"\r\n") if chunked else tail
    if body and not body.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        event = b"\n\n" + event
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if chunked else event
