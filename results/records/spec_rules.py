"""The rules of a spec, the options of a process: the first that does not hold refuses it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from results.records.errors import SpecError

Rule = tuple[bool, str, str]
"""Whether it holds, what is wrong where it does not, and what to give."""


def refuse_problems(kind: str, rules: Iterable[Rule]) -> None:
    """Raise SpecError for the first rule that does not hold."""
    for holds, problem, remedy in rules:
        if not holds:
            raise SpecError(f"{kind} spec: {problem}", remedy=f"Give {remedy}.")


def has_user(url: str) -> bool:
    """Whether it has a user or a password, which specs, logs and messages would show. `url` may lack its scheme."""
    _, slashes, rest = url.partition("://")
    return "@" in (rest if slashes else url).lstrip("/").partition("/")[0]


def is_http_url(text: str) -> bool:
    """Whether it is an http(s) URL with a host and a valid port."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unmatched bracket, or an invalid port
        return False
