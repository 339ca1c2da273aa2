"""How an engine died, read from its exit code and its log: process, signal, frame, cause and remedy."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from results.records.events import EngineDeath

LAST_LINES = 8
"""Lines of the log that a death carries."""
LINE_CHARACTERS = 400
"""Characters of each last line: faulthandler lists every extension module in one line."""
TAIL_BYTES = 1_048_576
"""Bytes of each log that are read for a death: the stacks of a hundred threads are a quarter of it."""
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """A line of `patches/child_deaths.py`: a process of vLLM's ended abnormally."""

    process: str
    pid: int
    ended_by: str

    @property
    def is_engine(self) -> bool:
        """Without it the server serves nothing, even while it runs."""
        return self.process.startswith("EngineCore") or "Worker" in self.process


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that ran for too long, or a process whose threads could not run (`text` says which)."""

    text: str
    frame: str
    """Innermost Python frame; empty = not known."""


def read_death(exit_code: int | None, log: str, last_lines: Sequence[str] = ()) -> EngineDeath:
    """The death of an engine whose main process ended with `exit_code` (None = unknown, or it still runs).

    The first process that a signal ended counts; SIGTERM is how vLLM ends the others of an engine that has died.
    """
    ends = find_child_ends(log)
    first = next((end for end in ends if end.ended_by.startswith("SIG") and end.ended_by != "SIGTERM"), None)
    if first is None and (exit_code is None or exit_code >= 0):
        first = next((end for end in ends if end.ended_by != "SIGTERM"), None)
    if first is None:
        death = EngineDeath(name_code(exit_code))
    else:
        death = EngineDeath(first.ended_by, process=first.process, pid=first.pid)
    crash = _find_first_crash(log)
    if crash is not None and not death.ended_by.startswith("SIG"):
        death = replace(death, ended_by=crash.ended_by)  # the line that names the process is missing, not the stack
    matches = crash is not None and death.ended_by in (crash.ended_by, "SIGABRT")
    cut = tuple(line[:LINE_CHARACTERS] for line in last_lines)
    return replace(death, frame=crash.frame if crash and matches else "", cause=cause(log), last_lines=cut)


def describe_end(death: EngineDeath) -> str:
    """The end in words, to follow the engine's name."""
    if not death.process:
        return describe_exit_name(death.ended_by)
    return f"lost its process {death.process} (pid {death.pid}), which {describe_exit_name(death.ended_by)}"


def was_ended(death: EngineDeath) -> bool:
    """Whether it was ended from outside: by a signal, or by the TERM of a guard that lost its owner or its other half,
    upon which vLLM ends with exit code 0 or with none that is known.
    """
    return death.ended_by.startswith("SIG") or death.ended_by in (name_code(0), UNKNOWN)


def describe_why(death: EngineDeath) -> str:
    """What is known beyond the end, in words; empty where nothing is."""
    frame = f"last Python frame {death.frame}" if death.frame else ""
    return "; ".join(part for part in (death.cause, frame, death.kernel) if part)


def describe_death(death: EngineDeath) -> str:
    """One line with all but the last lines of the log, to follow the engine's name."""
    why = describe_why(death)
    return f"{describe_end(death)}: {why}" if why else describe_end(death)


def explain_death(death: EngineDeath) -> str:
    """The line of `describe_death`, with the last lines of the log below."""
    lines = "\n".join(death.last_lines)
    return f"{describe_death(death)}\n{lines}" if lines else describe_death(death)


def describe_exit_name(ended_by: str) -> str:
    """`EngineDeath.ended_by` in words."""
    if ended_by == UNKNOWN:
        return "ended"
    return f"ended with {ended_by}" if ended_by.startswith("exit code") else f"was ended by {ended_by}"


def name_code(code: int | None) -> str:
    """An exit code as `EngineDeath.ended_by` has it."""
    if code is None:
        return UNKNOWN
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIG{-code}"


