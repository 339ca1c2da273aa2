from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches import transfer_log
from patches.hooks import HookCheck
from patches.transfer_log import Line, Report, TransferLog
from tests.examples import examples

from .transfer_file import WRITTEN_S, await_failure, events, latest_status, said

ROOT = Path(__file__).parents[2]
CHECK = HookCheck("0.32.0", {}, ())


def report(log: TransferLog, role: str = "engine", *names: str) -> Report:
    made = Report(log, role, names or ("one", "two"), CHECK)
    made.declare()
    return made


def numbered(*numbers: int) -> list[Line]:
    return [{"t_ns": number, "request": f"r-{number}", "transfer": None} for number in numbers]


def test_the_file_begins_with_every_status_and_keeps_the_order(tmp_path: Path) -> None:
    log = TransferLog(str(tmp_path / "made" / "here"))
    worker, engine = report(log, "worker"), report(log)
    worker.note("one", numbered, 1, 2)
    engine.note("two", numbered, 3)
    lines = said(tmp_path / "made" / "here", 5)
    assert [line["event"] for line in lines] == ["status", "status", "one", "one", "two"]
    assert [line["role"] for line in lines[:2]] == ["worker", "engine"]
    assert {(line["pid"], line["vllm"], line["clock"]) for line in lines[:2]} == {
        (os.getpid(), "0.32.0", "CLOCK_MONOTONIC")
    }
    assert abs(time.perf_counter_ns() - lines[0]["t_ns"]) < 60e9
    assert lines[0]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_an_event_that_fails_ends_with_the_reason_and_the_others_go_on(tmp_path: Path) -> None:
    log = TransferLog(str(tmp_path))
    made = report(log)

    def broken() -> list[Line]:
        raise ValueError("no such thing")

    made.note("one", broken)
    made.note("one", numbered, 1)
    made.note("two", numbered, 2)
    lines = said(tmp_path, 3)
    assert [line["t_ns"] for line in events(lines)] == [2]
    status = latest_status(lines, "engine")
    assert status["available"] == {"one": False, "two": True}
    assert status["reasons"] == {"one": "stopped: ValueError: no such thing"}


def test_the_first_reason_stays(tmp_path: Path) -> None:
    made = report(TransferLog(str(tmp_path)))
    made.mark_unavailable(("one",), "missing")
    made.stop(("one",), ValueError("later"))
    assert made.status()["reasons"] == {"one": "missing"}


def test_a_forked_child_writes_a_file_of_its_own_that_begins_with_the_statuses(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from tests.patches.test_transfer_log import TransferLog, numbered, report, said
folder = Path({str(tmp_path)!r})
log = TransferLog(str(folder))
made = report(log)
made.note("one", numbered, 1)
child = os.fork()
made.note("two", numbered, 2 if child else 3)
said(folder, 3 if child else 2, os.getpid())
if not child:
    os._exit(0)
print(os.getpid(), child, os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    parent, child, status = map(int, done.stdout.split())
    assert status == 0
    of_parent, of_child = said(tmp_path, 3, parent), said(tmp_path, 2, child)
    assert [line["event"] for line in of_parent] == ["status", "one", "two"]
    assert [(line["event"], line.get("pid")) for line in of_child] == [("status", child), ("two", None)]
    assert of_child[-1]["t_ns"] == 3, "what the parent had not yet written is not the child's"


def test_what_was_said_a_moment_before_sigkill_is_there(tmp_path: Path) -> None:
    code = f"""
import time
from tests.patches.test_transfer_log import TransferLog, numbered, report
made = report(TransferLog({str(tmp_path)!r}))
for number in range(100_000):
    made.note("one", numbered, number)
    print(number, flush=True)
    time.sleep(0.002)
"""
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 100:
                break
        said(tmp_path, 100)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    text = next(tmp_path.glob("transfer.*.jsonl")).read_text()
    whole = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    assert [line["t_ns"] for line in events(whole)] == list(range(len(whole) - 1))


def test_a_folder_that_cannot_be_made_ends_the_log_and_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    log = TransferLog(str(tmp_path / "file"))
    made = report(log)
    await_failure(log)
    for number in range(10):
        made.note("one", numbered, number)
    warned = capfd.readouterr().err.splitlines()
    assert len(warned) == 1
    assert "transfer log off: " in warned[0]


def test_a_full_disk_ends_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = TransferLog(str(tmp_path))
    made = report(log)
    said(tmp_path, 1)

    real_write = os.write

    def full(file: int, data: bytes) -> int:
        if file == 2:  # the log of the engine itself
            return real_write(file, data)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    made.note("one", numbered, 1)
    await_failure(log)
    made.note("one", numbered, 2)
    monkeypatch.undo()
    assert len(said(tmp_path, 1)) == 1
    assert "No space left on device" in capfd.readouterr().err


def test_a_disk_that_takes_nothing_more_costs_the_log_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_log, "MAX_BUFFERED", 50)
    monkeypatch.setattr(transfer_log, "FLUSH_S", 3600.0)
    log = TransferLog(str(tmp_path))
    made = report(log)
    for number in range(200):
        made.note("one", numbered, number)
    assert log.failure == "50 lines are waiting to be written"
    assert len(log._lines) == 0


def test_a_file_that_has_grown_large_ends_the_log_and_keeps_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_log, "MAX_BYTES", 2000)
    monkeypatch.setattr(transfer_log, "FLUSH_S", 0.0)
    log = TransferLog(str(tmp_path))
    made = report(log)
    deadline = time.monotonic() + WRITTEN_S
    number = 0
    while log.failure is None and time.monotonic() < deadline:
        made.note("one", numbered, number)
        number += 1
        time.sleep(0.001)
    assert "2000 bytes" in (log.failure or "")
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["t_ns"] for line in events(lines)] == list(range(len(lines) - 1))


def test_no_thread_to_be_had_costs_the_log_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    log = TransferLog(str(tmp_path))
    report(log).note("one", numbered, 1)
    assert log.failure == "RuntimeError: can't start new thread"


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=20)


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.text(max_size=8), plain | st.lists(plain, max_size=3), max_size=4), max_size=20)
)
def test_whatever_is_said_is_one_line_each_in_order(rows: list[dict[str, Any]], tmp_path_factory: Any) -> None:  # noqa: ANN401
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfer_log, "FLUSH_S", 0.001)
        log = TransferLog(str(folder))
        for row in rows:
            log.put(row)
        log.put({"the": "end"})
        path = _whole(folder)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*rows, {"the": "end"}]


def _whole(folder: Path) -> Path:
    deadline = time.monotonic() + WRITTEN_S
    while not (paths := [path for path in folder.iterdir() if path.read_text().endswith('{"the":"end"}\n')]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return paths[0]
