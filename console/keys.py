"""The key table: every action, panels included. Bindings, footer, help, palette and documentation come from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from textual.binding import Binding

from console.actions import ACTIONS, BY_ID, KEY_NAMES, LOOK, Action
from console.panels.panel import PanelKind
from console.panels.registry import list_panel_kinds


def list_actions() -> tuple[Action, ...]:
    """In the order of the help; the panels come first among the actions that look."""
    kinds = list_panel_kinds()
    texts = {
        "previous": _describe_steps(kinds, "previous"),
        "next": _describe_steps(kinds, "next"),
        "exports": "; ".join(f"on {kind.title}: {kind.exports}" for kind in kinds if kind.exports),
    }
    first = next(index for index, action in enumerate(ACTIONS) if action.group == LOOK)
    actions = (*ACTIONS[:first], *map(make_panel_action, kinds), *ACTIONS[first:])
    return tuple(replace(action, help=action.help.format(**texts)) for action in actions)


def make_panel_action(kind: PanelKind) -> Action:
    return Action(
        kind.name, (kind.key,), kind.title, kind.help, LOOK, command=kind.command, method=f"open_panel('{kind.name}')"
    )


def _describe_steps(kinds: Iterable[PanelKind], which: str) -> str:
    """`on Results and Lifecycle: the next section; on Migrations: the next cell`."""
    titles: dict[str, list[str]] = {}
    for kind in kinds:
        if kind.steps_through:
            titles.setdefault(kind.steps_through, []).append(kind.title)
    return "; ".join(f"on {' and '.join(on)}: the {which} {what}" for what, on in titles.items())


def list_screen_actions(screen: str) -> tuple[Action, ...]:
    return tuple(action for action in list_actions() if screen in action.screens)


def make_bindings(actions: Iterable[Action]) -> list[Binding]:
    """The Textual bindings of these actions."""
    return [
        Binding(
            key=",".join(action.keys),
            action=action.method or action.id,
            description=action.label,
            show=action.footer,
            key_display=KEY_NAMES.get(action.keys[0], action.keys[0]),
            tooltip=action.help,
            id=action.id,
        )
        for action in actions
        if action.id != "open"  # tables answer to Enter themselves
    ]


def make_panel_bindings() -> list[Binding]:
    return make_bindings(make_panel_action(kind) for kind in list_panel_kinds())


def make_fixed_bindings(screen: str) -> list[Binding]:
    """The keys of a screen that do not depend on which panels there are."""
    return make_bindings(action for action in list_screen_actions(screen) if action.id in BY_ID)
