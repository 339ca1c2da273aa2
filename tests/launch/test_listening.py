"""What listens where is written down, and everything of ours that may choose chooses the loopback."""

from __future__ import annotations

import re
from pathlib import Path

from launch.doctor import examine
from launch.dummy_bootstrap import DummyBootstrap
from launch.findings import WARN
from launch.ports import LOOPBACK
from launch.profile import config_names, load_config
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
