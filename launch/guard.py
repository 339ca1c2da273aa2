"""Holds one engine: starts it, reports how it ended, ends it with every descendant on request or when its owner dies.

Runs as a file under any Python >= 3.9 on Linux, standard library only: it needs nothing of its parent.
The owner talks to it over one stream socket whose other end exists only in the owner, so the owner's death, by
`kill -9` too, is an end of file here.

Two processes hold each engine, `outer` and, below it, `inner`. Both adopt orphans (PR_SET_CHILD_SUBREAPER), so neither
a new session nor a double fork takes a process out of reach; when either is killed the other ends the engine.

    owner -> {"argv": [...], "env": {...}, "cwd": "", "stdout": "", "stderr": "", "own_folder": true}
    owner -> {"go": true}, {"note_memory": true}, {"stop": grace_s}
    guard -> {"started": pid}, {"noted": segments}, {"exited": code}, {"gone": true}

A negative exit code is the signal's number. The engine's code runs only after `go`: the owner records it first.

Each guard makes a folder for its engine's sockets and temporary files, which vLLM would leave, and removes it at the
engine's end. Both processes hold a lock on it: every guard also removes the folders on which no lock is held.

Python's shared memory of an engine is removed too: vLLM kills the resource tracker that would do it. The guard notes
which segments the engine holds when the owner asks for it, and when it ends the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import getpass
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

ORPHAN_GRACE_S = 2.0
"""From TERM to KILL when no owner is left to ask."""
LINGER_S = 1.0
"""What outlives its main process has this long to leave by itself."""
KILL_ROUNDS = 150
"""Rounds of KILL, 20 ms apart: a process that is still there afterwards cannot be killed (uninterruptible sleep)."""
POLL_S = 0.02
TRACKER_GRACE_S = 2.0
"""How long a resource tracker may take to remove the shared memory of processes that were killed."""
SEGMENTS = "/dev/shm/psm_"
"""How the paths of Python's shared memory begin."""
SOCKETS = "tracon-sockets-"
"""How the folders of sockets begin, in the folder of temporary files."""
SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the folder of its sockets; an engine whose environment has it already keeps its own."""
TEMPORARY_FOLDER = "TMPDIR"
TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
SOCKET_PATH_BYTES = 107
"""The longest path of a unix socket."""
UUID_CHARACTERS = 36
"""What vLLM names a socket."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors where this process or the host has no free descriptor or memory."""

