"""Repairs are made only when asked for, and only of the code they were written for."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import pytest

from patches import plugin, repairs

from .conftest import PutModules


def install(put_modules: PutModules) -> type:
    """A stand-in of vLLM 0.32's metrics of a MultiConnector."""

    class MultiKVConnectorPromMetrics:
        def __init__(self) -> None:
            self._prom_metrics = {"NixlConnector": "its metrics"}
            self.observed: dict[str, object] = {}

        def observe(self, transfer_stats_data: Mapping[str, object], engine_idx: int = 0) -> None:
            assert set(transfer_stats_data) <= set(self._prom_metrics)
            self.observed |= transfer_stats_data

    module = ModuleType("multi_connector")
    vars(module).update(MultiKVConnectorPromMetrics=MultiKVConnectorPromMetrics)
    put_modules({repairs.MULTI_CONNECTOR: module})
    return MultiKVConnectorPromMetrics


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (plugin.STEP_LOG_VARIABLE, plugin.CPU_CONNECTORS_VARIABLE, plugin.REPAIRS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_a_child_without_metrics_is_passed_over(put_modules: PutModules, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = install(put_modules)
    monkeypatch.setenv(plugin.REPAIRS_VARIABLE, "1")
    plugin.register()
    plugin.register()
    seen = metrics()
    seen.observe({"MooncakeConnector": 1, "NixlConnector": 2}, engine_idx=0)
    assert seen.observed == {"NixlConnector": 2}


def test_nothing_is_repaired_unasked(put_modules: PutModules) -> None:
    metrics = install(put_modules)
    plugin.register()
    with pytest.raises(AssertionError):
        metrics().observe({"MooncakeConnector": 1})


def test_code_that_has_changed_is_left_alone_and_said(
    put_modules: PutModules, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = install(put_modules)
    monkeypatch.setattr(metrics, "observe", lambda self, stats: "shipped")
    monkeypatch.setenv(plugin.REPAIRS_VARIABLE, "1")
    plugin.register()
    assert metrics().observe({}) == "shipped"
    assert "has the parameters (self, stats)" in capfd.readouterr().err
