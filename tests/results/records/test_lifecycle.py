"""A record's file has the specification's objects and keys, reads back as it was, and counts only when it should."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.records.frames import Gap
from results.records.layout import LifecycleLayout, write_indented_json
from results.records.lifecycle import (
    HANDSHAKE_PARTS,
    NO_PLAIN,
    PHASES,
    VERSION,
    LifecycleRecord,
    RequestConfig,
    Verification,
    parse_cell_name,
    read_lifecycle,
    upgrade_aggregate,
)
from tests.results.pd_lifecycle.synthetic import Truth, seen

CONFIG = RequestConfig(4096, 8192, 128)


def test_the_file_holds_the_specifications_objects(tmp_path: Path) -> None:
    path = LifecycleLayout(tmp_path).record(CONFIG, 3)
    write_indented_json(path, seen(Truth(), CONFIG).record())
    assert path.relative_to(tmp_path) == Path("results/lifecycle/C4096_N8192_O128_rep3.json")
    written = json.loads(path.read_text())
    assert list(written)[:4] == ["config", "timestamps_ns", "breakdown_ms", "transfer_detail"]
    assert written["config"] == {
        "prior_context": 4096, "current_new_tokens": 8192, "output_length": 128, "total_input_length": 12288,
    }  # fmt: skip
    assert list(written["timestamps_ns"]) == [
        "t0_proxy_recv", "t1_proxy_dispatch", "t2_p_schedule", "t3_p_prefill_done", "t4_zmq_metadata", "t5_rdma_start",
        "t6_rdma_complete", "t7_d_recv_signal", "t8_d_promoted", "t9_d_first_token", "t10_d_last_token",
    ]  # fmt: skip
    assert list(written["breakdown_ms"]) == [
        "routing", "p_queue", "p_prefill", "zmq_handshake", "rdma_transfer", "transfer_signal", "d_promotion",
        "d_first_token", "d_decode", "transfer_total", "e2e",
    ]  # fmt: skip
    assert list(written["transfer_detail"]) == [
        "bytes_transferred", "num_rdma_ops", "num_blocks", "num_layers", "build_params_ms", "rdma_write_ms",
        "effective_bw_gbps",
    ]  # fmt: skip


def test_a_record_reads_back_as_it_was(tmp_path: Path) -> None:
    whole = seen(Truth(), CONFIG).record()
    bare = seen(Truth(), CONFIG).record(decision=None)
    for number, record in enumerate((whole, bare), 1):
        path = tmp_path / f"{number}.json"
        write_indented_json(path, record)
        assert read_lifecycle(path) == record


@pytest.mark.parametrize("raw", [b"", b"{", b'{"config": {}}', b"\xff"])
def test_a_damaged_record_is_a_gap(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "C0_N1_O1_rep1.json"
    path.write_bytes(raw)
    gap = read_lifecycle(path)
    assert isinstance(gap, Gap)
    assert "damaged" in gap.reason


def test_a_record_of_another_version_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_indented_json(path, replace(seen(Truth(), CONFIG).record(), version=VERSION + 1))
    gap = read_lifecycle(path)
    assert isinstance(gap, Gap)
    assert f"version {VERSION + 1}" in gap.reason


def test_a_record_of_version_2_is_of_the_first_trial_and_has_no_plain_engine(tmp_path: Path) -> None:
    now = seen(Truth(), CONFIG).record()
    old = msgspec.to_builtins(now) | {"version": 2}
    del old["plain"], old["trial"], old["more_ms"]["pdsep_overhead_vs_plain"], old["gaps"]["pdsep_overhead_vs_plain"]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(old))
    read = read_lifecycle(path)
    assert isinstance(read, LifecycleRecord)
    assert (read.trial, read.plain.ttft_ms, read.version) == (0, None, VERSION)
    assert read.plain.reason == NO_PLAIN
    assert read == now


def test_a_record_of_version_3_is_read_with_the_side_of_its_ttft_in_the_name(tmp_path: Path) -> None:
    now = seen(Truth(), CONFIG).record()
    now = replace(now, error_ms={"router_ttft": 0.5}, gaps={**now.gaps, "router_ttft": "a reason"})
    old = msgspec.to_builtins(now) | {"version": 3}
    for name in ("more_ms", "error_ms", "gaps"):
        old[name]["ttft"] = old[name].pop("router_ttft")
    path = tmp_path / "record.json"
    path.write_text(json.dumps(old))
    assert read_lifecycle(path) == now


def test_an_older_aggregate_gets_the_plain_name_of_the_sign_and_the_side_of_its_ttft() -> None:
    config = {"prior_context": 0, "values": {"ttft": {"value": 5.0}, "e2e": {"value": 9.0}}, "medians": {"ttft": 4.0}}
    now = {
        "prior_context": 0,
        "values": {"router_ttft": {"value": 5.0}, "e2e": {"value": 9.0}},
        "medians": {"router_ttft": 4.0},
    }
    old = {"format": 2, "overheads": [{"prior_context": 0, "told": -1}], "configs": [config], "gaps": []}
    signed = {"overheads": [{"prior_context": 0, "sign": -1}], "gaps": [], "launches": 1}
    new = upgrade_aggregate(old)
    assert new == {"format": 4, "configs": [now], **signed}
    assert upgrade_aggregate({"format": 3, "configs": [config], **signed}) == new
    assert upgrade_aggregate(new) == new


@pytest.mark.parametrize("metadata", [True, False])
def test_a_record_of_version_1_is_read_by_the_names_of_version_2(tmp_path: Path, metadata: bool) -> None:
    """There `zmq_handshake` was what followed the metadata message, and the combined request always came last."""
    one = seen(Truth(), CONFIG)
    blind = replace(one.prefill, events=tuple(e for e in one.prefill.events if e.event != "metadata_received"))
    now = one.record() if metadata else one.record(prefill=blind)
    now = replace(now, colo=replace(now.colo, first=False))
    old = msgspec.to_builtins(now)
    old["version"] = 1
    old["more_ms"]["ready_to_write"] = old["breakdown_ms"]["zmq_handshake"]
    old["breakdown_ms"]["zmq_handshake"] = old["more_ms"].pop("zmq_after_metadata")
    if not metadata:
        old["gaps"]["zmq_handshake"] = old["gaps"].pop("zmq_after_metadata")
    del old["colo"]["first"]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(old))
    assert read_lifecycle(path) == now


def test_a_trial_has_its_own_names(tmp_path: Path) -> None:
    layout = LifecycleLayout(tmp_path)
    assert layout.record(CONFIG, 3, 1).name == "C4096_N8192_O128_t1_rep3.json"
    assert layout.cell(CONFIG, 2).parent.name == "C4096_N8192_O128_t2"
    assert parse_cell_name("C4096_N8192_O128_t2") == (CONFIG, 2)
    assert parse_cell_name("C4096_N8192_O128") == (CONFIG, 0)
    assert parse_cell_name("C4096_N8192") is None
    layout.folder.mkdir(parents=True)
    for trial, repetition in ((1, 1), (0, 2), (10, 1), (2, 1)):
        layout.record(CONFIG, repetition, trial).touch()
    names = [path.stem.removeprefix(f"{CONFIG.label}_") for path in layout.records()]
    assert names == ["rep2", "t1_rep1", "t2_rep1", "t10_rep1"]


def test_records_come_by_their_numbers_not_by_their_names(tmp_path: Path) -> None:
    layout = LifecycleLayout(tmp_path)
    layout.folder.mkdir(parents=True)
    for context, repetition in ((100_000, 1), (4096, 10), (4096, 2), (0, 1)):
        layout.record(RequestConfig(context, 512, 1), repetition).touch()
    (layout.folder / "Cx_rep1.json").touch()
    assert [path.stem for path in layout.records()] == [
        "C0_N512_O1_rep1", "C4096_N512_O1_rep2", "C4096_N512_O1_rep10", "C100000_N512_O1_rep1",
    ]  # fmt: skip


def test_only_what_is_verified_and_warm_counts() -> None:
    def record(repetition: int = 3, counted: int | None = 4096) -> LifecycleRecord:
        ok, why = None if counted is None else counted == 4096, f"held {counted} tokens"
        return seen(Truth(), CONFIG, repetition).record(verification=Verification(4096, counted, ok, why))

    assert record().counted
    assert not record(repetition=2).counted
    assert not record(counted=None).counted
    lost = record(counted=0)
    assert not lost.counted
    assert "held 0 tokens" in lost.discarded


def test_the_phases_of_an_event_add_up() -> None:
    record = seen(Truth(), CONFIG).record()
    assert tuple(record.phases_ms) == PHASES
    assert tuple(record.parts_ms) == (*PHASES[:3], *HANDSHAKE_PARTS, *PHASES[4:])
    for parts in (record.phases_ms, record.parts_ms):
        assert sum(value or 0.0 for value in parts.values()) == pytest.approx(record.breakdown_ms["e2e"])
