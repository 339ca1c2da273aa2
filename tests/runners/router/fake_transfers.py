"""The transport as the router's core sees it, moving nothing: a test says what becomes of each transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Literal, cast

from results.records.decisions import KvTransfer, RoutedRequest
from runners.router.transfer.movement import NOT_SERVED, Movement, MoveRequest
from runners.router.transfer.transfers import Transfers
from tests.runners.router.routers import Router

DECODE_BODY = b'{"request": "decode", "stream": true}'


class FakeMovement(Movement):
    """One transfer, and the calls of the core about it."""

    def __init__(
        self, mover: FakeTransfers, transfer: KvTransfer, body: bytes, request: RoutedRequest,
        done: Callable[[Movement], None],
    ) -> None:  # fmt: skip
        super().__init__(mover, transfer, body)
        self.request, self.done = request, done
        self.calls: list[str] = []

    def finish(self, status: Literal["transferred", "failed", "refused"], reason: str = "") -> None:
        """It is over. A handover whose source is ready stays open until its target says more."""
        assert not self.over, "a transfer that was given up does not end again"
        self.over = True
        arrived = status == "transferred"
        self.change_transfer(
            status=status, reason=reason, t_done_ns=self.now_ns(), external_tokens=48 if arrived else None
        )
        if arrived and self.transfer.purpose == "handover":
            self.open, self.body = True, DECODE_BODY
            self.change_transfer(status="failed", reason=NOT_SERVED)
        elif not arrived:
            self.settle_transfer()
        self.done(self)

    def serve_handover(self) -> None:
        assert self.open, "called once"
        super().serve_handover()

    def fail_handover(self, why: str, *, strike: bool, freed: bool) -> None:
        assert self.open, "called once"
        super().fail_handover(why, strike=strike, freed=freed)

    def _end(self, call: str) -> None:
        self.open = False
        self.calls.append(call)
        self.settle_transfer()


@dataclass
class FakeTransfers:
    """Keeps the transfers that were asked for."""

    is_configured: bool = True
    timeout_s: float = 120.0
    cut: Mapping[str, str] = field(default_factory=dict)
    movements: list[FakeMovement] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    now_ns = staticmethod(perf_counter_ns)

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]:
        return {target: self.cut[target] for target in targets if target in self.cut}

    def list_quarantined(self) -> Mapping[tuple[str, str], str]:
        return {}

    def start_movement(self, move: MoveRequest, done: Callable[[Movement], None]) -> Movement:
        name = f"t-{len(self.movements)}"
        transfer = KvTransfer(name, move.purpose, "mooncake", move.source, move.target, "failed")
        self.movements.append(FakeMovement(self, transfer, move.message.body, move.request, done))
        return self.movements[-1]

    def abandon_movement(self, movement: Movement) -> None:
        assert isinstance(movement, FakeMovement)
        assert not movement.open, "an open handover fails, or is served"
        movement._end(f"abandoned: {movement.transfer.reason}")

    def serve_handover(self, movement: Movement) -> None:
        assert isinstance(movement, FakeMovement)
        movement.change_transfer(status="transferred", reason="", t_done_ns=self.now_ns())
        movement._end("served")

    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None:
        assert isinstance(movement, FakeMovement)
        movement._end(f"failed: {movement.transfer.reason}{', a strike' * strike}{', freed' * freed}")

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
