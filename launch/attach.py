"""Servers that already run: queried and measured like our own, never ended by us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from launch.errors import LaunchError
from launch.instance import POLL_S, ReadyTimeout, http_client, missing_from


class AttachedInstance:
    """A server that Tracon did not start. Its process, exit code and log are unknown."""

    def __init__(self, name: str, url: str, model: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LaunchError(f"{url!r} is no server address", remedy="give it as http://HOST:PORT")
        self.name = name
        self.url = url.rstrip("/")
        self.model = model
        self.pid: int | None = None
        self.ports: Mapping[str, int] = {}  # which other ports it listens on is unknown

    def alive(self) -> bool:
        """Whether it answers; blocks for at most a second."""
        try:
            return httpx.get(f"{self.url}/health", timeout=1.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    async def wait_ready(self, timeout_s: float) -> float:
        """Wait until it serves its model; seconds waited. Raises ReadyTimeout."""
        began = time.monotonic()
        async with http_client(self.url) as client:
            while missing := await missing_from(client, self.model):
                if time.monotonic() - began > timeout_s:
                    raise ReadyTimeout(
                        f"{self.name} at {self.url}: after {timeout_s:.0f} s {missing}",
                        remedy="start that server, or correct its address and model id",
                    )
                await asyncio.sleep(POLL_S)
        return time.monotonic() - began

    async def stop(self, grace_s: float, release_wait_s: float) -> None:
        """Does nothing: the server is not ours."""

    async def explain_death(self) -> str:
        """A message that it does not answer; empty while it does."""
        answers = await asyncio.to_thread(self.alive)
        return "" if answers else f"{self.url} does not answer; how it ended is not known here"

    def log(self) -> str:
        """Empty: its log is unknown."""
        return ""
