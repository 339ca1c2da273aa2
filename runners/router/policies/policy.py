"""What a routing policy is, and what all do alike: who may be picked, the lowest score, how a tie was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Protocol

import msgspec

from results.records.decisions import Candidate, ClusterView, Decision, Gate, InstanceLoad, Role, RoutedRequest
from runners.errors import RunnerError

WHOLE: tuple[Role, ...] = ("both", "decode")
"""Roles that can serve a whole request."""

Tie = Annotated[
    Literal["rr", "first"],
    msgspec.Meta(description="equal scores: `rr` takes the next in turn, `first` the first by name"),
]


class PolicyError(RunnerError):
    """A policy or one of its parameters is not known, or a user's policy file cannot be used."""


class Policy(Protocol):
    """A policy. Its parameters are its fields; deciding changes nothing, so that any pick can be made again."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Where its rule comes from: the specification's section or the paper."""

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """Where the request goes and why. Called with at least one instance; never raises for a legal view."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """An instance with its score; the lowest wins, compared from left to right."""

    load: InstanceLoad
    score: tuple[float, ...]
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pickable:
    """Who may be picked, in the order of their names, and why the others may not."""

    loads: tuple[InstanceLoad, ...]
    ruled_out: tuple[Candidate, ...]
    gates: tuple[Gate, ...] = ()
    """Says so where pauses had to be ignored."""

    def find_load(self, instance: str) -> InstanceLoad | None:
        return next((load for load in self.loads if load.instance == instance), None)

    def rule_out(self, refused: Mapping[str, str]) -> Pickable:
        """The same without those that `refused` names, each with its reason."""
        out = (Candidate(load.instance, (), ruled_out=refused[load.instance]) for load in self.loads_in(refused))
        loads = tuple(load for load in self.loads if load.instance not in refused)
        return Pickable(loads, (*self.ruled_out, *out), self.gates)

    def loads_in(self, names: Iterable[str]) -> tuple[InstanceLoad, ...]:
        wanted = set(names)
        return tuple(load for load in self.loads if load.instance in wanted)


def find_pickable(request: RoutedRequest, cluster: ClusterView, roles: Sequence[Role] = WHOLE) -> Pickable:
    """Instances that are up, fit the role, have not failed this request and are not paused.

    Where everyone left is paused, pauses are ignored: a late answer is better than none.
    """
    loads, out = [], []
    for load in cluster.instances:
        why = _why_barred(request, load, roles)
        if why:
            out.append(Candidate(load.instance, (), ruled_out=why))
        else:
            loads.append(load)
    paused = {load.instance: f"paused for {load.paused_for_s:.2f} s" for load in loads if load.paused_for_s > 0}
    unpaused = Pickable(tuple(loads), tuple(out))
    if not paused:
        return unpaused
    if len(paused) < len(loads):
        return unpaused.rule_out(paused)
    text = f"all {len(loads)} are paused: pauses are ignored"
    return Pickable(unpaused.loads, unpaused.ruled_out, (Gate("one_not_paused", 0, 1, False, text),))


class WholePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy that sends whole requests to the instances that may be picked."""

    name: ClassVar[str]

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        may = find_pickable(request, cluster)
        return self._choose_instance(request, cluster, may) if may.loads else decide_nowhere(self.name, may)

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Decision:
        """The decision among the instances of `may`, at least one."""
        raise NotImplementedError


def _why_barred(request: RoutedRequest, load: InstanceLoad, roles: Sequence[Role]) -> str:
    if load.instance in request.tried:
        return "failed this request already"
    if not load.available:
        return load.why_unavailable or "unavailable"
    return "" if load.role in roles else f"its role is {load.role}"


def owner_is_paused(request: RoutedRequest, cluster: ClusterView) -> bool:
    """The session's instance is up and merely paused: another may serve this request, but not keep the session."""
    return any(
        load.instance == request.owner and load.available and load.paused_for_s > 0 for load in cluster.instances
    )


def new_tokens(request: RoutedRequest, load: InstanceLoad) -> int:
    """Prompt tokens that the instance would have to compute."""
    return max(0, request.input_tokens - request.cached_tokens.get(load.instance, 0))


