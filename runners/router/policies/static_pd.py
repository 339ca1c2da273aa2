"""Static prefill and decode pools: choose the instance that prefills and the one that decodes.

The prefill instance computes the prompt and the decode instance pulls its KV (docs/transfer.md). The policy does not
check which pairs can exchange KV: if a handover is refused or fails, or no prefill instance can be picked, the decode
instance computes the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from results.records.decisions import ClusterView, Decision, Gate, InstanceLoad, RoutedRequest
from runners.router.policies.policy import (
    Pickable,
    Weighing,
    by_name,
    decide_nowhere,
    find_pickable,
    tie_break,
    weigh_instances,
    weigh_prefill_work,
)

REASONS: Mapping[str, str] = {
    "decode_alone": "no prefill instance can be picked: the decode instance with the most free KV computes the prompt",
    "pools": "the prefill instance has the least work, the decode instance the most free KV",
    "no_prefill_instance": "there is no prefill pool: no instance has that role, and prefill_count is 0",
    "no_decode_instance": "no instance of the decode pool can be picked",
    "wait_decode_kv": "no decode instance has room for prompt and output: the request may be held and asked for again",
    "reject_decode_kv": "no decode instance has room for prompt and output: the request is refused",
    "wait_prefill_kv": "no prefill instance has room for the prompt: the request may be held and asked for again",
    "reject_prefill_kv": "no prefill instance has room for the prompt: the request is refused",
}
SCORE_KEYS: Mapping[str, str] = {
    "load_in_its_pool": "load in its pool (prefill work; less free KV tokens)",
}

KEYS = ("load_in_its_pool", "num_requests", "turns_away")
"""`load_in_its_pool`: prefill work in tokens in the prefill pool, minus free KV tokens in the decode pool."""


class StaticPD(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed pools: the prefill instance with the least work left, the decode instance with the most free KV.

    What has room nowhere in one of the pools waits, or is refused with the reason (`on_full`).
    """

    name: ClassVar[str] = "static_pd"
    source: ClassVar[str] = "specs/ear.md 3.2 and 5.1, baseline 5 (no rule within the pools: the rules are a choice)"
    rule: ClassVar[str] = (
        "prefill: (PP + new, BS, `rr`) among those where the prompt fits; decode: most free KV among those where the "
        "prompt and the tokens reserved for the answer fit"
    )

    prefill_count: Annotated[
        int,
        msgspec.Meta(ge=0, description="the first N instances by name prefill; 0 = those with that role do"),
    ] = 0
    on_full: Annotated[
        Literal["wait", "reject"],
        msgspec.Meta(
            description="no decode instance has room for prompt and output, or no prefill instance for the prompt: "
            "hold the request, or refuse it"
        ),
    ] = "wait"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """P = argmin (pending prefill + new tokens) where the prompt fits; D = argmax free KV where prompt and reserved
        output fit."""
        names = self._find_prefill_names(cluster)
        may = find_pickable(request, cluster, ("both", "prefill", "decode"))
        first = [load for load in may.loads if load.instance in names]
        second = [load for load in may.loads if load.instance not in names]
        if not second or not names:
            return decide_nowhere(self.name, may, "no_decode_instance" if names else "no_prefill_instance")
        need = request.input_tokens + request.reserved_tokens
        decode_gate, may = _check_room("fits", second, need, may)
        if not decode_gate.passed:
            return decide_nowhere(self.name, may, f"{self.on_full}_decode_kv", (decode_gate,))
        gates = [decode_gate]
        if first:
            prefill_gate, may = _check_room("prompt_fits", first, request.input_tokens + 1, may)
            gates.append(prefill_gate)
            if not prefill_gate.passed:
                return decide_nowhere(self.name, may, f"{self.on_full}_prefill_kv", tuple(gates))
        left = set(may.loads)
        prefills = weigh_prefill_work(request, [load for load in first if load in left], cluster.fallbacks)
        decodes = _weigh_by_room(request, [load for load in second if load in left], cluster.fallbacks)
        prefill = prefills.find_lowest().instance if prefills.loads else ""
        decode = decodes.find_lowest().instance
        weighed = (*prefills.list_candidates(), *decodes.list_candidates())
        ties = (tie_break(prefill, prefills, KEYS) if prefill else "", tie_break(decode, decodes, KEYS))
        return Decision(
            policy=self.name,
            instance=decode,
            prefill=prefill,
            reason="pools" if prefill else "decode_alone",
            candidates=by_name((*weighed, *may.ruled_out)),
            keys=KEYS,
            gates=(*may.gates, *gates),
            tie_break="; ".join(text for text in ties if text),
            binds=False,
            advances=True,
        )

    def _find_prefill_names(self, cluster: ClusterView) -> set[str]:
        """The instances with the prefill role, else the first N names, available or not."""
        roles = {load.instance for load in cluster.instances if load.role == "prefill"}
        return roles or {load.instance for load in cluster.instances[: self.prefill_count]}


def _check_room(name: str, pool: Sequence[InstanceLoad], need: int, may: Pickable) -> tuple[Gate, Pickable]:
    """The gate that any instance of a pool has room for `need` KV tokens; the others are ruled out of `may`.

    An instance of unknown capacity counts as having room.
    """
    small = {
        load.instance: f"{load.free_kv_tokens} KV tokens free, {need} needed"
        for load in pool
        if load.free_kv_tokens is not None and load.free_kv_tokens < need
    }
    room = len(pool) - len(small)
    gate = Gate(name, room, 1, room > 0, f"{room} of {len(pool)} have room for {need} KV tokens >= 1")
    return gate, may.rule_out(small)


def _weigh_by_room(request: RoutedRequest, loads: Sequence[InstanceLoad], counter: int) -> Weighing:
    """Weigh by free KV, most first; if any capacity is unknown, by ongoing tokens, fewest first."""
    known = all(load.free_kv_tokens is not None for load in loads)

    def score(load: InstanceLoad, new: int) -> tuple[float, ...]:
        return -(load.free_kv_tokens or 0) if known else load.ongoing_tokens, load.num_requests

    def terms(load: InstanceLoad) -> Mapping[str, float]:
        return {"ongoing_tokens": load.ongoing_tokens, "prefills": 0}

    return weigh_instances(request, loads, score, "rr", counter, terms)
