from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from results.records.events import Noted, RunTaken
from state.errors import LeaseHeld, LeaseLost, StateError
from state.lease import HEARTBEAT_S, STALE_S, acquire, read_lease_state
from state.process_identity import ProcessIdentity, identify, identify_this_process, is_alive
from state.store import RunStore

FORK = multiprocessing.get_context("fork")


def _hold(folder: Path, answers: Connection) -> None:
    with RunStore.open(folder) as store:
        try:
            acquire(store)
            answers.send("held")
        except LeaseHeld as refused:
            answers.send(str(refused))
        signal.pause()


@contextmanager
def a_holder(folder: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """Another process that holds the lease and will not let go."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_hold, args=(folder, sender), daemon=True)
    process.start()
    try:
        assert receiver.poll(60)
        assert receiver.recv() == "held"
        yield process
    finally:
        process.kill()
        process.join()


def _put(store: RunStore, holder: ProcessIdentity, heartbeat_unix_s: float) -> None:
    names = ", ".join(f.name for f in fields(ProcessIdentity))
    with store.transaction() as transaction:
        transaction.connection.execute(
            f"INSERT OR REPLACE INTO lease (id, {names}, acquired_unix_s, heartbeat_unix_s) "
            "VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*astuple(holder), heartbeat_unix_s, heartbeat_unix_s),
        )


def test_a_run_that_nobody_runs_says_so(store: RunStore) -> None:
    assert read_lease_state(store).state == "none"
    with acquire(store):
        assert read_lease_state(store).live
        assert [recorded.seq for recorded in store.events()] == [1], "no takeover is recorded"
    assert read_lease_state(store).state == "none"


def test_a_live_run_process_is_left_alone(tmp_path: Path, store: RunStore) -> None:
    with a_holder(tmp_path / "run") as holder:
        with pytest.raises(LeaseHeld) as refused:
            acquire(store)
        assert str(holder.pid) in str(refused.value)
        assert identify_this_process().host in str(refused.value)
        assert f"tracon stop {store.run}" in refused.value.remedy
        assert refused.value.exit_code == 2
        assert [recorded.seq for recorded in store.events()] == [1]


def test_a_run_process_that_is_stopped_or_silent_for_long_still_holds_its_run(tmp_path: Path, store: RunStore) -> None:
    with a_holder(tmp_path / "run") as holder:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGSTOP)
        assert read_lease_state(store, now_unix_s=4e9).live


def test_one_process_cannot_run_a_run_twice(store: RunStore) -> None:
    with acquire(store), pytest.raises(LeaseHeld, match=f"process {os.getpid()}"):
        acquire(store)


def test_the_run_of_a_killed_process_is_taken_over(tmp_path: Path, store: RunStore) -> None:
    with a_holder(tmp_path / "run") as holder:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie still
        assert read_lease_state(store).state == "dead"
    with acquire(store):
        assert read_lease_state(store).pid == os.getpid()
        *_, last = store.events()
        assert isinstance(last.event, RunTaken)
        assert (last.event.dead_pid, last.event.pid) == (holder.pid, os.getpid())
    assert store.find_problems() == ()


def test_a_reused_pid_does_not_hold_a_run(store: RunStore) -> None:
    me = identify_this_process()
    assert me.start_ticks is None or is_alive(me)
    ticks = None if me.start_ticks is None else me.start_ticks - 1
    _put(store, replace(me, process_start=me.process_start - 60, start_ticks=ticks), 1.0)
    assert read_lease_state(store).state == "dead"
    acquire(store).release()


def test_without_ticks_the_creation_time_tells(store: RunStore) -> None:
    me = replace(identify_this_process(), start_ticks=None)
    assert is_alive(me)
    assert not is_alive(replace(me, process_start=me.process_start - 60))


def test_setting_the_clock_does_not_kill_a_run() -> None:
    me = identify_this_process()
    if me.start_ticks is None:
        pytest.skip("this system does not tell ticks")
    assert is_alive(replace(me, process_start=me.process_start - 3_600))


def test_a_holder_of_an_earlier_boot_is_dead(store: RunStore) -> None:
    _put(store, replace(identify_this_process(), boot_id="an earlier boot"), 1e12)
    assert read_lease_state(store).state == "dead"


@pytest.mark.parametrize("elsewhere", [{"host": "another-host"}, {"pid_namespace": "pid:[1]"}])
def test_a_holder_elsewhere_is_judged_by_its_heartbeat(store: RunStore, elsewhere: dict[str, str]) -> None:
    _put(store, replace(identify_this_process(), **elsewhere), 1_000.0)  # type: ignore[arg-type]
    assert read_lease_state(store, now_unix_s=1_000.0 + STALE_S - 1).live
    assert read_lease_state(store, now_unix_s=1_000.0 + STALE_S + 1).state == "dead"
    assert STALE_S > 3 * HEARTBEAT_S


def test_heartbeats_make_the_lease_young_again(store: RunStore) -> None:
    now = [1_000.0]
    lease = acquire(store, clock=lambda: now[0])
    now[0] = 1_050.0
    assert read_lease_state(store, now[0]).age_s == 50.0
    lease.heartbeat()
    assert read_lease_state(store, now[0]).age_s == 0.0
    lease.release()


def test_a_process_that_lost_its_run_learns_it_and_harms_nobody(store: RunStore) -> None:
    lease = acquire(store)
    _put(store, identify(os.getppid()), 1.0)
    with pytest.raises(LeaseLost, match=str(os.getpid())):
        lease.heartbeat()
    lease.release()
    assert read_lease_state(store).pid == os.getppid()


def _race(folder: Path, start: Connection, answers: Connection) -> None:
    with RunStore.open(folder) as store:
        start.recv()
        try:
            acquire(store)
            answers.send("won")
        except StateError as refused:
            answers.send(type(refused).__name__)
        signal.pause()


def test_of_two_that_resume_a_dead_run_one_gets_it(tmp_path: Path, store: RunStore) -> None:
    _put(store, replace(identify_this_process(), boot_id="an earlier boot"), 1.0)
    starts, verdicts, racers = [], [], []
    for _ in range(2):
        (receiver, sender), (waits, starts_it) = FORK.Pipe(duplex=False), FORK.Pipe(duplex=False)
        racer = FORK.Process(target=_race, args=(tmp_path / "run", waits, sender), daemon=True)
        racer.start()
        starts.append(starts_it)
        verdicts.append(receiver)
        racers.append(racer)
    try:
        for start in starts:
            start.send("go")
        assert sorted(verdict.recv() for verdict in verdicts) == ["LeaseHeld", "won"]
    finally:
        for racer in racers:
            racer.kill()
            racer.join()
    assert sum(isinstance(recorded.event, RunTaken) for recorded in store.events()) == 1


def test_a_lease_does_not_fill_the_journal(store: RunStore) -> None:
    with acquire(store) as lease:
        for _ in range(3):
            lease.heartbeat()
    store.append(Noted("info", "run", "x"))
    assert [recorded.seq for recorded in store.events()] == [1, 2]


def test_a_holder_that_was_taken_over_writes_nothing_any_more(store: RunStore) -> None:
    """It may not know yet: its heartbeat comes every few seconds, and clocks of two hosts may differ."""
    lease = acquire(store)
    store.append(Noted("info", "run", "mine"))
    _put(RunStore.open(store.folder), replace(identify_this_process(), host="elsewhere"), 0.0)
    before = list(store.events())
    with pytest.raises(LeaseLost, match="took it over"):
        store.append(Noted("info", "run", "late"))
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    assert list(store.events()) == before
    lease.release()
    assert read_lease_state(store).host == "elsewhere"
