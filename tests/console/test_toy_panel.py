"""A panel from outside the packages: one declaration puts it on the dashboard, into the keys, the help and the docs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Static

from console.app import TraconApp
from console.panels import registry
from console.panels.panel import PanelKind
from console.screens.dialogs import Detail
from tests.console.conftest import NARROW, sees, shown, watching
from tests.console.test_docs import key_lines
from tests.doc_code import code_blocks, load_module


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[PanelKind]:
    """The one of docs/extending.md."""
    panel: PanelKind = load_module(tmp_path / "toys.py", code_blocks()["console/panels/toys.py"]).PANEL
    registry.register(panel)
    yield panel
    registry.unregister(panel.name)


async def test_its_key_opens_it_and_enter_its_row(live_run: Path, toy: PanelKind) -> None:
    async with watching(live_run, NARROW) as pilot:
        assert "0" in shown(pilot.app)[3], "the line of tabs names it"
        await pilot.press("0")
        await sees(pilot, "toy 1")
        await pilot.press("home", "enter")
        await sees(pilot, "made of")
        assert isinstance(pilot.app.screen, Detail)
        assert isinstance(pilot.app, TraconApp)
        assert pilot.app.last_command[:3] == ("tracon", "toy", live_run.name)
        await pilot.press("escape", "question_mark")
        keys_text = pilot.app.screen.query_one("#help-keys", Static)
        numbers_text = pilot.app.screen.query_one("#help-numbers", Static)
        for widget, wanted in ((keys_text, "every toy of the run"), (numbers_text, toy.entries[0].term.meaning)):
            lines = ["".join(part.text for part in widget.render_line(y)) for y in range(widget.size.height)]
            assert wanted in " ".join(" ".join(lines).split())


async def test_it_is_on_the_dashboard(live_run: Path, toy: PanelKind) -> None:
    async with watching(live_run) as pilot:
        await sees(pilot, "0 Toys")
        await sees(pilot, "toy 1")
        assert not pilot.app.screen.query_one("#steps").display, "of the run's own panels the last one is shown"
        await sees(pilot, "1 Stages")


def test_it_is_in_the_docs(toy: PanelKind) -> None:
    assert any(line.startswith("| `0` | Toys | every toy of the run |") for line in key_lines())
    assert {"toys", "TTFT of a toy"} <= {entry.label for entry in registry.help_entries()}


def test_a_name_or_key_is_taken_only_once(toy: PanelKind) -> None:
    with pytest.raises(ValueError, match="has key '0'"):
        registry.register(toy)


def test_every_module_of_a_panel_is_registered() -> None:
    folder = Path(registry.__file__).parent
    written = {path.stem for path in folder.glob("*.py") if "\nPANEL = " in path.read_text(encoding="utf-8")}
    assert written == set(registry.MODULES)
    assert [kind.name for kind in registry.list_panel_kinds()] == list(registry.MODULES)