_Read = TypeVar("_Read")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _set_process_option(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process."""
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int, parent: int) -> None:
    """Receive `signum` when the thread that forked this process ends; end now if `parent` has gone already."""
    _set_process_option(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def find_descendants(root: int) -> list[int]:
    """Every live process below `root`, zombies left out. Waits while descriptors or memory are short."""
    return _wait_to_read(partial(_list_descendants, root))


def _list_descendants(root: int) -> list[int]:
    """As `find_descendants`; raises OSError while descriptors or memory are short."""
    children: dict[int, list[int]] = {}
    for name in _list_processes():
        state, parent = _read_state_and_parent(name)
        if state not in (b"Z", b"X"):
            children.setdefault(parent, []).append(int(name))
    below_root: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        below_root += below
        queue += below
    return below_root


def _list_processes() -> list[str]:
    return [name for name in _read_if_there(lambda: os.listdir("/proc")) or () if name.isdigit()]  # noqa: PTH208


def _read_state_and_parent(pid: str) -> tuple[bytes, int]:
    """One-letter state and parent of a process; X where it ended while we looked."""
    line = _read_if_there(lambda: _read_file(f"/proc/{pid}/stat")) or b""
    fields = line.rpartition(b")")[2].split()[:2]
    return (fields[0], int(fields[1])) if len(fields) == 2 else (b"X", 0)


def _read_if_there(read: Callable[[], _Read]) -> _Read | None:
    """What `read` returns of /proc; None where the process has ended, belongs to another user, or has no such thing.

    Raises OSError while descriptors or memory are short: what cannot be seen has not ended.
    """
    try:
        return read()
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return None


def _wait_to_read(read: Callable[[], _Read], meanwhile: Callable[[], None] = lambda: None) -> _Read:
    """What `read` returns. While descriptors or memory are short, wait, and call `meanwhile` from time to time."""
    while True:
        try:
            return read()
        except OSError:
            meanwhile()
            time.sleep(POLL_S)


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid to exit code (minus the signal's number)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def send_signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def is_resource_tracker(pid: int) -> bool:
    """Whether it is Python's: it removes the shared memory that killed processes leave, and then ends by itself.

    False while descriptors or memory are short: the processes that may hold them are to be killed, so nothing waits.
    """
    with contextlib.suppress(OSError):
        line = _read_if_there(lambda: _read_file(f"/proc/{pid}/cmdline")) or b""
        return b"multiprocessing.resource_tracker" in line
    return False


def kill_descendants(main: int = 0) -> None:
    """KILL everything below this process, repeatedly until nothing is left.

    Resource trackers come last: what they watch over would stay in /dev/shm. `main`: a child that has not been waited
    for (0 = none). It is killed although nothing can be read for want of descriptors or memory: it may hold them.
    """

    def kill_main() -> None:
        if main:
            send_signal(main, signal.SIGKILL)

    trackers_until = time.monotonic() + TRACKER_GRACE_S
    for _ in range(KILL_ROUNDS):
        below = _wait_to_read(partial(_list_descendants, os.getpid()), kill_main)
        if not below:
            break
        may_wait = time.monotonic() < trackers_until
        to_kill = [pid for pid in below if not (may_wait and is_resource_tracker(pid))]
        for pid in to_kill:
            send_signal(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        if main in reap():
            main = 0  # its pid may be another process's now
    reap()


def find_segments(pids: Iterable[int]) -> set[str]:
    """The paths of Python's shared memory that these processes hold: Python keeps its descriptors open.

    Raises OSError while descriptors or memory are short.
    """
    paths: set[str] = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        for number in _read_if_there(partial(os.listdir, folder)) or ():
            path = _read_if_there(partial(os.readlink, f"{folder}/{number}")) or ""
            if path.startswith(SEGMENTS) and not path.endswith(" (deleted)"):
                paths.add(path)
    return paths


def find_own_segments() -> set[str]:
    """The paths of Python's shared memory that the processes below this one hold.

    Empty while descriptors or memory are short: those processes may hold them and are to be ended, so nothing waits.
    """
    with contextlib.suppress(OSError):
        return find_segments(_list_descendants(os.getpid()))
    return set()


def remove_segments(segments: set[str]) -> None:
    """Remove what is left of them and held by no process."""
    left = {path for path in segments if os.path.exists(path)}  # noqa: PTH110
    if left:
        held = _wait_to_read(lambda: find_segments(map(int, _list_processes())))
        for path in left - held:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108


def _list_socket_parents() -> list[str]:
    """Where folders of sockets may be, the first choice first."""
    return list(dict.fromkeys([_find_temporary_folder(os.environ), "/tmp", "/dev/shm"]))


def _find_temporary_folder(env: Mapping[str, str]) -> str:
    return os.path.abspath(env.get(TEMPORARY_FOLDER) or "/tmp")  # noqa: PTH100


def make_socket_folder() -> str:
    """A folder on which this process and what it forks hold a lock; empty where none can be made."""
    for parent in _list_socket_parents():
        path = os.path.join(parent, SOCKETS + os.urandom(4).hex())  # noqa: PTH118
        if len(os.fsencode(path)) + 1 + UUID_CHARACTERS > SOCKET_PATH_BYTES:
            continue
        with contextlib.suppress(OSError):
            while True:
                os.mkdir(path, 0o700)  # noqa: PTH102
                fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
                if os.path.exists(path):  # noqa: PTH110 - else another guard removed it before it was locked
                    return path
    return ""


def use_folder(folder: str, env: dict[str, str]) -> None:
    """Have an engine with this environment put its sockets into `folder`, and its temporary files, where these would be
    in the folder above it.

    Not where the user has sent them elsewhere, nor where the path is too long: what an engine binds among its temporary
    files would have a longer one. Torch's caches stay where torch puts them by itself: the next engine needs them.
    """
    env.setdefault(SOCKET_FOLDER, folder)
    temporary = _find_temporary_folder(env)
    if os.path.dirname(folder) == temporary:  # noqa: PTH120
        env.setdefault(TORCH_CACHE, os.path.join(temporary, f"torchinductor_{_find_user_name()}"))  # noqa: PTH118
        env[TEMPORARY_FOLDER] = folder


def _find_user_name() -> str:
    """As torch finds it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.getuid()}"


