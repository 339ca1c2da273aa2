"""The hybrid of `specs/routing_log.md`: a gate for sessions whose cache is worth keeping, LMetric for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from results.records.decisions import ClusterView, Gate, InstanceLoad, RoutedRequest
from runners.router.policies.lmetric import BsOffset, work_by_batch
from runners.router.policies.policy import (
    Draft,
    Pickable,
    Weighing,
    WholePolicy,
    cached_share,
    draft_for,
    is_owner_paused,
    new_tokens,
    weigh_instances,
)

REASONS: Mapping[str, str] = {
    "affinity": "it is the session's owner and every gate passed",
    "fallback_low_cache": "the session's owner holds too little of the prompt; it had the lowest score",
    "fallback_overload": "the session's owner is overloaded; it had the lowest score",
    "fallback_cost": "the session's owner costs too much more than the best; it had the lowest score",
}
SCORE_KEYS: Mapping[str, str] = {
    "cost_s": "cost in s",
}

KEYS = ("work_x_requests", "new_tokens", "num_requests", "turns_away")
COLD_KEYS = ("work_x_requests", "active_sessions", "new_tokens", "num_requests", "turns_away")

Factor = Annotated[float, msgspec.Meta(gt=0, description="an owner may have this many times the mean")]


class Unified(WholePolicy, frozen=True, kw_only=True):
    """The session's owner if it holds enough of the prompt and is not overloaded; else LMetric with four keys."""

    name: ClassVar[str] = "unified"
    source: ClassVar[str] = "specs/routing_log.md, current algorithm (commit 255c8e6)"
    rule: ClassVar[str] = (
        "the owner if h/L > `affinity_ratio` and BS <= `overload_factor` x mean BS; else ((PP + new) x BS, new, BS, "
        "`rr`)"
    )

    affinity_ratio: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="gate 1: the owner holds more than this share of the prompt")
    ] = 0.5
    overload_factor: Factor = 2.0
    average_over: Annotated[
        Literal["all", "others"],
        msgspec.Meta(
            description="gate 2 compares the owner with the mean of all (the spec; with 2 instances and factor 2.0 it "
            "can never fail) or of the others"
        ),
    ] = "all"
    hard_ceiling: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(
            description="an owner with this many requests or more is not picked, not by the fallback either; null = off"
        ),
    ] = None
    exclude_owner_on_gate2_fail: Annotated[
        bool, msgspec.Meta(description="the fallback may not pick the owner that gate 2 refused")
    ] = False
    bs_offset: BsOffset = 0
    p_floor: Annotated[
        int, msgspec.Meta(ge=0, le=1, description="smallest prompt work in the product; 1 makes a full cache hit count")
    ] = 0
    update_affinity: Annotated[
        bool,
        msgspec.Meta(description="a fallback moves the session's binding; false = its first owner stays its owner"),
    ] = True
    spread_cold: Annotated[
        bool,
        msgspec.Meta(
            description="for a session without an owner, fewer bound sessions come before the cache: a shared system "
            "prompt cannot draw every new session to one idle instance; false = the spec's four keys alone"
        ),
    ] = False
    decode_iteration_s: Annotated[float, msgspec.Meta(description="accepted, not used (an input of approach_a)")] = 0.05
    prefill_throughput: Annotated[float, msgspec.Meta(description="accepted, not used (an input of approach_a)")] = (
        7000.0
    )
    rdma_overhead_s: Annotated[float, msgspec.Meta(description="accepted, not used (an input of approach_a)")] = 0.0

    @property
    def described_by(self) -> type[Unified]:
        """The class whose description is true of these settings: `spread_cold` alone tells the two apart."""
        if type(self) not in (Unified, UnifiedSpread):
            return type(self)
        return UnifiedSpread if self.spread_cold else Unified

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """Affinity if both gates pass, else argmin of (P x BS, new, BS, turn)."""
        owner = may.find_load(request.owner)
        gates = self._check_gates(request, owner, may.loads) if request.owner else ()
        cold = not request.owner
        if owner is not None and all(gate.passed for gate in gates):
            weighing = self._weigh_keys(request, may, cluster.fallbacks, cold=False)
            return draft_for(self.name, may, weighing, KEYS, "affinity", winner=owner, gates=gates, binds=True)
        left = self._rule_out_refused(may, owner, gates)
        return draft_for(
            self.name,
            left,
            self._weigh_keys(request, left, cluster.fallbacks, cold=cold),
            COLD_KEYS if cold and self.spread_cold else KEYS,
            _name_fallback(request, owner, gates),
            gates=gates,
            binds=cold or (self.update_affinity and not is_owner_paused(request, cluster)),
            advances=True,
        )

    def _check_gates(
        self, request: RoutedRequest, owner: InstanceLoad | None, loads: tuple[InstanceLoad, ...]
    ) -> tuple[Gate, ...]:
        if owner is None:
            return (Gate("owner_up", 0, 1, False, f"owner {request.owner} can be picked"),)
        share = cached_share(request, owner.instance)
        counted = [load.num_requests for load in loads if self.average_over == "all" or load is not owner]
        mean = sum(counted) / len(counted) if counted else float(owner.num_requests)
        limit = mean * self.overload_factor
        busy = owner.num_requests
        gates = [
            Gate(
                "cache",
                share,
                self.affinity_ratio,
                share > self.affinity_ratio,
                f"{owner.instance} holds {share:.2f} of the prompt > {self.affinity_ratio:g}",
            ),
            Gate(
                "load",
                busy,
                limit,
                busy <= limit,
                f"{owner.instance} has {busy} requests <= {self.overload_factor:g} x mean {mean:.2f}",
            ),
        ]
        if self.hard_ceiling is not None:
            text = f"{owner.instance} has {busy} requests < ceiling {self.hard_ceiling}"
            gates.append(Gate("ceiling", busy, self.hard_ceiling, busy < self.hard_ceiling, text))
        return tuple(gates)

    def _rule_out_refused(self, may: Pickable, owner: InstanceLoad | None, gates: tuple[Gate, ...]) -> Pickable:
        """Rule out the owner if a setting forbids the fallback to pick it, unless it is the only instance."""
        if owner is None or len(may.loads) < 2:
            return may
        failed = {gate.name: gate.text for gate in gates if not gate.passed}
        if "ceiling" in failed:
            return may.rule_out({owner.instance: f"over the hard ceiling: not {failed['ceiling']}"})
        if "load" in failed and self.exclude_owner_on_gate2_fail:
            return may.rule_out({owner.instance: f"overloaded owner: not {failed['load']}"})
        return may

    def _weigh_keys(self, request: RoutedRequest, may: Pickable, counter: int, *, cold: bool) -> Weighing:
        offset, floor, spread = self.bs_offset, self.p_floor, cold and self.spread_cold

        def score(load: InstanceLoad, new: int) -> tuple[float, ...]:
            work = work_by_batch(load, new, offset, floor)
            if spread:
                return work, load.active_sessions, new, load.num_requests
            return work, new, load.num_requests

        return weigh_instances(request, may.loads, score, "rr", counter)


