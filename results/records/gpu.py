"""What the GPUs did while cells were measured: clocks, power, temperature, memory, and what limited their clocks.

A GPU that is hot or at its power limit runs slower, whatever connector is measured on it.
`runners/samplers/gpu.py` samples into `gpu.csv` once a second; each experiment cuts the samples of its cells from it.
The files cover every GPU of the host; sums and sentences cover only those that engines of the run use.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from statistics import fmean, median

from results.records.declaration import decode_csv
from results.records.percent import format_percent

REASON_MARK = "# "
"""Prefix of the line that says why the file has no samples."""
NAMED_CELLS = 5
UNLIMITED = "none"
"""The `limited_by` of a GPU whose clocks nothing limits."""
IDLE_MIB = 1024
"""A GPU that no process uses shows less memory in use."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A sample of one GPU; the file holds its header, and a line with the reason, where no GPU answers.

    None = the GPU does not state it, or the file is of a version that did not ask.
    """

    t_ns: int
    """When the sample was requested."""
    gpu: int
    """Index of the GPU, as NVML and nvidia-smi count."""
    utilisation_percent: float | None
    """Share of the last sample period with a kernel running; a GPU that is divided (MIG) does not state it."""
    memory_used_mib: float
    """Memory in use."""
    clock_mhz: float | None = None
    """Clock of its multiprocessors."""
    memory_clock_mhz: float | None = None
    """Clock of its memory."""
    power_w: float | None = None
    """Drawn by the board."""
    temperature_c: float | None = None
    """Temperature of the GPU, in degrees Celsius."""
    memory_total_mib: float | None = None
    """All of the GPU's memory."""
    limited_by: str | None = None
    """What limits its clocks, in NVML's words, joined by `+`; `none` = nothing does."""
    cell: str | None = None
    """The cell that was measured."""
    engines: int | None = None
    """Engines of the run that use it, a count; 0 = none: the run's numbers leave it out. None = not known."""
    others_mib: float | None = None
    """Memory in use that processes of the run do not hold: a part of below 1024 is the driver's. None = not known: the
    driver lists no process of the run on the GPU, as in a container without the host's pids."""


HEADER = tuple(one.name for one in fields(GpuSample))


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Summary of a cell's samples, over the GPUs that engines of the run used. None = not measured."""

    gpus: tuple[int, ...] = ()
    """Indices of these GPUs."""
    utilisation: float | None = None
    """0..1, the mean over all samples that state it."""
    memory_used_mib: float | None = None
    """The largest sum over these GPUs."""
    clock_mhz: float | None = None
    """The mean over all samples that state it."""
    power_w: float | None = None
    """Power of one GPU, the mean over all samples that state it."""
    temperature_c: float | None = None
    """The highest."""
    limited: Mapping[str, float] = field(default_factory=dict)
    """What limited clocks, with its share (0..1) of the samples; empty = nothing did, or not stated."""
    reason: str = ""
    """Why nothing was measured; empty where it was."""


@dataclass(frozen=True, slots=True)
class GpuLog:
    """A `gpu.csv`."""

    samples: tuple[GpuSample, ...]
    reason: str
    """Why there are none; empty where there are."""


def is_of_run(sample: GpuSample) -> bool:
    """Whether engines of the run use the GPU; true where that is not known."""
    return sample.engines != 0


