"""What the analysis and the commands say of a run of each experiment is what it was.

Where a test here fails and the change is meant: `python -m tests.goldens.update`, and say in the commit what changed
and why. A field or word that is only renamed stands in `renames.toml` for the commit that renames it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.documents import list_declared
from tests.goldens.comparison import Renames, differences, read_expected, read_renames
from tests.goldens.fields import list_fields, renamed_lines
from tests.goldens.fixture import ARCHIVE, HERE, unpack, write_checksums
from tests.goldens.outputs import (
    EXPERIMENTS,
    RAW_MTIME,
    Documents,
    analyze_again,
    collect_documents,
    digest_table,
    page_text,
    read_table,
    shorten,
)
from tests.results.declared_schemas import check_files
from tests.results.records.declared_files import is_declared

NO_RENAMES = Renames()


class Collected:
    """One experiment's documents, and the run's folder that they were made from and in."""

    def __init__(self, experiment: str, into: Path) -> None:
        self.folder = HERE / experiment
        self.documents = collect_documents(experiment, into)
        (self.run,) = into.iterdir()
        self.renames = read_renames(self.folder / "renames.toml")


@pytest.fixture(scope="module", params=EXPERIMENTS)
def collected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return Collected(request.param, tmp_path_factory.mktemp("runs"))


def test_every_number_and_every_text_is_as_expected(collected: Collected) -> None:
    changed = differences(read_expected(collected.folder / "expected"), collected.documents, collected.renames)
    shown = [f"{name}: {line}" for name, lines in changed.items() for line in lines[:8]]
    assert not changed, "\n".join([f"{len(changed)} documents of {collected.folder.name} differ:", *shown[:60]])


def test_every_field_has_the_name_it_had(collected: Collected) -> None:
    expected = (collected.folder / "fields.txt").read_text(encoding="utf-8")
    assert list_fields(collected.run).splitlines() == renamed_lines(expected, collected.renames.fields)


def test_every_file_of_a_run_is_declared(collected: Collected) -> None:
    files = (str(path.relative_to(collected.run)) for path in collected.run.rglob("*") if path.is_file())
    assert [name for name in files if not is_declared(name)] == []


def test_every_document_and_table_is_as_its_record_declares(collected: Collected) -> None:
    experiment = collected.folder.name.removesuffix("-confirm")
    own = {one.record.__name__ for one in list_declared() if one.experiment == experiment and _is_file(one.where)}
    assert own - check_files(collected.run, experiment) == set()


def _is_file(where: tuple[str, ...]) -> bool:
    """Whether an analysis of real engines writes it."""
    return not where[0].startswith(("in ", "results/variations/"))


def test_a_fixture_is_whole(collected: Collected) -> None:
    """No file is missing that the analysis looks for, and none is refused for its checksum."""
    aggregate = msgspec.json.decode((collected.run / "aggregate.json").read_bytes())
    assert aggregate["gaps"] == []


def _slower_request(run: Path) -> Path:
    """A request of `connector-tax` whose first token comes 50 ms later: percentiles do not move for less."""
    path = next(iter(sorted(run.glob("results/*_plain/requests_[BC]_*.jsonl"))))
    return _rewrite(path, lambda row: row["status"] == "ok" and not row["warmup"], ("t_first_token_ns",), 50_000_000)


def _slower_turn(run: Path) -> Path:
    """A turn of `routing` whose first token comes 1 us later."""
    path = next(iter(sorted(run.glob("results/*_EAR/trial_1/metrics.jsonl"))))
    return _rewrite(path, lambda row: row["status"] == "ok", ("t_first_token_ns",), 1000)


def _slower_write(run: Path) -> Path:
    """A request of `pd-lifecycle` whose KV is written 1 us longer."""
    paths = sorted(run.glob("results/lifecycle/C*.json"))
    return _rewrite(paths[-1], lambda row: True, ("breakdown_ms", "rdma_transfer"), 0.001)


def _slower_point(run: Path) -> Path:
    """A trace of a point of `capacity` whose TTFT p90 is 1 us more."""
    path = next(iter(sorted(run.glob("results/points/*/*.json"))))
    return _rewrite(path, lambda row: True, ("values", "ttft_p90"), 1e-6)


def _rewrite(path: Path, chosen: Any, keys: tuple[str, ...], more: float) -> Path:  # noqa: ANN401  # a predicate of rows
    """Add `more` to one number of the first row that is `chosen`."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    rows = [msgspec.json.decode(line) for line in lines]
    row = next(row for row in rows if chosen(row))
    for key in keys[:-1]:
        row = row[key]
    row[keys[-1]] += more
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows) + b"\n")
    return path


