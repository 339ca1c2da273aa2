"""The panels of a run, in the order of their keys."""

from __future__ import annotations

from importlib import import_module

from console.glossary import Entry
from console.panels.panel import PanelKind
from console.widgets.header import HEADER_ENTRIES

MODULES = (
    "stages",
    "instances",
    "latency",
    "steps",
    "events",
    "results",
    "routing",
    "migrations",
    "lifecycle",
)
"""Modules of this package; each declares its panel as `PANEL`."""

_KINDS: list[PanelKind] = [import_module(f"console.panels.{name}").PANEL for name in MODULES]


def list_panel_kinds() -> tuple[PanelKind, ...]:
    return tuple(_KINDS)


def register(kind: PanelKind) -> None:
    """Add a panel to every run screen opened from now on; raises ValueError where its name or key is taken."""
    for known in _KINDS:
        if kind.name == known.name or kind.key == known.key:
            raise ValueError(f"panel {kind.name!r} with key {kind.key!r}: {known.name!r} has key {known.key!r}")
    _KINDS.append(kind)


def unregister(name: str) -> None:
    _KINDS[:] = [kind for kind in _KINDS if kind.name != name]


def help_entries() -> tuple[Entry, ...]:
    """The numbers of all panels and of the header, each label once."""
    entries = [*(entry for kind in _KINDS for entry in kind.entries), *HEADER_ENTRIES]
    return tuple({entry.label: entry for entry in reversed(entries)}.values())[::-1]
