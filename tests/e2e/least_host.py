"""Three engines on the least host that Tracon runs on, driven in a process that `test_least_host` has bound so."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import psutil

from launch.command import build_launch
from launch.environment import Engine, find_engine
from launch.host import read_limits
from launch.instance import Instance
from launch.local import LocalBackend
from launch.patching import PatchUse
from launch.profile import Profile, load_config
from results.records.layout import ConfigLayout
from runners.cli import place_caches
from tests.e2e.engine_pair import BLOCK, NAMES, PROFILE, Pair, draw
from tests.e2e.test_transfer import transport
from tests.launch.engines import ignore_start
from tests.ports import own_port

PREFIX = 16 * BLOCK
OLDER_CPU = {
    "PYTHONPATH": str(Path(__file__).with_name("older_cpu")),
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}
READY_S = 150.0


def profile_without_avx512() -> Profile:
    engine = msgspec.structs.replace(PROFILE.engine, env={**PROFILE.engine.env, **OLDER_CPU})
    return msgspec.structs.replace(PROFILE, engine=engine)


async def drive(folder: Path, engine_python: Path | None) -> dict[str, Any]:
    """Ask a plain engine, move a prefix between two by Mooncake; what was seen of each."""
    place_caches()
    profile, engine = profile_without_avx512(), find_engine("cpu", engine_python)
    patches = PatchUse(engine)
    patches.apply()
    async with LocalBackend(engine) as backend:
        pair = Pair(backend, engine, folder, kv_tokens=16384, profile=profile)
        await pair.ready("mooncake")
        prompt = draw(PREFIX)
        asked = prompt + draw(40)
        fields: dict[str, Any] = {"max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
        here = await pair.complete("h", asked, **fields)
        async with transport(pair) as bench:
            transfer = await bench.migrate(asked)
        there = await pair.complete("t", asked, **fields)
        plain = await start_plain(backend, profile, engine, folder / "plain")
        pair.running["plain"] = plain
        alone = await pair.complete("plain", asked, **fields)
        instances = {name: pair.running[name] for name in (*NAMES, "plain")}
        return {
            "transfer": {"status": transfer.status, "reason": transfer.reason, "tokens": transfer.external_tokens},
            "answers": [answer["choices"][0]["token_ids"] for answer in (here, there, alone)],
            "kernels": {name: sorted(kernels(instance)) for name, instance in instances.items()},
            "caches": [environment_of(instance)["XDG_CACHE_HOME"] for instance in instances.values()],
            "users": [psutil.Process(instance.pid).uids().effective for instance in instances.values()],
            "capabilities": [capabilities(instance) for instance in instances.values()],
            "patches": patches.revert().reason,
            "limits": asdict(read_limits()),
            "cores": {name: len(os.sched_getaffinity(instance.pid)) for name, instance in instances.items()},
        }


async def start_plain(backend: LocalBackend, profile: Profile, engine: Engine, folder: Path) -> Instance:
    spec = build_launch(
        profile, load_config("plain"), engine,
        instance="plain", port=own_port(23_500, 2), layout=ConfigLayout(folder), launch=1,
    )  # fmt: skip
    instance = await backend.start(spec, ignore_start)
    await instance.wait_ready(READY_S)
    return instance


def environment_of(instance: Instance) -> dict[str, str]:
    return psutil.Process(instance.pid).environ() | dict(instance.spec.env)


def capabilities(instance: Instance) -> int:
    """The effective ones, as a mask; 0 = none of root's rights."""
    status = Path(f"/proc/{instance.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)


def kernels(instance: Instance) -> set[str]:
    """File names of vLLM's kernel builds that the engine's processes have loaded."""
    main = psutil.Process(instance.pid)
    maps = (Path(f"/proc/{process.pid}/maps").read_text() for process in (main, *main.children(recursive=True)))
    paths = {line.split()[-1] for text in maps for line in text.splitlines() if "/vllm/_C" in line}
    return {Path(path).name.partition(".")[0] for path in paths}


if __name__ == "__main__":
    scratch = Path(sys.argv[1])
    scratch.mkdir()
    print(json.dumps(asyncio.run(drive(scratch, Path(sys.argv[2]) if len(sys.argv) > 2 else None))))
