"""Where the sessions of a cell have lived: instance by instance, since when, and why they moved.

Derived from the latest decisions that a router's tick lists and from its migrations, whichever of the two comes first.
Picks beyond those that a tick lists are not seen; `tracon session` reads all of them from the decision log.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from results.records.events import MigrationChanged, RoutedLine

MAX_LIVES = 500
"""Sessions in the view: those seen last."""
MAX_STAYS = 30
"""Stays of one session in the view: the newest."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A session at one instance, from the first pick seen there on."""

    instance: str
    since_unix_s: float
    why: str
    """The reason of its first pick there, or what brought it back."""
    picks: int = 1
    """Seen there; 0 = it is bound there, and no pick has been seen since."""
    migration: str = ""
    """The migration that brought it, once it is done."""


Lives = Mapping[str, tuple[Stay, ...]]
"""By session, oldest stay first; the session seen last is the last key."""


def fold_picks_into_lives(before: Lives, lines: Iterable[RoutedLine], failed: Container[tuple[str, str]] = ()) -> Lives:
    """The lives after more picks, in their order. A pick without a session or an instance changes none.

    `failed`: (migration, target) of those known to have failed; their picks moved no session.
    """
    changed: dict[str, tuple[Stay, ...]] = {}
    for line in lines:
        if line.session and line.instance and (line.request, line.instance) not in failed:
            stays = changed.pop(line.session, None) or before.get(line.session, ())
            changed[line.session] = _add_pick(stays, line)
    if not changed:
        return before
    others = {session: stays for session, stays in before.items() if session not in changed}
    return dict([*others.items(), *changed.items()][-MAX_LIVES:])


def _add_pick(stays: tuple[Stay, ...], line: RoutedLine) -> tuple[Stay, ...]:
    last = stays[-1] if stays else None
    if last is not None and last.instance != line.instance and not last.picks and line.t_unix_s <= last.since_unix_s:
        before = _add_pick(stays[:-1], line)  # the migration was reported first, between two ticks
        return (*before[1 - MAX_STAYS :], last)
    if last is None or last.instance != line.instance:
        return (*stays[1 - MAX_STAYS :], Stay(line.instance, line.t_unix_s, line.reason))
    stay = replace(last, picks=last.picks + 1)
    if last.migration == line.request and not last.picks:  # the pick that requested the migration
        stay = replace(stay, since_unix_s=min(last.since_unix_s, line.t_unix_s), why=line.reason)
    return (*stays[:-1], stay)


def fold_migration_into_lives(before: Lives, event: MigrationChanged) -> Lives:
    """The lives after a step of a migration: `done` marks the stay it brought, `failed` brings the session back."""
    stays = before.get(event.session, ())
    if event.phase not in ("done", "failed") or not event.target:
        return before
    last = stays[-1] if stays else None
    here = last is not None and last.instance == event.target
    if event.phase == "done":
        new = Stay(event.target, event.t_unix_s, "migrated", picks=0)
        reached = last if last is not None and here else new
        after = (*(stays[:-1] if here else stays[1 - MAX_STAYS :]), replace(reached, migration=event.migration))
    elif here and event.source:
        why = f"its migration to {event.target} failed"
        after = (*stays[1 - MAX_STAYS :], Stay(event.source, event.t_unix_s, why, picks=0))
    else:
        return before
    others = {session: stays for session, stays in before.items() if session != event.session}
    return dict([*others.items(), (event.session, after)][-MAX_LIVES:])
