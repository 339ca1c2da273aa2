"""A CPU engine runs its model before it serves, whatever becomes of that run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from patches import cpu_engine

from . import fake_vllm
from .conftest import PutModules

Start = Callable[[Exception | None], list[str]]


@pytest.fixture
def start(put_modules: PutModules, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a worker whose model may fail; what it did, in order."""
    monkeypatch.setattr(cpu_engine, "is_cpu_build", lambda: True)
    base: Any = fake_vllm.make_worker_base()
    modules = fake_vllm.modules(fake_vllm.make_scheduler(), fake_vllm.make_factory(fake_vllm.Connector))
    vars(modules[fake_vllm.WORKER_MODULE])["WorkerBase"] = base
    put_modules(modules)

    def start_worker(error: Exception | None) -> list[str]:
        done: list[str] = []

        def run(tokens: int, *, force_attention: bool, skip_eplb: bool) -> tuple[None, str]:
            if error is not None:
                raise error
            done.append(f"{tokens} tokens, attention {force_attention}")
            return None, "states"

        class Worker(base):  # type: ignore[misc]
            model_runner = SimpleNamespace(_dummy_run=run, _dummy_sampler_run=done.append)

            def compile_or_warm_up_model(self) -> str:
                done.append("seed reset")
                return "times"

        for _ in range(2):
            cpu_engine.warm_each_worker()
        assert Worker(None).compile_or_warm_up_model() == "times"
        return done

    return start_worker


def test_the_model_the_attention_and_the_sampler_run_once_before_the_seed_is_reset(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(None) == ["16 tokens, attention True", "states", "seed reset"]
    assert "the model has run once before the first request" in capfd.readouterr().err


def test_a_model_that_cannot_be_run_so_is_said_and_the_engine_starts(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(TypeError("no such argument")) == ["seed reset"]
    assert "the model was not run before the first request: TypeError: no such argument" in capfd.readouterr().err
