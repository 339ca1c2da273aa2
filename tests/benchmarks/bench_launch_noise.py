"""How much launches of plain alone differ from one another, and which suspected cause is behind it.

    python -m tests.benchmarks.bench_launch_noise [--launches 20] [--cause cores] [--cause first_touch] [--rate 10]
                                                  [--loads 1] [--input 512] [--output 32] [--seconds 5] [--seed 1]
                                                  [--json]

Prints the standard deviation between launches (sigma) of the logarithm of TTFT and TPOT, p50 and p90, at the load of
the preset `demo`, with its 95 % interval, a sigma that outliers do not move, and the geometric mean. Each `--cause` is
measured beside the baseline and changes one thing only; in every block each variant has one launch, in a random order.
Run it on a machine at rest: it says first whether that is so. A launch takes about 12 s with a fork server, 30 s
without.

With `--loads N` each engine is measured N times in a row, with other prompts. Then sigma is split: what two loads of
one engine differ by is no property of the launch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import stdev

import msgspec
import numpy as np
import psutil
from scipy import special

from launch.command import build_launch, write_launch
from launch.environment import Engine, find_engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.profile import Profile, load_config, load_profile
from results.measures.latency import TPOT, TTFT
from results.records.layout import ConfigLayout
from results.records.load_specs import LoadSpec
from results.records.schemas import RequestRecord
from runners.load.process import run_load
from runners.samplers.rest import explain_unrest, read_rest
from tests.launch.engines import ignore_start
from tests.ports import own_port

WARMUP_S = 1.0
POINTS = {"p50": 0.5, "p90": 0.9}
CHI_SQUARE_TAIL = 0.025
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The baseline with one thing changed."""

    name: str
    what: str
    spawn: bool = False
    """Each engine from scratch, without the fork server."""
    env: Mapping[str, str] = field(default_factory=dict)
    split_cores: bool = False
    """The engine on the first half of the cores, the client on the others."""
    own_core: bool = False
    """The engine core on a core of its own; the API server and the client on the others."""
    step_thread: bool = False
    """The thread that runs the engine's steps stays on one core; every other thread runs where it likes."""
    touch_first: bool = False
    """The same load with other prompts once before the measured one: its memory is mapped, its caches are warm."""
    windows: int = 1
    """The measured window is as many times as long."""


