"""Faults follow from their seed, what they leave is seen, and the page has what the journal has."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import psutil
import pytest

from launch.guard import SOCKETS
from launch.ports import PortTaken, is_free, require_free
from results.records.events import (
    CellChanged,
    CellState,
    Event,
    InstanceChanged,
    InstanceState,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.layout import sha256, write_indented_json
from runners.campaign.provenance import Commit
from state.model import RunView
from tests.benchmarks import chaos
from tests.chaos import audit, campaign, processes, table
from tests.chaos.audit import Findings
from tests.chaos.campaign import LOAD_ENDED, Campaign, Outcome
from tests.chaos.faults import (
    CONNECTOR_TAX,
    DISK,
    KINDS,
    MOMENTS_OF,
    PD_LIFECYCLE,
    PORT,
    ROUTING,
    Fault,
    Script,
    draw_batch,
)
from tests.chaos.turns import Span
from tests.state.plans import CELLS, a_run

CELL = CELLS[-1].cell
"""A load cell."""


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    assert draw_batch(7, 60, KINDS, 8) == draw_batch(7, 60, KINDS, 8)
    assert draw_batch(7, 60, KINDS, 8) != draw_batch(8, 60, KINDS, 8)


def test_every_kind_comes_as_often_and_each_fault_meets_an_experiment_that_has_its_target() -> None:
    scripts = draw_batch(1, 3 * len(KINDS), KINDS, 8)
    faults = [fault for script in scripts for fault in script.faults]
    assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, 3)
    assert [script.number for script in scripts] == list(range(len(scripts)))
    assert max(len(script.faults) for script in scripts) == 8
    assert {script.experiment for script in scripts} == {ROUTING, CONNECTOR_TAX, PD_LIFECYCLE}
    long_batch = draw_batch(1, 49 * len(KINDS), KINDS, 20)
    assert {script.experiment for script in long_batch[:12]} == {ROUTING, CONNECTOR_TAX, PD_LIFECYCLE}
    assert not any(f.role == "router" for s in scripts if s.experiment == CONNECTOR_TAX for f in s.faults)
    in_lifecycle = [fault for s in scripts if s.experiment == PD_LIFECYCLE for fault in s.faults]
    assert in_lifecycle
    assert not any(fault.role == "load" or fault.moment == "publishing" for fault in in_lifecycle)
    assert all(fault.moment in MOMENTS_OF[fault.role] for fault in faults)
    assert all((fault.hold_s == 0.0) == (fault.action == "kill") for fault in faults)


def test_a_batch_that_is_journaled_draws_the_same_faults_again() -> None:
    """Since seed 3: those of seeds 1 and 2 were drawn in another way, one at a time."""
    entries = [entry for entry in table.read_lines(table.JOURNAL) if entry.seed >= 3]
    assert KINDS in {entry.kinds for entry in entries}, "of a batch that named no kind"
    for entry in entries:
        scripts = draw_batch(entry.seed, entry.count, entry.kinds, entry.each)
        (script,) = (one for one in scripts if one.number == entry.number)
        drawn = Counter((one.kind, one.moment, one.delay_s, one.hold_s, one.draw) for one in script.faults)
        drawn -= Counter((one.kind, one.moment, one.delay_s, one.hold_s, one.draw) for one in entry.met)
        assert sorted(kind for kind, *_ in drawn.elements()) == sorted(entry.missed)
        assert script.experiment == entry.experiment


class Following:
    """A run whose news come one by one; nothing of it can be killed."""

    def __init__(self, coming: Sequence[Event | str]) -> None:
        self.folder = Path("run")
        self.pid = os.getpid()
        self.port = 0
        self.view = SimpleNamespace(current_cells=(), live_instances=(), instances={})
        self.news: list[Event | str] = []
        self.wanted: list[bool] = []
        self.starved: list[Span] = []
        self._coming = list(coming)

    def works(self) -> bool:
        return True

    def sync(self) -> None:
        if self._coming:
            self.news.append(self._coming.pop(0))

    def follow_load(self, *, wanted: bool) -> None:
        self.wanted.append(wanted)


def follow(
    faults: Sequence[Fault], coming: Sequence[Event | str], target: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcome, Following]:
    """What becomes of the faults of one campaign while a run reports `coming`."""
    run = Following(coming)
    monkeypatch.setattr(Campaign, "_run_at_work", lambda self: run)
    monkeypatch.setattr(processes, "find_role", lambda *_: [] if target is None else [target])
    played = Campaign(Script(0, ROUTING, tuple(faults)), Path("nowhere"), None, lambda text: None)
    for _ in range(2000):
        if not (played._waiting or played._armed):
            break
        played._meet_next()
    return played._outcome, run


STARTING = InstanceChanged("e-1", "plain", InstanceState.STARTING)
FINISHED = CellChanged(CELL, CellState.DONE, 1)


def stop_engine(moment: str, delay_s: float = 0.0) -> Fault:
    return Fault("stop engine", moment, delay_s, 0.01, 0.5)


def test_faults_strike_as_their_moments_come_and_not_in_the_order_of_their_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = [stop_engine(name) for name in ("publishing", "done", "starting", "present", "present")]
    with subprocess.Popen(["sleep", "60"]) as child:
        outcome, run = follow(faults, [STARTING, LOAD_ENDED, FINISHED], child.pid, monkeypatch)
        child.kill()
    assert [met.fault.moment for met in outcome.met] == ["starting", "present", "publishing", "done", "present"]
    assert not outcome.missed
    assert run.wanted[0], "one of them waits for the end of a load"
    assert not run.wanted[-1]


def test_a_fault_strikes_after_its_delay_and_is_missed_if_moment_or_target_never_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        began_s = time.monotonic()
        outcome, _ = follow([stop_engine("done", 0.3), stop_engine("present")], [FINISHED], child.pid, monkeypatch)
        assert [met.fault.moment for met in outcome.met] == ["present", "done"]
        assert outcome.met[1].after_s >= 0.3
        assert time.monotonic() - began_s < 10.0
        monkeypatch.setattr(campaign, "MOMENT_S", 0.2)
        outcome, _ = follow([stop_engine("done"), stop_engine("present", 0.01)], [], child.pid, monkeypatch)
        assert [fault.moment for fault in outcome.missed] == ["done"]
        child.kill()
    outcome, _ = follow([stop_engine("present", 0.01)], [], None, monkeypatch)
    assert len(outcome.missed) == 1, "it has no target"


def test_a_port_is_taken_between_two_engines_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # of an engine that has ended: free from here on
        port = server.getsockname()[1]
    free: list[bool] = []

    class BetweenEngines(Following):
        def __init__(self, coming: Sequence[Event | str]) -> None:
            super().__init__(coming)
            self.port = port

        def sync(self) -> None:
            super().sync()
            free.append(is_free(port))

    run = BetweenEngines([FINISHED])
    monkeypatch.setattr(Campaign, "_run_at_work", lambda self: run)
    fault = Fault(PORT, "done", 0.0, 0.1, 0.5)
    played = Campaign(Script(0, ROUTING, (fault,)), Path("nowhere"), None, lambda text: None)
    for _ in range(20):
        if played._waiting or played._armed:
            played._meet_next()
    assert [met.target for met in played._outcome.met] == [port]
    assert False in free, "for as long as the fault lasts"
    assert is_free(port)
    with processes.port_taken(port), pytest.raises(PortTaken, match=f"port {port} .* pid {os.getpid()}"):
        require_free({"http": port})


def test_a_port_that_an_engine_has_is_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        live, ended = server.getsockname()[1], other.getsockname()[1]
        instances = {
            name: SimpleNamespace(url=f"http://127.0.0.1:{port}") for name, port in (("a", live), ("b", ended))
        }
        view = cast(RunView, SimpleNamespace(instances=instances, live_instances=(instances["a"],)))
        assert campaign.list_unused_ports(view, live) == [], "a process listens on both"
        other.close()
        assert campaign.list_unused_ports(view, live) == [ended]
        server.close()
        assert campaign.list_unused_ports(view, live) == [ended], "an engine starts there"


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [([], KINDS), (["take"], (PORT,)), (["disk", "take"], (DISK, PORT)), ([""], (*KINDS, PORT))],
)
def test_a_kind_that_older_batches_lack_comes_only_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], kinds: tuple[str, ...]
) -> None:
    played: list[Sequence[str]] = []

    def run_batch(options: Namespace, kinds: Sequence[str]) -> bool:
        played.append(kinds)
        return True

    monkeypatch.setattr(chaos, "run_batch", run_batch)
    monkeypatch.setattr(sys, "argv", ["chaos", *(word for one in asked for word in ("--kind", one))])
    with pytest.raises(SystemExit):
        chaos.main()
    assert [tuple(one) for one in played] == [kinds]
    faults = [fault for script in draw_batch(1, 30, kinds, 8) for fault in script.faults]
    assert all(fault.moment in MOMENTS_OF[fault.role] for fault in faults)
    assert all(fault.hold_s > 0 for fault in faults if fault.kind == PORT)


def test_the_audit_is_told_when_a_router_could_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        _, router = follow([Fault("stop router", "present", 0.01, 0.1, 0.5)], [], child.pid, monkeypatch)
        _, engine = follow([stop_engine("present")], [], child.pid, monkeypatch)
        _, run = follow([Fault("memory of run", "present", 0.01, 0.1, 0.5)], [], child.pid, monkeypatch)
        child.kill()
    assert engine.starved == []
    assert [(end - begin) / 1e9 for begin, end in router.starved] == [pytest.approx(0.1, abs=2.0)]
    assert [(end - begin) / 1e9 > 100.0 for begin, end in run.starved] == [True], "a router may have inherited it"


def batch_options(journal: Path, *, seconds: float = 0.0, next_seed: bool = False) -> Namespace:
    return Namespace(
        seed=3, batch=60, each=20, only=None, next_seed=next_seed, keep=None, seconds=seconds, journal=journal
    )


def play_batch(
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 0.0,
    each_s: float = 0.0,
    bad: Sequence[int] = (),
) -> list[int]:
    """The campaigns that the command plays, each of which takes `each_s`; those in `bad` count a defect."""
    played: list[int] = []

    def play(script: Script, keep: Path | None) -> tuple[Outcome, float]:
        played.append(script.number)
        time.sleep(each_s)
        outcome = Outcome()
        if script.number in bad:
            outcome.findings.add("lost", "x")
        return outcome, 1.0

    monkeypatch.setattr(chaos, "play_script", play)
    clean = chaos.run_batch(batch_options(journal, seconds=seconds), KINDS)
    assert clean == (not bad)
    return played


def test_a_batch_goes_on_with_the_campaigns_that_its_journal_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another day, too: the journal is all that is kept."""
    journal = tmp_path / "journal.jsonl"
    sessions = [play_batch(journal, monkeypatch, seconds=1.0, each_s=1.1), play_batch(journal, monkeypatch)]
    numbers = [script.number for script in draw_batch(3, 60, KINDS, 20)]
    assert sessions == [numbers[:1], numbers[1:]]
    assert play_batch(journal, monkeypatch) == []
    assert [entry.number for entry in table.read_lines(journal)] == numbers


