"""A preset of a profile as an experiment reads it: found, inherited, changed by `--set KEY=VALUE`, checked."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from launch.profile import list_profile_names, load_profile, merge_tables
from launch.redaction import PASS_ENV, redact_settings
from runners.campaign.experiment import RunOptions
from runners.errors import RunnerError

Grid = TypeVar("Grid", bound=msgspec.Struct)
Tables = Mapping[str, Mapping[str, Any]]
"""Presets of one experiment by name, as TOML has them."""


def refuse_routing_options(options: RunOptions, why: str) -> None:
    """Raises RunnerError, which says `why`, where an option of `routing` is given."""
    if options.policies or options.trace or options.simulated or options.engine or options.on or options.instances:
        named = "--policy, --trace, --simulated, --engine, --on and --instances"
        raise RunnerError(why, remedy=f"{named} belong to `routing`")


def find_preset(tables: Tables, experiment: str, profile: str, preset: str) -> tuple[dict[str, Any], str]:
    """A copy of the preset's tables over those of the preset that it is `like`, and the preset's name in errors.

    Raises RunnerError naming the presets of the profile, and the profiles that have this one.
    """
    if preset not in tables:
        remedy = f"choose one of: {', '.join(sorted(tables)) or 'none'}"
        others = [name for name in list_profile_names() if preset in load_profile(name).experiments.get(experiment, {})]
        if others:
            remedy += f"; or a profile that has it: --profile {' or '.join(others)}"
        raise RunnerError(f"profile {profile} has no preset {preset!r} for {experiment}", remedy=remedy)
    where = f"profile {profile}, [experiment.{experiment}.{preset}]"
    return _inherit_tables(tables, preset, where, ()), where


def _inherit_tables(tables: Tables, preset: str, where: str, seen: tuple[str, ...]) -> dict[str, Any]:
    raw = copy.deepcopy(dict(tables[preset]))
    parent = raw.pop("like", None)
    inherited: dict[str, Any] = {}
    if parent is not None:
        if parent not in tables or parent in (*seen, preset):
            raise RunnerError(f"{where}: like = {parent!r} is no preset to inherit from", remedy="name another one")
        inherited = _inherit_tables(tables, parent, where, (*seen, preset))
    if isinstance(raw.get("policies"), list):
        labeled = _label_policies(inherited.get("policies"))
        raw["policies"] = [_inherit_policy(entry, labeled, where) for entry in raw["policies"]]
    return merge_tables(inherited, raw)


def _label_policies(inherited: object) -> dict[str, Any]:
    """By label; of policies with one label, that without a `sweep`."""
    labeled: dict[str, Any] = {}
    for policy in inherited if isinstance(inherited, list) else ():
        _note_label(policy, labeled)
    return labeled


def _note_label(policy: object, labeled: dict[str, Any]) -> None:
    if not isinstance(policy, dict):
        return
    label = policy.get("label")
    if isinstance(label, str) and ("sweep" not in policy or label not in labeled):
        labeled[label] = policy


def _inherit_policy(entry: object, labeled: dict[str, Any], where: str) -> object:
    """The labeled policy that a text names, or an entry over the policy that it is `like`; noted by its own label."""
    policy = labeled.get(entry, entry) if isinstance(entry, str) else entry
    if isinstance(policy, dict) and "like" in policy:
        base = labeled.get(str(policy["like"]))
        if base is None:
            raise RunnerError(
                f"{where}: policies: like = {policy['like']!r} is the label of no policy before it",
                remedy=f"name one of: {', '.join(labeled) or 'none'}",
            )
        policy = merge_tables(base, {key: value for key, value in policy.items() if key != "like"})
    _note_label(policy, labeled)
    return policy


def parse_setting(text: str, example: str) -> tuple[str, Any]:
    """Key and value of KEY=VALUE, the value as TOML writes it; a value that is no TOML is text.

    Raises RunnerError, with `example` in its remedy, where there is no key or no value; and where it looks like a
    secret: the plan stores the text, from which a resumed run reads it again.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RunnerError(f"{text!r} is no setting", remedy=f"write KEY=VALUE, e.g. --set {example}")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of too many digits, or brackets of too many levels
        parsed = value.strip()
    if _holds_secret(text, key.strip(), parsed):
        raise RunnerError(
            f"--set {key.strip()} looks like a secret, and the plan would store it",
            remedy=f"for an engine: export the variable and name it in {PASS_ENV}, "
            "or set it in the profile's [engine.env]",
        )
    return key.strip(), parsed


def _holds_secret(text: str, key: str, value: object) -> bool:
    """Whether a plan could not store the setting as it is. The tables of a key decide what its names mean."""
    if value == "":
        return False
    table: object = value
    for section in reversed(key.split(".")):
        table = {section: table}
    shown: object = redact_settings([table, [text]])
    return shown != [table, [text]]


def set_key(raw: dict[str, Any], key: str, value: object) -> None:
    """Set the value of a dotted key in nested tables. Raises RunnerError where the key goes through a plain value."""
    *sections, last = key.split(".")
    for section in sections:
        below = raw.setdefault(section, {})
        if not isinstance(below, dict):
            raise RunnerError(f"--set {key}: {section} is no table", remedy=f"write {section}=VALUE")
        raw = below
    raw[last] = value


def convert_grid(raw: Mapping[str, Any], grid: type[Grid], where: str, remedy: str) -> Grid:
    """Raises RunnerError naming the wrong key."""
    try:
        return msgspec.convert(raw, grid)
    except msgspec.ValidationError as error:
        raise RunnerError(f"{where}: {error}", remedy=remedy) from error


def refuse_problems(problems: Iterable[tuple[bool, str]], where: str, remedy: str) -> None:
    """Raise RunnerError for the first pair of (is wrong, what must hold) that is wrong."""
    for is_wrong, text in problems:
        if is_wrong:
            raise RunnerError(f"{where}: {text}", remedy=remedy)