_CHILD = re.compile(r"\[tracon\] process (\S+) pid (\d+) (?:died of (\S+)|ended with (exit code \d+))$", re.MULTILINE)


def find_child_ends(log: str) -> tuple[ChildEnd, ...]:
    """Every abnormal end of a child that the log names, in its order."""
    return tuple(ChildEnd(m[1], int(m[2]), m[3] or m[4]) for m in _CHILD.finditer(log))


_FAULTS = {
    "Segmentation fault": "SIGSEGV",
    "Illegal instruction": "SIGILL",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Aborted": "SIGABRT",
}
"""What faulthandler calls a signal; any other fatal error of Python's ends in SIGABRT."""
_FATAL = re.compile(r"Fatal Python error: (.*)")
_FRAME = re.compile(r'\s*File "(.*)", line (\d+|\?\?\?) in (.*)')
_PACKAGES = re.compile(r"\S*/(?:site|dist)-packages/")
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_STACK_LINES = 12_000
"""faulthandler writes at most a hundred threads of a hundred frames each."""


@dataclass(frozen=True, slots=True)
class _Crash:
    ended_by: str
    frame: str


def _find_first_crash(log: str) -> _Crash | None:
    lines = log.splitlines()
    for index, line in enumerate(lines):
        fatal = _FATAL.search(line)
        if fatal:
            reason = fatal[1].partition(":")[0].strip()
            return _Crash(_FAULTS.get(reason, "SIGABRT"), _find_crashed_frame(lines[index + 1 : index + _STACK_LINES]))
    return None


def _find_crashed_frame(lines: Sequence[str]) -> str:
    """The innermost frame of the current thread; the main thread's, listed last, where a native thread crashed."""
    stacks = list(_parse_stacks(lines))
    current = next((frame for is_current, frame in stacks if is_current), "")
    if current or not stacks:
        return current
    return f"of the main thread {stacks[-1][1]} (the thread that crashed runs no Python)"


