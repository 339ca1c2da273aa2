"""The router's own pages: models, health, metrics, and the operator's pages about instances.

  GET    /v1/models, POST /tokenize, ...   forwarded to an instance (`PASSED_ON` in paths)
  GET    /health, /ping                    200 while any instance may be picked, else 503
  GET    /metrics                          Prometheus text
  GET    /admin/instances                  every instance with its counters
  POST   /admin/instances                  add one: {"instance", "url", "transfer", ...} as in the router's spec
  POST   /admin/instances/NAME/drain       send it no new requests; its open requests continue
  POST   /admin/instances/NAME/resume      end its drain
  DELETE /admin/instances/NAME[?now=1]     remove it; `now` does not wait for its requests

The operator's pages answer programs on this machine only: no browser, which a web page could control, and no proxy that
its headers show. A proxy that sends none makes every client look local: with TRACON_ADMIN_TOKEN in the router's
environment the pages also require that token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from results.records.declaration import explain_unknown_field
from results.records.router_spec import InstanceSpec
from runners.router.cluster import Cluster
from runners.router.counts import Held, make_metrics_page
from runners.router.instances.fleet import Fleet
from runners.router.instances.internal_request import BODY_LIMIT_BYTES, InternalRequestFailed, fetch_answer
from runners.router.messages import RouterError
from runners.router.server.front import ClientConnection
from runners.router.server.http_message import HttpRequest
from runners.router.server.paths import HEALTH, PASSED_ON, explain_not_passed_on
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.router.transfer.transfers import Transfers

PASSED_ON_S = {"GET": 10.0, "POST": 60.0}
"""Time limits by method; tokenizing a long text takes an engine long."""
ADMIN = "/admin/instances"
FOREIGN = frozenset((b"origin", b"referer", b"sec-fetch-site", b"forwarded", b"via", b"x-real-ip"))
"""Headers of browsers and proxies, besides every `x-forwarded-*`."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
ADMIN_TOKEN = "TRACON_ADMIN_TOKEN"
"""Environment variable: if set, the operator's pages require `Authorization: Bearer` with its value."""


