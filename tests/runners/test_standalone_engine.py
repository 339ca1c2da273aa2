"""What an engine that belongs to no run is refused for, before anything starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import patching
from launch.profile import config_names
from runners import standalone_engine
from runners.errors import RunnerError


@pytest.mark.parametrize("config", config_names())
def test_every_config_on_a_cpu_engine_needs_the_patches(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain too: without them nothing asks the kernel for AMX tiles, and no death has a name."""
    monkeypatch.setattr(standalone_engine, "find_engine", lambda kind, python: SimpleNamespace(kind=kind))
    monkeypatch.setattr(patching, "status", lambda engine: SimpleNamespace(applied=False))
    with pytest.raises(RunnerError, match="needs Tracon's patches") as refused:
        standalone_engine.bring_up(config, "cpu-tiny", "mine", None, None, tmp_path)
    assert refused.value.remedy == "`tracon patch apply --kind cpu`"
    assert list(tmp_path.iterdir()) == []