def weigh_instances(
    request: RoutedRequest,
    loads: Sequence[InstanceLoad],
    score: Callable[[InstanceLoad], tuple[float, ...]],
    tie: str,
    counter: int,
    terms: Callable[[InstanceLoad], Mapping[str, float]] | None = None,
) -> list[Weighed]:
    """Each instance with its score, whose last key is the tie-break, and its terms, `terms` in addition to load's."""
    count = len(loads)
    weighed = []
    for index, load in enumerate(loads):
        shown = load_terms(request, load)
        if terms is not None:
            shown.update(terms(load))
        weighed.append(Weighed(load, (*score(load), turn_key(tie, index, count, counter)), shown))
    return weighed


def by_prefill_work(request: RoutedRequest, loads: Sequence[InstanceLoad], counter: int) -> list[Weighed]:
    """Instances as a prompt's prefill sees them: tokens pending there with its own, requests, whose turn it is."""
    return weigh_instances(
        request,
        loads,
        lambda load: (load.pending_prefill_tokens + new_tokens(request, load), load.num_requests),
        "rr",
        counter,
        lambda load: {"prefills": 1},
    )


def cached_share(request: RoutedRequest, instance: str) -> float:
    """Part of the prompt that the instance holds; 0 for an empty prompt."""
    return request.cached_tokens.get(instance, 0) / request.input_tokens if request.input_tokens > 0 else 0.0


def load_terms(request: RoutedRequest, load: InstanceLoad) -> dict[str, float]:
    """What most scores are made of."""
    cached = request.cached_tokens.get(load.instance, 0)
    return {
        "cached_tokens": cached,
        "new_tokens": max(0, request.input_tokens - cached),
        "pending_prefill_tokens": load.pending_prefill_tokens,
        "num_requests": load.num_requests,
    }


def turn_key(tie: str, index: int, of: int, counter: int) -> int:
    """The last key of a score: the distance from whose turn it is, or the index among the names."""
    return (index - counter) % of if tie == "rr" else index


def find_lowest(weighed: Sequence[Weighed]) -> Weighed:
    return min(weighed, key=lambda one: one.score)


def decide_for(
    policy: str,
    may: Pickable,
    weighed: Sequence[Weighed],
    keys: tuple[str, ...],
    reason: str,
    *,
    winner: Weighed | None = None,
    gates: tuple[Gate, ...] = (),
    binds: bool = False,
    advances: bool = False,
    migrate_from: str = "",
) -> Decision:
    """The decision for `winner`, or for the lowest score, with every instance as it was weighed or ruled out."""
    chosen = winner or find_lowest(weighed)
    return Decision(
        policy=policy,
        instance=chosen.load.instance,
        reason=reason,
        candidates=by_name([*(Candidate(w.load.instance, w.score, w.terms) for w in weighed), *may.ruled_out]),
        keys=keys,
        gates=(*may.gates, *gates),
        tie_break="" if winner else tie_break(chosen, weighed, keys),
        binds=binds,
        migrate_from=migrate_from,
        advances=advances,
    )


def decide_nowhere(policy: str, may: Pickable, reason: str = "no_instance", gates: tuple[Gate, ...] = ()) -> Decision:
    out = by_name([*(Candidate(load.instance, ()) for load in may.loads), *may.ruled_out])
    return Decision(policy, "", reason, out, gates=(*may.gates, *gates), binds=False)


def tie_break(chosen: Weighed, weighed: Sequence[Weighed], keys: Sequence[str]) -> str:
    """Which key decided among those that were equal on the first; empty = none was."""
    tied = [one for one in weighed if one.score[0] == chosen.score[0]]
    if len(tied) < 2:
        return ""
    shared = max(_count_agreeing(chosen.score, one.score) for one in tied if one is not chosen)
    names = ", ".join(one.load.instance for one in tied)
    how = f"decided by {keys[shared]}" if shared < len(keys) else "the first by name was taken"
    return f"{names} are equal on {keys[0]} ({chosen.score[0]:g}); {how}"


def _count_agreeing(one: Sequence[float], other: Sequence[float]) -> int:
    """Leading keys in which two scores are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=True)):
        if left != right:
            return position
    return len(one)


def by_name(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda one: one.instance))
