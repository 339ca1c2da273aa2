"""CPU engines as Tracon starts them: nothing compiles on a request's path, and the process with the model asks for AMX.

Each engine starts with an empty TorchInductor cache, as on a fresh machine.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from launch.command import build_launch
from launch.environment import Engine, find_engine
from launch.instance import make_http_client
from launch.instruction_sets import kernel_grants_amx, read_flags
from launch.local import LocalBackend
from launch.profile import Profile, list_config_names, load_config, load_profile
from results.records.layout import ConfigLayout
from tests.launch.engines import ignore_start, pid_with_model
from tests.ports import own_port

pytestmark = [
    pytest.mark.engine, pytest.mark.timing, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("patches"),
]  # fmt: skip

PROFILE = load_profile("cpu-tiny")
START_S = 180.0
FOLLOWING = 6
"""Requests of each kind after its first; their median stands for the second."""
MOST = 10.0
"""The first request of a kind takes at most this many times as long as those that follow."""

_AMX = re.compile(r"\[tracon\] AMX tiles: (.+) \(pid (\d+)\)")


def own_profile(method: str) -> Profile:
    """What a user's profile may hold: no `enforce_eager`, and the worker in a process of its own."""
    return msgspec.structs.replace(
        PROFILE,
        engine=msgspec.structs.replace(PROFILE.engine, enforce_eager=False),
        launch=msgspec.structs.replace(PROFILE.launch, method=method, executor="mp"),
    )


LAUNCHES: Mapping[str, tuple[Profile, str]] = {
    **{name: (PROFILE, name) for name in list_config_names()},
    "own-fork_server-mp": (own_profile("fork_server"), "plain"),
    "own-spawn-mp": (own_profile("spawn"), "plain"),
}
Kind = tuple[str, bool]
KINDS: tuple[Kind, ...] = (("completions", False), ("completions", True), ("chat", False), ("chat", True))
"""Which API, and whether log probabilities are requested."""


@dataclass(frozen=True, slots=True)
class Observed:
    name: str
    took_s: Mapping[Kind, tuple[float, ...]]
    """Of each kind's requests, in order; the first without the time for which a thread of the engine had no core.

    The kinds follow one another on one engine, so that only one kind's first is the engine's own first request.
    """
    compiled: tuple[str, ...]
    """Files in the caches of TorchInductor and of vLLM's compilation at the end."""
    log: str

    @property
    def slow(self) -> dict[Kind, tuple[float, ...]]:
        return {kind: took for kind, took in self.took_s.items() if took[0] > MOST * statistics.median(took[1:])}


