"""The engines of one cell: all of them fresh, and all gone when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launch.command import count_ports_needed
from launch.gpu_devices import VISIBLE, name_devices
from launch.instance import Instance
from launch.ports import LOOPBACK
from results.records.decisions import Role
from results.records.layout import ConfigLayout
from runners.campaign.engine_launcher import Launcher, retry_start


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one engine publishes its KV cache events."""

    endpoint: str
    """The engine connects to it; the listener binds it."""
    replay_endpoint: str
    """The engine binds it and replays events that the listener missed."""


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of a group."""

    name: str
    """`e0`, `e1`, ...: the same in every cell, unlike the journal's name of the engine."""
    role: Role
    engine: Instance
    layout: ConfigLayout
    events: EventSource | None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    configs: tuple[str, ...]
    roles: tuple[Role, ...]
    """Both one per engine."""
    folder: Path
    """Has a folder for each engine's files, with the engine's name."""
    ports: int
    """Consecutive ones per engine: its config's, then two for its KV events where they are read."""
    events: bool
    gpus: int
    """0 = every engine has its own; else the engines share this many in turn."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to every engine's environment."""
    transfer_log: bool = False
    """The engines also write what happens to KV on its way (docs/probe.md)."""
    args: tuple[str, ...] = ()
    """Last arguments of every engine."""
    decode_args: tuple[str, ...] = ()
    """After them, those of the engines that only decode."""


@asynccontextmanager
async def engine_group(launcher: Launcher, plan: GroupPlan) -> AsyncIterator[tuple[Member, ...]]:
    """Fresh engines, all ready; all are ended on exit, cancellation included. Raises LaunchError."""
    members = await retry_start(lambda: _start_group(launcher, plan))
    try:
        yield members
    finally:
        await asyncio.shield(_stop_engines(launcher, [member.engine for member in members], "the cell is over"))


async def _start_group(launcher: Launcher, plan: GroupPlan) -> tuple[Member, ...]:
    """Start all at once; those that share GPUs one by one, since each takes its part of the free memory.

    Where one fails, all are ended.
    """
    turn = asyncio.Semaphore(1 if plan.gpus else len(plan.roles))
    launches = [asyncio.create_task(_launch_member(launcher, plan, index, turn)) for index in range(len(plan.roles))]
    try:
        return tuple(await asyncio.gather(*launches))
    except BaseException:
        for launch in launches:
            launch.cancel()
        ended = await asyncio.gather(*launches, return_exceptions=True)
        started = [member.engine for member in ended if isinstance(member, Member)]
        await asyncio.shield(_stop_engines(launcher, started, "another engine of the group did not start"))
        raise


async def _launch_member(launcher: Launcher, plan: GroupPlan, index: int, turn: asyncio.Semaphore) -> Member:
    name, layout = f"e{index}", ConfigLayout(plan.folder / f"e{index}")
    port = launcher.profile.launch.port_base + index * plan.ports
    first = port + count_ports_needed(launcher.configs[plan.configs[index]])
    events = EventSource(*(f"tcp://{LOOPBACK}:{first + i}" for i in range(2))) if plan.events else None
    async with turn:
        engine = await launcher.launch(
            plan.configs[index],
            layout,
            port,
            transfer_log=plan.transfer_log,
            prefix=name,
            extra_args=(
                *(() if events is None else ("--kv-events-config", _make_event_settings(events))),
                *plan.args,
                *(plan.decode_args if plan.roles[index] == "decode" else ()),
            ),
            extra_env={**plan.env, **_device_env(launcher, plan, index)},
        )
    return Member(name, plan.roles[index], engine, layout, events)


async def _stop_engines(launcher: Launcher, engines: Sequence[Instance], reason: str) -> None:
    results = await asyncio.gather(*(launcher.stop(engine, reason) for engine in engines), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _make_event_settings(events: EventSource) -> str:
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events.endpoint,
            "replay_endpoint": events.replay_endpoint,
            "topic": "kv-events",
        }
    )


def _device_env(launcher: Launcher, plan: GroupPlan, index: int) -> dict[str, str]:
    """The GPUs of one engine: `tensor_parallel_size` of them, one set after the other."""
    if launcher.profile.engine.kind != "cuda":
        return {}
    size = launcher.profile.engine.tensor_parallel_size
    first = index * size
    devices = [(first + i) % plan.gpus if plan.gpus else first + i for i in range(size)]
    return {VISIBLE: name_devices(devices)}
