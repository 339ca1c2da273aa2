"""Artifacts become frames; what cannot be read becomes a gap with its name and its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from results.records.frames import Gap, Loaded, read_cell, read_metrics, read_requests, read_steps
from results.records.layout import ConfigLayout, name_parquet_beside, sha256
from tests.results.connector_tax.synthetic import Behavior, Cell, Load, write_cell

WAITING = "vllm:num_requests_waiting"


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return write_cell(ConfigLayout(tmp_path / "results" / "20260131_plain"), Cell("plain", Behavior(), Load()))


def _requests(cell: Path) -> Path:
    return cell.with_name("requests_A_r4.jsonl")


def _why(gaps: tuple[Gap, ...]) -> str:
    (gap,) = gaps
    return f"{gap.artifact} {gap.reason}"


def _frame(loaded: Loaded) -> pd.DataFrame:
    assert loaded.frame is not None
    return loaded.frame


def test_nanoseconds_survive_beside_nulls(cell: Path) -> None:
    frame = _frame(read_requests(_requests(cell)))
    assert frame["t_intended_ns"].iloc[0] == 5_000_000_000_000_000_123
    assert frame["http_status"].isna().all()
    assert frame["index"].tolist() == list(range(len(frame)))


def test_records_come_in_the_order_of_the_schedule_whatever_order_they_ended_in(cell: Path) -> None:
    path = _requests(cell)
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert _frame(read_requests(path))["index"].is_monotonic_increasing


def test_parquet_is_kept_and_used_until_its_source_changes(cell: Path) -> None:
    path = _requests(cell)
    before = _frame(read_requests(path))
    assert name_parquet_beside(path).exists()
    stamp = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"ok"', b'"no"'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert _frame(read_requests(path)).equals(before)  # same size and time: the copy was read
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert set(_frame(read_requests(path))["status"]) == {"no"}


def test_a_copied_folder_keeps_its_parquet(cell: Path) -> None:
    """Copying changes the time, not the content: the checksum decides, and nothing is written again."""
    path = _requests(cell)
    read_requests(path)
    before = name_parquet_beside(path).stat()
    os.utime(path)
    assert read_requests(path).frame is not None
    assert name_parquet_beside(path).stat().st_mtime_ns == before.st_mtime_ns


def test_a_damaged_parquet_is_as_good_as_none(cell: Path) -> None:
    path = _requests(cell)
    before = _frame(read_requests(path))
    name_parquet_beside(path).write_bytes(b"PAR1 rubbish")
    after = read_requests(path)
    assert after.gaps == ()
    assert _frame(after).equals(before)


def test_a_lost_jsonl_is_a_gap_even_where_its_parquet_still_serves(cell: Path) -> None:
    path = _requests(cell)
    digest = sha256(path)
    read_requests(path, digest)
    path.unlink()
    loaded = read_requests(path, digest)
    assert loaded.frame is not None
    assert _why(loaded.gaps) == "results/20260131_plain/requests_A_r4.jsonl is missing; read from its Parquet copy"
    assert read_requests(path, "0" * 64).frame is None
    assert read_requests(path).frame is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b'{"index": 0, "status": "ok"', "is damaged"),
        (b"not json\n", "is damaged"),
        (b'{"index": "x"}\n', "is damaged"),
        (b'{"something": 1}\n', "have no index"),
        (b"\xff\xfe\x00\n", "is damaged"),
    ],
)
def test_unreadable_requests_are_a_gap(cell: Path, content: bytes | None, says: str) -> None:
    path = _requests(cell)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    loaded = read_requests(path)
    assert loaded.frame is None
    assert says in _why(loaded.gaps)
    assert "results/20260131_plain/requests_A_r4.jsonl" in _why(loaded.gaps)


def test_a_folder_that_cannot_be_written_can_still_be_read(cell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("results.records.frames.pq.write_table", refuse)
    assert read_requests(_requests(cell)).frame is not None
    assert not name_parquet_beside(_requests(cell)).exists()


def test_metrics_give_a_column_per_name_and_nan_where_a_scrape_lacks_it(cell: Path) -> None:
    path = cell.with_name("metrics_A_r4.jsonl")
    with path.open("ab") as file:
        file.write(b'{"t_ns": 9, "t_unix_s": 1.0, "moment": "sample", "error": "connection refused"}\n')
    frame = _frame(read_metrics(path, (WAITING, "vllm:unheard_of")))
    assert frame["t_ns"].is_monotonic_increasing
    assert frame[WAITING].isna().sum() == 1
    assert frame["vllm:unheard_of"].isna().all()
    path.write_bytes(b'{"t_ns": 9}\n')
    assert "is damaged" in _why(read_metrics(path, (WAITING,)).gaps)


def test_steps_can_be_read_by_column(cell: Path) -> None:
    path = cell.with_name("engine_step_A_r4.jsonl")
    frame = _frame(read_steps(path, columns=("t_ns", "engine_step_us")))
    assert list(frame.columns) == ["t_ns", "engine_step_us"]
    name_parquet_beside(path).unlink()
    assert _frame(read_steps(path, columns=("t_ns", "engine_step_us"))).equals(frame)


def test_a_cell_record_of_another_version_is_not_read_as_this_one(cell: Path) -> None:
    assert not isinstance(read_cell(cell), Gap)
    cell.write_bytes(cell.read_bytes().replace(b'"version":1', b'"version":2'))
    gap = read_cell(cell)
    assert isinstance(gap, Gap)
    assert "version 2" in gap.reason
    cell.write_bytes(b"{")
    assert isinstance(read_cell(cell), Gap)