def remove_sockets(folder: str) -> None:
    """Remove this engine's folder, and every other one on which no process holds a lock."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in _list_socket_parents():
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(parent) if name.startswith(SOCKETS)]  # noqa: PTH208
            for name in names:
                _remove_unheld(os.path.join(parent, name))  # noqa: PTH118


def _remove_unheld(path: str) -> None:
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(folder).st_uid == os.getuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(folder)


class Inner:
    """The process that is the engine's parent and speaks with the owner."""

    def __init__(self, control: socket.socket, body: Callable[[dict[str, Any]], None], sockets: str) -> None:
        self.control = control
        self.body = body
        self.sockets = sockets
        self.segments: set[str] = set()
        """Shared memory that the engine was seen to hold."""
        self.connected = True
        self.received = b""
        self.child = 0
        self.go = -1
        self.exit_code: int | None = None
        self.stop_grace_s: float | None = None
        """Set once the engine shall end."""
        self.asked = False
        self.request: dict[str, Any] | None = None

    def run(self) -> None:
        """Returns only in the engine's own process, after its body; ends the process otherwise."""
        wake = self._wake_on_signals()
        while self.stop_grace_s is None and self.exit_code is None:
            self._poll_messages(wake, 1.0)
            if self.request is not None:
                request, self.request = self.request, None
                if self._start_engine(request, wake):
                    return
        self._end_engine(self.stop_grace_s if self.exit_code is None else 0.0, wake)
        remove_sockets(self.sockets)
        self._notify_owner({"gone": True})
        os._exit(0)

    def _wake_on_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ask_stop(ORPHAN_GRACE_S))
        return reader

    def _ask_stop(self, grace_s: float) -> None:
        self.stop_grace_s = grace_s if self.stop_grace_s is None else min(self.stop_grace_s, grace_s)
        self.asked = True

    def _poll_messages(self, wake: int, timeout_s: float) -> None:
        watched: list[Any] = [wake, *([self.control] if self.connected else [])]
        ready = select.select(watched, [], [], timeout_s)[0]
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if self.control in ready:
            self._read_control()
        code = reap().get(self.child)
        if code is not None:
            self.exit_code = code
            self._notify_owner({"exited": code})

    def _read_control(self) -> None:
        try:
            data = self.control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.connected = False
            self._ask_stop(ORPHAN_GRACE_S)
            return
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self._obey_command(json.loads(line))

    def _obey_command(self, message: dict[str, Any]) -> None:
        if "argv" in message and not self.child:
            self.request = message
        elif "go" in message and self.go >= 0:
            os.write(self.go, b"g")
            os.close(self.go)
            self.go = -1
        elif "note_memory" in message:
            self.segments |= find_own_segments()
            self._notify_owner({"noted": len(self.segments)})
        elif "stop" in message:
            self._ask_stop(float(message["stop"]))

    def _notify_owner(self, message: dict[str, Any]) -> None:
        if self.connected:
            try:
                self.control.sendall(json.dumps(message).encode() + b"\n")
            except OSError:  # the owner died; the end of file, which says so too, is not read any more
                self.connected = False
                self._ask_stop(ORPHAN_GRACE_S)

    def _start_engine(self, request: dict[str, Any], wake: int) -> bool:
        """Fork the engine; True in the engine itself once its body has returned."""
        gate, self.go = os.pipe()
        keeper = os.getpid()
        self.child = os.fork()
        if self.child:
            os.close(gate)
            self._notify_owner({"started": self.child})
            return False
        os.setsid()
        die_with_parent(signal.SIGKILL, keeper)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(wake)
        os.close(self.go)
        self.control.close()
        if os.read(gate, 1) != b"g":
            os._exit(0)  # the owner died, or thought better of it, before it had recorded this engine
        os.close(gate)
        _redirect_output(request)
        if self.sockets and request["own_folder"]:
            use_folder(self.sockets, request["env"])
        self.body(request)
        return True

    def _end_engine(self, grace_s: float | None, wake: int) -> None:
        """TERM to the engine, KILL to whatever is left."""
        if self.go >= 0:
            os.close(self.go)
            self.go = -1
        self.asked = False  # before what takes a while: a shorter grace must not be overlooked
        self.segments |= find_own_segments()
        deadline = time.monotonic() + (grace_s or 0.0)
        if self.child and self.exit_code is None:
            send_signal(self.child, signal.SIGTERM)
        while self.child and self.exit_code is None and time.monotonic() < deadline:
            self._poll_messages(wake, POLL_S)
            if self.asked:  # asked again, or the owner died meanwhile: the shorter grace counts
                deadline = min(deadline, time.monotonic() + (self.stop_grace_s or 0.0))
                self.asked = False
        if self.exit_code is not None:
            self._wait_for_close(wake)
        kill_descendants(self.child if self.exit_code is None else 0)
        remove_segments(self.segments)
        if self.child and self.exit_code is None:
            self.exit_code = -signal.SIGKILL
            self._notify_owner({"exited": self.exit_code})

    def _wait_for_close(self, wake: int) -> None:
        for pid in find_descendants(os.getpid()):
            send_signal(pid, signal.SIGTERM)
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until and find_descendants(os.getpid()):
            self._poll_messages(wake, POLL_S)