def _parse_stacks(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """For each thread's stack: whether it is the current one, and its innermost frame. Other programs' lines between
    them are passed over; the stacks end where another fatal error begins or the extension modules are listed."""
    current = False
    frames: list[str] = []
    for line in lines:
        if _FATAL.search(line) or line.startswith("Extension modules:"):
            break
        thread = _THREAD.match(line)
        if thread:
            if frames:
                yield current, _find_innermost_frame(frames)
            current, frames = thread[1] == "Current thread", []
        elif frame := _FRAME.fullmatch(line):
            frames.append(f"{frame[1]}:{frame[2]} in {frame[3]}")
    if frames:
        yield current, _find_innermost_frame(frames)


def _find_innermost_frame(frames: Sequence[str]) -> str:
    """The first frame; where the standard library holds it, also the innermost one of an installed package."""
    package = next((frame for frame in frames if _PACKAGES.match(frame)), frames[0])
    places = [frames[0]] if package is frames[0] else [frames[0], package]
    return _PACKAGES.sub("", " from ".join(places))


_STALL = re.compile(r"^\[tracon\] (a step has run for [\d.]+ s), (.*) (\(step \d+, pid \d+\))$")
_STARVED = re.compile(r"^\[tracon\] (no Python thread ran for [\d.]+ s \(pid \d+\))$")
_TIMEOUT = re.compile(r"^Timeout \((\d+):(\d\d):(\d\d)(?:\.\d+)?\)!$")


def find_stalls_in(log: str, holds_returned: int = 0) -> tuple[tuple[Stall, ...], int]:
    """Every stall in the log, in its order; then how many processes are still held, by the log.

    A process whose threads cannot run leaves stacks after the limit, and a line with the length at the end: one stall.
    `holds_returned`: of those that have not ended before this part of the log, and were returned without their length.
    """
    lines = log.splitlines()
    stalls: list[Stall] = []
    holds: deque[int | None] = deque([None] * holds_returned)
    for index, line in enumerate(lines):
        stall, timeout, starved = _STALL.match(line), _TIMEOUT.match(line), _STARVED.match(line)
        if stall:
            stalls.append(Stall(f"{stall[1]} {stall[3]}", _PACKAGES.sub("", stall[2])))
        elif timeout:
            seconds = int(timeout[1]) * 3600 + int(timeout[2]) * 60 + int(timeout[3])
            stacks = list(_parse_stacks(_cut_at_marker(lines[index + 1 : index + _STACK_LINES])))
            holds.append(len(stalls))
            stalls.append(Stall(f"no Python thread ran for {seconds} s", stacks[-1][1] if stacks else ""))
        elif starved and not holds:
            stalls.append(Stall(starved[1], ""))
        elif starved:
            begun = holds.popleft()
            if begun is not None:
                stalls[begun] = Stall(starved[1], stalls[begun].frame)
    return tuple(stalls), len(holds)


def _cut_at_marker(lines: Sequence[str]) -> list[str]:
    end = next((i for i, line in enumerate(lines) if _TIMEOUT.match(line) or line.startswith("[tracon]")), len(lines))
    return list(lines[:end])


def describe_stall(stall: Stall) -> str:
    """One line, to follow the engine's name."""
    return f"{stall.text}: last Python frame {stall.frame}" if stall.frame else stall.text


_SYMPTOMS: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Errno 28", "the disk is full: free space, or name another folder with --workspace"),
    (r"No module named '?tracon_patches", "the patches are not in this engine: `tracon patch apply`"),
    (r"No module named '?([\w.]+)", "the engine environment lacks {0}: `tracon doctor` names what each config needs"),
    (r"((?:Mooncake|NIXL|LMCache) is not available|lib\S+: cannot open shared object file)",
     "{0}: `tracon doctor` names the package or system library that is missing"),
    (r"Address already in use", "another server holds a port: `ss -ltnp` shows which; use another launch.port_base"),
    (r"Free memory on device|CUDA out of memory|OutOfMemoryError",
     "the GPU's memory is taken: stop the process that holds it (`nvidia-smi` lists it), or lower "
     "engine.gpu_memory_utilization"),
    (r"Failed to find C compiler|Python\.h: No such file|Could not find nvcc|nvcc: (?:command )?not found",
     "kernels could not be compiled: `tracon doctor` looks for a compiler and headers; what needs nvcc needs the CUDA "
     "toolkit, or its feature switched off in engine.env"),
    (r"Failed to infer device type",
     "vLLM finds no GPU: `tracon doctor` with this profile names what is missing"),
    (r"larger than the available KV cache|KV cache is needed",
     "the KV cache is too small for engine.max_model_len: raise kv_cache_memory_bytes or lower max_model_len"),
)  # fmt: skip
_SIGNALS = {
    "SIGKILL": "the kernel or an operator killed it: `dmesg` tells whether memory ran out",
    "SIGILL": "it ran an instruction that this CPU lacks or that the kernel has not enabled: see `tracon doctor`",
}


def diagnose(log: str, ended_by: str = "") -> str:
    """The remedy for a symptom this log or the end shows; empty where none is known."""
    for pattern, remedy in _SYMPTOMS:
        match = re.search(pattern, log)
        if match:
            return remedy.format(*match.groups())
    return _SIGNALS.get(ended_by, "")


_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:[A-Z]+ \S+ \S+ \[[^]]*\] ?)?")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b: \S.*")
_ECHOES = ("Engine core initialization failed", "EngineCore encountered an issue", "EngineDeadError")
"""The API server's own exceptions about the engine process's: true, and no cause."""


def cause(log: str) -> str:
    """The exception that ended an engine, from its log; empty where it shows none."""
    lines = (_PREFIX.sub("", line) for line in log.splitlines())
    raised = [line for line in lines if _RAISED.fullmatch(line) and not any(echo in line for echo in _ECHOES)]
    return raised[-1] if raised else ""
