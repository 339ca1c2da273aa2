"""The policy interface, and what policies share: pickable instances, the lowest score, tie-breaking."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
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
    """A policy or one of its parameters is unknown, or a user's policy file cannot be used."""


class Policy(Protocol):
    """A policy. Its parameters are its fields; deciding has no side effects, so that any pick can be repeated."""

    name: ClassVar[str]
    source: ClassVar[str]
    """The origin of its rule: the specification's section or the paper."""

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """Choose an instance and give the reason. `cluster` has at least one instance. Never raises on a valid view."""


class Weighing(msgspec.Struct, eq=False):
    """Instances with their scores; the lowest wins, compared from left to right.

    Scores and terms are computed on demand: an owner that passes every gate is picked without them, and terms are only
    needed for the record, which is written after the request has been sent.
    """

    loads: Sequence[InstanceLoad]
    _make_scores: Callable[[], Sequence[tuple[float, ...]]]
    """In the order of `loads`."""
    list_terms: Callable[[InstanceLoad], Mapping[str, float]]
    """The terms of an instance's score, by name."""
    _scores: Sequence[tuple[float, ...]] | None = None

    @property
    def scores(self) -> Sequence[tuple[float, ...]]:
        """In the order of `loads`."""
        if self._scores is None:
            self._scores = self._make_scores()
        return self._scores

    def find_lowest(self) -> InstanceLoad:
        """Raises ValueError if there is no instance."""
        return self.loads[self.scores.index(min(self.scores))]

    def list_candidates(self) -> list[Candidate]:
        rows = zip(self.loads, self.scores, strict=True)
        return [Candidate(load.instance, score, self.list_terms(load)) for load, score in rows]


class Pickable(msgspec.Struct, frozen=True):
    """The instances that may be picked, sorted by name, and the others with their reasons."""

    loads: tuple[InstanceLoad, ...]
    ruled_out: tuple[Candidate, ...]
    gates: tuple[Gate, ...] = ()
    """A failed gate if all instances are paused and pauses are ignored."""

    def find_load(self, instance: str) -> InstanceLoad | None:
        if instance:  # else the session has no owner
            for load in self.loads:
                if load.instance == instance:
                    return load
        return None

    def rule_out(self, refused: Mapping[str, str]) -> Pickable:
        """The same without the instances in `refused`, each ruled out for its reason."""
        loads = tuple(load for load in self.loads if load.instance not in refused)
        out = (
            Candidate(load.instance, (), ruled_out=refused[load.instance])
            for load in self.loads
            if load.instance in refused
        )
        return Pickable(loads, (*self.ruled_out, *out), self.gates)


def find_pickable(request: RoutedRequest, cluster: ClusterView, roles: Sequence[Role] = WHOLE) -> Pickable:
    """Instances that are available, have one of the roles, have not failed this request and are not paused.

    If all the remaining ones are paused, pauses are ignored: a late answer is better than none.
    """
    if not request.tried:
        fit = [load for load in cluster.instances if load.available and load.role in roles and not load.paused_for_s]
        if len(fit) == len(cluster.instances):
            return Pickable(cluster.instances, ())
    loads, out = [], []
    for load in cluster.instances:
        why = _explain_barred(request, load, roles)
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


class _PolicyMeta(msgspec.StructMeta, ABCMeta):
    """Combines msgspec's metaclass with ABCMeta, so that a struct can have abstract methods."""


class WholePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, metaclass=_PolicyMeta):
    """A policy that sends each whole request to one instance."""

    name: ClassVar[str]
    rule: ClassVar[str] = ""
    """In the notation of docs/policies.md, whose table shows it; empty = its docstring's first sentence there."""

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        return self.draft_decision(request, cluster).complete()

    def draft_decision(self, request: RoutedRequest, cluster: ClusterView) -> Draft:
        """The same decision; its candidates are listed when its record is written."""
        may = find_pickable(request, cluster)
        return self._choose_instance(request, cluster, may) if may.loads else Draft(decide_nowhere(self.name, may))

    @abstractmethod
    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """Decide among the instances of `may`, which has at least one."""


def _explain_barred(request: RoutedRequest, load: InstanceLoad, roles: Sequence[Role]) -> str:
    if load.instance in request.tried:
        return "failed this request already"
    if not load.available:
        return load.why_unavailable or "unavailable"
    return "" if load.role in roles else f"its role is {load.role}"


def is_owner_paused(request: RoutedRequest, cluster: ClusterView) -> bool:
    """The session's owner is available but paused: another instance may serve this request, without a rebind."""
    return any(
        load.instance == request.owner and load.available and load.paused_for_s > 0 for load in cluster.instances
    )


def new_tokens(request: RoutedRequest, load: InstanceLoad) -> int:
    """Prompt tokens that the instance would have to compute."""
    return max(0, request.input_tokens - request.cached_tokens.get(load.instance, 0))


