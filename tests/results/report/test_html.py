"""The HTML report stands alone: one file, nothing fetched, everything a reader needs in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from results.connector_tax.analyse import analyse
from results.connector_tax.tables import tables
from results.connector_tax.write import analyse_run
from tests.results.connector_tax.synthetic import Behaviour, Run, write_run

RUN = Run(
    configs={"plain": Behaviour(), "mooncake_both": Behaviour(0.29, callbacks_us=(1.7, 152.0, 3.1), knee_per_s=4)},
    rates_per_s=(1, 2, 4),
    shapes=((512, 64),),
    ref_safe_per_s=2.0,
    skipped={"lmcache_only": "<b>no & hit</b>"},
    requests=80,
    steps=200,
)
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Balance(HTMLParser):
    """Tags that were opened and not closed, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-connector-tax-cpu-tiny"
    write_run(root, RUN)
    analyse_run(root)
    return root


def test_it_is_well_formed_and_fetches_nothing(root: Path) -> None:
    text = (root / "report.html").read_text()
    page = Balance()
    page.feed(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {address.split(":")[0] for address in page.addresses if not address.startswith("#")} == {"data"}
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)
    assert not re.search(r"<script|@import|url\(", text)


def test_it_holds_every_table_figure_and_limit(root: Path) -> None:
    text, analysis = (root / "report.html").read_text(), analyse(root)
    for table in tables(analysis):
        assert f"<h2>{table.title.replace(chr(39), '&#x27;')}" in text
    assert text.count("data:image/svg+xml;base64,") == 6
    assert "Figure 7." in text
    assert "Not drawn: " in text
    assert "say nothing about a GPU" in text


def test_what_a_run_says_cannot_become_markup(root: Path) -> None:
    text = (root / "report.html").read_text()
    assert "<b>no & hit</b>" not in text
    assert "&lt;b&gt;no &amp; hit&lt;/b&gt;" in text


def test_the_same_run_gives_the_same_page(root: Path) -> None:
    first = (root / "report.html").read_bytes()
    analyse_run(root)
    assert (root / "report.html").read_bytes() == first


def test_a_run_without_anything_has_a_page(tmp_path: Path) -> None:
    analyse_run(tmp_path)
    assert "plain was not measured" in (tmp_path / "report.html").read_text()
