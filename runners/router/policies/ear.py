"""EAR of `specs/ear.md`: a session stays with its KV until its instance is hot; then it moves, and its KV with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from results.records.decisions import ClusterView, Gate, InstanceLoad, RoutedRequest
from runners.router.policies.policy import (
    Draft,
    Pickable,
    Tie,
    Weighing,
    WholePolicy,
    draft_for,
    is_owner_paused,
    weigh_instances,
)

REASONS: Mapping[str, str] = {
    "balanced": "turns have no instance of their own here: it had the fewest prompt tokens pending",
    "migrated": "the session's instance is hot; of those that are less busy and have room it had the lowest score",
    "hot_cooldown": "the session's instance is hot, but the cooldown of the session is not over: it stays",
    "hot_moving": "the session's instance is hot, but another of its requests is being migrated: this one stays",
    "hot_no_kv": "in older logs: the session's instance is hot, but holds too little KV that others lack: it stays",
    "hot_no_target": "the session's instance is hot, but no other is both less busy and has room: it stays",
}

KEYS = ("pending_prefill_tokens", "turns_away")
STAYS = {
    "hot": "bound",
    "cooldown": "hot_cooldown",
    "one_at_a_time": "hot_moving",
    "target": "hot_no_target",
}
"""Reason code of a session that stays, by the failed gate."""


class _Turn(NamedTuple):
    """A later turn of a session whose owner can be picked."""

    request: RoutedRequest
    cluster: ClusterView
    may: Pickable
    owner: InstanceLoad


class EAR(WholePolicy, frozen=True, kw_only=True):
    """The session's instance, unless it is hot: then the least busy one with room, and the session's KV moves there."""

    name: ClassVar[str] = "ear"
    source: ClassVar[str] = "specs/ear.md 4.2 and 4.3; ablations 5.3"
    rule: ClassVar[str] = (
        "the owner unless its PP > `hot_tokens`; then the lowest PP among those below the owner's with room for the "
        "session, and its KV moves; a new session: (PP, `rr`)"
    )

    hot_tokens: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="T_hot: an instance with more prompt tokens pending is hot. The specification gives no value; "
            "choose the wait in seconds that is worth a move times the engine's prefill tokens per second",
        ),
    ]
    cooldown_s: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            description="T_cool: a session that migrated stays for this long. The specification gives no value; choose "
            "several times the mean time of a turn, so that a move is paid back before the next one",
        ),
    ]
    affinity: Annotated[
        bool,
        msgspec.Meta(description="later turns go to the session's instance; false = every turn is placed as a new one"),
    ] = True
    migration: Annotated[
        bool, msgspec.Meta(description="a hot instance's sessions may move; false = they stay whatever it has pending")
    ] = True
    tie: Tie = "rr"

    def _choose_instance(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """The owner, or a migration target, or, if no owner can be picked, the fewest pending tokens."""
        owner = may.find_load(request.owner)
        if owner is None:
            return self._decide_cold(request, cluster, may)
        turn = _Turn(request, cluster, may, owner)
        return self._stay_or_move(turn) if self.affinity else self._place_or_move(turn)

    def _stay_or_move(self, turn: _Turn) -> Draft:
        """The migration trigger of 4.3.1, then the warm path of 4.2."""
        gates = self._check_trigger(turn) if self.migration else ()
        blocked = _find_reason_to_stay(gates)
        if not gates or blocked:
            return self._decide_stay(turn, turn.may, blocked or "bound", gates)
        unfit = _find_unfit(turn)
        gates = (*gates, _check_target(turn, unfit))
        if _find_reason_to_stay(gates):
            return self._decide_stay(turn, turn.may.rule_out(unfit), _find_reason_to_stay(gates), gates)
        return self._decide_move(turn, unfit, gates)

    def _place_or_move(self, turn: _Turn) -> Draft:
        """Without affinity: place the turn as a new one; if its owner is hot, its KV moves with it."""
        weighing = self._weigh_pending(turn.request, turn.cluster, turn.may)
        gates = self._check_trigger(turn) if self.migration and weighing.find_lowest() is not turn.owner else ()
        if gates and not _find_reason_to_stay(gates):
            unfit = _find_unfit(turn)
            gates = (*gates, _check_target(turn, unfit))
            if not _find_reason_to_stay(gates):
                return self._decide_move(turn, unfit, gates)
        return draft_for(self.name, turn.may, weighing, KEYS, "balanced", gates=gates, binds=True, advances=True)

    def _decide_cold(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Draft:
        """The cold start of 4.2, also for a session whose owner cannot be picked: no KV moves, no cooldown applies."""
        reason, binds = "cold", True
        if is_owner_paused(request, cluster):
            reason, binds = "owner_paused", False
        elif request.owner:
            reason = "fallback_owner_down"
        weighing = self._weigh_pending(request, cluster, may)
        return draft_for(self.name, may, weighing, KEYS, reason, binds=binds, advances=True)

    def _decide_stay(self, turn: _Turn, may: Pickable, reason: str, gates: tuple[Gate, ...]) -> Draft:
        weighing = self._weigh_pending(turn.request, turn.cluster, may)
        return draft_for(self.name, may, weighing, KEYS, reason, winner=turn.owner, gates=gates, binds=True)

    def _decide_move(self, turn: _Turn, unfit: Mapping[str, str], gates: tuple[Gate, ...]) -> Draft:
        """Move to the target with the fewest pending tokens (4.3.2); the session rebinds when it has served."""
        owner = turn.owner
        hot = f"it is hot: {owner.pending_prefill_tokens} prompt tokens pending"
        targets = turn.may.rule_out(unfit).rule_out({owner.instance: hot})
        return draft_for(
            self.name,
            targets,
            self._weigh_pending(turn.request, turn.cluster, targets),
            KEYS,
            "migrated",
            gates=gates,
            binds=True,
            advances=True,
            migrate_from=owner.instance,
        )

    def _weigh_pending(self, request: RoutedRequest, cluster: ClusterView, may: Pickable) -> Weighing:
        return weigh_instances(
            request, may.loads, lambda load, new: (load.pending_prefill_tokens,), self.tie, cluster.fallbacks, _free_kv
        )

    def _check_trigger(self, turn: _Turn) -> tuple[Gate, ...]:
        """The gates of section 4.3.1, and one migration per session at a time; only `hot` if that fails."""
        request, owner = turn.request, turn.owner
        pending, since = owner.pending_prefill_tokens, request.since_migration_s
        hot = Gate(
            "hot",
            pending,
            self.hot_tokens,
            pending > self.hot_tokens,
            f"{owner.instance} has {pending} prompt tokens pending > {self.hot_tokens}",
        )
        if not hot.passed:
            return (hot,)
        left = 0.0 if since is None else max(0.0, self.cooldown_s - since)
        ago = "never" if since is None else f"{since:.1f} s before"
        moving = request.moving_to
        return (
            hot,
            Gate("cooldown", left, 0, left <= 0, f"{left:.1f} s of {self.cooldown_s:g} s left <= 0 (migrated {ago})"),
            Gate(
                "one_at_a_time",
                int(bool(moving)),
                0,
                not moving,
                f"no other request of the session is being migrated{moving and f' (one is, to {moving})'}",
            ),
        )


def _find_reason_to_stay(gates: tuple[Gate, ...]) -> str:
    """The reason code of the first failed gate; empty = none failed."""
    failed = next((gate.name for gate in gates if not gate.passed), "")
    return STAYS[failed] if failed else ""


def _count_needed(request: RoutedRequest) -> int:
    """KV tokens that a target needs: the session's context, and the tokens reserved for the output."""
    return request.input_tokens + request.reserved_tokens