def weigh_instances(
    request: RoutedRequest,
    loads: Sequence[InstanceLoad],
    score: Callable[[InstanceLoad, int], tuple[float, ...]],
    tie: str,
    counter: int,
    terms: Callable[[InstanceLoad], Mapping[str, float]] | None = None,
) -> Weighing:
    """Weigh each instance by `score` of its load and new tokens, then by the tie-break.

    `terms` add to `make_load_terms`.
    """

    def make_scores() -> list[tuple[float, ...]]:
        cached, tokens, count = request.cached_tokens, request.input_tokens, len(loads)
        turn = counter if tie == "rr" else 0
        return [
            (*score(load, max(0, tokens - cached.get(load.instance, 0))), (index - turn) % count)
            for index, load in enumerate(loads)
        ]

    def list_terms(load: InstanceLoad) -> Mapping[str, float]:
        shown = make_load_terms(request, load)
        if terms is not None:
            shown.update(terms(load))
        return shown

    return Weighing(loads, make_scores, list_terms)


def weigh_prefill_work(request: RoutedRequest, loads: Sequence[InstanceLoad], counter: int) -> Weighing:
    """Weigh prefill instances by pending plus new prompt tokens, then requests, then turn."""
    return weigh_instances(
        request,
        loads,
        lambda load, new: (load.pending_prefill_tokens + new, load.num_requests),
        "rr",
        counter,
        lambda load: {"prefills": 1},
    )


def cached_share(request: RoutedRequest, instance: str) -> float:
    """Share of the prompt that the instance has cached, 0 to 1; 0 for an empty prompt."""
    return request.cached_tokens.get(instance, 0) / request.input_tokens if request.input_tokens > 0 else 0.0


def make_load_terms(request: RoutedRequest, load: InstanceLoad) -> dict[str, float]:
    """The terms that most scores use."""
    cached = request.cached_tokens.get(load.instance, 0)
    return {
        "cached_tokens": cached,
        "new_tokens": max(0, request.input_tokens - cached),
        "pending_prefill_tokens": load.pending_prefill_tokens,
        "num_requests": load.num_requests,
    }


class Draft(msgspec.Struct, frozen=True, eq=False):
    """A decision, with what its record needs in addition; `complete` computes that on demand."""

    decision: Decision
    may: Pickable | None = None
    weighing: Weighing | None = None
    """Weighs the instances of `may`; None = the decision is complete."""
    won_by_score: bool = False

    def complete(self) -> Decision:
        """The decision with every candidate, weighed or ruled out, and with the tie-break."""
        decision, may, weighing = self.decision, self.may, self.weighing
        if may is None or weighing is None:
            return decision
        candidates = by_name([*weighing.list_candidates(), *may.ruled_out])
        tie = tie_break(decision.instance, weighing, decision.keys) if self.won_by_score else ""
        return msgspec.structs.replace(decision, candidates=candidates, tie_break=tie)


def draft_for(
    policy: str,
    may: Pickable,
    weighing: Weighing,
    keys: tuple[str, ...],
    reason: str,
    *,
    winner: InstanceLoad | None = None,
    gates: tuple[Gate, ...] = (),
    binds: bool = False,
    advances: bool = False,
    migrate_from: str = "",
) -> Draft:
    """The decision for `winner`, or for the lowest score."""
    chosen = winner or weighing.find_lowest()
    decision = Decision(
        policy=policy,
        instance=chosen.instance,
        reason=reason,
        keys=keys,
        gates=(*may.gates, *gates),
        binds=binds,
        migrate_from=migrate_from,
        advances=advances,
    )
    return Draft(decision, may, weighing, won_by_score=winner is None)


def decide_nowhere(policy: str, may: Pickable, reason: str = "no_instance", gates: tuple[Gate, ...] = ()) -> Decision:
    out = by_name([*(Candidate(load.instance, ()) for load in may.loads), *may.ruled_out])
    return Decision(policy, "", reason, out, gates=(*may.gates, *gates), binds=False)


def tie_break(chosen: str, weighing: Weighing, keys: Sequence[str]) -> str:
    """Which key decided among the instances equal on the first key; empty = there was no tie."""
    scores = {load.instance: score for load, score in zip(weighing.loads, weighing.scores, strict=True)}
    best = scores[chosen]
    tied = [name for name, score in scores.items() if score[0] == best[0]]
    if len(tied) < 2:
        return ""
    shared = _count_shared(best, [scores[name] for name in tied if name != chosen])
    how = f"decided by {keys[shared]}" if shared < len(keys) else "the first by name was taken"
    return f"{', '.join(tied)} are equal on {keys[0]} ({best[0]:g}); {how}"


def _count_shared(best: Sequence[float], others: Sequence[Sequence[float]]) -> int:
    """Number of leading keys in which one of the other scores equals the best."""
    for position, value in enumerate(best):
        others = [other for other in others if other[position] == value]
        if not others:
            return position
    return len(best)


def by_name(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=attrgetter("instance")))
