"""Routing policies: pure functions (request, cluster) -> decision, shared by router, what-if and simulator.

A policy is a class in a module of this package that `MODULES` lists. Router, command line, presets and explanations
look it up by its `name`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from runners.router.policies.policy import Policy, PolicyError
from runners.router.policies.user_file import find_classes, load_class

MODULES = (
    "balance",
    "lmetric",
    "sticky",
    "unified",
    "kv_aware",
    "ear",
    "static_pd",
)
"""Modules of this package that define policies. A module explains its reason codes in `REASONS` and the keys of its
scores in `SCORE_KEYS`; `reasons` has the shared ones."""


def collect_policies(modules: Iterable[str]) -> dict[str, type[Policy]]:
    """The policy classes of modules of this package, by name. Raises PolicyError if two share a name."""
    policies: dict[str, type[Policy]] = {}
    for module in modules:
        for policy in find_classes(import_module(f"{__name__}.{module}")).values():
            if policy.name in policies:
                raise PolicyError(f"two policies are called {policy.name!r}", remedy=f"rename the one in {module}.py")
            policies[policy.name] = policy
    return policies


POLICIES: Mapping[str, type[Policy]] = collect_policies(MODULES)
"""The policies of this package, by name."""


class ParameterInfo(msgspec.Struct, frozen=True):
    """One parameter of a policy."""

    name: str
    kind: str
    """Its type with its limits in words, e.g. `number >= 0`, `rr | first`, `integer or null`."""
    default: object
    text: str
    required: bool = False
    """It has no default; `default` is None."""


class PolicyInfo(msgspec.Struct, frozen=True):
    """One policy, as `tracon policies` shows it."""

    name: str
    summary: str
    source: str
    parameters: tuple[ParameterInfo, ...]


def find_policy_class(name_or_path: str) -> type[Policy]:
    """The policy of that name, or the one in a Python file (`FILE.py`, or `FILE.py:Class` if it has several)."""
    if name_or_path in POLICIES:
        return POLICIES[name_or_path]
    path, _, class_name = name_or_path.partition(":")
    if path.endswith(".py"):
        return load_class(path, class_name)
    near = difflib.get_close_matches(name_or_path, POLICIES, n=1)
    hint = f"did you mean `{near[0]}`? There are" if near else "there are"
    raise PolicyError(
        f"there is no policy {name_or_path!r}",
        remedy=f"{hint} {', '.join(POLICIES)}, or the path of a Python file with one",
    )


def make_policy(name_or_path: str, parameters: Mapping[str, object]) -> Policy:
    """The policy with these parameters; values may be text, as on the command line (`null` = None).

    Raises PolicyError naming the policy and the parameter that is unknown, missing or out of range.
    """
    cls = find_policy_class(name_or_path)
    known = tuple(inspect.signature(cls).parameters)
    for name in parameters:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise PolicyError(f"policy {cls.name} has no parameter {name!r}", remedy=hint + has)
    _require_parameters(cls, parameters)
    try:
        if _has_fields(cls):
            return msgspec.convert(dict(parameters), cls, strict=False)
        return cls(**parameters)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise PolicyError(
            f"policy {cls.name}: {error}", remedy=f"`tracon policies {name_or_path}` shows its parameters"
        ) from error


def _require_parameters(cls: type[Policy], parameters: Mapping[str, object]) -> None:
    missing = [info for info in _describe_parameters(cls) if info.required and info.name not in parameters]
    if missing:
        raise PolicyError(
            f"policy {cls.name} needs {' and '.join(info.name for info in missing)}: there is no default",
            remedy="; ".join(f"give {info.name}=... ({info.text})" if info.text else info.name for info in missing),
        )


def list_parameters(policy: Policy) -> dict[str, Any]:
    """A policy's parameters with their values, for configs and reports; {} for a class without declared fields."""
    return dict(msgspec.to_builtins(policy)) if _has_fields(type(policy)) else {}


def may_migrate(policy: Policy) -> bool:
    """Whether its decisions may set `migrate_from`; True for every user's policy."""
    return bool(getattr(policy, "migration", False)) if type(policy) in POLICIES.values() else True


def describe_policies() -> tuple[PolicyInfo, ...]:
    return tuple(describe_policy(policy) for policy in POLICIES.values())


def describe_policy(cls: type[Policy]) -> PolicyInfo:
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return PolicyInfo(cls.name, summary, cls.source, _describe_parameters(cls))


def describe_rule(policy: str, parameters: Mapping[str, object]) -> str:
    """The rule that runs, in a line: `unified with spread_cold=true, which is unified_spread: ...`.

    `policy` and `parameters`: as `make_policy` takes them. A summary describes the defaults, so what is set beside
    them is named.
    """
    made = make_policy(policy, parameters)
    rule = getattr(made, "described_by", type(made))
    setting = ", ".join(f"{name}={value}" for name, value in parameters.items())
    parts = (policy, f" with {setting}" if setting else "", "" if rule is type(made) else f", which is {rule.name}")
    return f"{''.join(parts)}: {describe_policy(rule).summary}"


def _describe_parameters(cls: type[Policy]) -> tuple[ParameterInfo, ...]:
    if not _has_fields(cls):  # a user's plain class has only its signature
        return tuple(
            ParameterInfo(name, "", None if required else field.default, "", required)
            for name, field in inspect.signature(cls).parameters.items()
            for required in (field.default is inspect.Parameter.empty,)
            if field.kind not in (field.VAR_POSITIONAL, field.VAR_KEYWORD)
        )
    schema = msgspec.json.schema(cls)["$defs"][cls.__name__]
    required = schema.get("required", ())
    return tuple(
        ParameterInfo(name, _describe_kind(field), field.get("default"), field.get("description", ""), name in required)
        for name, field in schema["properties"].items()
    )


def _has_fields(cls: type[Policy]) -> bool:
    """Whether it is a msgspec struct or a dataclass, whose parameters have types, defaults and limits."""
    return hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__")


def _describe_kind(field: Mapping[str, Any]) -> str:
    """A JSON schema's type in words."""
    if "anyOf" in field:
        return " or ".join(map(_describe_kind, field["anyOf"]))
    if "enum" in field:
        return " | ".join(str(value) for value in field["enum"])
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[key]:g}" for key, sign in limits.items() if key in field]
    return " ".join([str(field.get("type", "any")), *bounds])
