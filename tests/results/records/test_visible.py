"""No control character of text from outside survives; everything else does."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from results.records.visible import escape_controls, has_controls, visible, visible_line
from tests.poison import OBEYED, POISON


def test_control_characters_become_signs_of_one_column() -> None:
    assert visible("\x1b[31mred\x07\x7f\x9b") == "\u241b[31mred\u2407\u2421\ufffd"
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible_line("a\tb\nc") == "a\u2409b\u240ac"
    assert visible("right \u202e left, lone \udc9b") == "right \ufffd left, lone \ufffd"


def test_ordinary_text_of_any_language_is_left_alone() -> None:
    text = "müller 会話 עברית \u00a0 ✓ 🙂"
    assert visible(text) == visible_line(text) == text
    assert not has_controls(text)


@given(st.text())
def test_whatever_comes_nothing_is_obeyed(text: str) -> None:
    assert not OBEYED.search(visible(text + POISON))
    assert has_controls(text) == (visible_line(text) != text)
    assert len(visible(text)) == len(text)


@given(st.text())
def test_json_keeps_its_meaning(text: str) -> None:
    escaped = escape_controls(json.dumps([text + POISON], ensure_ascii=False).encode("utf-8", "surrogatepass"))
    assert not OBEYED.search(escaped.decode("utf-8", "surrogatepass"))
    assert json.loads(escaped.decode("utf-8", "surrogatepass")) == [text + POISON]
