"""A request before its pick: another process is asked where its session lives."""

from __future__ import annotations

from collections.abc import Callable

from runners.router.server.response import Client
from runners.router.traffic import Traffic


class Arrival:
    """From a request's last byte until `begin` is called with its turn; not if its client leaves first."""

    __slots__ = ("_begin", "_client", "_traffic")

    def __init__(self, traffic: Traffic, client: Client, begin: Callable[[int], None]) -> None:
        self._traffic = traffic
        self._client = client
        self._begin = begin

    def ask(self, session: str) -> None:
        """Ask, and begin with the answer; at once where the table cannot be asked."""
        self._traffic.arriving[self] = None
        self._traffic.dispatcher.ask_arrival(session, self._begin_with)

    def _begin_with(self, turn: int) -> None:
        if self in self._traffic.arriving:
            self._traffic.end_arrival(self)
            self._begin(turn)

    def pause(self) -> None:
        """Nothing has been written yet."""

    def resume(self) -> None:
        """Nor was anything held back."""

    def abandon(self) -> None:
        """The client is gone."""
        self._traffic.end_arrival(self)

    def cut(self, why: str) -> None:
        self._traffic.end_arrival(self)
        self._client.refuse(503, why, "cut")
