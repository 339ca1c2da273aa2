"""A movement: the state of one request's KV transfer, and the callbacks for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from results.records.decisions import KvTransfer, RoutedRequest
from runners.router.facts import ClientMessage
from runners.router.transfer.counters import Attribution, TargetAnswer
from runners.router.transfer.move_rules import Purpose

UNDER_WAY = "under way"
NOT_SERVED = "the target has not begun to answer"
LEFT = "the client left"
NOT_REPORTED = "the target does not tell what it had cached (its engine needs --enable-prompt-tokens-details)"


class MoveRequest(NamedTuple):
    """A pick's order to move KV."""

    purpose: Purpose
    request: RoutedRequest
    source: str
    target: str
    message: ClientMessage


class Mover(Protocol):
    """Carries out a movement."""

    def now_ns(self) -> int: ...
    def abandon_movement(self, movement: Movement) -> None: ...
    def serve_handover(self, movement: Movement) -> None: ...
    def fail_handover(self, movement: Movement, *, strike: bool, freed: bool) -> None: ...


class KvTransport(Protocol):
    """The router's KV transport; `transfers.Transfers` is the one between real engines."""

    @property
    def is_configured(self) -> bool:
        """Whether any instance has a KV transport."""

    @property
    def timeout_s(self) -> float:
        """From a handover's decode request to the first byte of its answer."""

    def cut_off(self, source: str, targets: Iterable[str]) -> Mapping[str, str]: ...
    def forget_process(self, instance: str) -> None: ...
    def start_movement(self, move: MoveRequest, done: Callable[[Movement], None]) -> Movement: ...


@dataclass(eq=False, slots=True)
class Movement:
    """The KV transfer of one request."""

    _mover: Mover
    transfer: KvTransfer
    """Its current state."""
    body: bytes
    """The request body for the target: the client's, in a handover with the pull parameters added."""
    over: bool = False
    """The request no longer waits: it may be sent, or was abandoned."""
    open: bool = False
    """A handover whose source is ready: the client's request is the decode request, and its outcome is open."""
    settled: bool = False
    """`transfer` is final."""
    closed: bool = False
    """Abandoned: `transfer` is frozen."""
    block_tokens: int | None = None
    """Block size of the target."""
    kv_bytes_per_token: int | None = None
    on_answer_end: Callable[[], None] | None = None
    """Handover: called when the target's answer has ended, from when its counters may be read."""
    _counted: TargetAnswer | None = None
    _reported: TargetAnswer | None = None
    _callbacks: list[Callable[[KvTransfer], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.change_transfer(status="failed", reason=UNDER_WAY, t_begin_ns=self.now_ns())

    def now_ns(self) -> int:
        return self._mover.now_ns()

    # the outcome of the request
    def abandon_transfer(self, why: str = LEFT) -> None:
        """The request will not be served: end the transfer and free the source's blocks. `done` is not called."""
        if self.over and not self.open:
            return
        self.over = True
        self.change_transfer(reason=why, t_done_ns=self.now_ns())
        self.settle_transfer("it was abandoned")
        self.closed = True
        self._mover.abandon_movement(self)

    def note_sent(self, t_first_byte_ns: int) -> None:
        """The decode request has been sent, its first byte not before then; called again if the request is resent."""
        self.change_transfer(t_target_sent_ns=t_first_byte_ns)

    def serve_handover(self) -> None:
        """Handover: the target has begun to answer."""
        if self.open:
            self._mover.serve_handover(self)

    def fail_handover(self, why: str, *, strike: bool, freed: bool) -> None:
        """Handover: the target did not serve the request. `strike`: the pair is at fault.

        `freed`: the target's engine frees the source's blocks, because it refused the request or saw it dropped.
        """
        if self.open:
            self.change_transfer(reason=why)
            self._mover.fail_handover(self, strike=strike, freed=freed)

    def end_answer(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Handover: the target's answer has ended, with these counts of the prompt; None = not reported."""
        if self.transfer.purpose != "handover":
            return
        if cached_tokens is not None:
            self._reported = TargetAnswer(prompt_tokens, cached_tokens)
            self._divide_prompt()
        if self.on_answer_end is not None:
            self.on_answer_end()

    def call_when_settled(self, callback: Callable[[KvTransfer], None]) -> None:
        """Call `callback` with the transfer once it is settled, at once if it already is."""
        if self.settled:
            callback(self.transfer)
        else:
            self._callbacks.append(callback)

    # the state of the transfer
    def change_transfer(self, **changes: object) -> None:
        if not self.closed:
            self.transfer = replace(self.transfer, **changes)  # type: ignore[arg-type]

    def settle_transfer(self, reason: str = "") -> None:
        """Finalize and report the transfer; `reason`: why counts are null."""
        if self.settled:
            return
        if reason and not self.transfer.counted_reason:
            self.change_transfer(counted_reason=reason)
        self.settled = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.transfer)

    def attribute_tokens(self, answer: TargetAnswer, attribution: Attribution) -> None:
        """Settle with the target's counters, read after it has answered."""
        external, block = attribution.external_tokens, self.block_tokens
        self._counted = answer
        self.change_transfer(
            external_tokens=external,
            blocks=None if external is None or not block else -(-external // block),
            counted_by="" if external is None else "counters",
            counted_reason=attribution.reason,
        )
        if attribution.nixl_bytes is not None and self.transfer.transport == "nixl":
            self.change_transfer(bytes=attribution.nixl_bytes, bytes_from="counter")
        elif external is not None and self.kv_bytes_per_token is not None and self.transfer.transport != "nixl":
            self.change_transfer(bytes=external * self.kv_bytes_per_token, bytes_from="tokens")
        self._divide_prompt()
        self.settle_transfer()

    def _divide_prompt(self) -> None:
        """Divide the rest of the prompt into tokens cached at the target and tokens it computed."""
        answer, external = self._counted, self.transfer.external_tokens
        if answer is None:
            return
        prompt, cached = answer.prompt_tokens, answer.cached_tokens
        if cached is None and self._reported is not None:
            prompt, cached = self._reported.prompt_tokens or prompt, self._reported.cached_tokens
        if cached is None:
            self.change_transfer(counted_reason=self.transfer.counted_reason or NOT_REPORTED)
            return
        if self.transfer.counted_reason == NOT_REPORTED:
            self.change_transfer(counted_reason="")
        if prompt is not None:
            self.change_transfer(computed_tokens=max(0, prompt - cached))
        if external is not None:
            self.change_transfer(local_tokens=max(0, cached - external))