BASELINE = Variant("baseline", "launched and loaded as `tracon run` does")
CAUSES = {
    variant.name: variant
    for variant in (
        Variant("cores", "engine and client on separate cores", split_cores=True),
        Variant("engine_core", "the engine core alone on a core, API server and client on the others", own_core=True),
        Variant("step_thread", "the thread of the engine's steps stays on one core", step_thread=True),
        Variant("first_touch", "a whole load before the measured one", touch_first=True),
        Variant("window", "three times the requests: what is left of sigma is no sampling", windows=3),
        Variant("spawn", "each engine from scratch, random hash seed", spawn=True),
        Variant(
            "spawn_hash_seed", "each engine from scratch, PYTHONHASHSEED=0", spawn=True, env={"PYTHONHASHSEED": "0"}
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Options:
    launches: int
    loads: int
    rate_per_s: float
    input_tokens: int
    output_tokens: int
    seconds: float
    seed: int


def sigma_between(values: Sequence[float]) -> tuple[float, float, float]:
    """Standard deviation of the logarithms with its 95 % interval (chi-square), from at least two positive values."""
    sigma, degrees = stdev(map(math.log, values)), len(values) - 1
    low, high = (sigma * math.sqrt(degrees / special.chdtri(degrees, tail)) for tail in _TAILS)
    return sigma, float(low), float(high)


_TAILS = (CHI_SQUARE_TAIL, 1 - CHI_SQUARE_TAIL)
"""Upper-tail probabilities of the chi-square quantiles behind the lower and the upper bound."""


def split_sigma(launches: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Sigma of the logarithm between launches and between loads of one launch, by analysis of variance.

    Every launch has the same number of loads, at least two. The first is 0 where launches differ no more than their
    loads explain.
    """
    logs = np.log(np.asarray(launches))
    loads = logs.shape[1]
    within = float(logs.var(axis=1, ddof=1).mean())
    between = float(logs.mean(axis=1).var(ddof=1)) - within / loads
    return math.sqrt(max(0.0, between)), math.sqrt(within)


def read_percentiles(requests: Path) -> dict[str, float]:
    """`TTFT p50` .. `TPOT p90` (seconds) of the requests due after the warm-up that completed."""
    rows = msgspec.json.Decoder(RequestRecord).decode_lines(requests.read_bytes())
    numbers: dict[str, float] = {}
    for metric in (TTFT, TPOT):
        values = [metric.value(*(getattr(row, name) for name in metric.reads)) for row in rows if not row.warmup]
        known = [value for value in values if value is not None]
        numbers |= {f"{metric.title} {point}": float(np.quantile(known, p)) for point, p in POINTS.items()}
    return numbers


async def measure_launch(
    backend: LocalBackend,
    profile: Profile,
    engine: Engine,
    variant: Variant,
    number: int,
    options: Options,
    folder: Path,
) -> list[dict[str, float]]:
    """One launch of plain under the load, and the percentiles of each time."""
    layout = ConfigLayout(folder / f"{variant.name}_{number}")
    layout.root.mkdir(parents=True)
    spec = build_launch(
        profile, load_config("plain"), engine, instance=f"plain-{number}", port=own_port(18_600), layout=layout,
        launch=number, extra_env=variant.env,
    )  # fmt: skip
    write_launch(spec, layout)
    everywhere = os.sched_getaffinity(0)
    instance = await backend.start(spec, ignore_start)
    try:
        await instance.wait_ready(profile.launch.ready_timeout_s)
        if variant.split_cores:
            _split_cores(instance, sorted(everywhere))
        if variant.own_core:
            _give_own_core(instance, sorted(everywhere))
        if variant.step_thread:
            os.sched_setaffinity(_find_engine_core(instance).pid, sorted(everywhere)[-1:])
        if variant.touch_first:
            await _load(instance, profile, options, layout.requests("touch", "first"), cell_index=2 * number)
        measured = replace(options, seconds=variant.windows * options.seconds)
        percentiles = []
        for load in range(options.loads):
            requests = layout.requests("A", f"measured_{load}")
            await _load(instance, profile, measured, requests, cell_index=2 * (number + load * options.launches) + 1)
            percentiles.append(read_percentiles(requests))
        return percentiles
    finally:
        os.sched_setaffinity(0, everywhere)
        await instance.stop(profile.launch.stop_grace_s, profile.launch.release_wait_s)


async def _load(instance: Instance, profile: Profile, options: Options, requests: Path, cell_index: int) -> None:
    spec = LoadSpec(
        url=instance.url, model=profile.model.served_name, requests_path=str(requests), seed=options.seed,
        cell_index=cell_index, rate_per_s=options.rate_per_s, input_tokens=options.input_tokens,
        output_tokens=options.output_tokens, warmup_s=WARMUP_S, min_duration_s=options.seconds, min_completed=1,
        max_duration_s=3 * options.seconds, vocab_low=profile.model.vocab_low, vocab_high=profile.model.vocab_high,
    )  # fmt: skip
    await run_load(spec, lambda tick: None)


def _split_cores(instance: Instance, cores: Sequence[int]) -> None:
    """Every thread of the engine on the first half; this process, and so the load process, on the others."""
    if len(cores) < 2 or instance.pid is None:
        raise SystemExit("--cause cores needs two cores")
    half = len(cores) // 2
    engine = psutil.Process(instance.pid)
    _bind([engine, *engine.children(recursive=True)], cores[:half])
    os.sched_setaffinity(0, cores[half:])


def _give_own_core(instance: Instance, cores: Sequence[int]) -> None:
    """The last core to the process that runs the steps; all that serves and measures it on the others."""
    if len(cores) < 2:
        raise SystemExit("--cause engine_core needs two cores")
    _bind([_find_engine_core(instance)], cores[-1:])
    _bind([psutil.Process(instance.pid)], cores[:-1])
    os.sched_setaffinity(0, cores[:-1])


def _find_engine_core(instance: Instance) -> psutil.Process:
    """The process whose main thread runs the steps: with the executor "uni" the only child."""
    children = psutil.Process(instance.pid).children(recursive=True)
    if len(children) != 1:
        raise SystemExit(f"{len(children)} processes below {instance.pid}, expected the engine core alone")
    return children[0]


def _bind(processes: Sequence[psutil.Process], cores: Sequence[int]) -> None:
    for process in processes:
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


Launches = list[list[dict[str, float]]]
"""Percentiles of each load of each launch."""


async def measure(variants: Sequence[Variant], options: Options, folder: Path) -> dict[str, Launches]:
    """Launches by variant."""
    profile = load_profile("cpu-tiny")
    spawning = msgspec.structs.replace(profile, launch=msgspec.structs.replace(profile.launch, method="spawn"))
    engine, draw = find_engine(profile.engine.kind), random.Random(options.seed)
    measured: dict[str, Launches] = {variant.name: [] for variant in variants}
    async with AsyncExitStack() as stack:
        backends = {
            one.launch.method: (await stack.enter_async_context(LocalBackend(engine)), one)
            for one in (profile, spawning)
        }
        for number in range(1, options.launches + 1):
            for variant in draw.sample(variants, len(variants)):
                backend, used = backends["spawn" if variant.spawn else profile.launch.method]
                measured[variant.name].append(
                    await measure_launch(backend, used, engine, variant, number, options, folder)
                )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--launches", type=int, default=20, help="per variant, at least 2 (default 20)")
    parser.add_argument(
        "--cause", action="append", choices=sorted(CAUSES), default=[], help="measured beside the baseline"
    )
    parser.add_argument("--loads", type=int, default=1, help="of each engine, one after the other (default 1)")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (default 10)")
    parser.add_argument("--input", type=int, default=512, help="prompt tokens (default 512)")
    parser.add_argument("--output", type=int, default=32, help="output tokens (default 32)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured window (default 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print data only")
    given = parser.parse_args()
    if given.launches < 2:
        parser.error("sigma needs at least two launches")
    options = Options(given.launches, given.loads, given.rate, given.input, given.output, given.seconds, given.seed)
    variants = (BASELINE, *(CAUSES[name] for name in dict.fromkeys(given.cause)))
    unrest = explain_unrest(read_rest(), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(variants, options, Path(folder)))
    if given.json:
        print(json.dumps({"unrest": unrest, "launches": measured}, indent=1))
        return
    print(unrest or "The host is at rest.")
    for variant in variants:
        print(f"{variant.name}: {variant.what}, {options.launches} launches")
        for name in measured[variant.name][0][0]:
            launches = [[load[name] for load in launch] for launch in measured[variant.name]]
            values = [launch[0] for launch in launches]
            sigma, low, high = sigma_between(values)
            logs = np.log(values)
            middle = 1e3 * float(np.exp(logs.mean()))
            robust = MAD_TO_SIGMA * float(np.median(np.abs(logs - np.median(logs))))
            print(f"  {name}: {middle:.3f} ms, sigma {sigma:.3f} [{low:.3f}, {high:.3f}], robust {robust:.3f}")
            if options.loads > 1:
                between, within = split_sigma(launches)
                print(f"    between launches {between:.3f}, between loads of one launch {within:.3f}")


if __name__ == "__main__":
    main()
