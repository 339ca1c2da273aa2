"""GPU utilisation at 1 Hz beside a cell, or the reason why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Self

from results.records.samples import GpuSample

HEADER = ",".join(one.name for one in fields(GpuSample)) + "\n"
QUERY = ("--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_S = 5.0
PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the samples come to."""

    utilisation: float | None
    """0..1, the mean over all samples of all GPUs; None = not measured."""
    reason: str
    """Why not; empty where it was."""


class GpuSampler:
    """Writes `gpu_util.csv` for the length of an `async with` block; only its header where no GPU can be asked."""

    def __init__(self, path: Path, *, period_s: float = PERIOD_S) -> None:
        self._path = path
        self._period_s = period_s
        self._tool = shutil.which("nvidia-smi")
        self._sum_percent = 0.0
        self._samples = 0
        self._reason = "" if self._tool else "this host has no nvidia-smi: no GPU is used"
        self._task: asyncio.Task[None] | None = None

    @property
    def use(self) -> GpuUse:
        """So far."""
        if not self._samples:
            return GpuUse(None, self._reason or "nvidia-smi gave no sample")
        return GpuUse(self._sum_percent / self._samples / 100, "")

    async def __aenter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(HEADER)
        if self._tool:
            self._task = asyncio.create_task(self._sample_gpus(self._tool))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _sample_gpus(self, tool: str) -> None:
        while True:
            due_s = time.monotonic() + self._period_s
            t_ns = time.perf_counter_ns()
            self._keep_answer(t_ns, await self._ask_tool(tool))
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _ask_tool(self, tool: str) -> str:
        process = await asyncio.create_subprocess_exec(
            tool, *QUERY, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                out, _ = await process.communicate()
                return out.decode("utf-8", "replace")
        except TimeoutError:
            self._reason = f"nvidia-smi did not answer within {QUERY_TIMEOUT_S:g} s"
            return ""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _keep_answer(self, t_ns: int, answer: str) -> None:
        rows = [row for line in answer.splitlines() if (row := _parse_row(t_ns, line)) is not None]
        if not rows:
            self._reason = self._reason or "nvidia-smi names no GPU with a utilisation"
            return
        with self._path.open("a") as file:
            file.writelines(
                f"{row.t_ns},{row.gpu},{row.utilisation_percent:g},{row.memory_used_mib:g}\n" for row in rows
            )
        self._sum_percent += sum(row.utilisation_percent for row in rows)
        self._samples += len(rows)


def _parse_row(t_ns: int, line: str) -> GpuSample | None:
    """`0, 37, 81252`: GPU, utilisation in percent, memory in MiB; None where a GPU does not state them."""
    try:
        gpu, percent, used = (part.strip() for part in line.split(","))
        return GpuSample(t_ns, int(gpu), float(percent), float(used))
    except ValueError:
        return None
