"""The dummy bootstrap answers what a consumer asks, on the loopback, whatever else comes in."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from launch.dummy_bootstrap import DummyBootstrap


async def test_it_knows_no_engine_and_counts_who_asks() -> None:
    async with DummyBootstrap() as bootstrap, httpx.AsyncClient(trust_env=False) as client:
        for _ in range(3):
            answer = await client.get(f"{bootstrap.url}/query")
            assert (answer.status_code, answer.json()) == (200, {})
        assert (await client.get(f"{bootstrap.url}/register")).status_code == 404
        assert (await client.post(f"{bootstrap.url}/query")).status_code == 404
        assert bootstrap.queries == 3
        assert urlsplit(bootstrap.url).hostname == "127.0.0.1"


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\xfe\x00 \r\n\r\n", b"x" * 100_000])
async def test_what_is_no_http_harms_nothing(sent: bytes) -> None:
    async with DummyBootstrap() as bootstrap, httpx.AsyncClient(trust_env=False) as client:
        parts = urlsplit(bootstrap.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(sent)
        writer.close()
        assert (await client.get(f"{bootstrap.url}/query")).status_code == 200
        assert bootstrap.queries == 1


async def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        with pytest.raises(OSError):
            async with DummyBootstrap(taken.getsockname()[1]):
                pass
