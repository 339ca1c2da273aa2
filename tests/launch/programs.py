"""Small programs that the launch tests start as if they were engines, and what the tests ask about processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = sys.argv[1]
def note(name):
    with open(os.path.join(folder, "partial-" + name), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(folder, "partial-" + name), os.path.join(folder, name))
if os.fork() == 0:                      # a worker in the engine's group
    note("worker")
    time.sleep(600)
if os.fork() == 0:                      # a daemon: a session of its own, its parent gone
    os.setsid()
    if os.fork() == 0:
        note("daemon")
        time.sleep(600)
    os._exit(0)
note("engine")
time.sleep(600)
"""
"""Ignores TERM, as do its worker and its daemon; each writes its pid into the folder it is given."""
STUBBORN_ROLES = ("engine", "worker", "daemon")

SERVER = """
import http.server, json, signal, sys, threading
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
model, port = arguments["--served-model-name"], int(arguments["--port"])
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == "/health":
            self.answer({})
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": model}]})
        else:
            self.answer({}, 404)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"choices": [{"text": ""}], "usage": {"completion_tokens": body["max_tokens"]}})
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
print("serving", model, flush=True)
server.serve_forever()
"""
"""Answers /health, /v1/models and completions at once; ends on TERM."""

CHILD_DIES = """
import faulthandler, multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, REPOSITORY)
from patches.child_deaths import name_child_deaths
faulthandler.enable()
name_child_deaths()
how = getattr(signal, sys.argv[1])
def crash_here():
    time.sleep(0.3)
    os.kill(os.getpid(), how)
    time.sleep(60)
child = multiprocessing.get_context("fork").Process(target=crash_here, name="EngineCore")
child.start()
child.join()
time.sleep(float(sys.argv[2]))
sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
""".replace("REPOSITORY", repr(str(Path(__file__).resolve().parents[2])))
"""A server whose EngineCore ends itself by a signal; it lives on for some seconds and ends with exit code 1."""


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pids_noted(folder: Path, names: Iterable[str] = STUBBORN_ROLES) -> dict[str, int]:
    """The pids that programs wrote into `folder`, once all of them did."""
    paths = {name: folder / name for name in names}
    assert wait_until(lambda: all(path.exists() for path in paths.values())), "the program did not come up"
    return {name: int(path.read_text()) for name, path in paths.items()}


def running(pids: Iterable[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    return [pid for pid in pids if psutil.pid_exists(pid) and _status(pid) not in (psutil.STATUS_ZOMBIE, None)]


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None


SHARES_MEMORY = """
import os, signal, sys, time
from multiprocessing import shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
segment = shared_memory.SharedMemory(create=True, size=4096)
time.sleep(1.0)                         # its resource tracker is a Python that starts
path = os.path.join(sys.argv[1], "segment")
with open(path + ".partial", "w") as file:
    file.write(segment.name)
os.rename(path + ".partial", path)
time.sleep(600)
"""
"""Ignores TERM and holds a segment of shared memory, whose name it writes into the folder it is given."""

LEAVES_MEMORY = """
import os, signal, sys, time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
def end(*_):
    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
path = os.path.join(sys.argv[1], "segment")
with open(path + ".partial", "w") as file:
    file.write(segment.name)
os.rename(path + ".partial", path)
time.sleep(600)
"""
"""Like vLLM with worker processes: at TERM, and at USR1, it kills the tracker that would remove its shared memory."""

BINDS_SOCKET = """
import os, signal, socket, sys, tempfile, time, uuid
signal.signal(signal.SIGTERM, signal.SIG_IGN)
bound = os.path.join(os.environ["VLLM_RPC_BASE_PATH"], str(uuid.uuid4()))
server = socket.socket(socket.AF_UNIX)
server.bind(bound)
with open(os.path.join(tempfile.gettempdir(), "vllm_dist_" + uuid.uuid4().hex), "w") as file:
    file.write(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
open(os.path.join(tempfile.mkdtemp(), "listener"), "w").close()
path = os.path.join(sys.argv[1], "socket")
with open(path + ".partial", "w") as file:
    file.write(bound)
os.rename(path + ".partial", path)
time.sleep(600)
"""
"""Ignores TERM, binds a socket and makes temporary files as vLLM does, one with the folder of torch's caches and one in
a folder; writes the socket's path into the folder it is given."""
