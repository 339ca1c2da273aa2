"""The terms, and the page that is written from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from results.report.terms import SECTIONS, TERMS, begin_sentence, define_terms, make_glossary_page

ROOT = Path(__file__).parents[3]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert page == make_glossary_page(), "run: python -m results.report.terms > docs/glossary.md"


def test_every_term_is_declared_once_and_is_one_sentence() -> None:
    terms = [term for each in SECTIONS.values() for term in each]
    assert len(TERMS) == len(terms)
    for term in terms:
        assert term.meaning
        assert not term.meaning.endswith("."), term.name
        assert ". " not in term.meaning, term.name
        assert "|" not in f"{term.name}{term.unit}{term.meaning}", "it would break the page's table"


def test_a_note_takes_its_sentence_from_the_terms() -> None:
    assert begin_sentence("TTFT").startswith("Time to first token: from the moment the client sends")
    assert define_terms("sigma") == "Sigma: the standard deviation of one launch around its config and block."
    with pytest.raises(KeyError):
        begin_sentence("no such term")


def test_terms_are_cheap_to_import() -> None:
    code = "import sys, results.report.terms; print('pandas' in sys.modules, 'textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["False", "False"]
