"""A folder to hand on: it holds the results, names no path of the host, and stands for its run in a comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from results.records.errors import ResultsError
from results.records.layout import RunLayout
from results.registry import compare_runs, export_run
from results.report.comparison import Comparable, to_json
from results.report.export import read_comparable
from tests.results.test_reports import write_lifecycle_run, write_routing_run, write_tax_run
from tests.results.undrawn import nothing_drawn

WRITERS: dict[str, Callable[[Path], object]] = {
    "connector-tax": write_tax_run,
    "routing": write_routing_run,
    "pd-lifecycle": write_lifecycle_run,
}
OWN = {"connector-tax": {"tax.csv"}, "routing": {"pairs.csv"}, "pd-lifecycle": {"summary.csv"}}
"""Tables of one experiment alone."""


@dataclass(frozen=True)
class Exported:
    """A run and the folder that its results were exported to."""

    run: Path
    folder: Path
    written: tuple[Path, ...]
    """What `export_run` returned."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """An experiment's run and its export, made when first wanted. It is shared: a test that writes takes a copy."""

    @cache
    @nothing_drawn()
    def make(experiment: str) -> Exported:
        run = tmp_path_factory.mktemp("runs") / "monday"
        run.mkdir()
        WRITERS[experiment](run)
        folder = tmp_path_factory.mktemp("out") / "handed on"
        return Exported(run, folder, export_run(run, folder))

    return make


@pytest.mark.parametrize("experiment", WRITERS)
def test_an_exported_folder_compares_as_its_run_does(made: Callable[[str], Exported], experiment: str) -> None:
    run, folder = made(experiment).run, made(experiment).folder
    expected = to_json(compare_runs(run, run))
    for first, second in ((run, folder), (folder, run), (folder, folder)):
        assert to_json(compare_runs(first, second)) == expected


def test_an_exported_folder_is_read_once(made: Callable[[str], Exported], monkeypatch: pytest.MonkeyPatch) -> None:
    tax = made("connector-tax")
    read: list[Path] = []

    def read_counted(path: Path) -> Comparable:
        read.append(path)
        return read_comparable(path)

    monkeypatch.setattr("results.report.export.read_comparable", read_counted)
    compare_runs(tax.run, tax.folder)
    assert read == [tax.folder]


@pytest.mark.parametrize("experiment", WRITERS)
def test_it_holds_what_the_run_found_and_no_raw_artifact(made: Callable[[str], Exported], experiment: str) -> None:
    exported = made(experiment)
    run, folder, written = exported.run, exported.folder, exported.written
    assert sorted(written) == sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.name for path in written}
    assert {"report.md", "report.html", "MANIFEST.tsv", "aggregate.csv", "verdicts.json", "comparable.json"} <= names
    assert OWN[experiment] <= names
    assert any(path.parent.name == "figures" for path in written)
    assert not {path.suffix for path in written} & {".jsonl", ".parquet", ".sqlite"}
    assert (folder / "verdicts.json").read_bytes() == RunLayout(run).verdicts_json.read_bytes()


@nothing_drawn()
def test_no_path_of_the_host_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    run = home / "runs" / "monday"
    write_tax_run(run)
    (run / "reference_rates.json").write_text(
        f'{{"a": "{run}/x", "b": "{home}/.cache", "c": "{home}less/y", "d": "{tmp_path}/traces/t.jsonl", "e": "/etc", '
        f'"f": "{tmp_path}/models/mine.json"}}'
    )
    plan = json.loads(RunLayout(run).plan.read_bytes())
    plan["inputs"] = {
        **plan.get("inputs", {}),
        "files": {f"{tmp_path}/traces/t.jsonl": "0", f"{home}/mine.toml": "1"},
        "grid": {"simulation": {"engine": f"{tmp_path}/models/mine.json"}},
    }
    RunLayout(run).plan.write_text(json.dumps(plan))
    monkeypatch.setenv("HOME", str(home))
    export_run(run, tmp_path / "out")
    text = (tmp_path / "out" / "reference_rates.json").read_text()
    assert text == (
        f'{{"a": "RUN/x", "b": "~/.cache", "c": "{home}less/y", "d": "FILES/t.jsonl", "e": "/etc", '
        '"f": "FILES/mine.json"}'
    )


@nothing_drawn()
def test_a_masked_path_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "home" / "runs" / "monday"
    write_tax_run(run)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for layout in RunLayout(run).configs():
        launch = {"config": "plain", "argv": ["python", "--model", f"{tmp_path}/home/models/tiny"]}
        layout.config_json.write_text(json.dumps(launch))
    export_run(run, tmp_path / "out")
    assert compare_runs(run, tmp_path / "out").differences == ()