def _redirect_output(request: dict[str, Any]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for key, target in (("stdout", 1), ("stderr", 2)):
        opened = os.open(request[key], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, target)
        os.close(opened)
    if request.get("cwd"):
        os.chdir(request["cwd"])


def keep(control: socket.socket, body: Callable[[dict[str, Any]], None]) -> None:
    """Hold one engine over `control`; `body(request)` runs in the engine's process.

    Returns only there, after the body; the holding processes end here.
    """
    adopt_orphans()
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a closed terminal is no reason to end an engine, the owner's death is
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the owner may have it blocked for a moment
    remove_sockets("")
    sockets = make_socket_folder()
    outer = os.getpid()
    inner = os.fork()
    if inner == 0:
        adopt_orphans()
        die_with_parent(signal.SIGTERM, outer)
        Inner(control, body, sockets).run()
        return
    signal.signal(signal.SIGTERM, lambda *_: send_signal(inner, signal.SIGTERM))
    _watch_inner(inner, control, sockets)


def _watch_inner(inner: int, control: socket.socket, sockets: str) -> NoReturn:
    """Wait for `inner`; where it died without having cleaned up, clean up."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == inner:
            if status != 0:
                segments = find_own_segments()
                kill_descendants()
                remove_segments(segments)
                remove_sockets(sockets)
                with contextlib.suppress(OSError):
                    control.sendall(json.dumps({"gone": True}).encode() + b"\n")
            break
    os._exit(0)


def execute(request: dict[str, Any]) -> None:
    """Become the program the request names."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"cannot execute {request['argv'][0]}: {error}\n".encode())
        os._exit(127)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    keep(control, execute)


if __name__ == "__main__":
    main()