MUTATIONS: Mapping[str, Any] = {
    "connector-tax": _slower_request,
    "connector-tax-confirm": _slower_request,
    "routing": _slower_turn,
    "pd-lifecycle": _slower_write,
    "capacity": _slower_point,
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_number_of_one_raw_record_changes_the_golden(experiment: str, tmp_path: Path) -> None:
    run = unpack(HERE / experiment / ARCHIVE, tmp_path)
    mutated = MUTATIONS[experiment](run)
    write_checksums(run)
    for path in (mutated, *run.rglob("*.json")):
        os.utime(path, (RAW_MTIME, RAW_MTIME))
    actual, folder = analyze_again(run), HERE / experiment
    expected = {name: document for name, document in read_expected(folder / "expected").items() if name in actual}
    changed = differences(expected, actual, read_renames(folder / "renames.toml"))
    assert "aggregate.json" in changed
    assert any(name.startswith("parquet/") for name in changed), "a digest shows it too"
    assert not any("gaps" in line for line in changed["aggregate.json"]), "the changed record is not refused"


def _long_table() -> list[dict[str, Any]]:
    return [{"name": f"row {place % 3}", "at": {"value_s": (place - 250) / 7}} for place in range(1000)]


def _lines(expected: Documents, actual: Documents, renames: Renames = NO_RENAMES) -> list[str]:
    return [line for lines in differences(expected, actual, renames).values() for line in lines]


@pytest.mark.parametrize(("factor", "differs"), [(1 + 1e-13, False), (1 + 1e-11, True), (-1, True), (0, True)])
@pytest.mark.parametrize("long", [False, True])
def test_numbers_may_differ_in_the_last_digits_only(long: bool, factor: float, differs: bool) -> None:
    rows = _long_table()[: 1000 if long else 3]
    before = {"aggregate.json": {"cells": shorten(rows)}}
    changed = [row | {"at": {"value_s": row["at"]["value_s"] * factor}} for row in rows]
    assert bool(_lines(before, {"aggregate.json": {"cells": shorten(changed)}})) is differs


def _changed_tables() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    rows = _long_table()
    yield "two rows change places", [rows[1], rows[0], *rows[2:]]
    yield "a row is gone", rows[:-1]
    yield "a number is null", [rows[0] | {"at": {"value_s": None}}, *rows[1:]]
    yield "a text differs", [rows[0] | {"name": "row 1"}, *rows[1:]]
    yield "a field is renamed", [{"name": row["name"], "at": {"value_ms": row["at"]["value_s"]}} for row in rows]


@pytest.mark.parametrize(("what", "rows"), _changed_tables())
def test_a_digest_shows_every_change(what: str, rows: list[dict[str, Any]]) -> None:
    before = shorten(_long_table())
    assert "digest_of_rows" in before
    assert _lines({"a.json": before}, {"a.json": shorten(rows)}), what


def test_a_digest_of_many_different_texts_holds_their_order() -> None:
    rows = [{"name": f"row {place}"} for place in range(50)]
    assert digest_table(rows) != digest_table([rows[1], rows[0], *rows[2:]])


def test_renamed_fields_and_words_are_no_difference() -> None:
    renames = Renames(fields={"value_s": "seconds", "odd.name": "label"}, words={"leg": "prefill request"})
    rows = _long_table()
    before: Documents = {
        "a.json": {"cells": shorten(rows), "value_s": 1, "name": "the leg of legs", "odd": {"name": 2}},
        "a.csv.json": read_table("value_s,name\n1,leg\n", ","),
        "report.md": "one leg\n",
    }
    after: Documents = {
        "a.json": {
            "cells": shorten([{"name": row["name"], "at": {"seconds": row["at"]["value_s"]}} for row in rows]),
            "seconds": 1,
            "name": "the prefill request of legs",
            "odd": {"label": 2},
        },
        "a.csv.json": read_table("seconds,name\n1,prefill request\n", ","),
        "report.md": "one prefill request\n",
    }
    assert _lines(before, after)
    assert _lines(before, after, renames) == []
    (line,) = renamed_lines("a.json\tcells[].value_s\tz value_s\n", renames.fields)
    assert line == "a.json\tcells[].seconds\tseconds z"


def test_a_document_that_is_gone_or_new_is_a_difference() -> None:
    assert differences({"a": 1, "b": 1}, {"b": 1, "c": 1}, NO_RENAMES) == {
        "a": ["is not made any more"],
        "c": ["is new"],
    }


def test_the_text_of_a_page_is_what_its_reader_reads() -> None:
    page = "<style>p {}</style><h1>A &lt; B</h1><svg><text>1</text></svg><tr><td>2</td>\n<td><b>3</b> ms</td></tr>"
    assert page_text(page) == "A < B\n2\n3 ms\n"
