"""Static prefill and decode pools: which instance prefills and which decodes.

The router has the prompt computed at the one and its KV pulled by the other (docs/transfer.md). Which pairs can
exchange KV is not asked here: where a handover is refused or fails, the decode instance computes the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from results.decisions import Candidate, ClusterView, Decision, Gate, InstanceLoad, RoutedRequest
from runners.router.policies.weighing import (
    Weighed,
    by_name,
    by_prefill_work,
    load_terms,
    lowest,
    nowhere,
    pickable,
    tie_break,
    turn_key,
)

KEYS = ("load_in_its_pool", "num_requests", "turns_away")
"""The first is prefill work in tokens in the prefill pool, and less free KV tokens in the decode pool."""


class StaticPD(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed pools: the prefill instance with the least work left, the decode instance with the most free KV.

    What has room nowhere in the decode pool waits, or is refused with the reason (`on_full`).
    """

    name: ClassVar[str] = "static_pd"
    source: ClassVar[str] = "specs/ear.md 3.2 and 5.1, baseline 5 (no rule within the pools: the rules are a choice)"

    prefill_count: Annotated[
        int,
        msgspec.Meta(
            ge=0, description="so many instances, the first by name, prefill; 0 = the instances' own roles say who does"
        ),
    ] = 0
    on_full: Annotated[
        Literal["wait", "reject"],
        msgspec.Meta(description="no decode instance has room for prompt and output: hold the request, or refuse it"),
    ] = "wait"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        """P = argmin (pending prefill + new tokens), D = argmax free KV among those where prompt and output fit."""
        names = self._prefill_names(cluster)
        may = pickable(request, cluster, ("both", "prefill", "decode"))
        first = [load for load in may.loads if load.instance in names]
        second = [load for load in may.loads if load.instance not in names]
        if not first or not second:
            return nowhere(self.name, may, "no_decode_instance" if first else "no_prefill_instance")
        need = request.input_tokens + request.max_tokens
        room = [load for load in second if _fits(load, need)]
        gate = Gate(
            "fits", len(room), 1, bool(room), f"{len(room)} of {len(second)} have room for {need} KV tokens >= 1"
        )
        fitting = may.without({load.instance: _too_small(load, need) for load in second if load not in room})
        if not room:
            return nowhere(self.name, fitting, f"{self.on_full}_decode_kv", (gate,))
        prefills = by_prefill_work(request, first, cluster.fallbacks)
        decodes = _by_room(request, room, cluster.fallbacks)
        prefill, decode = lowest(prefills), lowest(decodes)
        weighed = (Candidate(one.load.instance, one.score, one.terms) for one in (*prefills, *decodes))
        ties = (tie_break(prefill, prefills, KEYS), tie_break(decode, decodes, KEYS))
        return Decision(
            policy=self.name,
            instance=decode.load.instance,
            prefill=prefill.load.instance,
            reason="pools",
            candidates=by_name((*weighed, *fitting.ruled_out)),
            keys=KEYS,
            gates=(*may.gates, gate),
            tie_break="; ".join(text for text in ties if text),
            binds=False,
            advances=True,
        )

    def _prefill_names(self, cluster: ClusterView) -> set[str]:
        """Roles decide where there are any; else the first so many names, whether they are up or not."""
        roles = {load.instance for load in cluster.instances if load.role == "prefill"}
        return roles or {load.instance for load in cluster.instances[: self.prefill_count]}


def _fits(load: InstanceLoad, need: int) -> bool:
    """An instance whose capacity is not known is taken to have room."""
    return load.free_kv_tokens is None or load.free_kv_tokens >= need


def _too_small(load: InstanceLoad, need: int) -> str:
    return f"{load.free_kv_tokens} KV tokens free, {need} needed"


def _by_room(request: RoutedRequest, loads: Sequence[InstanceLoad], counter: int) -> list[Weighed]:
    """Most free KV first; by tokens under way where a capacity is not known, as free room cannot be compared then."""
    known = all(load.free_kv_tokens is not None for load in loads)
    return [
        Weighed(
            load,
            (
                -(load.free_kv_tokens or 0) if known else load.ongoing_tokens,
                load.num_requests,
                turn_key("rr", place, len(loads), counter),
            ),
            load_terms(request, load) | {"ongoing_tokens": load.ongoing_tokens, "prefills": 0},
        )
        for place, load in enumerate(loads)
    ]
