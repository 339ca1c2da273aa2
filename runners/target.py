"""Where a server listens: what the load's client and the router's pools connect to."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from runners.errors import RunnerError


@dataclass(frozen=True, slots=True)
class Target:
    """A server, resolved once so that no name lookup falls into a measurement."""

    address: str
    port: int
    host: str
    """For the Host header."""
    name: str
    """For TLS."""
    base: str
    """Path before `/v1/...`."""
    tls: bool

    def head(self, method: str, path: bytes, headers: bytes, length: int) -> bytes:
        """A request's head, blank line included; `headers`: whole lines."""
        first = f"{method} {self.base}".encode() + path
        return b"%b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (first, self.host.encode(), headers, length)


async def resolve_target(url: str, refusal: type[RunnerError]) -> Target:
    """The target of a base URL. Raises `refusal` where it is none, or its host has no address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refusal(f"{url}: {error}", remedy="Correct the URL.") from error
    name, tls = parts.hostname or "", parts.scheme == "https"
    port = port or (443 if tls else 80)
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host can be written so
        raise refusal(f"{url}: host {name!r} has no address ({error})", remedy="Correct the URL.") from error
    return Target(str(addresses[0][4][0]), port, parts.netloc.rpartition("@")[2], name, parts.path.rstrip("/"), tls)
