"""Every config on a real vLLM: its connector does its work, or it does not pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from launch.command import build_launch, write_launch
from launch.environment import Engine, find_engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.preflight import GateResult, verify
from launch.profile import ConnectorConfig, list_config_names, load_config, load_profile
from results.records.layout import ConfigLayout
from tests.launch.engines import ignore_start
from tests.launch.listening import open_beyond_loopback
from tests.ports import own_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

PROFILE = load_profile("cpu-tiny")
START_S = 240.0


@asynccontextmanager
async def running(
    backend: LocalBackend, engine: Engine, config: ConnectorConfig, folder: Path
) -> AsyncIterator[Instance]:
    layout = ConfigLayout(folder)
    spec = build_launch(
        PROFILE, config, engine,
        instance=folder.name, port=own_port(23_000, 2), layout=layout, launch=1, preflight=True,
    )  # fmt: skip
    write_launch(spec, layout)
    instance = await backend.start(spec, ignore_start)
    try:
        await instance.wait_ready(START_S)
        yield instance
    finally:
        await instance.stop(PROFILE.launch.stop_grace_s, 0.0)


async def verified(
    backend: LocalBackend, engine: Engine, config: ConnectorConfig, folder: Path
) -> tuple[GateResult, set[int], int | None]:
    """What pre-flight says, the ports that were open to other machines, and that of Mooncake's bootstrap server."""
    async with running(backend, engine, config, folder / config.name) as instance:
        result = await verify(
            instance,
            config,
            PROFILE,
            folder / f"verify_{config.name}.log",
            lambda: running(backend, engine, config, folder / f"{config.name}-counterpart"),
        )
        assert instance.pid is not None
        return result, open_beyond_loopback(instance.pid), instance.ports.get("VLLM_MOONCAKE_BOOTSTRAP_PORT")


async def test_every_config_proves_its_connector_and_mooncake_alone_listens_for_other_machines(
    backend: LocalBackend, patches: None, tmp_path: Path
) -> None:
    """docs/security.md, "What listens where", is about the ports."""
    engine = find_engine("cpu")
    verifications = [await verified(backend, engine, load_config(name), tmp_path) for name in list_config_names()]
    results = [result for result, _, _ in verifications]
    assert {result.config: result.reason for result in results} == dict.fromkeys(list_config_names(), "")
    proofs = {result.config: [c.detail for c in result.checks if c.name.startswith("proof")] for result in results}
    for name in ("mooncake_both", "multi_mooncake_lmcache", "lmcache_only"):
        assert any(" of 4096 tokens " in detail for detail in proofs[name]), name
        assert all("same answer as computed" in detail for detail in proofs[name]), name
    assert "bytes) from the counterpart" in proofs["nixl_both"][0]
    assert "same answer as computed" in proofs["nixl_both"][0]
    for result, ports, bootstrap in verifications:
        assert bool(ports) == (bootstrap is not None), (result.config, ports)
        has_bootstrap = bootstrap is not None and result.config != "mooncake_consumer"  # it asks that of its producer
        assert not has_bootstrap or bootstrap in ports, (result.config, ports)
