"""A request on its way to its pick: where its session lives is asked of the table that routers share."""

from __future__ import annotations

from collections.abc import Callable

from runners.router.response import Client
from runners.router.traffic import Traffic


class Arrival:
    """From a request's last byte until `begin` is called with its turn; not if its client leaves first."""

    __slots__ = ("_begin", "_client", "_traffic")

    def __init__(self, traffic: Traffic, client: Client, begin: Callable[[int], None]) -> None:
        self._traffic = traffic
        self._client = client
        self._begin = begin

    def ask(self, session: str) -> None:
        """Ask, and begin when it is known: at once where nobody can be asked."""
        self._traffic.arriving[self] = None
        self._traffic.dispatcher.arrives(session, self._arrived)

    def _arrived(self, turn: int) -> None:
        if self in self._traffic.arriving:
            self._traffic.arrived(self)
            self._begin(turn)

    # the client's side
    def pause(self) -> None:
        """Nothing has been written yet."""

    def resume(self) -> None:
        """Nor was anything held back."""

    def abandon(self) -> None:
        """The client is gone."""
        self._traffic.arrived(self)

    # what the operator says
    def cut(self, why: str) -> None:
        self._traffic.arrived(self)
        self._client.refuse(503, why, "cut")