class UnifiedSpread(Unified, frozen=True, kw_only=True):
    """As unified, but new sessions go to the instance with fewer bound sessions before the cache is considered."""

    name: ClassVar[str] = "unified_spread"
    source: ClassVar[str] = "specs/routing_log.md, with a fifth key of Tracon's own for new sessions"
    rule: ClassVar[str] = (
        "as `unified`; a session without an owner: ((PP + new) x BS, sessions bound there, new, BS, `rr`). The "
        "default of `tracon route`"
    )

    spread_cold: Annotated[bool, msgspec.Meta(description="as in unified, on")] = True


def _name_fallback(request: RoutedRequest, owner: InstanceLoad | None, gates: tuple[Gate, ...]) -> str:
    """The reason code of a fallback; a failed load gate takes precedence over the cache gate."""
    if not request.owner:
        return "cold"
    if owner is None:
        return "fallback_owner_down"
    failed = {gate.name for gate in gates if not gate.passed}
    return "fallback_overload" if failed & {"load", "ceiling"} else "fallback_low_cache"


class ApproachA(WholePolicy, frozen=True, kw_only=True):
    """Retired, kept as a baseline: an additive cost in seconds, with gates for the session's owner."""

    name: ClassVar[str] = "approach_a"
    source: ClassVar[str] = "specs/routing_log.md, Approach A (historical, retired by 255c8e6)"
    rule: ClassVar[str] = (
        "retired: BS x `decode_iteration_s` (0.05 s) + (PP + new)/`prefill_throughput` (7,000 tokens/s); the owner "
        "while its OT <= `overload_factor` x mean OT and its cost <= `overload_factor` x the lowest"
    )

    decode_iteration_s: Annotated[float, msgspec.Meta(ge=0, description="cost of a request that is there, s")] = 0.05
    prefill_throughput: Annotated[float, msgspec.Meta(gt=0, description="prompt tokens per second")] = 7000.0
    overload_factor: Factor = 2.0
    tie: Annotated[Literal["rr", "first"], msgspec.Meta(description="equal costs, as in lmetric")] = "rr"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """The owner if its tokens are within the factor of the mean and its cost within the factor of the best."""
        weighing = weigh_instances(
            request,
            may.loads,
            lambda load, new: (sum(self._compute_cost_parts(request, load).values()),),
            self.tie,
            cluster.fallbacks,
            lambda load: self._compute_cost_parts(request, load),
        )
        keys = ("cost_s", "turns_away")
        owner = may.find_load(request.owner)
        if owner is None:
            reason = "fallback_owner_down" if request.owner else "cold"
            binds = not is_owner_paused(request, cluster)
            return draft_for(self.name, may, weighing, keys, reason, binds=binds, advances=True)
        gates = self._check_gates(owner, weighing)
        if all(gate.passed for gate in gates):
            return draft_for(self.name, may, weighing, keys, "affinity", winner=owner, gates=gates, binds=True)
        reason = "fallback_overload" if not gates[0].passed else "fallback_cost"
        return draft_for(self.name, may, weighing, keys, reason, gates=gates, binds=True, advances=True)

    def _compute_cost_parts(self, request: RoutedRequest, load: InstanceLoad) -> dict[str, float]:
        return {
            "contention_s": load.num_requests * self.decode_iteration_s,
            "queue_s": load.pending_prefill_tokens / self.prefill_throughput,
            "prefill_s": new_tokens(request, load) / self.prefill_throughput,
        }

    def _check_gates(self, owner: InstanceLoad, weighing: Weighing) -> tuple[Gate, ...]:
        name, factor, loads = owner.instance, self.overload_factor, weighing.loads
        mean = sum(load.ongoing_tokens for load in loads) / len(loads)
        costs = {load.instance: score[0] for load, score in zip(loads, weighing.scores, strict=True)}
        best, cost, tokens = min(costs.values()), costs[name], owner.ongoing_tokens
        return (
            Gate(
                "tokens",
                tokens,
                mean * factor,
                tokens <= mean * factor,
                f"{name} has {tokens} tokens under way <= {factor:g} x mean {mean:.0f}",
            ),
            Gate(
                "cost",
                cost,
                best * factor,
                cost <= best * factor,
                f"{name} costs {cost:.3f} s <= {factor:g} x best {best:.3f} s",
            ),
        )
