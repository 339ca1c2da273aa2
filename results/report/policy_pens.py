"""How each policy is drawn: in one color in every figure and every run, whatever else was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from zlib import crc32

from results.report.ink import Pen, make_lettered_pens, write_marker

POLICY_PENS: Mapping[str, Pen] = {
    "round_robin": Pen("#000000", "o", "-"),
    "load_only": Pen("#7f7f7f", "s", "-"),
    "leastwork": Pen("#56b4e9", "^", "-"),
    "leastwork_spread": Pen("#3000d8", "<", "-"),
    "lmetric": Pen("#e69f00", "v", "-"),
    "kv_linear": Pen("#a83000", ">", "-"),
    "kv_aware": Pen("#cc79a7", "P", "-"),
    "sticky": Pen("#009e73", "X", "-"),
    "approach_a": Pen("#784860", "*", "-"),
    "unified": Pen("#0072b2", "p", "-"),
    "unified_spread": Pen("#600078", "h", "-"),
    "static_pd": Pen("#004d40", "d", "-"),
    "ear": Pen("#d55e00", "D", "-"),
}
"""By the policy's name; for policies that published figures show. No two share a color or a marker: color-blind readers
tell load_only from sticky by the marker. Dashes say what a line is (a model, a prediction), never whose."""
OTHER_PENS = (Pen("#a830f0", "+", "-"), Pen("#a878f0", "x", "-"), Pen("#c0a878", "1", "-"))
"""Pens of every other policy: a new one of Tracon's, or one in a file of the user's own."""


def assign_pens(policies: Mapping[str, str], name_setting: Callable[[str], str] = str) -> dict[str, Pen]:
    """A pen per label. `policies`: each label's policy, in the order of tables.

    Labels of one policy have its color; the first of them has its marker, the others 2, 3, and so on. `name_setting`:
    of a label; labels with one name (one setting under several loads) count once.
    """
    own = {**POLICY_PENS, **_assign_other_pens(map(_name_policy, policies.values()))}
    settings: dict[str, list[str]] = {}
    chosen = {}
    for label, policy in policies.items():
        name, setting = _name_policy(policy), name_setting(label)
        known = settings.setdefault(name, [])
        if setting not in known:
            known.append(setting)
        index = known.index(setting)
        chosen[label] = replace(own[name], marker=write_marker(str(index + 1))) if index else own[name]
    return chosen


def _name_policy(policy: str) -> str:
    """The name of a file of the user's own without its folder: a copy elsewhere is the same policy."""
    return PurePath(policy).name


def _assign_other_pens(names: Iterable[str]) -> dict[str, Pen]:
    """Pens of the names that have none in POLICY_PENS, by name.

    Each prefers a pen by its name alone, so that it seldom depends on which others are in the run. The names beyond
    the pens have letters.
    """
    chosen: dict[str, Pen] = {}
    letters = make_lettered_pens()
    for name in sorted({name for name in names if name not in POLICY_PENS}):
        first = crc32(name.encode()) % len(OTHER_PENS)
        free = [pen for pen in (*OTHER_PENS[first:], *OTHER_PENS[:first]) if pen not in chosen.values()]
        chosen[name] = free[0] if free else next(letters)
    return chosen
