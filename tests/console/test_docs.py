"""The action table is the only place that says what keys do; help, footer and documentation follow it."""

from __future__ import annotations

import sys
from pathlib import Path

from console import actions, keys
from console.panels.registry import help_entries, list_panel_kinds
from console.widgets.header import HEADER_ENTRIES

PAGE = Path(__file__).parents[2] / "docs" / "console.md"
BEGIN, END = "<!-- {}: made from the code by `python -m tests.console.test_docs` -->", "<!-- end of {} -->"


def parts() -> dict[str, str]:
    return {"keys": "\n".join(key_lines()), "numbers": "\n".join(number_lines())}


def key_lines() -> list[str]:
    lines: list[str] = []
    for group in actions.GROUPS:
        lines += [
            f"### {group}",
            "",
            "| key | action | what it does | where | same from a shell |",
            "|---|---|---|---|---|",
        ]
        for action in (each for each in keys.list_actions() if each.group == group):
            where = "everywhere" if action.screens == actions.EVERYWHERE else ", ".join(action.screens)
            command = f"`{' '.join(action.command)}`" if action.command else ""
            names = " ".join(f"`{actions.KEY_NAMES.get(key, key)}`" for key in action.keys)
            lines.append(f"| {names} | {action.label} | {action.help} | {where} | {command} |")
        lines.append("")
    return lines


def number_lines() -> list[str]:
    head = ["| number | unit | meaning | source | worth a second look |", "|---|---|---|---|---|"]
    rows = ((e.label, e.term.unit, e.meaning, e.source, e.watch) for e in help_entries())
    return head + [f"| {' | '.join(row)} |" for row in rows]


def test_the_page_matches_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, made in parts().items():
        written = page.partition(BEGIN.format(name))[2].partition(END.format(name))[0]
        assert written.strip() == made.strip(), "run: python -m tests.console.test_docs"


def test_no_key_means_two_things_on_one_screen() -> None:
    for screen in actions.EVERYWHERE:
        taken = [key for action in keys.list_screen_actions(screen) for key in action.keys]
        assert len(taken) == len(set(taken)), screen


def test_every_action_is_complete() -> None:
    for action in keys.list_actions():
        assert action.help, f"{action.id} has no help"
        assert action.group in actions.GROUPS, action.id
        assert not action.steers or action.command or action.id == "menu", f"{action.id} has no equal command line"
    assert len({action.id for action in keys.list_actions()}) == len(keys.list_actions())


def test_a_label_names_one_number_only() -> None:
    entries = [*(entry for kind in list_panel_kinds() for entry in kind.entries), *HEADER_ENTRIES]
    terms = {entry.label: entry.term for entry in entries}
    assert [(each.label, each.term) for each in entries if terms[each.label] != each.term] == []


def test_a_label_that_abbreviates_a_term_is_shown_with_its_name() -> None:
    meanings = {entry.label: entry.meaning for entry in help_entries()}
    assert meanings["served"].startswith("effective throughput: requests that completed")
    assert meanings["lease"].startswith("the heartbeat")


def write() -> None:
    """Bring the page's generated parts up to date."""
    page = PAGE.read_text(encoding="utf-8")
    for name, made in parts().items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not begin or not end:
            sys.exit(f"{PAGE} has no part {name!r}")
        page = f"{before}{begin}\n{made.strip()}\n{end}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()
