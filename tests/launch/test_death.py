"""A death read from exit code and log: the logs are those of real engines whose engine process a signal ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.death import (
    describe_death,
    diagnose,
    explain_death,
    find_child_ends,
    find_stalls_in,
    read_death,
)
from launch.oom import count_oom_kills, explain_kill, judge_kill, read_oom_lines

FIXTURES = Path(__file__).with_name("fixtures")
FRAME = "/usr/lib/python3.11/threading.py:327 in wait from vllm/v1/engine/core.py:"
KILLED = "[tracon] process EngineCore pid 7 died of SIGKILL\n"


def log_of(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("name", "signal", "pid"), [("sigsegv.log", "SIGSEGV", 817), ("sigill.log", "SIGILL", 926)]
)  # fmt: skip
@pytest.mark.parametrize("code", [0, 1, None], ids=["server ended well", "server failed", "server still runs"])
def test_a_real_crash_of_the_engine_process_is_named_with_its_frame(
    name: str, signal: str, pid: int, code: int | None
) -> None:
    death = read_death(code, log_of(name), ["the last line"])
    assert (death.ended_by, death.process, death.pid) == (signal, "EngineCore", pid)
    assert death.frame.startswith(FRAME), "the current thread's, not that of the threads listed before it"
    assert death.frame.endswith("in _process_input_queue")
    assert explain_death(death).startswith(f"lost its process EngineCore (pid {pid}), which was ended by {signal}: ")
    assert explain_death(death).endswith("\nthe last line")


def test_without_the_line_that_names_the_process_the_stack_names_the_signal() -> None:
    log = "\n".join(line for line in log_of("sigill.log").splitlines() if not line.startswith("[tracon]"))
    death = read_death(1, log)
    assert (death.ended_by, death.process) == ("SIGILL", "")
    assert death.frame.startswith(FRAME)
    assert "tracon doctor" in diagnose("", death.ended_by)


def test_a_native_thread_that_crashed_is_not_taken_for_a_python_thread() -> None:
    log = log_of("sigill.log").replace("Current thread", "Thread")
    death = read_death(1, log)
    assert death.frame.startswith(f"of the main thread {FRAME}")
    assert "runs no Python" in death.frame


def test_a_kill_leaves_no_frame_and_an_older_stack_is_not_taken_for_its_own() -> None:
    log = KILLED + log_of("sigill.log")
    death = read_death(0, log)
    assert (death.ended_by, death.pid, death.frame) == ("SIGKILL", 7, "")


@pytest.mark.parametrize(
    ("code", "log", "text"),
    [
        (-9, "", "was ended by SIGKILL"),
        (-15, "", "was ended by SIGTERM"),
        (-40, "", "was ended by SIG40"),
        (3, "", "ended with exit code 3"),
        (None, "", "ended"),
        (1, "ValueError: no\n[tracon] process EngineCore pid 9 ended with exit code 1\n",
         "lost its process EngineCore (pid 9), which ended with exit code 1: ValueError: no"),
        (-9, "[tracon] process EngineCore pid 9 ended with exit code 1\n", "was ended by SIGKILL"),
        (1, "[tracon] process VllmWorker-1 pid 9 died of SIGTERM\n[tracon] process VllmWorker-0 pid 8 died of SIGKILL\n"
            "[tracon] process EngineCore pid 7 ended with exit code 1\n",
         "lost its process VllmWorker-0 (pid 8), which was ended by SIGKILL"),
        (1, "x [tracon] process EngineCore pid 9 died of SIGKILL and more\n", "ended with exit code 1"),
    ],
)  # fmt: skip
def test_the_first_process_that_a_signal_ended_is_the_one_that_died(code: int | None, log: str, text: str) -> None:
    assert describe_death(read_death(code, log)) == text


def test_a_line_of_the_log_is_cut_where_it_has_no_end() -> None:
    assert len(read_death(1, "", ["x" * 10_000]).last_lines[0]) < 1_000


def test_any_log_is_read_without_an_error() -> None:
    whole = log_of("sigill.log")
    for end in range(0, len(whole), 97):
        read_death(1, whole[end:])
        read_death(1, whole[:end])
        find_stalls_in(whole[:end])
        find_child_ends(whole[:end])


def test_a_process_that_was_held_up_is_one_stall_with_its_frame() -> None:
    log = log_of("held_up.log")
    (stall,), holds = find_stalls_in(log)
    assert holds == 0
    assert stall.text == "no Python thread ran for 8.1 s (pid 1035)"
    assert stall.frame.startswith(FRAME)
    before, _, _ = log.partition("[tracon] no Python thread")
    (unended,), holds = find_stalls_in(before)
    assert (unended.text, holds) == ("no Python thread ran for 5 s", 1)
    assert find_stalls_in(log.removeprefix(before), holds) == ((), 0)


def test_two_processes_that_are_held_up_at_once_are_two_stalls() -> None:
    timeout = 'Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n  File "/x/{}.py", line 2 in wait\n\n'
    ends = "".join(f"[tracon] no Python thread ran for {length} s (pid {length})\n" for length in (6, 7))
    stalls, _ = find_stalls_in(timeout.format("a") + timeout.format("b") + ends)
    assert [(stall.text[-7:], stall.frame) for stall in stalls] == [
        ("(pid 6)", "/x/a.py:2 in wait"), ("(pid 7)", "/x/b.py:2 in wait")
    ]  # fmt: skip


def test_a_step_that_stalled_is_named_with_its_frame() -> None:
    line = "[tracon] a step has run for 5 s, /e/lib/site-packages/vllm/v1/core.py:12 in step (step 7, pid 9)\n"
    (stall,), _ = find_stalls_in(f"before\n{line}Thread 0x1 (most recent call first):\n")
    assert (stall.text, stall.frame) == ("a step has run for 5 s (step 7, pid 9)", "vllm/v1/core.py:12 in step")
    assert find_stalls_in(f"a request echoes: {line}") == ((), 0)


OOM = "Out of memory: Killed process 7 (VLLM::EngineCor) total-vm:1kB, anon-rss:2kB"


def test_the_oom_killers_line_is_read_from_the_kernels_log(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"3,2,90000000,-;{OOM}\n SUBSYSTEM=x\n")
    assert read_oom_lines(80.0, log) == ((OOM,), "")
    assert read_oom_lines(100.0, log) == ((OOM,), ""), "the clocks drift apart"
    assert read_oom_lines(200.0, log) == ((), ""), "of an earlier launch"
    lines, why = read_oom_lines(0.0, tmp_path / "none")
    assert not lines
    assert "No such file" in why


@pytest.mark.parametrize(
    ("pid", "lines", "unreadable", "kills", "text"),
    [
        (7, (OOM,), "", (0, 1), f"the kernel's log: {OOM}"),
        (70, (), "/dev/kmsg: Operation not permitted", (2, 3), "ended 1 processes of this cgroup"),
        (70, (OOM,), "", (None, None), "perhaps another one"),
        (70, (), "/dev/kmsg: Operation not permitted", (2, 2), "is not known (/dev/kmsg: Operation not permitted)"),
        (70, (), "", (2, 2), "another process sent the signal"),
    ],
)  # fmt: skip
def test_a_kill_is_explained_by_what_could_be_read(
    pid: int, lines: tuple[str, ...], unreadable: str, kills: tuple[int | None, int | None], text: str
) -> None:
    assert text in judge_kill(pid, lines, unreadable, *kills)


@pytest.mark.parametrize(
    ("cgroup", "counters", "content", "kills"),
    [
        ("0::/a/b\n", "a/b/memory.events", "low 0\noom 4\noom_kill 3\n", 3),
        ("4:memory:/c\n0::/\n", "memory/c/memory.oom_control", "under_oom 0\noom_kill 2\n", 2),
        ("0::/a\n", "a/memory.events", "damaged\n", None),
        ("0::/a\n", "elsewhere/memory.events", "oom_kill 1\n", None),
        ("0::/path/on/the/host\n", "memory.events", "oom_kill 1\n", 1),
        ("4:memory:/on/the/host\n0::/\n", "memory/memory.oom_control", "oom_kill 5\n", 5),
    ],
)
def test_the_cgroup_counts_its_oom_kills(
    tmp_path: Path, cgroup: str, counters: str, content: str, kills: int | None
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / counters).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / counters).write_text(content)
    assert count_oom_kills(tmp_path / "cgroup", tmp_path) == kills
    assert count_oom_kills(tmp_path / "none", tmp_path) is None


def test_a_kill_on_this_host_is_always_explained_in_some_way() -> None:
    assert explain_kill(1, 0.0, None)


def test_an_engine_that_finds_no_gpu_points_to_the_doctor() -> None:
    assert "tracon doctor" in diagnose("RuntimeError: Failed to infer device type, please set ...")


def test_a_kernel_that_cannot_be_compiled_is_explained() -> None:
    assert "compiler" in diagnose("RuntimeError: Failed to find C compiler. Please specify via CC environment variable")
    assert "CUDA toolkit" in diagnose("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda'")
