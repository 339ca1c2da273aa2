"""Simulations as tasks of a Ray cluster: one task per simulation; those of a lost node run again on another.

Every node needs the same source of Tracon, with its extra `ray`.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from results.records.layout import sha256
from results.records.simulation_spec import SimulationSpec
from runners.child_process import ChildFailure, write_spec
from runners.errors import RunnerError
from runners.simulator.messages import SimulationError, SimulationLine, SimulationOutcome, SimulationTick
from runners.simulator.simulate import simulate

RETRIES = 10
"""How often Ray runs a task again whose node or process was lost."""
INSTALL = (
    "on every node, in a clone of the same commit with the same edits: `.venv/bin/uv pip install --require-hashes "
    "--requirements ray.lock`"
)


PACKAGES = ("launch", "results", "runners", "state")
"""What a simulation may import of Tracon."""


class RemoteEnd(NamedTuple):
    """What a task sends back: its last line, and the files that it wrote, compressed; empty = it wrote none."""

    line: bytes
    requests: bytes
    decisions: bytes
    samples: bytes


class RaySimulations:
    """Runs simulations on a cluster. One per process: Ray's connection is the process's own."""

    def __init__(self, address: str) -> None:
        """`address`: `auto` or `ray://HEAD:PORT`.

        Raises SimulationError where Ray is not installed or the cluster cannot be reached.
        """
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise SimulationError("Ray is not installed here", remedy=INSTALL) from error
        self._ray = ray
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SimulationError(
                f"the Ray cluster {address} cannot be reached: {error}",
                remedy="start one with `ray start --head`",
            ) from error
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES)(simulate_remotely)
        self._traces: dict[str, Any] = {}
        """References to traces that the cluster holds, by path."""

    def count_room(self) -> int:
        """Cores of the cluster as it is now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None]
    ) -> SimulationOutcome:
        """As `Simulations.run`; there are no ticks meanwhile."""
        write_spec(path, spec, SimulationError)
        trace = await asyncio.to_thread(self._put_trace, spec.replay.trace_path)
        reference = self._task.remote(msgspec.json.encode(spec), trace, digest_source())
        try:
            end = await asyncio.wrap_future(reference.future())
        except asyncio.CancelledError:
            self._ray.cancel(reference, force=True)
            raise
        except self._ray.exceptions.RayError as error:
            raise SimulationError(f"the task failed on the Ray cluster: {error}", remedy=INSTALL) from error
        return take_end(RemoteEnd(*end), spec)

    async def close(self) -> None:
        """Nothing: Ray ends its own processes."""

    def _put_trace(self, path: str) -> Any:  # noqa: ANN401  # a reference of Ray's
        if path not in self._traces:
            self._traces[path] = self._ray.put(Path(path).read_bytes())
        return self._traces[path]


@cache
def digest_source() -> str:
    """SHA-256 of the modules of Tracon that this process has; what tables say is in the spec.

    With others the same spec may give other bytes, also where the version is the same.
    """
    roots = [Path(root) for package in PACKAGES for root in import_module(package).__path__]
    return hashlib.sha256("".join(map(digest_folder, roots)).encode()).hexdigest()


def digest_folder(root: Path) -> str:
    """SHA-256 of names and contents of the modules below a folder."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0{sha256(path)}\0".encode())
    return digest.hexdigest()


def simulate_remotely(encoded: bytes, trace: bytes, source: str) -> tuple[bytes, ...]:
    """On a node: simulate the spec with files of its own. `source`: `digest_source` of the driver."""
    if digest_source() != source:
        failure = ChildFailure("a node has other source of Tracon than the driver", INSTALL, 2)
        return RemoteEnd(msgspec.json.encode(SimulationLine(failure=failure)), b"", b"", b"")
    spec = msgspec.json.decode(encoded, type=SimulationSpec)
    with tempfile.TemporaryDirectory(prefix="tracon-") as folder:
        here = Path(folder)
        paths = [here / name for name in ("trace", "requests", "decisions", "samples")]
        paths[0].write_bytes(trace)
        local = replace(
            spec,
            replay=replace(spec.replay, trace_path=str(paths[0]), requests_path=str(paths[1])),
            router=replace(spec.router, decisions_path=str(paths[2]) if spec.router.decisions_path else ""),
            samples_path=str(paths[3]),
        )
        try:
            line = SimulationLine(outcome=simulate(local, lambda tick: None))
        except RunnerError as error:
            failure = ChildFailure.of(error)
            return RemoteEnd(msgspec.json.encode(SimulationLine(failure=failure)), b"", b"", b"")
        written = (zlib.compress(path.read_bytes(), 1) if path.exists() else b"" for path in paths[1:])
        end = RemoteEnd(msgspec.json.encode(line), *written)
    gc.collect()  # what a simulation leaves is in cycles, which its worker would hold until the next task
    return end


def take_end(end: RemoteEnd, spec: SimulationSpec) -> SimulationOutcome:
    """Write the files where the spec wants them; returns the outcome. Raises SimulationError for a failure."""
    line = msgspec.json.decode(end.line, type=SimulationLine)
    if line.failure is not None:
        failure = line.failure
        raise SimulationError(failure.message, remedy=failure.remedy, exit_code=failure.exit_code)
    assert line.outcome is not None
    files = {
        spec.replay.requests_path: end.requests,
        spec.router.decisions_path: end.decisions,
        spec.samples_path: end.samples,
    }
    for path, content in files.items():
        if path:
            Path(path).write_bytes(zlib.decompress(content))
    return line.outcome