def read_gpu_log(path: Path) -> GpuLog:
    """The samples of a file of this or an older version. A line that was cut short is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return GpuLog((), f"{path.name}: {error.strerror or error}")
    reasons = [line.removeprefix(REASON_MARK) for line in lines if line.startswith(REASON_MARK)]
    samples = decode_csv((line for line in lines if not line.startswith(REASON_MARK)), GpuSample)
    return GpuLog(samples, "" if samples else (reasons[-1] if reasons else "no GPU gave a sample"))


def describe_gpu(sample: GpuSample) -> str:
    """`GPU 0 98 % 1755 MHz 412 W 65 °C 60.5 GiB, power cap`; values that it does not state are left out."""
    parts = [f"GPU {sample.gpu}"]
    parts += [] if sample.utilisation_percent is None else [f"{sample.utilisation_percent:.0f} %"]
    parts += [] if sample.clock_mhz is None else [f"{sample.clock_mhz:.0f} MHz"]
    parts += [] if sample.power_w is None else [f"{sample.power_w:.0f} W"]
    parts += [] if sample.temperature_c is None else [f"{sample.temperature_c:.0f} °C"]
    parts += [f"{sample.memory_used_mib / 1024:.1f} GiB"]
    limited = "" if sample.limited_by in (None, UNLIMITED) else f", {sample.limited_by}"
    return f"{' '.join(parts)}{limited}"


def format_sample(sample: GpuSample) -> list[str]:
    """The row of a sample; a cell that is not known is empty."""
    return ["" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            for value in astuple(sample)]  # fmt: skip


def cut_gpu_log(log: Path, cell: str, start_ns: int, end_ns: int, into: Path) -> GpuUse:
    """Write the samples of a cell between two moments, or why there are none, to a file, and return their sum."""
    read = read_gpu_log(log)
    samples = tuple(one for one in read.samples if one.cell == cell and start_ns <= one.t_ns <= end_ns)
    reason = "" if samples else read.reason or "no GPU was sampled while the cell was measured"
    into.parent.mkdir(parents=True, exist_ok=True)
    with into.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(HEADER)
        rows.writerows(map(format_sample, samples))
        if reason:
            file.write(f"{REASON_MARK}{reason}\n")
    return _sum_samples(samples, reason)


def _sum_samples(samples: Sequence[GpuSample], reason: str) -> GpuUse:
    """Over the GPUs that engines used. `reason`: why there are no samples."""
    own = [one for one in samples if is_of_run(one)]
    if not own:
        return GpuUse(reason=reason or "no engine of the run used a GPU")
    busy = _average_stated(one.utilisation_percent for one in own)
    used: Counter[int] = Counter()
    for one in own:
        used[one.t_ns] += round(one.memory_used_mib)
    return GpuUse(
        gpus=tuple(sorted({one.gpu for one in own})),
        utilisation=None if busy is None else busy / 100,
        memory_used_mib=float(max(used.values())),
        clock_mhz=_average_stated(one.clock_mhz for one in own),
        power_w=_average_stated(one.power_w for one in own),
        temperature_c=max((one.temperature_c for one in own if one.temperature_c is not None), default=None),
        limited=_compute_limit_shares(own),
    )


def note_gpus(path: Path, engine_kind: str) -> tuple[str, ...]:
    """Sentences for a report: what each GPU of the run's engines did, and in which cells its clocks were limited.

    Empty where there is no file, and where the engines need no GPU and used none.
    """
    if not path.exists():
        return ()
    log = read_gpu_log(path)
    if not log.samples:
        return (f"No GPU was sampled: {log.reason}.",) if engine_kind == "cuda" else ()
    own = [one for one in log.samples if is_of_run(one)]
    if not own:
        return ("No GPU was sampled while an engine of this run used it.",) if engine_kind == "cuda" else ()
    gpus: dict[int, list[GpuSample]] = {}
    for one in own:
        gpus.setdefault(one.gpu, []).append(one)
    return (
        *(_describe_gpu(gpu, samples) for gpu, samples in sorted(gpus.items())),
        *_describe_unused(log.samples, gpus.keys()),
        *_describe_other_processes(gpus),
        *_name_limited_cells(own),
    )


def _describe_unused(samples: Iterable[GpuSample], used: Collection[int]) -> tuple[str, ...]:
    """Which GPUs of the host the sentences leave out, or that none could be left out."""
    others = sorted({one.gpu for one in samples} - set(used))
    if others:
        named = f"GPU{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        return (
            f"No engine of this run used {named} of this host: `gpu.csv` has the samples, and no number here includes "
            "them.",
        )
    if len(used) > 1 and any(one.engines is None for one in samples):
        return ("Which of these GPUs the run's engines used is not recorded: numbers of GPUs are of all of them.",)
    return ()


def _describe_other_processes(gpus: Mapping[int, Sequence[GpuSample]]) -> Iterator[str]:
    """Processes of others on the GPUs that the run's engines used."""
    unknown = []
    for gpu, samples in sorted(gpus.items()):
        stated = [one.others_mib for one in samples if one.others_mib is not None]
        held = [mib for mib in stated if mib > IDLE_MIB]
        if held:
            yield (
                f"Other processes held up to {max(held) / 1024:.1f} GiB of GPU {gpu} in "
                f"{format_percent(len(held) / len(stated))} of the seconds: they can have slowed its cells."
            )
        elif not stated:
            unknown.append(str(gpu))
    if unknown:
        named = f"GPU{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        yield f"Whether other processes used {named} is not recorded."


