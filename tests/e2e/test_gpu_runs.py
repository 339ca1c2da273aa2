"""What the runs on a fake GPU host are made of; no engine is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.profile import list_config_names, load_config
from tests.e2e.gpu_runs import write_config


@pytest.mark.parametrize("name", list_config_names())
def test_a_config_for_the_fake_gpu_host_is_that_of_a_cpu_engine(name: str, tmp_path: Path) -> None:
    shipped, here = load_config(name), load_config(write_config(tmp_path, name))
    assert here.merge_env("cuda") == shipped.merge_env("cpu")
    assert here.merge_kv_transfer("cuda") == shipped.merge_kv_transfer("cpu")
    assert here.requires_on("cuda") == shipped.requires_on("cpu")
    assert here.preflight == shipped.preflight
