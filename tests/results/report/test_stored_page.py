"""The stored page of a run: read while nothing that it was computed from has changed, and not after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from results.records.layout import RunLayout
from results.registry import find_results
from results.report.page import MOST_ANSWERS, Page, PageAnswer, fit_page
from results.report.stored_page import digest_inputs, read_page, store_page
from tests.results.test_reports import write_tax_run
from tests.results.undrawn import nothing_drawn

PAGE = Page("?", ("Here.",), "Noise floor: none.", (PageAnswer("a", "higher", "said.", 1),), (), again=("tracon", "it"))


@pytest.fixture(scope="module")
@nothing_drawn()
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-connector-tax-cpu-tiny"
    write_tax_run(root)
    find_results("connector-tax").write(root)
    return root


@pytest.fixture
def root(analyzed: Path, tmp_path: Path) -> Path:
    """A copy with the times of the original."""
    return Path(shutil.copytree(analyzed, tmp_path / analyzed.name))


def _requests(root: Path) -> Path:
    return next(path for layout in RunLayout(root).configs() for path in layout.root.glob("requests_*.jsonl"))


def _lose_requests(root: Path) -> None:
    _requests(root).unlink()


def _lengthen_requests(root: Path) -> None:
    with _requests(root).open("ab") as file:
        file.write(b"\n")


def _measure_a_cell(root: Path) -> None:
    record = next(path for layout in RunLayout(root).configs() for path in layout.cells())
    shutil.copy2(record, record.with_name("cell_A_r99.json"))


def _disturb_the_host(root: Path) -> None:
    RunLayout(root).host_csv.write_text("cell\n")


def _damage_the_page(root: Path) -> None:
    RunLayout(root).page.write_bytes(RunLayout(root).page.read_bytes()[:-20])


def _lose_the_page(root: Path) -> None:
    RunLayout(root).page.unlink()


CHANGES: tuple[Callable[[Path], None], ...] = (
    _lose_requests,
    _lengthen_requests,
    _measure_a_cell,
    _disturb_the_host,
    _damage_the_page,
    _lose_the_page,
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_page_is_not_read_once_the_run_has_changed(root: Path, change: Callable[[Path], None]) -> None:
    assert read_page(root) is not None
    change(root)
    assert read_page(root) is None


@nothing_drawn()
def test_what_the_analysis_and_a_live_run_write_leaves_the_page_as_it_is(root: Path) -> None:
    page = read_page(root)
    find_results("connector-tax").write(root)
    layout = RunLayout(root)
    for path in (
        layout.log,
        layout.state,
        layout.attempt("cell", 1) / "requests.jsonl",
        layout.variation("base_s*1.3"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("more\n")
    assert page is not None
    assert read_page(root) == page


def test_a_parquet_file_that_stands_in_for_its_jsonl_counts(root: Path) -> None:
    requests = _requests(root)
    requests.unlink()
    before = digest_inputs(root)
    requests.with_suffix(".parquet").unlink()
    assert digest_inputs(root) != before


def test_another_version_of_the_analysis_reads_no_page(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_page(root, PAGE, digest_inputs(root))
    assert read_page(root) == PAGE
    monkeypatch.setattr("results.report.stored_page.digest_code", lambda _: "another version")
    assert read_page(root) is None


def test_a_page_that_was_cut_is_read_as_it_was_stored(tmp_path: Path) -> None:
    answers = tuple(PageAnswer(f"a{number}", "", "said.") for number in range(MOST_ANSWERS + 3))
    page = fit_page(Page("?", (), "", answers, ()))
    store_page(tmp_path, page, digest_inputs(tmp_path))
    assert read_page(tmp_path) == page
    assert page.answers[-1].text == "3 further answers, in the appendix."
