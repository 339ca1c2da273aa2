"""Pre-imports the serving program once and forks an engine per launch: seconds instead of half a minute.

Runs as a file under the engine's Python, standard library and vLLM only. An unsupported way to start vLLM, kept to
CPU engines: a CUDA context does not survive a fork. It forks only while it has a single thread.

Called as `fork_server.py FD PRELOAD...`: FD is one end of a stream socket whose other end only the owner holds, PRELOAD
the modules to import. It answers `{"ready": true}` or `{"failed": reason}`; afterwards each byte received carries one
socket, and on each socket the guard beside this file holds one engine. At end of file it ends.
"""

from __future__ import annotations

import os
import sys

if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):  # noqa: PTH120
    del sys.path[0]  # the folder of this file holds a `profile` and a `command`: no module of the engine may find them

import contextlib
import faulthandler
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import runpy
import signal
import socket
import tempfile
from types import ModuleType
from typing import Any


def load_guard() -> ModuleType:
    """The guard beside this file, under a name of its own."""
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "guard.py")  # noqa: PTH118, PTH120
    spec = importlib.util.spec_from_file_location("tracon_guard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fork_instead_of_spawn() -> None:
    """Make vLLM's processes forks of this one: spawned ones would import everything again.

    vLLM's CPU platform insists on spawn through an environment variable it sets itself, so the function that reads it
    is replaced in every module that holds it.
    """
    for module in list(sys.modules.values()):
        if "get_mp_context" in getattr(module, "__dict__", {}):
            module.__dict__["get_mp_context"] = functools.partial(multiprocessing.get_context, "fork")


def preload(modules: list[str]) -> dict[str, Any]:
    """Import `modules`; returns the message to the owner: `ready`, or `failed` with the reason."""
    for name in modules:
        importlib.import_module(name)
    threads = len(list(os.scandir("/proc/self/task")))
    if threads != 1:
        return {"failed": f"{threads} threads run after the imports, a fork would lose all but one of them"}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return {"failed": "CUDA is initialized, and a CUDA context does not survive a fork"}
    fork_instead_of_spawn()
    gc.collect()
    gc.freeze()  # the collector then leaves the shared pages alone
    return {"ready": True}


def leave_ports_to_the_server() -> None:
    """In a child of an engine's API server: give up the ports that it is to serve on.

    A spawned child would not have them. One that keeps them makes vLLM's shutdown look for another process on its
    port, and end with exit code 1 where that process ends before it has been described.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for entry in list(os.scandir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # no socket, or the folder's own descriptor
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                serves = _holds_port(copy)
            if serves:
                os.dup2(nothing, int(entry.name))  # not closed: the number still belongs to a live socket object
    os.close(nothing)


def _holds_port(held: socket.socket) -> bool:
    """Whether it is bound to a port and has no peer: vLLM binds before it forks, and listens afterwards."""
    if held.family not in (socket.AF_INET, socket.AF_INET6) or held.getsockname()[1] == 0:
        return False
    try:
        held.getpeername()
    except OSError:
        return True
    return False


def serve_engine(request: dict[str, Any]) -> None:
    """In the forked process: become what `python -m module arguments` would have been."""
    gc.enable()
    os.register_at_fork(after_in_child=leave_ports_to_the_server)
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # else the folder that was looked up when this server imported vLLM
    for folder in reversed(request["env"].get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if request["env"].get("PYTHONFAULTHANDLER"):  # read when Python starts: too early for a fork
        faulthandler.disable()  # a library that was imported since may have put its own handler before it
        faulthandler.enable(file=2)
    _, dash_m, module, *arguments = request["argv"]
    if dash_m != "-m":
        raise SystemExit(f"the fork server starts modules only, not {request['argv'][1:3]}")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    guard = load_guard()
    try:
        answer = preload(sys.argv[2:])
    except BaseException as error:
        control.sendall(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        raise
    control.sendall(json.dumps(answer).encode() + b"\n")
    if "failed" in answer:
        sys.exit(1)
    engine = serve(control, guard)
    if engine is not None:  # the forked process: from here on it is the engine, and ends as one
        guard.keep(engine, serve_engine)


def serve(control: socket.socket, guard: ModuleType) -> socket.socket | None:
    """Fork for each socket received and return it there; None in this process, at end of file."""
    signal.signal(signal.SIGCHLD, lambda *_: guard.reap())
    gc.disable()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            control.close()
            return socket.socket(fileno=descriptors[0])
        os.close(descriptors[0])


if __name__ == "__main__":
    main()
