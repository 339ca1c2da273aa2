"""The engines' transfer logs joined to the decision log: tokens that the logs were written with come out again."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.layout import TrialLayout, sha256
from results.records.routing_cells import RoutingBreakdown
from results.records.transfer_log import ProbeEvent, ProbeLog, ProbeStatus
from results.records.turns import RoutedEngine, RoutingCell
from results.routing.logs import read_logs
from results.routing.read import count_picks, load_cells
from results.routing.transfer_counts import NOT_LOGGED, read_transfer_logs, take_counts_from_logs
from tests.results.routing.logs import Log, moved
from tests.results.routing.synthetic import Truth, World, cell_record, records, write_run

WORLD = World(sessions=2, turns=1, trials=1)
SEES_LINE = {"event": "status", "t_ns": 0, "role": "engine", "available": {"blocks_allocated": True}}
SEES = ProbeStatus(role="engine", available={"blocks_allocated": True, "scheduled": True})


def cell(**changes: Any) -> RoutingCell:
    engines = tuple(RoutedEngine(name, "both", "", None, "spawn", 16, None, None, None) for name in "ab")
    record = cell_record(WORLD, Truth("ear"), 0, records(WORLD, Truth("ear")))
    return replace(record, engines=engines, **changes)


def handed(transfer: str, *, external: int | None = None, local: int | None = None, by: str = "") -> KvTransfer:
    """A handover from a to b of 1600 tokens, this part of it counted by the counters."""
    sent = moved("a", "b", purpose="handover", prefix=1600, external=external)
    reason = "" if by else "2 transfers there overlapped, 3200 tokens came in all"
    return replace(sent, transfer=transfer, local_tokens=local, bytes=None, bytes_from="", counted_by=by,
                   counted_reason=reason)  # fmt: skip


def event(kind: str, transfer: str, **fields: Any) -> ProbeEvent:
    request = f"cmpl-client-{transfer}-0-1a2b3c4d"
    return ProbeEvent(event=kind, t_ns=1, request=request, transfer=transfer, **fields)


def allocated(transfer: str, external: int, local: int, **fields: Any) -> ProbeEvent:
    one = event("blocks_allocated", transfer, prompt_tokens=1600, external_tokens=external, local_tokens=local)
    return msgspec.structs.replace(one, **fields)


def recount(
    sent: KvTransfer, *events: ProbeEvent, on_source: tuple[ProbeEvent, ...] = ()
) -> tuple[KvTransfer, list[str]]:
    """The transfer as the logs tell it, and the gaps."""
    log = Log()
    log.pick(0, "s", "b", prefill="a", transfer=sent)
    logs = {"a": ProbeLog(on_source, (SEES,)), "b": ProbeLog(events, (SEES,))}
    (record,), gaps = take_counts_from_logs(log.records, logs, cell(), "decisions.jsonl")
    assert record.outcome is not None
    assert record.outcome.transfer is not None
    return record.outcome.transfer, [gap.reason for gap in gaps]


def test_overlapping_transfers_are_separated_by_the_targets_log() -> None:
    write = event("write", "kv-1", transfers=("kv-1",), bytes=3000, ok=True)
    found, gaps = recount(handed("kv-1"), allocated("kv-2", 1600, 0), allocated("kv-1", 1000, 500), on_source=(write,))
    assert (found.external_tokens, found.local_tokens, found.computed_tokens) == (1000, 500, 100)
    assert (found.blocks, found.bytes, found.bytes_from) == (63, 3000, "log")
    assert (found.counted_by, found.counted_reason, gaps) == ("log", "", [])


def test_nixl_knows_the_transfer_by_the_name_of_the_sources_request() -> None:
    other, own = (
        ProbeEvent(event="blocks_allocated", t_ns=1, request="cmpl-r7-0-ff", remote_request=f"cmpl-{name}-0-00",
                   prompt_tokens=1600, external_tokens=tokens, local_tokens=0)
        for name, tokens in (("kv-11", 7), ("kv-1", 1584))
    )  # fmt: skip
    found, _ = recount(replace(handed("kv-1"), transport="nixl"), other, own)
    assert (found.external_tokens, found.local_tokens, found.computed_tokens) == (1584, 0, 16)


def test_a_target_that_had_all_of_it_took_nothing() -> None:
    scheduled = event("scheduled", "kv-1", part="decode", prompt_tokens=1600, cached_tokens=1584)
    found, _ = recount(handed("kv-1"), scheduled)
    assert (found.external_tokens, found.local_tokens, found.computed_tokens, found.bytes) == (0, 1584, 16, 0)


def test_of_a_load_that_failed_only_what_is_there_came() -> None:
    failed = event("promoted", "kv-1", ok=False, num_computed=700)
    found, _ = recount(handed("kv-1"), allocated("kv-1", 1000, 500), failed)
    assert (found.external_tokens, found.local_tokens, found.computed_tokens) == (200, 500, 900)
    unseen = event("promoted", "kv-1", ok=False)
    found, _ = recount(handed("kv-1"), allocated("kv-1", 1000, 500), unseen)
    assert found.external_tokens is None


def test_what_the_log_does_not_hold_stays_unknown_and_says_so() -> None:
    found, gaps = recount(handed("kv-1"), allocated("kv-2", 1600, 0))
    assert found.external_tokens is None
    assert found.counted_reason.startswith("2 transfers there overlapped")
    assert found.counted_reason.endswith(NOT_LOGGED)
    assert not gaps


def test_counters_and_log_that_agree_stay_and_those_that_differ_are_a_gap() -> None:
    same = handed("kv-1", external=1000, local=600, by="counters")
    assert recount(same, allocated("kv-1", 1000, 600)) == (same, [])
    found, gaps = recount(same, allocated("kv-1", 1600, 0))
    assert (found.external_tokens, found.local_tokens, found.counted_by) == (1600, 0, "log")
    (text,) = gaps
    assert text.startswith("1 of 1 transfers differ")
    assert "kv-1: 1000 tokens transferred and 600 cached by the counters, 1600 tokens transferred and 0" in text


def test_failed_ones_and_targets_without_a_log_stay_as_they_were() -> None:
    failed = replace(handed("kv-1"), status="failed")
    assert recount(failed, allocated("kv-1", 1600, 0))[0] == failed
    log = Log()
    log.pick(0, "s", "b", transfer=handed("kv-1"))
    known = {"a": ProbeLog((allocated("kv-1", 1, 1),), (SEES,))}
    for logs in ({}, known):
        assert take_counts_from_logs(log.records, logs, cell(), "") == (tuple(log.records), ())


def test_copies_for_several_transfers_say_nothing_of_one() -> None:
    write = event("write", "kv-1", transfers=("kv-1", "kv-2"), bytes=3000, ok=True)
    found, _ = recount(handed("kv-1"), allocated("kv-1", 1600, 0), on_source=(write,))
    assert (found.external_tokens, found.bytes, found.bytes_from) == (1600, None, "")


@given(
    st.lists(st.tuples(st.integers(0, 800), st.integers(0, 800), st.booleans()), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_any_number_of_overlapping_transfers_come_out_as_they_were(
    truth: list[tuple[int, int, bool]], random: Random
) -> None:
    """Whatever the order of the lines, and whichever of the two transports."""
    log, events = Log(), list[ProbeEvent]()
    for place, (external, local, nixl) in enumerate(truth):
        name = f"kv-{place}"
        log.pick(place, f"s{place}", "b", prefill="a", transfer=handed(name))
        line = allocated(name, external, local)
        far = {"transfer": None, "request": f"cmpl-r{place}-0-ff", "remote_request": f"cmpl-{name}-0-00"}
        events.append(msgspec.structs.replace(line, **far) if nixl else line)
    random.shuffle(events)
    recount, gaps = take_counts_from_logs(log.records, {"b": ProbeLog(tuple(events), (SEES,))}, cell(), "")
    found = [record.outcome.transfer for record in recount if record.outcome is not None]
    assert [(one.external_tokens, one.local_tokens, one.computed_tokens) for one in found if one is not None] == [
        (external, local, 1600 - external - local) for external, local, _ in truth
    ]
    assert not gaps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "engines" / "b" / "rings" / "7"
    path.mkdir(parents=True)
    lines = [
        SEES_LINE,
        {"event": "blocks_allocated", "t_ns": 5, "transfer": "kv-1", "external_tokens": 1600, "local_tokens": 0},
    ]
    (path / "transfer.12.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_logs_lie_beside_the_rings_of_each_launch(folder: Path, tmp_path: Path) -> None:
    logs, gaps = read_transfer_logs(TrialLayout(tmp_path), cell(checksums={}))
    assert (list(logs), gaps) == (["b"], ())
    assert [one.external_tokens for one in logs["b"].events] == [1600]
    assert not logs["b"].blind("blocks_allocated")


def test_a_log_that_was_changed_or_is_gone_is_a_gap_and_counts_nothing(folder: Path, tmp_path: Path) -> None:
    path = folder / "transfer.12.jsonl"
    name, whole = str(path.relative_to(tmp_path)), hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_transfer_logs(TrialLayout(tmp_path), cell(checksums={name: whole}))[1] == ()
    logs, (gap,) = read_transfer_logs(TrialLayout(tmp_path), cell(checksums={name: "0" * 64}))
    assert (logs, "differs from the checksum" in gap.reason) == ({}, True)
    path.unlink()
    logs, (gap,) = read_transfer_logs(TrialLayout(tmp_path), cell(checksums={name: whole}))
    assert (logs, gap.reason) == ({}, "is missing")


def test_without_logs_there_is_nothing_and_no_gap(tmp_path: Path) -> None:
    assert read_transfer_logs(TrialLayout(tmp_path), cell(checksums={})) == ({}, ())


def test_only_transferred_records_change() -> None:
    log = Log()
    log.pick(0, "s", "a")
    log.pick(1, "s", "b", transfer=handed("kv-1"))
    own: list[DecisionRecord] = log.records
    logs = {"b": ProbeLog((allocated("kv-1", 1600, 0),), (SEES,))}
    (first, second), _ = take_counts_from_logs(own, logs, cell(), "")
    assert first is own[0]
    assert second.outcome != own[1].outcome


def test_a_cell_on_disk_is_counted_by_its_own_logs(tmp_path: Path) -> None:
    root = write_run(tmp_path, replace(WORLD, instances=2), [Truth("static_pd")])
    layout = TrialLayout(root / "results" / "20260131_static_pd" / "trial_0")
    log = Log()
    for place, name in enumerate(("kv-1", "kv-2")):
        log.pick(place, f"s{place}", "e1", prefill="e0", transfer=replace(handed(name), source="e0", target="e1"))
    layout.decisions.write_bytes(msgspec.json.Encoder().encode_lines(log.records))
    counted = RoutingBreakdown(cell="", instances=(), picks=count_picks(log.records))
    layout.breakdown.write_bytes(msgspec.json.encode(counted))
    rings = layout.root / "engines" / "e1" / "rings" / "7"
    rings.mkdir(parents=True)
    (rings / "transfer.12.jsonl").write_bytes(
        msgspec.json.Encoder().encode_lines([SEES_LINE, allocated("kv-1", 1600, 0), allocated("kv-2", 600, 1000)])
    )
    record = msgspec.json.decode(layout.cell.read_bytes(), type=RoutingCell)
    paths = layout.metrics, layout.decisions, layout.engines, rings / "transfer.12.jsonl"
    checksums = {str(path.relative_to(layout.root)): sha256(path) for path in paths}
    layout.cell.write_bytes(msgspec.json.encode(replace(record, checksums=checksums)))

    cells, gaps = load_cells(root)
    facts, more = read_logs(root, cells)
    assert (gaps, more) == ((), ())
    (found,) = facts.values()
    assert [one.transfer.external_tokens for one in found.moved] == [1600, 600]
    assert {one.transfer.counted_by for one in found.moved} == {"log"}
