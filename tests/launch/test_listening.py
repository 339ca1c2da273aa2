"""What listens where is written down, and everything of ours that may choose chooses the loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path

from launch.doctor import examine
from launch.doctor_rows import WARN
from launch.dummy_bootstrap import DummyBootstrap
from launch.ports import LOOPBACK
from launch.profile import config_names, load_config
from results.records.layout import RunLayout, write_atomic
from results.records.run_folder import run_facts
from runners.router.spec import RouterSpec
from tests.launch.test_doctor import rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def table() -> dict[str, str]:
    """Address by what listens, of the page's first table."""
    part = PAGE.read_text(encoding="utf-8").partition("## What listens where")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in cells[1:]}


def test_every_port_of_every_config_is_in_the_table() -> None:
    named = set(re.findall(r"`(VLLM_\w+_PORT)`", " ".join(table())))
    assert named == {port for config in config_names() for port in load_config(config).ports}


def test_what_may_choose_listens_on_the_loopback() -> None:
    assert RouterSpec.__dataclass_fields__["host"].default == LOOPBACK
    for what, address in table().items():
        if "MOONCAKE" in what:
            assert "0.0.0.0" in address
        else:
            assert "0.0.0.0" not in address


async def test_the_dummy_bootstrap_listens_on_the_loopback() -> None:
    async with DummyBootstrap(0) as bootstrap:
        assert bootstrap.url.startswith(f"http://{LOOPBACK}:")


def test_doctor_says_what_cannot_choose(monkeypatch: object) -> None:
    report = examine("cpu", {"mooncake_both": ("mooncake",)})
    if rows(report)["engine"].state == "ok":
        row = rows(report)["mooncake ports"]
        assert (row.state, "firewall" in row.remedy) == (WARN, True)


def test_a_report_says_which_engines_were_open_to_other_machines(tmp_path: Path) -> None:
    write_atomic(RunLayout(tmp_path).plan, b"{}")
    ports = {"plain": {}, "mooncake_both": {"VLLM_MOONCAKE_BOOTSTRAP_PORT": 18501}}
    for config, used in ports.items():
        launch = {"config": config, "ports": {"http": 18500, **used}}
        write_atomic(tmp_path / "results" / f"20261122_{config}" / "config.json", json.dumps(launch).encode())
    notes = " ".join(run_facts(tmp_path)[0].host_notes)
    assert "Engines of mooncake_both listened on every interface" in notes
    assert "firewall" in notes
    assert "plain" not in notes
