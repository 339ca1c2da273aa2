"""The lifecycle of one request: pick, send, retry elsewhere before the first byte, complete. No clock, no I/O.

A driver (the live proxy, the simulator) derives from `RequestLifecycle`, implements its abstract methods and reports
what instances and clients do. If the pick needs KV from another instance, the KV is moved first; if that transfer
fails, the serving instance computes the missing tokens.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from results.records.visible import visible
from runners.router.dispatch import HOLD, Request, Reservation
from runners.router.facts import ClientMessage
from runners.router.failure import REFUSALS, Failure, blames_request
from runners.router.response_facts import Usage
from runners.router.traffic import Traffic
from runners.router.transfer.movement import Movement, MoveRequest

BLAMELESS = ("refused", "own")
"""Failure kinds that are no evidence against a transfer: the instance is full, or this machine is at a limit."""


class Suspect(NamedTuple):
    """An instance that answered a request with a 5xx: it is at fault, or the request is."""

    instance: str
    failure: Failure
    t_dispatch_s: float


@dataclass(eq=False, repr=False, slots=True)
class RequestLifecycle(ABC):
    """One client request over all its attempts. It ends once."""

    _traffic: Traffic
    _request: Request
    _message: ClientMessage
    instance: str = ""
    """Where its last pick sends it; empty = nowhere, or there was no pick yet."""
    t_dispatch_s: float = 0.0
    t_held_s: float = 0.0
    """When it was first held because no instance had room; 0 = never."""
    t_read_s: float = 0.0
    """When the last bytes arrived from the instance."""
    t_paused_s: float = 0.0
    """When the client's buffers filled up; 0 = they are not full."""
    is_handed_over: bool = False
    """The decode request of a handover is in flight, and its response has not begun."""
    _tried: tuple[str, ...] = ()
    _suspects: tuple[Suspect, ...] = ()
    """In the order of the attempts."""
    _reservation: Reservation = field(init=False)
    _has_lost_claim: bool = False
    """Another router claimed the migration of the session first: do not claim it again."""
    _is_open: bool = False
    """The client has received the beginning of this instance's response."""
    _status: int = 0

    @property
    def source(self) -> str:
        """The instance that this pick takes KV from; empty = none."""
        return self._reservation.source

    # what a driver implements
    @abstractmethod
    def _send_request(self, body: bytes) -> None:
        """Send the request with this body to `instance`."""

    @abstractmethod
    def _cancel_request(self) -> None:
        """Cancel the request at its instance, so that the instance stops computing."""

    @abstractmethod
    def _refuse_client(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        """Answer with an error of the router's own."""

    @abstractmethod
    def _break_off(self, message: str) -> None:
        """End a response that has begun and cannot be finished."""

    @abstractmethod
    def _abort_client(self) -> None:
        """Cut the client's connection."""

    @abstractmethod
    def _read_usage(self) -> Usage | tuple[bytes, ...]:
        """The token counts of a finished response, or the pieces of its body to read them from."""

    # the pick
    def start_request(self) -> None:
        """Pick an instance and send the request to it; called again for a held request. A router bug answers 500."""
        try:
            self._start_attempt()
        except Exception as error:  # noqa: BLE001  (the client must get an answer, and the log the error)
            sys.stderr.write(visible(f"a request could not be routed:\n{traceback.format_exc()}"))
            with contextlib.suppress(Exception):
                self.abandon_request("a defect of the router")
            self._refuse_client(500, f"{type(error).__name__}: {error}", "router_defect")

    def _start_attempt(self) -> None:
        traffic = self._traffic
        self._reservation = reservation = traffic.dispatcher.pick_instance(self._request, self._tried)
        self.instance = instance = reservation.instance
        if not instance and reservation.reason.startswith(HOLD) and self._may_wait():
            self._hold_request(reservation)
            return
        traffic.held.pop(self, None)
        if not instance:
            traffic.dispatcher.count_pick(self._request, reservation)
            why = f"no instance may take the request ({reservation.reason})"
            reservation.end("error", http_status=503, error=why)
            self._refuse_client(503, why, "no_instance", b"retry-after: 1\r\n")
            return
        if not reservation.source:
            self._send_body(self._message.body)  # first: counting can wait
            traffic.dispatcher.count_pick(self._request, reservation)
        else:
            traffic.dispatcher.count_pick(self._request, reservation)
            if self._has_lost_claim or not traffic.dispatcher.claim_migration(reservation, self._end_claim):
                self._start_transfer()
            else:
                self._wait_in_moving()
        traffic.health.note_dispatch(instance)

    def _may_wait(self) -> bool:
        """A request in flight may free room when it ends, and this one has not been held for too long."""
        held_s = self._traffic.driver.now_s() - self.t_held_s if self.t_held_s else 0.0
        return self._traffic.in_flight and held_s <= self._traffic.limits.first_byte_s

    def _hold_request(self, reservation: Reservation) -> None:
        """Queue behind the requests already held. Record only the first such pick: later ones repeat it."""
        self._traffic.hold_request(self)
        if not self.t_held_s:
            self.t_held_s = self._traffic.driver.now_s()
            self._traffic.dispatcher.count_pick(self._request, reservation)
            reservation.end("held", error=f"held: {reservation.reason}")

    def _send_body(self, body: bytes) -> None:
        self.t_dispatch_s = self.t_read_s = self._traffic.driver.now_s()
        self._traffic.waiting[self] = None
        self._send_request(body)

    # the transfer
    def _wait_in_moving(self) -> None:
        self.t_dispatch_s, self._traffic.moving[self] = self._traffic.driver.now_s(), None

    def _end_claim(self, granted: bool) -> None:
        """Handle the answer to the claim. Not `granted`: another router migrates the session or has, so pick again."""
        del self._traffic.moving[self]
        if granted:
            self._start_transfer()
            return
        instance, self._has_lost_claim = self.instance, True
        self._end_attempt("retried", "another router has bound its session meanwhile, or migrates it")
        self._traffic.health.release_trial(instance)
        self.start_request()

    def _start_transfer(self) -> None:
        """Move the KV first if that is possible. Never calls `_end_transfer` before it returns."""
        transfers, reservation = self._traffic.transfers, self._reservation
        decision, request = reservation.pick.decision, reservation.pick.request
        if not transfers.is_configured or (self._has_lost_claim and decision.migrate_from):
            reservation.end_transfer(arrived=False)
            self._send_body(self._message.body)
            return
        self._wait_in_moving()
        move = MoveRequest(
            "handover" if decision.prefill else "migration",
            request,
            reservation.source,
            decision.instance,
            self._message,
        )
        reservation.movement = transfers.start_movement(move, self._end_transfer)

    def _end_transfer(self, movement: Movement) -> None:
        """The transfer has succeeded or failed: send the request."""
        traffic, status = self._traffic, movement.transfer.status
        self.is_handed_over = movement.open
        arrived = self.is_handed_over or status == "transferred"
        if arrived:
            traffic.health.note_success(self.source)
        elif status == "failed":
            traffic.health.probe_now(self.source)
        del traffic.moving[self]
        self._reservation.end_transfer(arrived=arrived)
        self._send_body(movement.body)

    def give_up_transfer(self, why: str) -> None:
        """Stop waiting for the transfer: the instance computes what it lacks."""
        self._withdraw_request(why)
        self._fail_handover(why, strike=True, freed=True)
        self._recompute_kv()

    def _recompute_kv(self) -> None:
        self._traffic.moving.pop(self, None)
        self._traffic.waiting.pop(self, None)
        self._reservation.end_transfer(arrived=False)
        self._traffic.offer_room()
        self._send_body(self._message.body)

    def _fail_handover(self, why: str, *, strike: bool, freed: bool) -> None:
        """Fail the handover whose decode request is in flight, if any; flags as in `Movement.fail_handover`."""
        movement = self._reservation.movement
        if self.is_handed_over and movement is not None:
            self.is_handed_over = False
            movement.fail_handover(why, strike=strike, freed=freed)

    def _withdraw_request(self, why: str) -> None:
        """Stop the transfer, the claim or the request at the instance, whichever is in progress."""
        if self not in self._traffic.moving:
            self._cancel_request()
        elif self._reservation.movement is not None:
            self._reservation.movement.abandon_transfer(why)
        elif self._reservation.claim is not None:
            self._reservation.claim.stop_waiting()

    # what the instance does
    def note_sent(self, t_first_byte_ns: int) -> None:
        """The request has been sent, its first byte not before then."""
        movement = self._reservation.movement
        if self.is_handed_over and movement is not None:
            movement.note_sent(t_first_byte_ns)

    def accept_head(self, status: int, pause_s: float) -> bool:
        """Handle the response head; True = forward the body. A 5xx or a refusal is retried elsewhere if possible.

        `pause_s`: for how long the instance asks for no new requests; 0 = it does not ask.
        """
        instance, dispatcher = self.instance, self._traffic.dispatcher
        self._status = status
        if status in REFUSALS:
            dispatcher.note_refusal(self._request.session, instance, pause_s)
        if status < 400 or (blames_request(status) and status != 429):
            dispatcher.pause_instance(instance, pause_s)
            return True
        if self.is_handed_over and status not in REFUSALS:
            self._fail_handover(f"HTTP {status}", strike=True, freed=False)
            self._recompute_kv()
            return False
        if not self._may_retry():
            return True
        self._retry_elsewhere(Failure("refused" if status in REFUSALS else "status", f"HTTP {status}", status=status))
        return False

    def start_response(self) -> None:
        """Handle the first body byte: from now on the request cannot move to another instance."""
        self._is_open = True
        traffic, status, instance = self._traffic, self._status, self.instance
        movement = self._reservation.movement
        del traffic.waiting[self]
        traffic.streaming[self] = None
        served = status < 300
        self._reservation.start_response(served=served)
        if not served:
            self._fail_handover(f"HTTP {status}", strike=False, freed=status not in REFUSALS)
        elif self.is_handed_over and movement is not None:
            self.is_handed_over = False
            movement.serve_handover()
            traffic.offer_room()
        if status < 400:
            traffic.health.note_success(instance)
            self._blame_suspects()
        elif blames_request(status):
            traffic.health.release_trial(instance)
        else:
            traffic.counts.failures[instance, "status"] += 1
            self._note_failure(Failure("status", f"HTTP {status}", status=status))
            self._blame_first_suspect()

    def complete_response(self) -> None:
        status = self._status
        if status < 400:
            self._end_attempt("ok")
            self._traffic.health.note_whole(self.instance)
        else:
            self._end_attempt("client_error" if blames_request(status) else "error", f"HTTP {status}")

    def complete_with_error(self, message: str, code: int) -> None:
        """The response is complete, and its last event reports an error; `code`: the HTTP equivalent."""
        text = f"error event at the end of the response: {message} (code {code})"
        if blames_request(code):
            self._end_attempt("client_error", text)
            return
        self._fail_complete(Failure("event", text, status=code))

    def complete_aborted(self, why: str) -> None:
        """The response is complete for HTTP, and the instance has not finished the request: at its shutdown."""
        self._fail_complete(Failure("event", why))

    def _fail_complete(self, failure: Failure) -> None:
        """Count a failure of the instance that the client has seen, or could see, at the end of its response."""
        traffic, instance = self._traffic, self.instance
        traffic.counts.failures[instance, failure.kind] += 1
        self._end_attempt("error", failure.text)
        traffic.health.note_failure(instance, failure, begun=True)

    def fail_request(self, failure: Failure) -> None:
        """The instance failed, or its connection did."""
        traffic, instance = self._traffic, self.instance
        if self._is_open:
            traffic.counts.failures[instance, failure.kind] += 1
            self._end_attempt("error", failure.text)
            traffic.health.note_failure(instance, failure, begun=True)
            self._break_off(f"instance {instance} failed in the middle of the response: {failure.text}")
        elif self.is_handed_over and failure.kind == "timeout":
            self._fail_handover(failure.text, strike=True, freed=True)
            self._recompute_kv()
        elif failure.kind != "own" and self._may_retry():
            self._retry_elsewhere(failure)
        else:
            self._fail_for_good(failure)

    # what the client, the clock and the operator do
    def abandon_request(self, why: str = "the client left") -> None:
        """The client is gone: drop the request, so that the instance stops computing it."""
        if self in self._traffic.held:
            self._end_attempt("aborted", why)
            return
        self._withdraw_request(why)
        instance = self.instance
        self._end_attempt("aborted", why)
        self._traffic.health.release_trial(instance)

    def drop_client(self, why: str) -> None:
        self.abandon_request(why)
        self._abort_client()

    def fail_attempt(self, failure: Failure) -> None:
        self._withdraw_request(failure.text)
        self.fail_request(failure)

    def cut_request(self, why: str, *, elsewhere: bool) -> None:
        """End the request from outside; with `elsewhere`, retry it on another instance before its first byte."""
        if self in self._traffic.held:
            self._refuse_cut(why)
            return
        self._withdraw_request(why)
        instance = self.instance
        if self._is_open:
            self._end_attempt("error", why)
            self._break_off(why)
        elif elsewhere and self._may_retry():
            self._fail_handover(why, strike=False, freed=True)
            self._retry_elsewhere(Failure("down", why))
        else:
            self._refuse_cut(why)
        self._traffic.health.release_trial(instance)

    def _refuse_cut(self, why: str) -> None:
        self._end_attempt("error", why, http_status=503)
        self._refuse_client(503, why, "cut")

    # the end of an attempt
    def _may_retry(self) -> bool:
        tried = (*self._tried, self.instance)
        traffic = self._traffic
        return len(tried) < traffic.limits.attempts and traffic.dispatcher.has_alternative(self._request, tried)

    def _retry_elsewhere(self, failure: Failure) -> None:
        """Count the failure and pick another instance."""
        traffic, instance = self._traffic, self.instance
        traffic.counts.failures[instance, failure.kind] += 1
        self._fail_handover(failure.text, strike=failure.kind not in BLAMELESS, freed=False)
        self._end_attempt("retried", failure.text, http_status=failure.status)
        self._tried = (*self._tried, instance)
        self._note_failure(failure)
        self.start_request()

    def _fail_for_good(self, failure: Failure) -> None:
        traffic, instance = self._traffic, self.instance
        traffic.counts.failures[instance, failure.kind] += 1
        status = {"timeout": 504, "own": 503}.get(failure.kind, 502)
        self._fail_handover(failure.text, strike=failure.kind not in BLAMELESS, freed=False)
        self._end_attempt("error", failure.text, http_status=status)
        traffic.health.note_failure(instance, failure)
        self._blame_first_suspect()
        kind = "router_overloaded" if failure.kind == "own" else "instance_failed"
        self._refuse_client(status, f"instance {instance}: {failure.text}", kind)

    # who is at fault
    def _note_failure(self, failure: Failure) -> None:
        """Count it against the instance; a 5xx only once it is known that the request is not at fault.

        Where the instance is on trial it counts at once: the trial is over. So does a 503, which no request causes.
        """
        health, instance = self._traffic.health, self.instance
        if failure.kind != "status" or failure.status in REFUSALS or health.is_on_trial(instance):
            health.note_failure(instance, failure)
        else:
            self._suspects = (*self._suspects, Suspect(instance, failure, self.t_dispatch_s))
            health.probe_now(instance)

    def _blame_suspects(self) -> None:
        """Another instance serves the request: those that answered it with a 5xx are at fault."""
        for suspect in self._suspects:
            self._traffic.health.note_late_failure(*suspect)
        self._suspects = ()

    def _blame_first_suspect(self) -> None:
        """No instance has served the request. If none is left to try, none is blamed: the request is at fault, or no
        instance is better. Else faulty instances may use up the attempts of every request, so the first one is blamed.
        """
        tried = (*self._tried, self.instance)
        if self._suspects and self._traffic.dispatcher.has_alternative(self._request, tried):
            self._traffic.health.note_late_failure(*self._suspects[0])
        self._suspects = ()

    def _end_attempt(self, status: str, error: str = "", *, http_status: int | None = None) -> None:
        """Release the reservation with its outcome; `status` as in RoutedOutcome."""
        traffic = self._traffic
        usage: Usage | tuple[bytes, ...] = ()
        traffic.end_attempt(self)
        self._fail_handover(error or status, strike=False, freed=True)
        if self._is_open:
            http_status = self._status
            if status == "ok" and traffic.dispatcher.ledger.stores_records:
                usage = self._read_usage()
        self._reservation.end(status, http_status=http_status, usage=usage, error=error)
