"""A Mooncake bootstrap server without engines, for a consumer that runs without a peer.

`python -m launch.dummy_bootstrap PORT` runs one standalone.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Self

from launch.ports import LOOPBACK

QUERY = "/query"
READ_TIMEOUT_S = 10.0


class DummyBootstrap:
    """Answers GET /query with no engines, anything else with 404, on the loopback; `queries` counts the former."""

    def __init__(self, port: int = 0) -> None:
        self._asked_port = port
        self._server: asyncio.Server | None = None
        self.queries = 0

    async def __aenter__(self) -> Self:
        """Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(self._answer_request, LOOPBACK, self._asked_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    async def serve_forever(self) -> None:
        assert self._server is not None
        await self._server.serve_forever()

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_TIMEOUT_S)
            method, path, *_ = head.decode("latin-1").split(" ", 2)
            known = (method, path) == ("GET", QUERY)
            self.queries += known
            status, body = ("200 OK", b"{}") if known else ("404 Not Found", b'{"detail": "not found"}')
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a peer that speaks no HTTP, or went away
        finally:
            writer.close()


async def main(port: int) -> None:
    async with DummyBootstrap(port) as bootstrap:
        print(f"dummy bootstrap at {bootstrap.url}{QUERY}", flush=True)
        await bootstrap.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
