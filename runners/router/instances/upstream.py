"""Where an instance listens, and the pooled connections to it."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from time import monotonic

from runners.router.failure import Failure
from runners.router.instances.link import Caller, Link
from runners.router.spec import RouterError
from runners.target import Target, resolve_target

IDLE_S = 4.0
"""Idle connections older than this are not used again: servers close theirs after 5 s, and the two would cross."""
OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL)
"""This process or machine is at its limit; the instance is not to blame."""


async def resolve(url: str) -> Target:
    """The target of a base URL. Raises RouterError where its host has no address."""
    return await resolve_target(url, RouterError)


class Pool:
    """The connections to one instance. Idle ones are used again, the newest first."""

    def __init__(self, target: Target, connect_s: float, count_links: Callable[[int], None]) -> None:
        self.target = target
        self._connect_s = connect_s
        self._count_links = count_links
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._connecting: dict[Caller, asyncio.Task[None]] = {}

    def send(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        """Send a request; the caller is notified of its response. Never waits."""
        idle, oldest_s = self._idle, monotonic() - IDLE_S
        while idle:
            link = idle.pop()
            if link.usable and link.t_idle_s >= oldest_s:
                link.start(caller, payload, pooled=True)
                return
            link.drop()
        self.send_again(caller, payload)

    def send_again(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        """Send it on a fresh connection: the pooled one was stale, or there was none."""
        self._connecting[caller] = asyncio.get_running_loop().create_task(self._connect_and_send(caller, payload))

    def cancel(self, caller: Caller) -> None:
        """Stop the caller's request."""
        task = self._connecting.pop(caller, None)
        if task is not None:
            task.cancel()
        elif caller.link is not None and caller.link.caller is caller:
            caller.link.drop()

    def give_back(self, link: Link) -> None:
        link.t_idle_s = monotonic()
        self._idle.append(link)

    def forget(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            self._count_links(-1)
        if link in self._idle:
            self._idle.remove(link)

    def close_idle(self) -> None:
        """Close connections that were idle for too long."""
        oldest_s = monotonic() - IDLE_S
        while self._idle and self._idle[0].t_idle_s < oldest_s:
            self._idle.pop(0).drop()

    def close(self) -> None:
        """Drop everything; what is in flight must have been ended."""
        for task in self._connecting.values():
            task.cancel()
        for link in tuple(self._links):
            link.drop()

    async def _connect_and_send(self, caller: Caller, payload: tuple[bytes, ...]) -> None:
        try:
            link = await self._connect()
        except TimeoutError:
            failure = Failure("connect", f"no connection within {self._connect_s:g} s", dead=True)
        except OSError as error:
            ours = error.errno in OWN_ERRORS
            kind, text = "own" if ours else "connect", f"cannot connect: {error.strerror or error}"
            failure = Failure(kind, text, dead=not ours, gone=isinstance(error, ConnectionRefusedError))
        else:
            self._connecting.pop(caller, None)
            if link.transport is not None:
                link.start(caller, payload, pooled=False)
            else:
                caller.request_failed(Failure("closed", "connection closed as soon as it was made"))
            return
        if self._connecting.pop(caller, None) is not None:
            caller.request_failed(failure)

    async def _connect(self) -> Link:
        target = self.target
        async with asyncio.timeout(self._connect_s):
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: Link(self),
                target.address,
                target.port,
                ssl=self._tls,
                server_hostname=target.name if self._tls else None,
            )
        self._links.add(link)
        self._count_links(+1)
        return link
