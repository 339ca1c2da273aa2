"""One request on its way: picked, sent, retried elsewhere until its first byte, and passed on as it comes.

The instance's head is held back until its first body byte, so that everything before that byte can still be retried.
Where the pick asks for KV from another instance, that is moved first; a transfer that fails costs only that the
instance computes what it lacks.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from runners.router.dispatch import HOLD, Asked, Placement
from runners.router.facts import pause_s
from runners.router.link import REFUSALS, Answer, Failure, Link
from runners.router.response import Client, last_event, response_head
from runners.router.traffic import Traffic
from runners.router.upstream import Pool

if TYPE_CHECKING:
    from runners.router.transfer import Movement

BLAMELESS = ("refused", "own")
"""Kinds of failure that say nothing against a transfer: the instance is full, or this machine is."""
TAIL_PIECES = 4
"""Last pieces of a body, in which its usage and its end are looked for."""


class Exchange:
    """One request of a client, over as many instances as it takes. It ends once."""

    __slots__ = (
        "_answer",
        "_asked",
        "_body",
        "_client",
        "_headers",
        "_movement",
        "_opened",
        "_path",
        "_placement",
        "_pool",
        "_refused",
        "_tail",
        "_traffic",
        "_tried",
        "handed",
        "link",
        "t_dispatch_s",
        "t_held_s",
        "t_paused_s",
        "t_read_s",
    )

    def __init__(
        self, traffic: Traffic, client: Client, asked: Asked, path: bytes, headers: bytes, body: bytes
    ) -> None:
        self.t_dispatch_s = 0.0
        self.t_held_s = 0.0
        """Since when no instance had room; 0 = one had at once."""
        self.t_read_s = 0.0
        self.t_paused_s = 0.0
        """Since when the client's buffers are full; 0 = they are not."""
        self.link: Link | None = None
        self._traffic = traffic
        self._client = client
        self._asked = asked
        self._path = path
        self._headers = headers
        self._body = body
        self._tried: tuple[str, ...] = ()
        self._placement: Placement
        self._pool: Pool | None = None
        self._answer: Answer
        self._refused = False
        """Another router came first with a migration of its session: this one does not try again."""
        self._movement: Movement | None = None
        """The transfer of this pick; None = it asked for none, or nothing can be moved here."""
        self.handed = False
        """The request on its way is the target leg of a handover, not yet known to be served."""
        self._opened = False
        self._tail: deque[bytes] = deque(maxlen=TAIL_PIECES)

    @property
    def instance(self) -> str:
        return self._placement.instance

    @property
    def source(self) -> str:
        """Where KV comes from for this pick; empty = nowhere."""
        return self._placement.source

    def begin(self) -> None:
        """Pick an instance and send the request there; one that is held is begun again. A defect of that is a 500."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001  (its client is owed an answer, and the log the error)
            sys.stderr.write(f"a request could not be routed:\n{traceback.format_exc()}")
            with contextlib.suppress(Exception):
                self.abandon("a defect of the router")
            self._client.refuse(500, f"{type(error).__name__}: {error}", "router_defect")

    def _begin(self) -> None:
        traffic = self._traffic
        self._placement = placement = traffic.dispatcher.pick(self._asked, self._tried)
        if not placement.instance and placement.reason.startswith(HOLD) and self._may_wait():
            self._hold(placement)
            return
        traffic.held.pop(self, None)
        if not placement.instance:
            traffic.dispatcher.sent(self._asked, placement)
            why = f"no instance may take the request ({placement.reason})"
            placement.end("error", http_status=503, error=why)
            self._client.refuse(503, why, "no_instance", b"retry-after: 1\r\n")
            return
        if not placement.source:
            self._send(self._body)
        elif self._refused or not traffic.dispatcher.claim(placement, self._may_migrate):
            self._bring()
        else:
            self.t_dispatch_s, traffic.moving[self] = monotonic(), None
        traffic.dispatcher.sent(self._asked, placement)
        traffic.health.dispatched(placement.instance)

    def forgo(self, why: str) -> None:
        """The transfer is not to be waited for any longer: the instance computes what it lacks."""
        self._withdraw(why)
        self._unserved(why, strike=True, freed=True)
        self._compute()

    # the transfer's side
    def _may_migrate(self, granted: bool) -> None:
        """Other routers have been asked. Where one of them migrates the session, or has, the pick is made again."""
        del self._traffic.moving[self]
        if granted:
            self._bring()
            return
        instance, self._refused = self.instance, True
        self._end("retried", "another router has bound its session meanwhile, or migrates it")
        self._traffic.health.let_go(instance)
        self.begin()

    def _bring(self) -> None:
        """Have the KV moved first, where that is possible. What becomes of it is not heard of in this call."""
        traffic, placement = self._traffic, self._placement
        made, request = placement.pick.decision, placement.pick.request
        if not traffic.transfers.configured or (self._refused and made.migrate_from):
            placement.moved(arrived=False)
            self._send(self._body)
            return
        self.t_dispatch_s, traffic.moving[self] = monotonic(), None
        start = traffic.transfers.hand_over if made.prefill else traffic.transfers.migrate
        path = self._path.decode("latin-1")
        placement.movement = self._movement = start(
            request, placement.source, made.instance, path, self._headers, self._body, self._moved
        )

    def _moved(self, movement: Movement) -> None:
        """The transfer is over, well or not: the request goes on."""
        traffic, status = self._traffic, movement.transfer.status
        self.handed = movement.open
        arrived = self.handed or status == "transferred"
        if arrived:
            traffic.health.succeeded(self.source)
        elif status == "failed":
            traffic.health.doubt(self.source)
        del traffic.moving[self]
        self._placement.moved(arrived=arrived)
        self._send(movement.body)

    def _compute(self) -> None:
        """Have the instance compute the prompt: the KV did not come."""
        self._traffic.moving.pop(self, None)
        self._traffic.waiting.pop(self, None)
        self._placement.moved(arrived=False)
        self._traffic.made_room()
        self.link = None
        self._send(self._body)

    def _unserved(self, why: str, *, strike: bool, freed: bool) -> None:
        """If it is a decode leg, it was not served; as `Movement.failed`."""
        if self.handed and self._movement is not None:
            self.handed = False
            self._movement.failed(why, strike=strike, freed=freed)

    def _send(self, body: bytes) -> None:
        self.t_dispatch_s = self.t_read_s = monotonic()
        self._pool = pool = self._traffic.pools[self._placement.instance]
        self._traffic.waiting[self] = None
        pool.send(self, (pool.target.head("POST", self._path, self._headers, len(body)), body))

    def _withdraw(self, why: str) -> None:
        """Take it back from where it is: its transfer, or its instance."""
        if self not in self._traffic.moving:
            if self._pool is not None:
                self._pool.cancel(self)
        elif self._movement is not None:
            self._movement.abandon(why)
        elif self._placement.claim is not None:
            self._placement.claim.abandon()

    # the instance's side
    def sent(self) -> None:
        if self.handed and self._movement is not None:
            self._movement.sent()

    def answered(self, answer: Answer) -> bool:
        """The head came: 5xx and refusals go elsewhere while there is an elsewhere."""
        self._answer = answer
        status, instance, dispatcher = answer.status, self.instance, self._traffic.dispatcher
        if status in REFUSALS:
            dispatcher.refused(self._asked.session, instance, pause_s(answer.headers, refusal=True))
        if status < 500 and status != 429:
            dispatcher.pause(instance, pause_s(answer.headers, refusal=False))
            return True
        if self.handed and status not in REFUSALS:
            self._unserved(f"HTTP {status}", strike=True, freed=False)
            self._compute()  # once more, as the client sent it
            return False
        if not self._may_retry():
            return True
        self._again(Failure("refused" if status in REFUSALS else "status", f"HTTP {status}", status=status))
        return False

    def body(self, data: bytes) -> None:
        self._tail.append(data)
        if self._opened:
            self._client.write(data)
        else:
            self._open(data)

    def finished(self, *, proven: bool) -> None:
        if not proven and self._answer.events and b"[DONE]" not in b"".join(self._tail):
            self.failed(Failure("closed", "connection closed mid-stream"))
            return
        if not self._opened:  # a body of no bytes that ended with its connection
            self._open(b"")
        status = self._answer.status
        error = "" if status < 400 else f"HTTP {status}"
        outcome = "ok" if status < 400 else "client_error" if status < 500 else "error"
        self._end(outcome, error)
        self._client.done(keep=proven)

    def failed(self, failure: Failure) -> None:
        traffic, instance = self._traffic, self.instance
        if self._opened:
            traffic.counts.failures[instance, failure.kind] += 1
            self._end("error", failure.text)
            traffic.health.failed(instance, failure)
            self._break_off(f"instance {instance} failed in the middle of the response: {failure.text}")
        elif self.handed and failure.kind == "timeout":
            self._unserved(failure.text, strike=True, freed=True)
            self._compute()
        elif failure.kind != "own" and self._may_retry():
            self._again(failure)
        else:
            self._fail_for_good(failure)

    # the client's side
    def pause(self) -> None:
        """The client's buffers are full."""
        self.t_paused_s = monotonic()
        if self.link is not None:
            self.link.pause()

    def resume(self) -> None:
        """The client reads again."""
        self.t_paused_s, self.t_read_s = 0.0, monotonic()
        if self.link is not None:
            self.link.resume()

    def abandon(self, why: str = "the client left") -> None:
        """The client is gone: drop the request, so that the instance stops computing it."""
        if self in self._traffic.held:
            self._end("aborted", why)
            return
        self._withdraw(why)
        instance = self.instance
        self._end("aborted", why)
        self._traffic.health.let_go(instance)

    # what the clock and the operator say
    def give_up_on(self, failure: Failure) -> None:
        """The instance is not to be waited for any longer."""
        self._withdraw(failure.text)
        self.failed(failure)

    def leave(self, why: str) -> None:
        """The client is not to be waited for any longer."""
        self.abandon(why)
        self._client.abort()

    def cut(self, why: str, *, elsewhere: bool) -> None:
        """End it from outside, or (`elsewhere`, before its first byte) send it to another instance."""
        if self in self._traffic.held:
            self._end("error", why, http_status=503)
            self._client.refuse(503, why, "cut")
            return
        self._withdraw(why)
        instance = self.instance
        if self._opened:
            self._end("error", why)
            self._break_off(why)
        elif elsewhere and self._may_retry():
            self._unserved(why, strike=False, freed=True)
            self._again(Failure("down", why))
        else:
            self._end("error", why, http_status=503)
            self._client.refuse(503, why, "cut")
        self._traffic.health.let_go(instance)

    def _may_wait(self) -> bool:
        """Something is in flight whose end may make room, and it has not waited for too long."""
        held_s = monotonic() - self.t_held_s if self.t_held_s else 0.0
        return self._traffic.in_flight and held_s <= self._traffic.limits.first_byte_s

    def _hold(self, placement: Placement) -> None:
        """Wait behind those that are held already. The first such pick is recorded, later ones say the same."""
        self._traffic.held.setdefault(self)
        if not self.t_held_s:
            self.t_held_s = monotonic()
            self._traffic.dispatcher.sent(self._asked, placement)
            placement.end("held", error=f"held: {placement.reason}")

    def _may_retry(self) -> bool:
        tried = (*self._tried, self.instance)
        return len(tried) < self._traffic.limits.attempts and self._traffic.dispatcher.another(self._asked, tried)

    def _again(self, failure: Failure) -> None:
        """Count what failed, and pick another instance."""
        traffic, instance = self._traffic, self.instance
        traffic.counts.failures[instance, failure.kind] += 1
        self._unserved(failure.text, strike=failure.kind not in BLAMELESS, freed=False)
        self._end("retried", failure.text, http_status=failure.status)
        self._tried = (*self._tried, instance)
        self.link = None
        traffic.health.failed(instance, failure)
        self.begin()

    def _fail_for_good(self, failure: Failure) -> None:
        traffic, instance = self._traffic, self.instance
        traffic.counts.failures[instance, failure.kind] += 1
        status = {"timeout": 504, "own": 503}.get(failure.kind, 502)
        self._unserved(failure.text, strike=failure.kind not in BLAMELESS, freed=False)
        self._end("error", failure.text, http_status=status)
        traffic.health.failed(instance, failure)
        kind = "router_overloaded" if failure.kind == "own" else "instance_failed"
        self._client.refuse(status, f"instance {instance}: {failure.text}", kind)

    def _open(self, data: bytes) -> None:
        """The first byte: from here on the client has an answer, and the answer this instance."""
        self._opened = True
        traffic, answer, instance = self._traffic, self._answer, self.instance
        del traffic.waiting[self]
        traffic.streaming[self] = None
        served = answer.status < 300
        self._placement.first_byte(served=served)
        if not served:
            self._unserved(f"HTTP {answer.status}", strike=False, freed=answer.status not in REFUSALS)
        elif self.handed and self._movement is not None:
            self.handed = False
            self._movement.served()
            traffic.made_room()
        if answer.status < 400:
            traffic.health.succeeded(instance)
        elif answer.status < 500:
            traffic.health.let_go(instance)
        else:
            traffic.counts.failures[instance, "status"] += 1
            traffic.health.failed(instance, Failure("status", f"HTTP {answer.status}", status=answer.status))
        head = response_head(answer, instance, self._asked.request, keep_alive=self._client.keep_alive)
        self._client.write(head + data)

    def _break_off(self, message: str) -> None:
        """End a response that cannot be finished: an event stream with an event that says why, others by cutting."""
        answer, torn = self._answer, self.link is not None and self.link.torn
        if not answer.events or answer.sized or torn:
            self._client.abort()
            return
        self._client.write(last_event(message, self.instance, b"".join(self._tail), chunked=answer.chunked))
        self._client.done(keep=answer.chunked)

    def _end(self, status: str, error: str = "", *, http_status: int | None = None) -> None:
        traffic = self._traffic
        tail: tuple[bytes, ...] = ()
        traffic.ended(self)
        self._unserved(error or status, strike=False, freed=True)
        self._movement = None
        if self._opened:
            http_status = self._answer.status
            if status == "ok" and traffic.dispatcher.ledger.keeps_records:
                tail = tuple(self._tail)
        self._placement.end(status, http_status=http_status, tail=tail, error=error)
