"""Routing policies: pure functions of (request, cluster) to a decision, shared by router, what-if and simulator.

A policy is a class in a module of this package, and the module's line in `MODULES`: router, command line, presets and
explanations find it by its `name` from there.
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
"""Modules of this package that have policies. A module explains its reason codes in `REASONS`, the keys of its scores
in `SCORE_KEYS`; those that several share are in `reasons`."""


def collect_policies(modules: Iterable[str]) -> dict[str, type[Policy]]:
    """The policy classes of modules of this package, by name. Raises PolicyError where two share a name."""
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
    """It has no default, which is then None here."""


class PolicyInfo(msgspec.Struct, frozen=True):
    """One policy, as `tracon policies` shows it."""

    name: str
    summary: str
    source: str
    parameters: tuple[ParameterInfo, ...]


def policy_class(name_or_path: str) -> type[Policy]:
    """The policy of that name, or the one in that Python file (`FILE.py`, or `FILE.py:Class` where it has several)."""
    if name_or_path in POLICIES:
        return POLICIES[name_or_path]
    path, _, wanted = name_or_path.partition(":")
    if path.endswith(".py"):
        return load_class(path, wanted)
    near = difflib.get_close_matches(name_or_path, POLICIES, n=1)
    hint = f"did you mean `{near[0]}`? There are" if near else "there are"
    raise PolicyError(
        f"there is no policy {name_or_path!r}",
        remedy=f"{hint} {', '.join(POLICIES)}, or the path of a Python file with one",
    )


def make_policy(name_or_path: str, parameters: Mapping[str, object]) -> Policy:
    """The policy with these parameters; values may be text, as the command line has them (`null` = none).

    Raises PolicyError naming the policy and the parameter that is unknown, missing or out of its limits.
    """
    cls = policy_class(name_or_path)
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
    missing = [one for one in describe_policy(cls).parameters if one.required and one.name not in parameters]
    if missing:
        raise PolicyError(
            f"policy {cls.name} needs {' and '.join(one.name for one in missing)}: there is no default",
            remedy="; ".join(f"give {one.name}=... ({one.text})" if one.text else one.name for one in missing),
        )


def parameters_of(policy: Policy) -> dict[str, Any]:
    """All parameters of a policy with their values, for configs and reports; {} for a class that does not show them."""
    return dict(msgspec.to_builtins(policy)) if _has_fields(type(policy)) else {}


def may_migrate(policy: Policy) -> bool:
    """Its decisions may name `migrate_from`. A user's policy may do anything."""
    return bool(getattr(policy, "migration", False)) if type(policy) in POLICIES.values() else True


def describe_policies() -> tuple[PolicyInfo, ...]:
    return tuple(describe_policy(policy) for policy in POLICIES.values())


def describe_policy(cls: type[Policy]) -> PolicyInfo:
    """What a policy is and which parameters it takes."""
    summary = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return PolicyInfo(cls.name, summary, cls.source, _describe_parameters(cls))


def _describe_parameters(cls: type[Policy]) -> tuple[ParameterInfo, ...]:
    if not _has_fields(cls):  # a user's plain class: its signature is all there is
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
    """A msgspec struct or a dataclass: its parameters have types, defaults and limits."""
    return hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__")


def _describe_kind(field: Mapping[str, Any]) -> str:
    """A JSON schema's type in words."""
    if "anyOf" in field:
        return " or ".join(_describe_kind(one) for one in field["anyOf"])
    if "enum" in field:
        return " | ".join(str(value) for value in field["enum"])
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[key]:g}" for key, sign in limits.items() if key in field]
    return " ".join([str(field.get("type", "any")), *bounds])
