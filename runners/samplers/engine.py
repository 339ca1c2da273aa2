"""Samples an engine under load: its `/metrics` at 1 Hz, and step timings from the probe's rings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from results.records.errors import RingError
from results.records.events import STEP_BUCKETS_US
from results.records.rings import MISSING, Records, RingReader, list_ring_paths
from results.records.schemas import MetricsRecord
from runners.errors import RunnerError

SCRAPE_TIMEOUT_S = 5.0
_DROPPED_LABELS = ("engine", "model_name")
_EDGES_NS = np.array(STEP_BUCKETS_US, dtype=np.float64) * 1e3


class SamplerError(RunnerError):
    """The samples cannot be written."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The engine's load at the last scrape; None = it had no such value."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0..1."""


class MetricsText:
    """Reads pages of one exporter.

    Pages have the same samples with other values, so a sample's name is parsed once (the library takes 25 ms for a page
    of vLLM's, nine tenths of which are histogram buckets that are not stored).
    """

    def __init__(self) -> None:
        self._names: dict[str, str | None] = {}

    def values(self, page: str) -> dict[str, float]:
        """Sample name, with its labels other than engine and model_name, to value; no histogram buckets, no `_created`.

        Where two engines answer on one page the second one's samples keep their engine label. Raises ValueError where
        the page is no Prometheus text.
        """
        values: dict[str, float] = {}
        for line in page.split("\n"):
            if not line or line[0] == "#":
                continue
            end = line.rfind("}") + 1 or line.find(" ")
            rest = line[end:].split()
            if end <= 0 or not rest:
                raise ValueError(f"not a metrics line: {line[:80]!r}")
            sample = line[:end]
            name = self._names[sample] if sample in self._names else self._learn_sample(sample)
            if name is not None:
                values[name if name not in values else sample] = float(rest[0])
        return values

    def _learn_sample(self, sample: str) -> str | None:
        """The key of a sample in the record; None = it is not stored."""
        try:
            families = list(text_string_to_metric_families(f"{sample} 0\n"))
        except (ValueError, IndexError):  # some without a message
            families = []
        samples = [row for family in families for row in family.samples]
        if len(samples) != 1:
            raise ValueError(f"not a metrics line: {sample[:80]!r}")
        name, labels = samples[0].name, samples[0].labels
        key_of_sample: str | None = None
        if not name.endswith(("_bucket", "_created")):
            inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels) if key not in _DROPPED_LABELS)
            key_of_sample = f"{name}{{{inner}}}" if inner else name
        self._names[sample] = key_of_sample
        return key_of_sample


class MetricsSampler:
    """Scrapes `<url>/metrics` into a JSONL of MetricsRecord for the length of an `async with` block.

    A baseline before, a sample per period on absolute times, a final scrape after (unless the block failed). A scrape
    that fails is a record with its error. Raises SamplerError where the file cannot be written.
    """

    def __init__(self, url: str, path: Path, *, period_s: float = 1.0) -> None:
        self.latest = Gauges()
        self._path = path
        self._period_s = period_s
        self._url = f"{url.rstrip('/')}/metrics"
        self._text = MetricsText()
        self._client = httpx.AsyncClient(timeout=SCRAPE_TIMEOUT_S, trust_env=False)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise self._make_write_error(error) from error
        await self._scrape_metrics("baseline")
        self._task = asyncio.create_task(self._sample_metrics())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            if error is None:
                await self._scrape_metrics("final")
                await asyncio.to_thread(os.fsync, self._file.fileno())
        except OSError as failed:
            raise self._make_write_error(failed) from failed
        finally:
            self._file.close()
            await self._client.aclose()

    async def _sample_metrics(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s += self._period_s
            late_s = time.monotonic() - due_s
            if late_s > 0:  # a slow scrape skips the samples that it ran over; the others stay on the grid of times
                due_s += self._period_s * int(late_s / self._period_s + 1)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await self._scrape_metrics("sample")

    async def _scrape_metrics(self, moment: str) -> None:
        t_ns, t_unix_s = time.perf_counter_ns(), time.time()
        values: dict[str, float] = {}
        error: str | None = None
        try:
            answer = await self._client.get(self._url)
            if answer.status_code == 200:
                values = self._text.values(answer.text)
            else:
                error = f"HTTP {answer.status_code}"
        except httpx.HTTPError as failed:
            error = f"{type(failed).__name__}: {failed}"
        except ValueError as failed:
            error = str(failed)
        self.latest = read_gauges(values)
        record = MetricsRecord(t_ns=t_ns, t_unix_s=t_unix_s, moment=moment, values=values, error=error)
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
        except OSError as failed:
            raise self._make_write_error(failed) from failed

    def _make_write_error(self, error: OSError) -> SamplerError:
        remedy = "Free space on that disk or choose another workspace."
        return SamplerError(f"cannot write {self._path}: {error.strerror}", remedy=remedy)


def read_gauges(values: Mapping[str, float]) -> Gauges:
    """The engine's gauges among the samples of one scrape; over several engines, the sum, and the fullest KV cache."""

    def samples(name: str) -> list[float]:
        return [value for key, value in values.items() if key == name or key.startswith(name + "{")]

    running, waiting = samples("vllm:num_requests_running"), samples("vllm:num_requests_waiting")
    return Gauges(
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        kv_usage=max(samples("vllm:kv_cache_usage_perc"), default=None),
    )


