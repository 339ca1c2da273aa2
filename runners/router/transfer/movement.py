"""One transfer as its request follows it: what is known so far, and what comes later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Protocol

from results.decisions import KvTransfer
from runners.router.transfer.counters import Brought, Ended

UNDER_WAY = "under way"
NOT_SERVED = "the target has not begun to answer"
LEFT = "the client left"
NOT_TOLD = "the target does not tell what it had cached (its engine needs --enable-prompt-tokens-details)"


class Mover(Protocol):
    """Who makes a movement."""

    def abandoned(self, movement: Movement) -> None: ...
    def served(self, movement: Movement) -> None: ...
    def failed(self, movement: Movement, *, strike: bool, freed: bool) -> None: ...


class Movement:
    """KV on its way for one request."""

    __slots__ = (
        "_callbacks",
        "_ended",
        "_mover",
        "_told",
        "answered",
        "block_tokens",
        "body",
        "closed",
        "kv_bytes_per_token",
        "open",
        "over",
        "settled",
        "transfer",
    )

    def __init__(self, mover: Mover, transfer: KvTransfer, body: bytes) -> None:
        self.transfer = replace(transfer, status="failed", reason=UNDER_WAY, t_begin_ns=perf_counter_ns())
        """What is known now; right at every moment."""
        self.body = body
        """What to send to the target: the client's body, or with a handover's decode leg in it."""
        self.over = False
        """The request may be sent, or will not be."""
        self.open = False
        """A handover whose source is ready: the request is the target leg, and nobody knows yet what comes of it."""
        self.settled = False
        """`transfer` changes no more."""
        self.closed = False
        """Abandoned: nothing that comes later is said of it."""
        self.block_tokens: int | None = None
        """Of the target."""
        self.kv_bytes_per_token: int | None = None
        self.answered: Callable[[], None] | None = None
        """Handover: to be called when the target's answer is over, as its counters may be read from then on."""
        self._mover = mover
        self._ended: Ended | None = None
        self._told: Ended | None = None
        self._callbacks: list[Callable[[KvTransfer], None]] = []

    # what the request's proxy says
    def abandon(self, why: str = LEFT) -> None:
        """The request is not to be served: end it, and free what the source keeps. `done` is not called any more."""
        if self.over and not self.open:
            return
        self.over = True
        self.change(reason=why, t_done_ns=perf_counter_ns())
        self.settle("it was abandoned")
        self.closed = True
        self._mover.abandoned(self)

    def sent(self) -> None:
        """The target leg's last byte has been handed to the socket; again where it had to be sent again."""
        self.change(t_target_sent_ns=perf_counter_ns())

    def served(self) -> None:
        """Handover: the target has begun to answer."""
        if self.open:
            self._mover.served(self)

    def failed(self, why: str, *, strike: bool, freed: bool) -> None:
        """Handover: the target did not serve it. `strike`: that speaks against the pair.

        `freed`: the target's engine has the source's blocks freed, as it refused the request or sees it dropped.
        """
        if self.open:
            self.change(reason=why)
            self._mover.failed(self, strike=strike, freed=freed)

    def counted(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Handover: the target's answer is over, and says this of its prompt; None = it does not say."""
        if self.transfer.purpose != "handover":
            return
        if cached_tokens is not None:
            self._told = Ended(prompt_tokens, cached_tokens)
            self._divide()
        if self.answered is not None:
            self.answered()

    def when_settled(self, callback: Callable[[KvTransfer], None]) -> None:
        """Call it with the transfer once that changes no more; at once where it does not now."""
        if self.settled:
            callback(self.transfer)
        else:
            self._callbacks.append(callback)

    # what the mover finds out
    def change(self, **changes: object) -> None:
        if not self.closed:
            self.transfer = replace(self.transfer, **changes)  # type: ignore[arg-type]

    def settle(self, reason: str = "") -> None:
        """Nothing more will be known; `reason`: why what is null is."""
        if self.settled:
            return
        if reason and not self.transfer.counted_reason:
            self.change(counted_reason=reason)
        self.settled = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.transfer)

    def brought(self, ended: Ended, brought: Brought) -> None:
        """The target's counters, read after it has answered."""
        external, block = brought.external_tokens, self.block_tokens
        self._ended = ended
        self.change(
            external_tokens=external,
            blocks=None if external is None or not block else -(-external // block),
            counted_by="" if external is None else "counters",
            counted_reason=brought.reason,
        )
        if brought.nixl_bytes is not None and self.transfer.transport == "nixl":
            self.change(bytes=brought.nixl_bytes, bytes_from="counter")
        elif external is not None and self.kv_bytes_per_token is not None and self.transfer.transport != "nixl":
            self.change(bytes=external * self.kv_bytes_per_token, bytes_from="tokens")
        self._divide()
        self.settle()

    def _divide(self) -> None:
        """What did not come by transfer: out of the target's own cache, or computed."""
        ended, external = self._ended, self.transfer.external_tokens
        if ended is None:
            return
        prompt, cached = ended.prompt_tokens, ended.cached_tokens
        if cached is None and self._told is not None:
            prompt, cached = self._told.prompt_tokens or prompt, self._told.cached_tokens
        if cached is None:
            self.change(counted_reason=self.transfer.counted_reason or NOT_TOLD)
            return
        if self.transfer.counted_reason == NOT_TOLD:
            self.change(counted_reason="")
        if prompt is not None:
            self.change(computed_tokens=max(0, prompt - cached))
        if external is not None:
            self.change(local_tokens=max(0, cached - external))
