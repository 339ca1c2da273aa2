"""The grid of `routing` as a profile states it (`[experiment.routing.<preset>]`) and the user changed it, checked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from launch.profile import merge_tables
from results.records.decisions import Role
from results.records.load_specs import ON_ERROR, THINKING
from results.records.plan import RENAMED_RULES
from results.records.router_spec import TransferRules
from runners.errors import RunnerError
from runners.experiments.engine_choice import EngineChoice
from runners.experiments.settings import Tables, convert_grid, find_preset, parse_setting, refuse_problems, set_key
from runners.simulator.backends import LOCAL, is_backend

EXPERIMENT = "routing"
SYNTH = "synth"
"""The `trace.source` that stands for sessions generated from stated statistics."""

DEFAULT_MODEL = "h20-qwen3-coder-30b-a3b-roofline"
"""Model of a simulation that names none."""
POOLED = "static_pd"
"""The policy that only works with pools."""
EXAMPLE = "unified.overload_factor=1.5"
"""Example of a setting, for the error that one needs."""
REMEDY = "correct that key in the profile or in --set; docs/routing.md lists them all"
OWN_AXES = ("time_scale", "kv_cache_memory_bytes", "trace")
"""What a sweep may vary that is no parameter of the policy: the load that it meets."""
OWN_RULE = ".transfer"
"""Between a policy and one of its own rules, in a setting: `EAR.transfer.timeout_s=4`."""


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One policy of the comparison."""

    name: str
    """A policy Tracon has, or the path of a Python file with one."""
    label: str = ""
    """What tables call it; empty = its name with its parameters."""
    parameters: dict[str, Any] = {}
    prefill_instances: int = 0
    """The first N instances only prefill and the others only decode; 0 = every instance does both."""
    transfer: dict[str, Any] = {}
    """Rules for moving KV of its own, over `router.transfer`."""
    moves_kv: bool = True
    """False = it decides as with KV that can be moved, and the target of a migration or handover recomputes."""
    reserved_output: int | Literal["max_tokens"] = 0
    """As in RouterSpec: KV tokens counted for an answer where room is asked for; `max_tokens` = the recorded output."""
    time_scale: float | None = None
    """Its own time scale, over `replay.time_scale`: half of it is twice the arrival rate."""
    kv_cache_memory_bytes: int | UnsetType = UNSET
    """KV cache of its engines, over `engine.kv_cache_memory_bytes`; UNSET stays out of the fingerprint of a plan."""
    trace: str | UnsetType = UNSET
    """Which of the preset's `traces` it replays; UNSET = the run's `trace`."""
    variation: str | UnsetType = UNSET
    """What `sensitivity` has changed for it, e.g. `base_s*1.3`."""


class TraceChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trace is replayed, and how much of it."""

    source: str = SYNTH
    """`synth`, or a trace file."""
    format: str | None = None
    """Format of the file; None = found out from it."""
    sessions: int = 0
    """How many: generated, or drawn from the file; 0 = all of the file."""
    seed: int = 1
    """Seed of the generator, or of the draw."""
    per_trial: bool = True
    """A simulated run draws another one for each trial; false = one for all trials, as in a real run."""
    tokens: float = 1.0
    """Factor on every token count, block size included: a big trace for a small model."""
    output_tokens: float | None = None
    """Factor on the outputs; None = as `tokens`."""
    sessions_per_s: float = 0.0
    """Sessions arrive at random at this rate, before the replay's time scale; 0 = as the trace says."""
    turns: int = 0
    """Only the first N turns of each session; 0 = all."""
    statistics: dict[str, Any] = {}
    """Statistics of the generator, over its defaults."""


class ReplayChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the trace is replayed; as `ReplaySpec` has them."""

    time_scale: float = 1.0
    idle_gap_cap_s: float | None = None
    think: str = "recorded"
    max_inflight_sessions: int = 0
    on_error: str = "continue"
    max_duration_s: float = 3600.0
    """The hard stop of a cell."""
    drain_s: float = 30.0
    request_timeout_s: float = 600.0
    lateness_p99_s: float = 0.010
    achieved_ratio: float = 0.98
    client_cpu_share: float = 0.90


class RouterChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The router beside the policy."""

    index: Literal["approximate", "events"] = "approximate"
    """What its prefix index is built from: its own decisions, or the engines' KV events."""
    transfer: dict[str, Any] = {}
    """Rules for moving KV between engines whose config can: keys of `TransferRules`, over its defaults."""
    kv_bytes_per_token: int | None = None
    """For a model without a configuration to compute it from; None = computed, or not known."""


class InterferenceChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a prefill holds up the decodes beside it."""

    prefill_tokens: tuple[int, ...] = ()
    """A cell per length; empty = not measured."""
    decodes: int = 4
    """Running when the prefill joins."""
    decode_prompt_tokens: int = 64
    settle_s: float = 0.5
    """Seconds that all of them decode before the prefill joins, and again after it."""
    repeats: int = 5


class SimulationChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Engines that are a model, in simulated time. Each trial has a trace and step times of its own."""

    engine: str = DEFAULT_MODEL
    """An engine model that comes with Tracon, or the path of a file with one (docs/simulator.md)."""
    step_noise: float = 0.0
    """Standard deviation of the logarithm of a step's time; 0 = as the model has it."""
    expected_cell_s: float = 10.0
    """What one cell takes of a core, for the time estimate."""
    on: str | UnsetType = UNSET
    """`ray` or `ray://HEAD:PORT`; UNSET = processes of this host."""
    contention: float | UnsetType = UNSET
    """Engines that share the cores of one host: a step takes this share longer for each other engine that computes when
    it begins; UNSET = each engine has cores of its own."""
    residual_noise: bool | UnsetType = UNSET
    """Steps vary as those did that the engine model was fitted to, instead of by `step_noise`; UNSET = they do not."""
    router_latency_s: float | UnsetType = UNSET
    """From a pick until the engine has the request; UNSET = 0. By docs/router.md a router adds less than 1 ms to a
    TTFT: about a thousandth of a fleet's."""
    decision_log: bool | UnsetType = UNSET
    """False = a cell writes no decision log, which large traces have no room for; UNSET = it writes one."""

    @property
    def backend(self) -> str:
        return LOCAL if self.on is UNSET else self.on

    @property
    def contention_share(self) -> float:
        return 0.0 if self.contention is UNSET else self.contention

    @property
    def router_s(self) -> float:
        return 0.0 if self.router_latency_s is UNSET else self.router_latency_s

    @property
    def lowest(self) -> float:
        """The lowest of the numbers that must not be below 0."""
        return min(self.step_noise, self.expected_cell_s, self.contention_share, self.router_s)


class SensitivityChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every policy again with one thing changed at a time: each coefficient up and down, each of `traces`, and each
    other engine model."""

    coefficients: tuple[str, ...] = ()
    """Of the engine model and its link; `arrival_rate`; `hot_tokens` and `cooldown_s` where a policy has them."""
    by: float = 0.3
    """Share by which each goes up and down."""
    engines: tuple[str, ...] | UnsetType = UNSET
    """Engine models that come with Tracon, each in place of the run's own, which is left out; UNSET = none."""


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preset of the experiment."""

    policies: tuple[PolicyChoice, ...]
    instances: int
    expected_replay_s: float
    """Duration of one replay, for the time estimate."""
    engine_start_s: float
    """Until all engines of a cell are ready, for the time estimate."""
    config: str = "plain"
    """Config of every engine."""
    trials: int = 3
    """Replays per policy, each on fresh engines; every trial has the policies in a new random order."""
    seed: int = 1
    gpus: int = 0
    """GPUs of the host that instances share; 0 = each has its own."""
    preflight_s: float = 30.0
    decode_kv_cache_memory_bytes: int | None = None
    """KV cache of instances that only decode; None = as all others."""
    trace: TraceChoice = TraceChoice()
    replay: ReplayChoice = ReplayChoice()
    engine: EngineChoice = EngineChoice()
    router: RouterChoice = RouterChoice()
    interference: InterferenceChoice = InterferenceChoice()
    simulation: SimulationChoice | None = None
    """None = real engines."""
    traces: dict[str, TraceChoice] | UnsetType = UNSET
    """Further traces by name, each stating what differs from `trace`; a policy with `trace` replays one of them."""
    sensitivity: SensitivityChoice | UnsetType = UNSET
    """For a simulated run: whether its claims depend on a coefficient of the model."""

    @property
    def further_traces(self) -> Mapping[str, TraceChoice]:
        """By name; beside `trace`."""
        return {} if self.traces is UNSET else self.traces

    @property
    def logs_decisions(self) -> bool:
        return self.simulation is None or self.simulation.decision_log is not False

    @property
    def further_engines(self) -> tuple[str, ...]:
        """Engine models that `sensitivity` has stand in for the run's own."""
        if self.simulation is None or self.sensitivity is UNSET or self.sensitivity.engines is UNSET:
            return ()
        return tuple(dict.fromkeys(name for name in self.sensitivity.engines if name != self.simulation.engine))

    def label(self, policy: PolicyChoice) -> str:
        """What tables call the policy; unique in the grid."""
        if policy.label:
            return policy.label
        file = find_policy_file(policy.name)
        stem = policy.name if file is None else file.stem
        changes = [f"{key}={_format_value(value)}" for key, value in sorted(policy.parameters.items())]
        changes += [f"transfer.{key}={_format_value(value)}" for key, value in sorted(policy.transfer.items())]
        pools = [f"{policy.prefill_instances}P+{self.instances - policy.prefill_instances}D"]
        changes += [] if policy.reserved_output == 0 else [f"reserved_output={policy.reserved_output}"]
        changes += [] if policy.time_scale is None else [f"time_scale={policy.time_scale:g}"]
        own = {name: getattr(policy, name) for name in ("kv_cache_memory_bytes", "trace")}
        changes += [f"{name}={value}" for name, value in own.items() if value is not UNSET]
        still = [] if policy.moves_kv else ["KV not moved"]
        return " ".join([stem, *(pools if policy.prefill_instances else []), *changes, *still])

    def roles(self, policy: PolicyChoice) -> tuple[Role, ...]:
        """Per instance."""
        first = policy.prefill_instances
        rest: Role = "decode" if first else "both"
        return tuple("prefill" if index < first else rest for index in range(self.instances))

    def time_scale(self, policy: PolicyChoice) -> float:
        return self.replay.time_scale if policy.time_scale is None else policy.time_scale

    def transfer_rules(self, policy: PolicyChoice) -> TransferRules:
        """What `router.transfer` asks for, and the policy over it. Raises msgspec.ValidationError for a wrong value."""
        return msgspec.convert(self.router.transfer | policy.transfer, TransferRules)