def request_of(kind: Kind, number: int) -> tuple[str, dict[str, Any]]:
    """Path and body; no two numbers share a first block."""
    api, logprobs = kind
    body: dict[str, Any] = {
        "model": PROFILE.model.served_name, "max_tokens": 4, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    if api == "completions":
        ranked = {"logprobs": 5} if logprobs else {}
        return "/v1/completions", {**body, **ranked, "prompt": [number, *range(16)]}
    ranked = {"logprobs": True, "top_logprobs": 5} if logprobs else {}
    return "/v1/chat/completions", {**body, **ranked, "messages": [{"role": "user", "content": f"{number} more"}]}


def read_run_delays(pid: int) -> dict[int, int]:
    """For each thread of the engine, nanoseconds for which it was ready to run and had no core."""
    delays: dict[int, int] = {}
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for task in Path(f"/proc/{process.pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # the thread has ended
                delays[int(task.name)] = int((task / "schedstat").read_text().split()[1])
    return delays


def longest_delay_s(before: Mapping[int, int], after: Mapping[int, int]) -> float:
    """Of the threads that were there before and after: what a busy host adds to a request, at least."""
    return max((after[thread] - before[thread] for thread in before.keys() & after), default=0) / 1e9


async def observe(
    backend: LocalBackend, engine: Engine, name: str, folder: Path, vllm_cache: Path, later: int = 0
) -> Observed:
    """Start the engine and send it every kind of request; each launch begins with another kind.

    `later`: begin that many kinds further on.

    `vllm_cache` is shared: with an empty one vLLM inspects the model in a process that imports everything.
    """
    profile, config = LAUNCHES[name]
    caches = (folder / "inductor", vllm_cache / "torch_compile_cache")
    caches[0].mkdir(parents=True)
    spec = build_launch(
        profile, load_config(config), engine,
        instance=f"{name}-1", port=own_port(24_000, 2), layout=ConfigLayout(folder), launch=1,
        extra_env={"TORCHINDUCTOR_CACHE_DIR": str(caches[0]), "VLLM_CACHE_ROOT": str(vllm_cache)},
    )  # fmt: skip
    begin = (list(LAUNCHES).index(name) + later) % len(KINDS)
    times_of: dict[Kind, tuple[float, ...]] = {}
    instance = await backend.start(spec, ignore_start)
    try:
        await instance.wait_ready(START_S)
        async with make_http_client(instance.url) as client:
            for index, kind in enumerate((*KINDS[begin:], *KINDS[:begin])):
                times = []
                for number in range(1 + FOLLOWING):
                    path, body = request_of(kind, index * (1 + FOLLOWING) + number)
                    waited, began = read_run_delays(instance.pid), time.perf_counter()
                    answer = await client.post(path, json=body, timeout=120.0)
                    took_s = time.perf_counter() - began
                    times.append(took_s if number else took_s - longest_delay_s(waited, read_run_delays(instance.pid)))
                    assert answer.status_code == 200, answer.text
                    assert (answer.json()["choices"][0]["logprobs"] is not None) == kind[1]
                times_of[kind] = tuple(times)
    finally:
        await instance.stop(2.0, 0.0)
    files = (path for cache in caches for path in cache.rglob("*"))
    compiled = tuple(str(path) for path in files if path.is_file())
    return Observed(name, times_of, compiled, instance.log())


@pytest.fixture(scope="module")
def vllm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm_cache")


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=list(LAUNCHES))
async def observed(
    request: pytest.FixtureRequest, backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory, vllm_cache: Path
) -> Observed:
    folder = tmp_path_factory.mktemp("first") / "engine"
    seen = await observe(backend, find_engine("cpu"), request.param, folder, vllm_cache)
    for (api, logprobs), took in seen.took_s.items():
        print(f"{seen.name} {api}{' with logprobs' * logprobs}: ms", *(f"{1e3 * one:.1f}" for one in took))
    return seen


async def test_the_first_request_of_every_kind_is_not_slow(observed: Observed) -> None:
    assert observed.slow == {}


@pytest.mark.long
@pytest.mark.parametrize("later", range(1, len(KINDS)))
@pytest.mark.parametrize("name", LAUNCHES)
async def test_an_engine_may_begin_with_a_request_of_any_kind(
    name: str, later: int, backend: LocalBackend, tmp_path: Path, vllm_cache: Path
) -> None:
    seen = await observe(backend, find_engine("cpu"), name, tmp_path / "engine", vllm_cache, later)
    assert seen.slow == {}


async def test_the_model_has_run_before_the_first_request(observed: Observed) -> None:
    ran = re.findall(r"\[tracon\] the model has run once before the first request \(pid (\d+)\)", observed.log)
    assert list(map(int, ran)) == [pid_with_model(observed.log)]


async def test_no_request_compiles(observed: Observed) -> None:
    assert observed.compiled == ()


async def test_the_process_that_runs_the_model_has_asked_for_amx(observed: Observed) -> None:
    outcomes = {int(pid): outcome for outcome, pid in _AMX.findall(observed.log)}
    granted = "amx_tile" in read_flags() and kernel_grants_amx()
    assert (outcomes[pid_with_model(observed.log)] == "granted") == granted
