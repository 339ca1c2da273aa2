"""Where a router keeps its bindings: in its own memory, or in a table in Redis that several routers share."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

PASSWORD = "TRACON_REDIS_PASSWORD"
"""Environment variable: the password is never part of a URL, and so of no spec, log or list of processes."""
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class BindingRules:
    """The table of sessions, and how long it is waited for (specs/ear.md 4.4)."""

    redis_url: str = ""
    """`redis://[USER@]HOST:PORT/DB`, `rediss://` with TLS, or `unix:///PATH`; empty = this router's memory alone."""
    prefix: str = "tracon:"
    """Of all keys: routers with one prefix share their sessions."""
    wait_s: float = 0.05
    """A request waits for Redis this long at most; then this router's own copy decides."""
    claim_s: float = 30.0
    """A session stays claimed for a migration this long after its router's last renewal."""


def binding_problem(rules: BindingRules) -> tuple[str, str] | None:
    """What is wrong with the rules, and what they have to be; None = nothing. Contains no secret."""
    if min(rules.wait_s, rules.claim_s) <= 0 or not rules.prefix:
        return "bindings.wait_s or claim_s is not above 0, or the prefix is empty", "seconds above 0 and a prefix"
    return _url_problem(rules.redis_url) if rules.redis_url else None


def _url_problem(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
        port, secret = parts.port, parts.password is not None
    except ValueError:
        return "the URL of bindings cannot be read", "redis://HOST:PORT/DB"
    if secret:
        return (
            "the URL of bindings carries a password",
            f"the URL without it, redis://[USER@]HOST:PORT/DB, and the password in the environment as {PASSWORD}",
        )
    if parts.query or parts.fragment:
        return "the URL of bindings has a query", "redis://[USER@]HOST:PORT/DB and nothing behind it"
    if parts.scheme not in SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
        return (
            f"the URL of bindings has scheme {parts.scheme!r} or no place",
            "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH",
        )
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdigit():
        return f"the URL of bindings names the database {database!r}", "a number, as in redis://127.0.0.1:6379/0"
    return None if port is None or port else ("the URL of bindings has port 0", "the port that Redis listens on")
