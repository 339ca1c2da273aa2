"""Results of a lifecycle run: the tables of its report, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.findings import FIRST, analyse_folder
from console.panels.results import ResultsPanel
from results.pd_lifecycle.analyse import analyse
from results.pd_lifecycle.tables import build_tables
from tests.console import demo
from tests.console.conftest import NARROW, app_for, sees, settled, until
from tests.results.pd_lifecycle.synthetic import Truth, grid, write_run

RUN = "20260302-121314-pd-lifecycle-cpu-tiny"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished lifecycle run with the records of a small sweep."""
    folder = tmp_path_factory.mktemp("ws") / RUN
    demo.write(folder, tale=demo.LIFECYCLE)
    return write_run(folder, tuple(grid(Truth(), sizes=(512, 8192), lengths=(32,))), analysis={"link_gbps": 12.5})


async def test_each_table_of_the_report_is_a_section(measured: Path) -> None:
    report = build_tables(analyse(measured))
    async with app_for(measured).run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("6")
        panel = pilot.app.screen.query_one(ResultsPanel)
        await until(pilot, lambda: panel.analysis is not None, "no analysis")
        assert panel.section == FIRST
        for table in report[:3]:
            await sees(pilot, table.title)
            assert not any("…" in line for line in panel.table.text()), table.title
            await pilot.press("right")


def test_a_folder_without_records_is_reported_not_raised(tmp_path: Path) -> None:
    findings = analyse_folder(tmp_path / "nowhere", "pd-lifecycle")
    assert findings.analysis is None
    assert findings.trouble