def _describe_gpu(gpu: int, samples: Sequence[GpuSample]) -> str:
    busy = _average_stated(one.utilisation_percent for one in samples)
    parts = [] if busy is None else [f"busy {busy:.0f} % of the time"]
    clocks = [one.clock_mhz for one in samples if one.clock_mhz is not None]
    if clocks:
        parts.append(f"clock {median(clocks):.0f} MHz in the median, {min(clocks):.0f} at the lowest")
    watts = [one.power_w for one in samples if one.power_w is not None]
    if watts:
        parts.append(f"{fmean(watts):.0f} W in the mean, {max(watts):.0f} at the most")
    degrees = [one.temperature_c for one in samples if one.temperature_c is not None]
    if degrees:
        parts.append(f"at most {max(degrees):.0f} °C")
    used = max(samples, key=lambda one: one.memory_used_mib)
    total = "" if used.memory_total_mib is None else f" of {used.memory_total_mib / 1024:.0f}"
    parts.append(f"at most {used.memory_used_mib / 1024:.1f}{total} GiB in use")
    use = " while engines of this run used it" if all(one.engines for one in samples) else ""
    return f"GPU {gpu} was sampled once a second ({len(samples)} times){use}: {'; '.join(parts)}."


def _name_limited_cells(samples: Iterable[GpuSample]) -> tuple[str, ...]:
    cells: dict[str, list[GpuSample]] = {}
    stated = [one for one in samples if one.limited_by is not None]
    for one in stated:
        cells.setdefault(one.cell or "", []).append(one)
    shares = {cell: _compute_limit_shares(own) for cell, own in cells.items()}
    limited = sorted((cell for cell in shares if shares[cell]), key=lambda cell: -max(shares[cell].values()))
    if not stated:
        return ()
    if not limited:
        return ("Nothing limited the clocks of a GPU that the run's engines used.",)
    named = "; ".join(f"`{cell}` ({_describe_limits(shares[cell])})" for cell in limited[:NAMED_CELLS])
    more = f"; and {len(limited) - NAMED_CELLS} more cells" if len(limited) > NAMED_CELLS else ""
    return (
        "The clocks of a GPU that the run's engines used were limited in these cells, which can explain their numbers "
        f"as much as policy or connector can: {named}{more}.",
    )


def _describe_limits(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {format_percent(share)} of the time" for name, share in shares.items())


def _compute_limit_shares(samples: Sequence[GpuSample]) -> dict[str, float]:
    """The most frequent first."""
    stated = [one.limited_by for one in samples if one.limited_by is not None]
    counts = Counter(name for text in stated for name in text.split("+") if name != UNLIMITED)
    return {name: count / len(stated) for name, count in counts.most_common()}


def _average_stated(values: Iterable[float | None]) -> float | None:
    stated = [value for value in values if value is not None]
    return fmean(stated) if stated else None