def _find_unfit(turn: _Turn) -> dict[str, str]:
    """The instances other than the owner that are no target by section 4.3.2, each with its reason.

    Unknown room counts as none. How much KV the target lacks, and whether it can be moved now, does not matter: the
    target computes the rest, so an experiment arm that moves no KV decides alike.
    """
    request, owner = turn.request, turn.owner
    need = _count_needed(request)
    limit = owner.pending_prefill_tokens
    unfit = {}
    for load in turn.may.loads:
        pending, free = load.pending_prefill_tokens, load.free_kv_tokens
        if load is owner:
            continue
        if pending >= limit:
            unfit[load.instance] = f"not less busy than {owner.instance}: {pending} tokens pending against {limit}"
        elif free is None:
            unfit[load.instance] = f"its free KV is not known, {need} tokens needed"
        elif free < need:
            unfit[load.instance] = f"{free} KV tokens free, {need} needed"
    return unfit


def _check_target(turn: _Turn, unfit: Mapping[str, str]) -> Gate:
    count = len(turn.may.loads) - 1 - len(unfit)
    need = _count_needed(turn.request)
    text = f"{count} instances are less busy than {turn.owner.instance} and have room for {need} KV tokens >= 1"
    return Gate("target", count, 1, count > 0, text)


def _free_kv(load: InstanceLoad) -> dict[str, float]:
    return {} if load.free_kv_tokens is None else {"free_kv_tokens": load.free_kv_tokens}