def is_drawn(choice: TraceChoice) -> bool:
    """Whether another seed gives other sessions or arrivals."""
    return choice.source == SYNTH or choice.sessions > 0 or choice.sessions_per_s > 0


def find_policy_file(name: str) -> Path | None:
    """The Python file that a policy's name points to (`FILE.py` or `FILE.py:Class`); None for one of Tracon's own."""
    path = name.partition(":")[0]
    return Path(path) if path.endswith(".py") else None


def make_slug(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", label).strip("_.")


def read_grid(
    tables: Tables,
    profile: str,
    preset: str,
    *,
    policies: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Grid:
    """The validated grid of a preset with the user's policies and settings.

    `policies` choose among the preset's by label or name; a name it does not have joins with default parameters.
    `settings` are `KEY=VALUE`: a key of the grid, dotted, or POLICY.PARAMETER. Raises RunnerError naming the key.
    """
    raw, where = find_preset(tables, EXPERIMENT, profile, preset)
    raw = _list_policies(raw, where)
    parsed = [parse_setting(text, EXAMPLE) for text in settings]
    of_grid = [(key, value) for key, value in parsed if key.split(".")[0] in Grid.__struct_fields__]
    for key, value in of_grid:
        set_key(raw, key, value)
    grid = convert_grid(_complete_traces(raw), Grid, where, REMEDY)
    chosen = _choose_policies(grid, policies)
    grid = msgspec.structs.replace(grid, policies=tuple(_set_pools(grid, policy) for policy in chosen))
    for key, value in parsed:
        if (key, value) not in of_grid:
            grid = _set_parameter(grid, key, value)
    _check_grid(grid, where)
    return grid


def _list_policies(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The preset with a table per policy: one may be given by its name alone, and one with a `sweep` gives several."""
    entries = [{"name": entry} if isinstance(entry, str) else entry for entry in raw.get("policies", [])]
    raw["policies"] = [policy for entry in entries for policy in _expand_sweep(entry, where)]
    return raw


def _complete_traces(raw: dict[str, Any]) -> dict[str, Any]:
    """Each of `traces` over `trace`."""
    if "traces" in raw:
        base = raw.get("trace", {})
        raw["traces"] = {name: merge_tables(base, own) for name, own in raw["traces"].items()}
    return raw


def _expand_sweep(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """`sweep = { a = [1, 2], b = [3, 4] }` gives a policy per combination, the last parameter changing fastest.

    OWN_AXES are the policy's own, not parameters; a label gets what is swept added.
    """
    if "sweep" not in entry:
        return [entry]
    values, rest = entry["sweep"], {key: value for key, value in entry.items() if key != "sweep"}
    if not (isinstance(values, dict) and values and all(isinstance(each, list) and each for each in values.values())):
        raise RunnerError(f"{where}: sweep is no table of lists", remedy="write sweep = { PARAMETER = [VALUE, VALUE] }")
    fixed = rest.get("parameters", {})
    expanded = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        own = {key: chosen.pop(key) for key in OWN_AXES if key in chosen}
        label = rest.get("label", "")
        if label:
            swept = [f"{key}={_format_value(value)}" for key, value in (own | chosen).items()]
            own["label"] = " ".join([label, *swept])
        expanded.append(rest | own | {"parameters": fixed | chosen})
    return expanded


def _choose_policies(grid: Grid, wanted: Sequence[str]) -> tuple[PolicyChoice, ...]:
    if not wanted:
        return grid.policies
    chosen: list[PolicyChoice] = []
    for name in wanted:
        matches = [entry for entry in grid.policies if name in (entry.name, grid.label(entry))]
        chosen += matches or [PolicyChoice(name)]
    return tuple(chosen)


def _set_pools(grid: Grid, policy: PolicyChoice) -> PolicyChoice:
    """A policy that needs pools and has no sizes for them gets two of one size."""
    if policy.name != POOLED or policy.prefill_instances or "prefill_count" in policy.parameters:
        return policy
    return msgspec.structs.replace(policy, prefill_instances=grid.instances // 2)


def _set_parameter(grid: Grid, key: str, value: object) -> Grid:
    """The grid with one parameter of one policy changed; a key without a policy's name is for the only policy."""
    name, dot, parameter = key.rpartition(".")
    is_rule = name.endswith(OWN_RULE)
    name = name.removesuffix(OWN_RULE)
    named = [entry for entry in grid.policies if name in (entry.name, grid.label(entry))]
    matches = named if dot else list(grid.policies)
    if len(matches) != 1:
        known = ", ".join(grid.label(entry) for entry in grid.policies)
        raise RunnerError(
            f"--set {key}: neither a setting of the grid nor a parameter of one policy ({len(matches)} match)",
            remedy=f"write POLICY.PARAMETER=VALUE; policies: {known}; settings: {', '.join(Grid.__struct_fields__)}",
        )
    change: dict[str, Any]
    if is_rule:
        change = {"transfer": matches[0].transfer | {parameter: value}}
    elif parameter in (*OWN_AXES, "prefill_instances", "moves_kv", "reserved_output"):
        change = {parameter: value}
    else:
        change = {"parameters": matches[0].parameters | {parameter: value}}
    try:
        changed = msgspec.convert(msgspec.to_builtins(matches[0]) | change, PolicyChoice)
    except msgspec.ValidationError as error:
        raise RunnerError(f"--set {key}: {error}", remedy="correct its value") from error
    policies = tuple(changed if entry is matches[0] else entry for entry in grid.policies)
    return msgspec.structs.replace(grid, policies=policies)


def _check_grid(grid: Grid, where: str) -> None:
    labels = [make_slug(grid.label(policy)) for policy in grid.policies]
    pools = [policy.prefill_instances for policy in grid.policies]
    trace, replay, beside = grid.trace, grid.replay, grid.interference
    room = grid.decode_kv_cache_memory_bytes
    problems = [
        (not labels, "policies must name at least one"),
        (len(set(labels)) < len(labels), f"two policies have the same label among {', '.join(labels)}"),
        (grid.instances < 1, "instances must be at least 1"),
        (any(not 0 <= count < grid.instances for count in pools), "prefill_instances must leave one to decode"),
        (any(policy.name == POOLED for policy in grid.policies) and grid.instances < 2, f"{POOLED} needs 2 instances"),
        (grid.trials < 1, "trials must be at least 1"),
        (not (room is None or room >= 1), "decode_kv_cache_memory_bytes must be at least 1"),
        (trace.source == SYNTH and trace.sessions < 1, "trace.sessions must be at least 1 where they are generated"),
        (trace.tokens <= 0, "trace.tokens must be above 0"),
        *_load_problems(grid),
        (
            grid.simulation is not None and not is_backend(grid.simulation.backend),
            "simulation.on must be local, ray or ray://HEAD:PORT",
        ),
        (
            grid.sensitivity is not UNSET and not 0 < grid.sensitivity.by < 1,
            "sensitivity.by must be between 0 and 1",
        ),
        (min(trace.sessions, trace.turns, trace.sessions_per_s) < 0, "a number of trace is below 0"),
        (replay.think not in THINKING, f"replay.think must be one of {', '.join(THINKING)}"),
        (replay.on_error not in ON_ERROR, f"replay.on_error must be one of {', '.join(ON_ERROR)}"),
        (
            replay.time_scale <= 0 or any(grid.time_scale(one) <= 0 for one in grid.policies),
            "replay.time_scale must be above 0, and a policy's own too",
        ),
        (
            any(one.reserved_output != "max_tokens" and one.reserved_output < 0 for one in grid.policies),
            "reserved_output must be at least 0",
        ),
        (replay.max_inflight_sessions < 0, "replay.max_inflight_sessions must not be negative"),
        (replay.max_duration_s <= 0 or replay.drain_s < 0, "replay.max_duration_s must be above 0, drain_s not below"),
        (any(tokens < 1 for tokens in beside.prefill_tokens), "interference.prefill_tokens must be at least 1"),
        (beside.decodes < 1 or beside.repeats < 1, "interference.decodes and .repeats must be at least 1"),
        (
            grid.simulation is not None and grid.simulation.lowest < 0,
            "simulation.step_noise, .expected_cell_s, .contention and .router_latency_s must not be below 0",
        ),
        (
            grid.simulation is not None and grid.router.index == "events",
            "simulated engines send no KV events: router.index must be approximate",
        ),
    ]
    refuse_problems([*problems, *_transfer_problems(grid)], where, REMEDY)


def _load_problems(grid: Grid) -> list[tuple[bool, str]]:
    """Problems of policies that replay another trace, or have another KV cache."""
    names = set(grid.further_traces)
    unknown = sorted({policy.trace for policy in grid.policies if policy.trace is not UNSET} - names)
    sizes = [policy.kv_cache_memory_bytes for policy in grid.policies]
    return [
        (bool(unknown), f"a policy replays {', '.join(unknown)}, which traces does not have"),
        (
            any(make_slug(name) != name for name in names),
            "a name in traces may hold letters, digits, `.`, `=`, `+` and `-`",
        ),
        (any(size is not UNSET and size < 1 for size in sizes), "kv_cache_memory_bytes must be at least 1"),
    ]


def _transfer_problems(grid: Grid) -> list[tuple[bool, str]]:
    """Values that a router would refuse, or an engine with every transfer request: both only once the engines run."""
    per_token, shared = grid.router.kv_bytes_per_token, grid.router.transfer
    problems = [
        (not (per_token is None or per_token >= 1), "router.kv_bytes_per_token must be at least 1"),
        *_list_rule_problems("router.transfer", shared, grid.engine.scheduling),
    ]
    for policy in grid.policies:
        if policy.transfer:
            where = f"policy {grid.label(policy)}: transfer"
            problems.append((not policy.moves_kv, f"{where} is for KV that is moved, and its moves_kv is false"))
            problems += _list_rule_problems(where, shared | policy.transfer, grid.engine.scheduling)
    return problems


def _list_rule_problems(where: str, rules_table: Mapping[str, Any], scheduling: str | None) -> list[tuple[bool, str]]:
    known = TransferRules.__dataclass_fields__
    old = sorted(set(rules_table) & set(RENAMED_RULES))
    if old:
        return [(True, f"{where}.{old[0]} is now called {RENAMED_RULES[old[0]]}")]
    unknown = sorted(set(rules_table) - set(known))
    if unknown:
        return [(True, f"{where} has no {', '.join(unknown)}; it has {', '.join(known)}")]
    try:
        rules = msgspec.convert(rules_table, TransferRules)
    except msgspec.ValidationError as error:
        return [(True, f"{where}: {error}")]
    counts = (rules.attempts, rules.failures_to_quarantine, rules.min_tokens)
    times = (rules.timeout_s, rules.window_s, rules.quarantine_s)
    return [
        (min(counts) < 1, f"{where}: attempts, failures_to_quarantine and min_tokens must be at least 1"),
        (min(times) <= 0, f"{where}: timeout_s, window_s and quarantine_s must be above 0"),
        (rules.queue < 0, f"{where}.queue must not be below 0"),
        (rules.quarantine_max_s < rules.quarantine_s, f"{where}.quarantine_max_s is below quarantine_s"),
        (
            rules.priority is not None and scheduling != "priority",
            f'{where}.priority needs engine.scheduling = "priority": engines refuse it otherwise',
        ),
    ]


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