def test_git_ignores_the_journal_of_make_test_long() -> None:
    ignored = (table.ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/{table.LONG_JOURNAL.relative_to(table.ROOT).parts[0]}/" in ignored


def test_a_campaign_whose_last_line_has_a_defect_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal.jsonl"
    numbers = [script.number for script in draw_batch(3, 60, KINDS, 20)]
    assert play_batch(journal, monkeypatch, bad=[1]) == numbers
    assert play_batch(journal, monkeypatch) == [1]
    assert play_batch(journal, monkeypatch) == []


def test_a_batch_that_is_done_is_said_to_be_and_the_next_seed_begins_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = batch_options(tmp_path / "journal.jsonl", next_seed=True)
    assert chaos.choose_seed(options, KINDS) == 3
    play_batch(options.journal, monkeypatch, seconds=1.0, each_s=1.1)
    assert chaos.choose_seed(options, KINDS) == 3, "interrupted: it goes on"
    play_batch(options.journal, monkeypatch)
    assert chaos.choose_seed(options, KINDS) == 4
    assert chaos.choose_seed(batch_options(options.journal), KINDS) == 3, "the seed that was asked for"
    capsys.readouterr()
    play_batch(options.journal, monkeypatch)
    assert "every campaign of this batch is done. Begin another batch with --seed" in capsys.readouterr().err


def test_an_empty_batch_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its seeds would be done, so the search for the next one would not end."""
    monkeypatch.setattr("sys.argv", ["chaos", "--batch", "0", "--next-seed"])
    monkeypatch.setattr(chaos, "choose_seed", lambda options, kinds: pytest.fail("it looked for a seed"))
    with pytest.raises(SystemExit) as ended:
        chaos.main()
    assert ended.value.code == 2
    assert "--batch is 0" in capsys.readouterr().err


def test_a_line_has_the_commit_that_the_campaign_began_on_whatever_the_journal_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def commit_of(folder: Path, *, ignored: str) -> Commit:
        seen.append(ignored)
        return Commit(f"{len(seen):040}", "the work tree has uncommitted changes" if len(seen) == 2 else "")

    monkeypatch.setattr(chaos, "commit_of", commit_of)
    play_batch(tmp_path / "journal.jsonl", monkeypatch)
    entries = table.read_lines(tmp_path / "journal.jsonl")
    assert [entry.commit for entry in entries[:2]] == ["0" * 10, "0" * 10 + " and changes"]
    assert set(seen) == {"tests/chaos/journal.jsonl"}
    assert all(abs(entry.t_unix_s - time.time()) < 60.0 for entry in entries)


def measured_run(folder: Path, *, attempt: int = 1) -> Path:
    """A run whose last cell is done, with its record and its requests in place."""
    with a_run(folder) as store:
        store.append(
            RunChanged(RunState.RUNNING),
            StageChanged("phase-a", StageState.RUNNING),
            CellChanged(CELL, CellState.RUNNING, attempt),
            CellChanged(CELL, CellState.DONE, attempt),
        )
    config = folder / "results" / "20260101_noop_connector"
    config.mkdir(parents=True)
    requests = config / "requests_A_r4.jsonl"
    requests.write_text('{"index": 0}\n')
    record = {"cell": CELL, "attempt": attempt, "checksums": {requests.name: sha256(requests)}}
    write_indented_json(config / "cell_A_r4.json", record)
    return requests


def found_in(folder: Path, seen: dict[str, int] | None = None) -> dict[str, int]:
    findings = Findings()
    audit.check_cells(folder, seen or {}, findings)
    audit.check_files(folder, findings)
    audit.check_measurements(folder, findings)
    return {measure: count for measure, count in findings.counts.items() if count}


def test_a_run_that_is_whole_has_no_defect(tmp_path: Path) -> None:
    measured_run(tmp_path / "run")
    assert found_in(tmp_path / "run", {CELL: 1}) == {}


def test_a_finished_cell_whose_artifacts_changed_is_lost(tmp_path: Path) -> None:
    requests = measured_run(tmp_path / "run")
    requests.write_text('{"index": 1}\n')
    assert found_in(tmp_path / "run") == {"lost": 1}


def test_a_cell_that_was_whole_and_was_measured_again_is_seen(tmp_path: Path) -> None:
    measured_run(tmp_path / "run", attempt=2)
    assert found_in(tmp_path / "run", {CELL: 1}) == {"twice": 1}


def test_a_cell_with_two_whole_records_is_seen(tmp_path: Path) -> None:
    folder = measured_run(tmp_path / "run").parent
    shutil.copytree(folder, folder.with_name("20260102_noop_connector"))
    assert found_in(tmp_path / "run") == {"twice": 1}


def test_a_cell_that_is_done_by_another_attempt_than_its_record_names_is_seen(tmp_path: Path) -> None:
    record = measured_run(tmp_path / "run").with_name("cell_A_r4.json")
    write_indented_json(record, msgspec.json.decode(record.read_bytes()) | {"attempt": 2})
    assert found_in(tmp_path / "run") == {"twice": 1}
    assert found_in(tmp_path / "run", {CELL: 1}) == {"twice": 1}, "one way is counted once"


@pytest.mark.parametrize(
    "name",
    ["20260101_noop_connector/engine_step_A_r4.jsonl", "20260101_ear/trial_0/metrics.jsonl", "lifecycle/C1_rep0.json"],
)
def test_a_measurement_that_no_record_names_is_seen(name: str, tmp_path: Path) -> None:
    measured_run(tmp_path / "run")
    left = tmp_path / "run" / "results" / name
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text('{"index": 0}\n')
    assert found_in(tmp_path / "run") == {"half_written": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [("plan.json", '{"a": '), ("host.jsonl", '{"a": 1}\n{"a"'), ("host.jsonl", '{"a": 1}'), (".tax.json.partial", "")],
)
def test_a_half_written_file_is_seen_but_in_attempts(tmp_path: Path, name: str, content: str) -> None:
    measured_run(tmp_path / "run")
    (tmp_path / "run" / "attempts").mkdir()
    (tmp_path / "run" / "attempts" / name).write_text(content)
    assert found_in(tmp_path / "run") == {}
    (tmp_path / "run" / name).write_text(content)
    assert found_in(tmp_path / "run") == {"half_written": 1}


def test_a_port_and_shared_memory_that_stay_are_seen() -> None:
    findings, before = Findings(), audit.list_shared_memory()
    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        audit.check_shared_memory(before, findings)
        assert findings.counts["shared_memory"] == 0, "a live process has it mapped"
        segment.close()
        audit.check_shared_memory(before, findings)
        assert findings.sentences == (f"shared memory left: /dev/shm/{segment.name}",)
    finally:
        segment.unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        audit.check_ports(server.getsockname()[1], 1, findings)
    assert findings.counts["ports"] == 1
    assert str(os.getpid()) in " ".join(findings.sentences)


def test_a_folder_in_shared_memory_is_no_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs use /dev/shm for temporary folders too."""
    monkeypatch.setattr(audit, "SHARED_MEMORY", tmp_path)
    (tmp_path / "tmp_of_a_program").mkdir()
    (tmp_path / "psm_1").touch()
    assert audit.list_shared_memory() == {"psm_1"}


def test_sockets_that_stay_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = Findings()
    (tmp_path / f"{SOCKETS}00").mkdir()
    (tmp_path / "notes").touch()
    (tmp_path / "vllm_dist_0a").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("left")
    audit.check_sockets(tmp_path, findings)
    assert findings.sentences == ("sockets left: left", f"sockets left: {SOCKETS}00", "sockets left: vllm_dist_0a")


def limits_of(pid: int) -> dict[str, str]:
    """Soft limits by name."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


def test_a_process_that_is_starved_gets_its_limits_back() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"up\n")
        assert child.stdout.readline() == b"up\n"  # from here on it is `cat`, with its own files and memory
        before = limits_of(child.pid)
        with processes.few_descriptors(child.pid, 0.9), processes.little_memory(child.pid, 0.0):
            starved = limits_of(child.pid)
            assert int(starved["Max open files"]) == 6, "0, 1, 2 and three more"
            assert int(starved["Max address space"]) == psutil.Process(child.pid).memory_info().vms
        assert limits_of(child.pid) == before
        child.kill()


ENTRY = table.Entry(
    seed=1, count=8, kinds=KINDS, each=8, number=0, experiment=ROUTING, commit="abc", t_unix_s=1.0, duration_s=30.0,
    met=(table.Met("kill run", "present", 0.1, 0.0, 0.5, "", 3.0),), missed=("kill load",), runs=1, resumes=1,
    retried=(), cells=7, counts={"lost": 1}, findings=("finished cells lost: x",),
)  # fmt: skip


def test_a_campaign_that_is_run_again_replaces_its_line_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    table.append_entry(journal, ENTRY)
    with journal.open("ab") as file:
        file.write(msgspec.json.encode(ENTRY)[:40])
    assert table.read_lines(journal) == (ENTRY,)
    again = msgspec.structs.replace(ENTRY, counts={"lost": 0}, findings=())
    table.append_entry(journal, again)
    assert table.read_lines(journal) == (ENTRY, again)
    assert table.newest_lines((ENTRY, again)) == (again,)


def test_the_table_keeps_what_a_repeated_campaign_had_found() -> None:
    again = msgspec.structs.replace(ENTRY, commit="def and changes", t_unix_s=86_401.0, findings=("sockets left: y",))
    last = msgspec.structs.replace(again, commit="fed", findings=())
    assert "repeated on" not in table.make_tables([ENTRY])
    tables = table.make_tables([ENTRY, again, last])
    assert "| 1, 0 | finished cells lost: x | 1970-01-01, abc | 1970-01-02, def |" in tables
    assert "| 1, 0 | sockets left: y | 1970-01-02, def | 1970-01-02, fed |" in tables
    assert "- seed 1, campaign 0" not in tables, "its last line has no defect"


def test_the_table_says_when_and_on_which_commits_each_number_was_counted() -> None:
    later = msgspec.structs.replace(
        ENTRY, number=1, commit="def and changes", t_unix_s=86_401.0, counts={"lost": 0, "sockets": 0}, attempts=3
    )
    tables, last = table.make_tables([later, ENTRY]), "1970-01-02, def"
    assert "| 1 | 2 | 2 | 1970-01-01, abc | 1970-01-02, def | 2 | 1 | 1 of 2 |" in tables
    assert "| finished cells lost | 1 | 2 of 2 | 1970-01-01, abc | 1970-01-02, def |" in tables
    assert f"| sockets left | 0 | 1 of 2 | {last} | {last} |" in tables
    assert f"| failed attempts searched for lost sessions too | 3 | 1 of 2 | {last} | {last} |" in tables


def test_the_table_says_what_was_not_run() -> None:
    tables = table.make_tables([ENTRY])
    assert "| kill run | 1 of 50 | 0 | 49 |" in tables
    assert "| kill load | 0 of 50 | 1 | 50 |" in tables
    assert "| finished cells lost | 1 | 1 of 1 |" in tables
    assert "| sockets left | 0 | 0 of 1 |  |  |" in tables, "an older campaign did not count them"
    assert "- seed 1, campaign 0: finished cells lost: x" in tables


def test_the_table_has_the_kind_that_must_be_named_once_it_was_met() -> None:
    met = (*ENTRY.met, table.Met(PORT, "done", 0.1, 2.0, 0.5, "", 3.0))
    assert PORT not in table.make_tables([ENTRY])
    assert f"| {PORT} | 1 of 50 | 0 | 49 |" in table.make_tables([msgspec.structs.replace(ENTRY, met=met)])


def test_a_line_without_audited_attempts_is_read() -> None:
    older = msgspec.json.encode(ENTRY).replace(b',"attempts":null', b"")
    assert msgspec.json.decode(older, type=table.Entry) == ENTRY, "an older line has no such field"


def test_the_page_has_the_tables_of_the_journal() -> None:
    """`python -m tests.benchmarks.chaos --table` writes them."""
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.page_with(table.make_tables(table.read_lines(table.JOURNAL)), page) == page


def test_the_page_says_what_mended_each_defect_that_a_campaign_had_found() -> None:
    after = table.PAGE.read_text(encoding="utf-8").partition(table.END)[2]
    replaced = table.list_replaced(table.read_lines(table.JOURNAL))
    rows = {f"| {entry.seed}, {entry.number} |" for entry, _ in replaced}
    assert rows
    assert [row for row in rows if row not in after] == []
