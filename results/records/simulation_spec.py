"""The options of a simulation, as a file: its router, its replay, and the models of its engines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from results.records.load_specs import ReplaySpec
from results.records.router_spec import RouterSpec, upgrade_router_spec_from_1
from results.records.spec_rules import Rule, refuse_problems

SIMULATION_SPEC_VERSION = 2


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients of the time of a step, which is linear in its work.

    step_s = base_s + prefill_token_s * P + prefill_context_s * C + decode_sequence_s * D + decode_context_s * R
    """

    base_s: float
    """Of each step, whatever is in it."""
    prefill_token_s: float
    """For each prompt token computed in the step (P)."""
    decode_sequence_s: float
    """For each sequence that decodes one token (D)."""
    prefill_context_s: float = 0.0
    """For each token that a prompt token of the step attends to, summed over these (C)."""
    decode_context_s: float = 0.0
    """For each KV token that the sequences that decode read (R)."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a number of seconds, 0 or more")
        if self.base_s + self.decode_sequence_s <= 0 or self.base_s + self.prefill_token_s <= 0:
            raise ValueError("a step takes no time: give base_s, or prefill_token_s and decode_sequence_s")


class EngineModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine: the time of its steps, and its limits."""

    step: StepTime
    """How long a step takes."""
    kv_capacity_tokens: int
    """Size of its KV cache."""
    max_batched_tokens: int = 8192
    """Tokens computed in one step."""
    max_sequences: int = 256
    """Requests that run at once."""
    frontend_s: float = 0.0
    """From a request's arrival until it can be scheduled: HTTP, parsing, the way to the engine's process and back."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    """Which waiting request is admitted first, and which running one is preempted: vLLM's --scheduling-policy."""
    async_scheduling: bool = False
    """A step is scheduled while the one before it runs: what arrives meanwhile waits for one step more."""

    def __post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "max_batched_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not (math.isfinite(self.frontend_s) and self.frontend_s >= 0):
            raise ValueError(f"frontend_s is {self.frontend_s}; it must be a number of seconds, 0 or more")


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How KV moves from one engine to another: latency_s + bytes / bytes_per_s, one transfer at a time at each end."""

    latency_s: float
    """Of each transfer, whatever its size."""
    bytes_per_s: float
    """Bandwidth of one transfer."""
    kv_bytes_per_token: int
    """Size of one token's KV."""
    abort_s: float = 480.0
    """An engine frees blocks that no other has pulled after it (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)."""
    failure_share: float = 0.0
    """Share of transfers: no KV comes. The router tries again, or has the target compute."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0 and self.bytes_per_s > 0):
            raise ValueError("latency_s must be 0 or more, and bytes_per_s above 0")
        if self.kv_bytes_per_token < 1:
            raise ValueError("kv_bytes_per_token must be at least 1")
        if not (self.abort_s > 0 and 0 <= self.failure_share <= 1):
            raise ValueError("abort_s must be above 0, and failure_share from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """One replay before one router, whose instances are a model.

    The router and the replay have the specs of live ones. The times of a simulation are its clock's.
    """

    router: RouterSpec
    """Its instances' URLs are names; `decisions_path` and the replay's `requests_path` are written as live. A
    fleet of hundreds takes hundreds of kB per decision: an empty `decisions_path` = no log."""
    replay: ReplaySpec
    """What the router's clients send."""
    models: Mapping[str, EngineModel]
    """By instance."""
    link: Link | None
    """Between any two instances; None = no KV can be moved."""
    samples_path: str
    """Where an EngineSample per instance and simulated second goes (JSONL)."""
    step_noise: float = 0.0
    """Standard deviation of the logarithm of a step's time; its draws depend on the replay's seed."""
    residuals: tuple[tuple[float, ...], ...] = ()
    """Steps take longer by the factors of one of these cells, in their order; empty = by draws of `step_noise`."""
    contention: float = 0.0
    """A step takes this share longer for each other engine that computes when it begins: they share cores."""
    router_latency_s: float = 0.0
    """From a pick until the engine has the request, and the same for the requests that move KV. The view counts it from
    the pick on, as a live router's does. Requests do not queue in the router."""
    prewarm_tokens: int = 0
    """Every engine computes as many tokens of the trace's common prefix before the replay (specs/load_floor.md, Q2.E);
    0 = none. A live router's `prewarm` names tokens, which simulated prompts do not have."""
    version: int = SIMULATION_SPEC_VERSION
    """Version of this record; one that states none is of version 1."""

    def __post_init__(self) -> None:
        refuse_problems("simulation", _list_rules(self))


def _list_rules(spec: SimulationSpec) -> tuple[Rule, ...]:
    lacking = [one.instance for one in spec.router.instances if one.instance not in spec.models]
    amounts = ("step_noise", "contention", "router_latency_s", "prewarm_tokens")
    return (
        (not lacking, f"models has none of {', '.join(lacking)}", "an engine model for each instance of the router"),
        *((_is_amount(getattr(spec, name)), f"{name} is {getattr(spec, name)}", "0 or more") for name in amounts),
        (
            all(cell and all(factor > 0 for factor in cell) for cell in spec.residuals),
            "residuals has an empty list, or a factor that is not above 0",
            "lists of factors above 0",
        ),
    )


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def upgrade_simulation_spec_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A spec of version 1, whose router may be of the first version too."""
    router = row["router"]
    if router.get("version", 1) == 1:
        router = upgrade_router_spec_from_1(router)
    return row | {"router": router, "version": 2}
