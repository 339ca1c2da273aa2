"""A host with NVIDIA GPUs, for every Python that has this folder on PYTHONPATH and `TRACON_FAKE_GPU_HOST` set.

To Tracon the folder named there has the files of a driver and of RDMA adapters, and `pynvml` beside this file answers
as its GPUs do. In an engine the CPU takes the GPU's part: a CPU build of vLLM turns asynchronous scheduling off, which
nothing in it needs, and here it stays on as on a GPU. The worker is a process of its own, so that the next step is
scheduled while the one before runs.

What Python connects to or resolves beyond the loopback is recorded in REACHED.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

HOST = Path(os.environ["TRACON_FAKE_GPU_HOST"])
REACHED = HOST / "reached"
"""A line per event: pid, event, host."""
ADDRESSES: Mapping[str, int] = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
}
"""Audit events of Python's sockets, with the index of the host, or of its address, among their arguments."""
LOOPBACK = ("localhost", "127.0.0.1", "::1", "", "0.0.0.0", "::")


def record_other_host(event: str, arguments: tuple[Any, ...], indices: Mapping[str, int] = ADDRESSES) -> None:
    """Beside the loopback, whatever comes of it: also a connection that is refused, or a name that is not known.

    `indices` is an argument because the interpreter clears the names of a module when it ends, before the last events.
    """
    place = indices.get(event)
    if place is None:
        return
    host = arguments[place]
    host = host[0] if isinstance(host, tuple) else host if place == 0 else None
    host = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if isinstance(host, str) and host not in LOOPBACK:
        with REACHED.open("a") as file:
            file.write(f"{os.getpid()} {event} {host}\n")


def have_driver(gpu: Any) -> None:  # noqa: ANN401 - a module
    gpu.DRIVER = HOST / "version"


def have_own_libcuda(checks: Any) -> None:  # noqa: ANN401 - a module
    checks.COMPAT_ROOT = HOST


def have_adapters(doctor: Any) -> None:  # noqa: ANN401 - a module
    doctor.INFINIBAND = HOST / "infiniband"


def keep_scheduling_asynchronous(cpu: Any) -> None:  # noqa: ANN401 - a module
    update = cpu.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, config: Any) -> None:  # noqa: ANN401 - a class of vLLM's
        wanted = config.scheduler_config.async_scheduling
        update(cls, config)
        config.scheduler_config.async_scheduling = wanted

    cpu.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


class NoWait:
    """A CUDA stream or event: on a CPU what was submitted is already done."""

    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def record(self, *_arguments: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _other: object) -> None: ...


def enter_stream(_stream: object) -> AbstractContextManager[None]:
    return nullcontext()


def have_streams(runner: Any) -> None:  # noqa: ANN401 - a module
    cuda = runner.torch.cuda
    cuda.Event = cuda.Stream = cuda.current_stream = NoWait
    cuda.stream = enter_stream


EDITS: Mapping[str, Callable[[Any], None]] = {
    "launch.gpu_devices": have_driver,
    "launch.gpu_checks": have_own_libcuda,
    "launch.doctor": have_adapters,
    "vllm.platforms.cpu": keep_scheduling_asynchronous,
    "vllm.v1.worker.cpu_model_runner": have_streams,
}
"""What is changed in each module, as soon as it has been imported."""


class EditModules(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        edit = EDITS.get(name)
        if edit is None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            edit(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, EditModules())
sys.addaudithook(record_other_host)
