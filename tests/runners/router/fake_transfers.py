"""The transport as the router's core sees it, moving nothing: a test says what becomes of each transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any, Literal, cast

from results.records.decisions import KvTransfer, RoutedRequest
from runners.router.facts import ClientMessage
from runners.router.transfer.movement import Movement
from runners.router.transfer.transfers import Transfers
from tests.runners.router.routers import Router

LEG = b'{"leg": "decode", "stream": true}'


@dataclass
class FakeMovement:
    """One transfer, and the calls of the core about it."""

    request: RoutedRequest
    transfer: KvTransfer
    body: bytes
    done: Callable[[Movement], None]
    over: bool = False
    open: bool = False
    settled: bool = False
    calls: list[str] = field(default_factory=list)
    callbacks: list[Callable[[KvTransfer], None]] = field(default_factory=list)

    def finish(self, status: Literal["transferred", "failed", "refused"], reason: str = "") -> None:
        """It is over. A handover whose source is ready stays open until its target says more."""
        assert not self.over, "a transfer that was given up is not heard of again"
        self.over = True
        self.transfer = replace(
            self.transfer, status=status, reason=reason, t_done_ns=perf_counter_ns(),
            external_tokens=48 if status == "transferred" else None,
        )  # fmt: skip
        if status == "transferred" and self.transfer.purpose == "handover":
            self.open, self.body = True, LEG
            self.transfer = replace(self.transfer, status="failed", reason="the target has not begun to answer")
        elif status != "transferred":
            self.settle()
        self.done(cast(Movement, self))

    def settle(self) -> None:
        """Its counters have been read."""
        self.settled = True
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(self.transfer)

    def abandon(self, why: str = "the client left") -> None:
        if self.over and not self.open:
            return
        assert not self.open, "an open handover fails, or is served"
        self.over = True
        self.calls.append(f"abandoned: {why}")
        self.transfer = replace(self.transfer, status="failed", reason=why)
        self.settle()

    def serve_handover(self) -> None:
        assert self.open, "called once"
        self.open = False
        self.calls.append("served")
        self.transfer = replace(self.transfer, status="transferred", reason="", t_done_ns=perf_counter_ns())
        self.settle()

    def fail_handover(self, why: str, *, strike: bool, freed: bool) -> None:
        assert self.open, "called once"
        self.open = False
        self.calls.append(f"failed: {why}{', a strike' if strike else ''}{', freed' if freed else ''}")
        self.transfer = replace(self.transfer, status="failed", reason=why)
        self.settle()

    def note_sent(self) -> None:
        self.transfer = replace(self.transfer, t_target_sent_ns=perf_counter_ns())

    def end_answer(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Its target's answer has ended."""

    def when_settled(self, callback: Callable[[KvTransfer], None]) -> None:
        if self.settled:
            callback(self.transfer)
        else:
            self.callbacks.append(callback)


@dataclass
class FakeTransfers:
    """Keeps the transfers that were asked for."""

    configured: bool = True
    timeout_s: float = 120.0
    cut: Mapping[str, str] = field(default_factory=dict)
    movements: list[FakeMovement] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        return {target: self.cut[target] for target in targets if target in self.cut}

    def quarantined(self) -> Mapping[tuple[str, str], str]:
        return {}

    def migrate(self, *arguments: Any) -> Movement:
        return self._begin("migration", *arguments)

    def hand_over(self, *arguments: Any) -> Movement:
        return self._begin("handover", *arguments)

    def _begin(
        self,
        purpose: Literal["migration", "handover"],
        request: RoutedRequest,
        source: str,
        target: str,
        message: ClientMessage,
        done: Callable[[Movement], None],
    ) -> Movement:
        name = f"t-{len(self.movements)}"
        transfer = KvTransfer(
            name, purpose, "mooncake", source, target, "failed", "under way", t_begin_ns=perf_counter_ns()
        )
        self.movements.append(FakeMovement(request, transfer, message.body, done))
        return cast(Movement, self.movements[-1])

    def forget_process(self, instance: str) -> None:
        self.calls.append(f"lost {instance}")

    def recover_instance(self, instance: str) -> None:
        self.calls.append(f"recovered {instance}")

    def remove_instance(self, instance: str) -> None:
        self.calls.append(f"removed {instance}")

    async def close(self) -> None:
        self.calls.append("closed")


def fake_transport(routed: Router, **changes: Any) -> FakeTransfers:
    """Put one in the place of a running router's own."""
    fake = FakeTransfers(**changes)
    server, real = routed.server, cast(Transfers, fake)
    server._transfers = server._traffic.transfers = server._pages._transfers = real
    server._fleet.on_recovered = real.recover_instance
    if server._dispatcher._cut_off is not None:
        server._dispatcher._cut_off = real.cut_off
    return fake
