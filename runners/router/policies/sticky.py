"""Sticky: a session stays on the instance that its hash or its binding gives."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, ClassVar, Literal

import msgspec

from results.records.decisions import ClusterView, RoutedRequest
from runners.router.policies.balance import LoadOnly
from runners.router.policies.policy import (
    WHOLE,
    Draft,
    Pickable,
    Weighing,
    WholePolicy,
    draft_for,
    is_owner_paused,
    make_load_terms,
)

REASONS: Mapping[str, str] = {
    "no_session": "the request has no session id: it had the fewest requests",
    "bound": "the session is bound to it",
    "hashed": "the session's hash put it there",
    "owner_down": "the session's instance cannot be picked; it is the next from the session's hash",
}
SCORE_KEYS: Mapping[str, str] = {
    "over_bound": "has more than its bound of sessions",
    "places_from_its_hash": "places from the session's hash",
}

KEYS = ("over_bound", "places_from_its_hash")


class Sticky(WholePolicy, frozen=True, kw_only=True):
    """A session's instance never changes while it is up; the first one comes from a hash of the session's id."""

    name: ClassVar[str] = "sticky"
    source: ClassVar[str] = "specs/ear.md 3.3 and 5.1, baseline 4 (hash or ring is not said: a choice)"
    rule: ClassVar[str] = (
        "the owner while it is up; a new session goes by its hash; a request without a session id as under `load_only`"
    )

    place: Annotated[
        Literal["modulo", "ring"],
        msgspec.Meta(
            description="`modulo`: hash mod instances; `ring`: consistent hashing, so that a new instance takes few"
        ),
    ] = "modulo"
    points: Annotated[int, msgspec.Meta(ge=1, le=4096, description="points of each instance on the ring")] = 160
    bound: Annotated[
        Annotated[float, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(
            description="a new session passes on from an instance that has this many times the mean of sessions; "
            "null = hash alone"
        ),
    ] = None
    rebind: Annotated[
        bool,
        msgspec.Meta(
            description="a session whose instance is down stays with its next one; false = it goes back to its hash"
        ),
    ] = True

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """The owner while it is up, else the next from the session's hash; without a session id as `load_only`."""
        if not request.session:
            return Draft(
                msgspec.structs.replace(LoadOnly().decide(request, cluster), policy=self.name, reason="no_session")
            )
        weighing = self._weigh_order(request, cluster, may)
        owner = may.find_load(request.owner) if self.rebind else None
        if owner is not None:
            return draft_for(self.name, may, weighing, KEYS, "bound", winner=owner, binds=True)
        if is_owner_paused(request, cluster):
            return draft_for(self.name, may, weighing, KEYS, "owner_paused")
        lost = self.rebind and request.owner != ""
        return draft_for(self.name, may, weighing, KEYS, "owner_down" if lost else "hashed", binds=True)

    def _weigh_order(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Weighing:
        members = [load for load in cluster.instances if load.role in WHOLE]
        order = make_placing_order(request.session, [load.instance for load in members], self.place, self.points)
        rank = {name: index for index, name in enumerate(order)}
        limit = math.inf
        if self.bound is not None:
            limit = math.ceil(self.bound * (1 + sum(load.active_sessions for load in members)) / len(members))
        return Weighing(
            may.loads,
            lambda: [(int(load.active_sessions + 1 > limit), rank[load.instance]) for load in may.loads],
            lambda load: make_load_terms(request, load) | {"active_sessions": load.active_sessions},
        )


def make_placing_order(session: str, names: Sequence[str], place: str, points: int) -> list[str]:
    """All instances in the session's order of preference; the same in every process."""
    if place == "modulo":
        start = _hash_text(session) % len(names)
        return [*names[start:], *names[:start]]
    ring = _make_ring(tuple(names), points)
    start = bisect_right(ring, (_hash_text(session), len(names)))
    order: dict[str, None] = {}
    for step in range(len(ring)):
        order[names[ring[(start + step) % len(ring)][1]]] = None
        if len(order) == len(names):
            break
    return list(order)


@lru_cache(maxsize=64)
def _make_ring(names: tuple[str, ...], points: int) -> tuple[tuple[int, int], ...]:
    """Points (hash, instance index) of all instances, sorted; cached because it takes milliseconds."""
    marks = ((_hash_text(f"{name}#{point}"), index) for index, name in enumerate(names) for point in range(points))
    return tuple(sorted(marks))


def _hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
