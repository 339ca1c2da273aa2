"""On a CPU build NIXL neither spins on a core nor pins the engine to one; elsewhere it is left alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from patches import cpu_connectors, hooks, nixl_cpu

from .conftest import PutModules


class AgentConfig:
    """As the bindings', in C."""

    pthrDelay = 7
    useProgThread = False


class NixlConnector:
    """As vLLM's worker does it on a CPU."""

    def __init__(self, role: str) -> None:
        self.role = role
        if role == "worker":
            os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])


class OtherConnector:
    pass


@pytest.fixture
def factory(put_modules: PutModules) -> type:
    """vLLM's factory beside a NIXL whose agent asks for a thread that never sleeps."""

    class Factory:
        @classmethod
        def get_connector_class(cls, name: str) -> type:
            return {"nixl": connector, "other": OtherConnector}[name]

    connector = type("NixlConnector", (NixlConnector,), {"__module__": "vllm.v1.nixl.connector"})
    made, bindings = ModuleType("nixl_cu13._api"), SimpleNamespace(nixlAgentConfig=AgentConfig)

    class Agent:
        def __init__(self) -> None:
            self.config = bindings.nixlAgentConfig()
            self.config.useProgThread = True
            self.config.pthrDelay = 0

    Agent.__module__ = made.__name__
    vars(made).update(nixl_agent=Agent, nixlBind=bindings)
    outer = ModuleType("nixl._api")
    vars(outer).update(nixl_agent=Agent)
    module = ModuleType("factory")
    vars(module).update(KVConnectorFactory=Factory)
    put_modules({hooks.FACTORY: module, made.__name__: made, outer.__name__: outer, "nixl": ModuleType("nixl")})
    Factory.agent = Agent  # type: ignore[attr-defined]
    return Factory


def in_a_thread(action: Callable[[], object]) -> set[int]:
    """The cores of a thread after it has done something: other tests keep theirs."""
    cores: list[set[int]] = []

    def work() -> None:
        action()
        cores.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return cores[0]


def test_nothing_changes_before_a_nixl_connector_is_asked_for(factory: type) -> None:
    nixl_cpu.calm_when_made()
    assert factory.get_connector_class("other") is OtherConnector  # type: ignore[attr-defined]
    assert factory.agent().config.pthrDelay == 0  # type: ignore[attr-defined]


def test_its_progress_thread_sleeps_and_every_other_setting_is_its_own(factory: type) -> None:
    nixl_cpu.calm_when_made()
    for _ in range(2):
        factory.get_connector_class("nixl")  # type: ignore[attr-defined]
    config = factory.agent().config  # type: ignore[attr-defined]
    assert config.pthrDelay == nixl_cpu.DELAY_US
    assert config.useProgThread is True


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: there is nothing to pin to")
def test_the_thread_that_makes_a_connector_keeps_its_cores(factory: type) -> None:
    before = os.sched_getaffinity(0)
    assert in_a_thread(lambda: NixlConnector("worker")) != before, "as it is without us"
    nixl_cpu.calm_when_made()
    connector = factory.get_connector_class("nixl")  # type: ignore[attr-defined]
    assert in_a_thread(lambda: connector("worker")) == before
    assert in_a_thread(lambda: connector("scheduler")) == before


def test_asked_for_twice_it_is_wrapped_once(factory: type) -> None:
    nixl_cpu.calm_when_made()
    once = vars(factory)["get_connector_class"]
    nixl_cpu.calm_when_made()
    assert vars(factory)["get_connector_class"] is once


def test_a_nixl_without_that_setting_is_left_alone_and_said(
    factory: type, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(AgentConfig, "pthrDelay")
    nixl_cpu.calm_when_made()
    factory.get_connector_class("nixl")  # type: ignore[attr-defined]
    assert "NIXL keeps its cores" in capfd.readouterr().err
    assert factory.agent().config.pthrDelay == 0  # type: ignore[attr-defined]


def test_a_cuda_build_needs_no_shim(put_modules: PutModules, factory: type) -> None:
    torch = ModuleType("torch")
    cuda = SimpleNamespace(is_built=lambda: True)
    vars(torch).update(backends=SimpleNamespace(cuda=cuda), accelerator=SimpleNamespace(is_available=lambda: True))
    put_modules({"torch": torch})
    assert cpu_connectors.apply() == {}
    factory.get_connector_class("nixl")  # type: ignore[attr-defined]
    assert factory.agent().config.pthrDelay == 0  # type: ignore[attr-defined]