@dataclass(frozen=True, slots=True)
class StepSample:
    """The engine steps since the last poll that computed a token."""

    p50_us: float | None = None
    p90_us: float | None = None
    counts: tuple[int, ...] = ()
    """Per bucket of STEP_BUCKETS_US and one more for the rest; empty = no step timing."""


class StepTail:
    """Follows the engine rings of one launch, from what is written after its creation on.

    A ring that cannot be read, or that has no step timing, ends the step timing and nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[Path, RingReader] = {}
        self._has_timing = True
        self._open_rings(new_ones=False)

    def poll(self) -> StepSample:
        """The steps since the last poll."""
        self._open_rings(new_ones=True)
        if not self._has_timing or not self._readers:
            return StepSample()
        try:
            parts = [_read_step_columns(reader) for reader in self._readers.values()]
        except RingError:
            self._has_timing = False
            return StepSample()
        step_ns, tokens = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        timed = step_ns[(tokens > 0) & (step_ns != MISSING)]
        p50, p90 = np.quantile(timed, (0.5, 0.9)).tolist() if len(timed) else (None, None)
        counts = np.bincount(np.searchsorted(_EDGES_NS, timed, side="left"), minlength=len(_EDGES_NS) + 1)
        return StepSample(
            p50_us=None if p50 is None else p50 / 1e3,
            p90_us=None if p90 is None else p90 / 1e3,
            counts=tuple(counts.tolist()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _open_rings(self, *, new_ones: bool) -> None:
        """Open rings not yet followed: those present at the start from their end, later ones from their beginning."""
        for path in list_ring_paths(self._folder, "engine"):
            if path in self._readers or not self._has_timing:
                continue
            try:
                self._readers[path] = RingReader(path, start="oldest" if new_ones else "newest")
            except RingError:
                self._has_timing = False
            else:
                self._has_timing = self._readers[path].header.step_timing_available


def _read_step_columns(reader: RingReader) -> tuple[Records, Records]:
    """Step duration (ns) and computed tokens of the new records; a ring without those columns has MISSING and 0."""
    rows, header = reader.read_new(), reader.header
    step, prefill, decode = (header.index(name) for name in ("engine_step_ns", "prefill_tokens", "decode_tokens"))
    missing = np.full(len(rows), MISSING, dtype=np.int64)
    tokens = [np.maximum(rows[:, column], 0) for column in (prefill, decode) if column is not None]
    return rows[:, step] if step is not None else missing, np.sum(tokens, axis=0, dtype=np.int64) if tokens else missing