@nothing_drawn()
def test_of_the_environment_only_what_shapes_an_engine_is_handed_on(tmp_path: Path) -> None:
    run = tmp_path / "monday"
    write_tax_run(run)
    for layout in RunLayout(run).configs():
        captured = layout.env_txt.read_text()
        own = "HOSTNAME=zelda-7\nPIP_INDEX_URL=https://mirror.corp/x\nUSER=zelda\nTRACON_WORKSPACE=/data/zelda\n"
        layout.env_txt.write_text(f"{captured}\n[environment]\n{own}OMP_NUM_THREADS=2\n")
    export_run(run, tmp_path / "out")
    text = RunLayout(tmp_path / "out").comparable.read_text()
    assert "OMP_NUM_THREADS" in text
    own_names = ("zelda", "mirror.corp")  # neither can be part of a hexadecimal digest
    assert not [name for name in own_names if name in text]


@pytest.mark.parametrize("experiment", WRITERS)
def test_a_run_folder_is_never_written_into(made: Callable[[str], Exported], experiment: str) -> None:
    """It is refused before the run is analyzed."""
    run = made(experiment).run
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for target in (run, run / "below"):
        with pytest.raises(ResultsError, match="is the folder of a run") as caught:
            export_run(run, target)
        assert caught.value.remedy
    assert not RunLayout(run).comparable.exists()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"{", "truncated"), (b'{"format": 1}', "comparable"), (None, "format 99")],
)
def test_a_damaged_or_newer_file_is_refused_with_the_remedy(
    made: Callable[[str], Exported], tmp_path: Path, content: bytes | None, says: str
) -> None:
    tax = made("connector-tax")
    folder = Path(shutil.copytree(tax.folder, tmp_path / "out"))
    path = RunLayout(folder).comparable
    path.write_bytes(content if content is not None else path.read_bytes().replace(b'"format":3', b'"format":99', 1))
    with pytest.raises(ResultsError, match=says) as caught:
        compare_runs(tax.run, folder)
    assert "tracon export" in caught.value.remedy


def test_format_1_named_the_reference_rate_of_a_tax_and_states_its_rate_when_read(tmp_path: Path) -> None:
    latency = {"table": "Latencies", "key": {"phase": "A"}, "estimate": {"value": 1.0}, "id": "ttft_s p90"}
    key = {"reference": "ref_load", "phase": "Bp", "shape": "128x32", "config": "nixl_both", "tax": "TTFT p90"}
    tax = {
        "table": "Taxes", "key": key, "estimate": {"value": 0.1}, "unit": "%", "ratio": False, "at": "64 req/s",
        "id": "tax_ttft_p90 of nixl_both in Bp at ref_load, 128x32",
    }  # fmt: skip
    older = {name: value for name, value in tax.items() if name != "id"}
    facts = {"run": "monday", "experiment": "connector-tax"}
    exported = {"format": 1, "comparable": {"facts": facts, "measures": [latency, tax, older]}}
    RunLayout(tmp_path).comparable.write_text(json.dumps(exported))
    same, read, unnamed = read_comparable(tmp_path).measures
    assert (same.key, same.id) == (latency["key"], "ttft_s p90")
    assert list(read.key.items()) == [
        ("reference", "ref_load"), ("phase", "Bp"), ("req/s", "64"), ("shape", "128x32"), ("config", "nixl_both"),
        ("tax", "TTFT p90"),
    ]  # fmt: skip
    assert read.id == "tax_ttft_p90 of nixl_both in B at 64 req/s, 128x32"
    assert (unnamed.key, unnamed.id) == (read.key, "")


def test_format_2_identified_loads_and_grids_less_well(tmp_path: Path) -> None:
    latency = {"table": "Latencies", "key": {"phase": "Bp"}, "estimate": {"value": 1.0}}
    named = {**latency, "id": "ttft_s p90 of plain in Bp at 64.0 req/s, 128x32"}
    facts = {"run": "monday", "experiment": "connector-tax"}
    loads = {"H1": "64 req/s, 512x32", "H5": "16 and 32 req/s"}
    grid = {**latency, "id": "TTFT of the handover over the combined engine, grid of 6"}
    exported = {"format": 2, "comparable": {"facts": facts, "measures": [named, latency, grid], "loads": loads}}
    RunLayout(tmp_path).comparable.write_text(json.dumps(exported))
    comparable = read_comparable(tmp_path)
    assert [one.id for one in comparable.measures] == ["ttft_s p90 of plain in B at 64.0 req/s, 128x32", "", ""]
    assert comparable.loads == {"H1": "64 req/s, 512x32"}


@pytest.mark.parametrize(
    "measure", [{"at": 3, "key": {}}, {"at": "64 req/s", "key": {}}, {"at": "64 req/s"}, {"at": "x", "key": 5}, 5]
)
def test_a_damaged_file_of_format_1_is_refused_with_the_remedy(tmp_path: Path, measure: object) -> None:
    RunLayout(tmp_path).comparable.write_text(json.dumps({"format": 1, "comparable": {"measures": [measure]}}))
    with pytest.raises(ResultsError, match="format 1") as caught:
        read_comparable(tmp_path)
    assert "tracon export" in caught.value.remedy


@nothing_drawn()
def test_files_that_the_folder_had_stay(tmp_path: Path) -> None:
    run, folder = tmp_path / "monday", tmp_path / "out"
    write_tax_run(run)
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    first = export_run(run, folder)
    assert export_run(run, folder) == first
    assert (folder / "README.md").read_text() == "mine"