class ServerState(Protocol):
    """The server's state that the pages read."""

    closing: bool
    own_url: str
    held_limit_bytes: int

    @property
    def connections(self) -> int: ...
    @property
    def records_lost(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...


class PassedOn:
    """A request that is being forwarded to an instance; it is cancelled if the client leaves."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def pause(self) -> None:
        """Do nothing: nothing has been written yet."""

    def resume(self) -> None:
        """Do nothing: nothing was held back."""

    def abandon_request(self) -> None:
        self._task.cancel()


class Pages:
    """Answers requests for pages; `answer` always replies."""

    def __init__(
        self,
        fleet: Fleet,
        cluster: Cluster,
        bindings: Bindings,
        traffic: Traffic,
        transfers: Transfers,
        server: ServerState,
        admin_token: bytes,
    ) -> None:
        self._fleet = fleet
        self._cluster = cluster
        self._bindings = bindings
        self._traffic = traffic
        self._transfers = transfers
        self._server = server
        self._passing = 0
        """Requests being forwarded."""
        self._admin_token = admin_token

    async def answer(self, connection: ClientConnection, request: HttpRequest) -> None:
        path, method = request.path.rstrip("/") or "/", request.method
        try:
            if (method, path) in PASSED_ON:
                await self._pass_on_few(connection, request)
            elif path in HEALTH and method in ("GET", "POST"):
                self._answer_health(connection)
            elif connection.shared and (path == "/metrics" or path == ADMIN or path.startswith(ADMIN + "/")):
                why = f"several processes listen here; the pages of this one are at {self._server.own_url}{path}"
                connection.refuse(421, why, "shared_port")
            elif path == "/metrics" and method == "GET":
                connection.reply(200, self._make_metrics(), TEXT)
            elif path == ADMIN or path.startswith(ADMIN + "/"):
                await self._answer_admin(connection, request, path.removeprefix(ADMIN).strip("/"))
            else:
                status, why = explain_not_passed_on(method, path)
                connection.refuse(status, why, "not_found")
        except RouterError as error:
            connection.refuse(409, f"{error}. {error.remedy}", "refused")
        except Exception as error:  # the client must get an answer, and the log the error
            connection.refuse(500, f"{type(error).__name__}: {error}", "router_defect")
            raise

    async def _pass_on_few(self, connection: ClientConnection, request: HttpRequest) -> None:
        """`_pass_on`, unless the answers of those under way could exceed the limit of what is held for clients."""
        most = max(1, self._server.held_limit_bytes // BODY_LIMIT_BYTES)
        if self._passing >= most:
            why = f"the router is passing on {most} requests for pages, as many as it may"
            connection.refuse(503, why, "router_overloaded", b"retry-after: 1\r\n")
            return
        self._passing += 1
        try:
            await self._pass_on(connection, request)
        finally:
            self._passing -= 1

    async def _pass_on(self, connection: ClientConnection, request: HttpRequest) -> None:
        """Reply with an instance's answer; try the one with the fewest requests first.

        Only a failed connection counts as a failure of the instance: a slow page is no evidence about its requests.
        """
        available = sorted(
            (load.num_requests, load.instance) for load in self._cluster.take_view().instances if load.available
        )
        task = asyncio.current_task()
        assert task is not None
        connection.in_flight = PassedOn(task)
        status, why, kind = 503, "no instance may be asked", "no_instance"
        for _, instance in available:
            pool = self._fleet.pools.get(instance)
            if pool is None:  # removed meanwhile
                continue
            try:
                answer, body = await fetch_answer(
                    pool,
                    request.target,
                    timeout_s=PASSED_ON_S[request.method],
                    headers=request.forwarded(),
                    body=request.body,
                )
            except InternalRequestFailed as error:
                why = f"instance {instance}: {error}"
                if error.failure.dead:
                    self._fleet.health.note_failure(instance, error.failure)
                    continue
                self._fleet.health.probe_now(instance)
                status, kind = (504 if error.failure.kind == "timeout" else 502), "instance_failed"
                if request.method == "GET":
                    continue
                break  # another instance would be as slow
            kinds = (value for name, value in answer.headers if name == b"content-type")
            named = b"x-tracon-instance: %b\r\n" % instance.encode()
            connection.reply(answer.status, body, next(kinds, b"application/json").decode("latin-1"), named)
            return
        connection.refuse(status, why, kind, b"retry-after: 1\r\n" if status == 503 else b"")

    def _answer_health(self, connection: ClientConnection) -> None:
        loads = self._cluster.take_view().instances
        up = [load.instance for load in loads if load.available]
        down = {load.instance: load.why_unavailable for load in loads if not load.available}
        well = bool(up) and not self._server.closing
        status = "ok" if well else "closing" if self._server.closing else "no instance"
        connection.reply_json(200 if well else 503, {"status": status, "available": up, "unavailable": down})

    def _make_metrics(self) -> bytes:
        unsettled = self._traffic.dispatcher.ledger.unsettled
        self._traffic.dispatcher.ledger.settle_records()
        view = self._cluster.take_view()
        sessions = {load.instance: self._bindings.count_active(load.instance) for load in view.instances}
        held = Held(
            self._server.connections,
            len(self._bindings),
            unsettled,
            self._server.backlog_bytes,
            {name: len(index) for name, index in self._fleet.indexes.items()},
        )
        return make_metrics_page(self._traffic.counts, view, sessions, held, self._server.records_lost)

    async def _answer_admin(self, connection: ClientConnection, request: HttpRequest, rest: str) -> None:
        why = explain_forbidden(connection, request)
        if why:
            connection.refuse(403, f"the operator's pages answer programs on this machine only: {why}", "forbidden")
            return
        if self._admin_token and not bears_token(request, self._admin_token):
            why = f"the operator's pages ask for the header `authorization: Bearer` with the router's {ADMIN_TOKEN}"
            connection.refuse(401, why, "unauthorized", b"www-authenticate: Bearer\r\n")
            return
        name, _, act = rest.partition("/")
        asked = (request.method, bool(name), act)
        if asked == ("GET", False, ""):
            pass
        elif asked == ("POST", False, ""):
            if not await self._add_instance(connection, request):
                return
        elif asked == ("POST", True, "drain"):
            self._fleet.drain_instance(name)
        elif asked == ("POST", True, "resume"):
            await self._resume_instance(name)
        elif asked == ("DELETE", True, ""):
            self._remove_instance(name, now="now=1" in request.query.split("&"))
        else:
            connection.refuse(404, f"the router has no {request.method} {request.path}", "not_found")
            return
        connection.reply_json(200, self._list_instances())

    async def _add_instance(self, connection: ClientConnection, request: HttpRequest) -> bool:
        if not request.is_json:
            connection.refuse(415, "an instance is added with content-type application/json", "bad_request")
            return False
        try:
            row = msgspec.json.decode(request.body)
            instance = msgspec.convert(row, InstanceSpec)
            unknown = explain_unknown_field(row, msgspec.to_builtins(instance))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            connection.refuse(400, f"not an instance: {error}", "bad_request")
            return False
        if unknown:
            connection.refuse(400, f"not an instance: {unknown}", "bad_request")
            return False
        await self._fleet.add_instance(instance)
        return True

    async def _resume_instance(self, name: str) -> None:
        instance = self._fleet.specs.get(name)
        if instance is None:
            self._fleet.drain_instance(name)  # raises RouterError with the known names
        else:
            await self._fleet.add_instance(instance)

    def _remove_instance(self, name: str, *, now: bool) -> None:
        open_requests = {load.instance: load.num_requests for load in self._cluster.take_view().instances}.get(name, 0)
        if open_requests and not now:
            raise RouterError(
                f"instance {name} has {open_requests} requests",
                remedy="Drain it and wait, or add ?now=1 to take them away from it.",
            )
        if name in self._fleet.specs:
            self._fleet.drain_instance(name)
            self._traffic.cut_requests(f"instance {name} was removed", name)
        self._fleet.remove_instance(name)
        self._transfers.remove_instance(name)

    def _list_instances(self) -> dict[str, object]:
        return {
            "instances": [
                {
                    **msgspec.to_builtins(load),
                    "url": self._fleet.specs[load.instance].url,
                    "transfer": msgspec.to_builtins(self._fleet.specs[load.instance].transfer),
                    "breaker": self._fleet.health.find_state(load.instance),
                    "sessions": self._bindings.count_active(load.instance),
                }
                for load in self._cluster.take_view().instances
            ],
            "no_transfers": [
                {"source": source, "target": target, "why": why}
                for (source, target), why in self._transfers.list_quarantined().items()
            ],
        }


def explain_forbidden(connection: ClientConnection, request: HttpRequest) -> str:
    """Why a client may not use the operator's pages; empty = it may.

    A web page in a browser on this machine connects from this machine too. Its requests have `origin` or
    `sec-fetch-site`, or, if its own domain name resolves to this machine (DNS rebinding), that name in `host`.
    """
    if not connection.local:
        return "this client is on another"
    hosts = [value for name, value in request.headers if name == b"host"]
    if len(hosts) != 1 or not _is_loopback(hosts[0].decode("latin-1")):
        return "the host header names no loopback address (use 127.0.0.1 or localhost)"
    foreign = sorted({name for name, _ in request.headers if name in FOREIGN or name.startswith(b"x-forwarded-")})
    if foreign:
        return f"a browser or a proxy sends {foreign[0].decode('latin-1')}"
    return ""


def read_admin_token() -> bytes:
    """The token that the operator's pages require; empty = none. Raises RouterError for one that is set and empty, as
    by a command that failed: the pages would be open to every program on this machine.
    """
    token = os.environ.get(ADMIN_TOKEN)
    if token is not None and not token.strip():
        raise RouterError(f"{ADMIN_TOKEN} is set and empty", remedy="Set it to the token, or unset it to require none.")
    return os.fsencode((token or "").strip())


def bears_token(request: HttpRequest, token: bytes) -> bool:
    """Whether the request's one `Authorization` header has the scheme Bearer and `token`, compared in constant time."""
    values = [value for name, value in request.headers if name == b"authorization"]
    scheme, _, value = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return hmac.compare_digest(value.strip(), token) and scheme.lower() == b"bearer"


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
