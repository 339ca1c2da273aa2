"""KvAware of `specs/load_floor.md`: overlap first, with the load-floor bonus and every alternative as a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from results.records.decisions import Candidate, ClusterView, Decision, Gate, InstanceLoad, RoutedRequest
from results.records.percent import format_percent
from runners.router.policies.policy import (
    WHOLE,
    Draft,
    Pickable,
    Tie,
    Weighing,
    WholePolicy,
    by_name,
    cached_share,
    draft_for,
    find_pickable,
    is_owner_paused,
    weigh_prefill_work,
)

REASONS: Mapping[str, str] = {
    "owner": "it is the session's owner and still had the best score",
    "left_owner": "another instance's score beat the session's owner",
    "reject_migration": "the session's owner refused it too often; it had the best score of the others",
    "backpressure": "the session's owner has too full a KV pool; this request alone goes elsewhere",
}
SCORE_KEYS: Mapping[str, str] = {
    "minus_overlap_and_bonuses": "minus (overlap + bonuses in blocks)",
    "minus_sticky": "minus (1 if owner)",
    "inflight": "requests there",
    "assigned": "sessions assigned",
}

OVERLAP_FIRST = ("minus_overlap_and_bonuses", "minus_sticky", "inflight", "assigned", "turns_away")
INFLIGHT_FIRST = ("inflight", "minus_overlap_and_bonuses", "minus_sticky", "assigned", "turns_away")


class KvAware(WholePolicy, frozen=True, kw_only=True):
    """The highest (overlap in blocks + bonuses, sticky, -inflight, -assigned), compared from left to right.

    With prefill instances it chooses among those that decode; the prompt is computed by the prefill instance with the
    least work left, unless the session is at home where it decodes and most of it is still there (`direct_share`).
    """

    name: ClassVar[str] = "kv_aware"
    source: ClassVar[str] = "specs/load_floor.md, Q2 (A to G) and Q1.E"
    rule: ClassVar[str] = (
        "highest (overlap in blocks + `sticky_bonus` (alpha, 100 blocks) if owner + bonuses, owner, -BS, "
        "-`assigned`, `rr`)"
    )

    sticky_bonus: Annotated[int, msgspec.Meta(ge=0, description="alpha: blocks that being the owner is worth")] = 100
    load_floor_bonus: Annotated[
        int, msgspec.Meta(ge=0, description="K of Q2.B: blocks for an instance with few sessions; 0 = off, try 200")
    ] = 0
    floor_form: Annotated[
        Literal["mean", "max"],
        msgspec.Meta(description="`mean`: int(K * deficit / max(1, mean)); `max`: int(K * (most - mine) / most)"),
    ] = "mean"
    floor_gate: Annotated[
        Literal["unowned", "per_worker"],
        msgspec.Meta(
            description="who gets the bonus: every instance, for a session `unowned` by any; or, as the spec has it, "
            "each instance that is not the owner (it can draw a warm session away)"
        ),
    ] = "unowned"
    assigned: Annotated[
        Literal["cumulative", "active"],
        msgspec.Meta(description="sessions ever bound (the spec; a new instance is flooded) or bound now"),
    ] = "cumulative"
    order: Annotated[
        Literal["overlap_first", "inflight_first"], msgspec.Meta(description="`inflight_first` is Q2.C")
    ] = "overlap_first"
    cold_bonus: Annotated[
        int, msgspec.Meta(ge=0, description="Q2.A: blocks for an instance that no session was ever bound to; 0 = off")
    ] = 0
    overlap_discount: Annotated[
        Literal["off", "largest", "fixed"],
        msgspec.Meta(
            description="Q2.D: overlap * (1 - inflight / most), most: the `largest` now, or `fixed` by max_inflight"
        ),
    ] = "off"
    max_inflight: Annotated[int, msgspec.Meta(ge=1, description="requests at which Q2.D `fixed` leaves nothing")] = 64
    min_overlap_blocks: Annotated[
        int, msgspec.Meta(ge=0, description="Q2.F: overlap counts above this number of blocks")
    ] = 0
    min_overlap_share: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="Q2.F: overlap counts above this share of the prompt")
    ] = 0.0
    prewarm_tokens: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Q2.E: tokens of the trace's common prefix that a run sends to every instance before the first "
            "session; deciding does not read it",
        ),
    ] = 0
    migration_reject_threshold: Annotated[
        int,
        msgspec.Meta(ge=0, description="refusals in a row after which an instance is out for the session; 0 = never"),
    ] = 3
    backpressure_above: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1)] | None,
        msgspec.Meta(description="Q1.E: skip an instance whose KV pool is fuller than this share; null = off"),
    ] = None
    direct_share: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1,
            description="with prefill instances: a later turn goes straight to the session's own instance "
            "(direct-to-D) while that holds more than this share of the prompt; 1 = never",
        ),
    ] = 0.5
    tie: Tie = "rr"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """The lexicographic maximum; scores are negatives, because the lowest score wins."""
        roomy = self._rule_out_full(may)
        left = self._drop_refusing(request, roomy)
        weighing = self._weigh_instances(request, left.loads, cluster)
        keys = OVERLAP_FIRST if self.order == "overlap_first" else INFLIGHT_FIRST
        chosen = weighing.find_lowest().instance
        reason = self._name_reason(request, cluster, chosen, may, roomy, left)
        draft = draft_for(
            self.name,
            left,
            weighing,
            keys,
            reason,
            gates=self._check_refusals(request),
            binds=reason not in ("owner_paused", "backpressure"),
            advances=True,
        )
        pooled = any(load.role == "prefill" for load in cluster.instances)
        return Draft(self._add_prefill(draft.complete(), request, cluster)) if pooled else draft

    def _add_prefill(self, decision: Decision, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """The decision with a prefill instance, or unchanged if the request goes straight to the decode instance."""
        if decision.instance == request.owner:
            share = cached_share(request, decision.instance)
            text = f"{decision.instance} holds {share:.2f} of the prompt > {self.direct_share:g}"
        else:
            share, text = 0.0, f"{decision.instance} is not the session's own"
        direct = Gate("direct", share, self.direct_share, share > self.direct_share, text)
        if direct.passed:
            return msgspec.structs.replace(decision, gates=(*decision.gates, direct))
        up = find_pickable(request, cluster, ("prefill",)).loads
        full = {load.instance: why for load in up if (why := _explain_no_room(load, request.input_tokens + 1))}
        able = [load for load in up if load.instance not in full]
        text = (
            f"{len(able)} prefill instances can be picked and have room for the prompt >= 1; with none "
            f"{decision.instance} computes it"
        )
        decision = msgspec.structs.replace(
            decision, gates=(*decision.gates, direct, Gate("prefill", len(able), 1, bool(able), text))
        )
        weighed = {name: Candidate(name, (), ruled_out=why) for name, why in full.items()}
        works = weigh_prefill_work(request, able, cluster.fallbacks)
        weighed |= {
            prefill.instance: Candidate(
                prefill.instance,
                (),
                prefill.terms,
                f"its role is prefill: {prefill.score[0]:g} tokens of work with this prompt",
            )
            for prefill in works.list_candidates()
        }
        candidates = by_name(weighed.get(candidate.instance, candidate) for candidate in decision.candidates)
        return msgspec.structs.replace(
            decision, prefill=works.find_lowest().instance if works.loads else "", candidates=candidates
        )

    def _rule_out_full(self, may: Pickable) -> Pickable:
        """Q1.E: rule out instances whose KV pool is too full, unless all are."""
        if self.backpressure_above is None:
            return may
        used = {load.instance: _compute_pool_used(load) for load in may.loads}
        limit = format_percent(self.backpressure_above)
        full = {
            name: f"back-pressure: its KV pool is {format_percent(share)} full > {limit}"
            for name, share in used.items()
            if share > self.backpressure_above
        }
        return may.rule_out(full) if len(full) < len(may.loads) else may

    def _drop_refusing(self, request: RoutedRequest, may: Pickable) -> Pickable:
        """Rule out instances that refused the session too often; if all did, keep those with the fewest refusals."""
        if not self.migration_reject_threshold:
            return may
        counts = {load.instance: request.rejects.get(load.instance, 0) for load in may.loads}
        limit = max(self.migration_reject_threshold, min(counts.values()) + 1)
        return may.rule_out({name: _describe_refusals(name, n) for name, n in counts.items() if n >= limit})

    def _weigh_instances(
        self, request: RoutedRequest, loads: tuple[InstanceLoad, ...], cluster: ClusterView
    ) -> Weighing:
        weighed = [self._weigh_instance(request, load, index, loads, cluster) for index, load in enumerate(loads)]
        terms = {load.instance: shown for load, (_, shown) in zip(loads, weighed, strict=True)}
        return Weighing(loads, lambda: [score for score, _ in weighed], lambda load: terms[load.instance])

    def _weigh_instance(
        self,
        request: RoutedRequest,
        load: InstanceLoad,
        index: int,
        loads: tuple[InstanceLoad, ...],
        cluster: ClusterView,
    ) -> tuple[tuple[float, ...], dict[str, float]]:
        """Its score and the terms of the score."""
        sticky = int(load.instance == request.owner)
        blocks = request.cached_tokens.get(load.instance, 0) // request.block_tokens
        overlap = self._count_overlap(request, blocks) * self._weigh_block(load, loads)
        floor = self._compute_floor_bonus(load, cluster) if self._gets_floor(request, sticky) else 0
        cold = self.cold_bonus if not sticky and self._count_sessions(load) == 0 else 0
        value = overlap + self.sticky_bonus * sticky + floor + cold
        turn = (index - cluster.fallbacks) % len(loads) if self.tie == "rr" else index
        rest = (-sticky, load.num_requests, self._count_sessions(load), turn)
        score = (-value, *rest) if self.order == "overlap_first" else (rest[1], -value, rest[0], rest[2], turn)
        terms = {
            "overlap_blocks": blocks,
            "counted_overlap": overlap,
            "sticky_bonus": self.sticky_bonus * sticky,
            "floor_bonus": floor,
            "cold_bonus": cold,
            "num_requests": load.num_requests,
            "assigned": self._count_sessions(load),
        }
        return score, terms

    def _count_overlap(self, request: RoutedRequest, blocks: int) -> int:
        """Q2.F: the overlap in blocks; 0 below the thresholds."""
        share = blocks * request.block_tokens / request.input_tokens if request.input_tokens > 0 else 0.0
        material = (not self.min_overlap_blocks or blocks > self.min_overlap_blocks) and (
            not self.min_overlap_share or share > self.min_overlap_share
        )
        return blocks if material else 0

    def _weigh_block(self, load: InstanceLoad, loads: tuple[InstanceLoad, ...]) -> float:
        """Q2.D: weight of a block, 1 on an idle instance and never below 0."""
        if self.overlap_discount == "off":
            return 1
        most = self.max_inflight if self.overlap_discount == "fixed" else max(other.num_requests for other in loads)
        return max(0.0, 1 - load.num_requests / max(1, most))

    def _gets_floor(self, request: RoutedRequest, sticky: int) -> bool:
        return not request.owner if self.floor_gate == "unowned" else not sticky

    def _compute_floor_bonus(self, load: InstanceLoad, cluster: ClusterView) -> int:
        """Q2.B: the bonus in blocks, truncated as in the specification's sketch.

        All instances that decode are counted, as there: a pause of one changes no bonus of the others.
        """
        if not self.load_floor_bonus:
            return 0
        counts = [self._count_sessions(other) for other in cluster.instances if other.role in WHOLE]
        if self.floor_form == "max":
            most = max(1, *counts)
            return int(self.load_floor_bonus * (most - self._count_sessions(load)) / most)
        mean = sum(counts) / len(counts)
        return int(self.load_floor_bonus * max(0.0, mean - self._count_sessions(load)) / max(1.0, mean))

    def _count_sessions(self, load: InstanceLoad) -> int:
        return load.assigned if self.assigned == "cumulative" else load.active_sessions

    def _check_refusals(self, request: RoutedRequest) -> tuple[Gate, ...]:
        count, limit = request.rejects.get(request.owner, 0), self.migration_reject_threshold
        if not (request.owner and limit):
            return ()
        text = f"{request.owner} refused this session {count} times in a row < {limit}"
        return (Gate("rejects", count, limit, count < limit, text),)

    def _name_reason(
        self,
        request: RoutedRequest,
        cluster: ClusterView,
        chosen: str,
        may: Pickable,
        roomy: Pickable,
        left: Pickable,
    ) -> str:
        """The reason code: whether the session stayed, and if not, what ruled out its owner."""
        owner = request.owner
        if not owner or chosen == owner:
            return "owner" if owner else "cold"
        if may.find_load(owner) is None:
            return "owner_paused" if is_owner_paused(request, cluster) else "fallback_owner_down"
        if roomy.find_load(owner) is None:
            return "backpressure"
        return "left_owner" if left.find_load(owner) else "reject_migration"


def _explain_no_room(load: InstanceLoad, need: int) -> str:
    """Empty = it fits, or the capacity is unknown."""
    free = load.free_kv_tokens
    return "" if free is None or free >= need else f"{free} KV tokens free, {need} needed for the prompt"


def _describe_refusals(name: str, count: int) -> str:
    return f"{name} refused this session {count} times in a row"


def _compute_pool_used(load: InstanceLoad) -> float:
    """Share of the KV pool in use by the router's count, 0 to 1; 0 if its size is unknown."""
    if not load.kv_capacity_tokens or load.free_kv_tokens is None:
        return 0.0
    return 1 - load.free_kv_tokens / load.kv_capacity_tokens
