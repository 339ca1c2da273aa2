"""Results of a routing run: the tables of its report, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.findings import FIRST, WHOLE
from console.panels.results import ResultsPanel
from results.routing.analyse import analyse
from results.routing.report import describe_verdict
from results.routing.tables import build_tables
from tests.console import demo
from tests.console.conftest import NARROW, ROUTING_RUN, app_for, sees, settled, until
from tests.results.routing.synthetic import Truth, World, write_run

WORLD = World(sessions=6, turns=3, trials=2)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished routing run whose `lmetric` is twice as fast as its `sticky`."""
    folder = tmp_path_factory.mktemp("ws") / ROUTING_RUN
    demo.write(folder, tale=demo.ROUTING)
    return write_run(folder, WORLD, (Truth("lmetric", ttft_s=0.1), Truth("sticky", ttft_s=0.2)))


def panel_of(pilot: Pilot[None]) -> ResultsPanel:
    return pilot.app.screen.query_one(ResultsPanel)


async def test_each_table_of_the_report_is_a_section_and_can_be_saved(routed: Path) -> None:
    analysis = analyse(routed)
    first, *others = build_tables(analysis)
    async with app_for(routed).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("6")
        panel = panel_of(pilot)
        await until(pilot, lambda: panel.analysis is not None, "no analysis")
        assert panel.section == FIRST
        verdict = describe_verdict(analysis)
        await until(pilot, lambda: verdict in " ".join(" ".join(panel.table.text()).split()), "no verdict")
        await pilot.press("e")
        await until(pilot, lambda: any((routed / "exports").glob(f"{FIRST}-*.csv")), "nothing was saved")
        for table in others[:3]:
            await pilot.press("right")
            await sees(pilot, table.title)
            assert not any("…" in line for line in panel.table.text()), table.title
        await pilot.press("left", "left", "left", "left")
        assert panel.section == WHOLE
        await sees(pilot, "Profile cpu-tiny")
    (file,) = (routed / "exports").glob(f"{FIRST}-*.csv")
    header, *rows = file.read_text().splitlines()
    assert header == ",".join(first.columns)
    assert len(rows) == len(first.rows)
