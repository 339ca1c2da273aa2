"""Request bodies: what is asked for, ready ahead of its time, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runners.load.bodies import Bodies, build_body_preamble
from tests.examples import examples

PIECES = 3
SIZE = len(b'{"n":1,"prompt":[100,101,102]}')


def pieces(index: int) -> Iterator[bytes]:
    return (b"%d" % (100 * index + number) for number in range(PIECES))


def expected(index: int) -> dict[str, object]:
    return {"n": index, "prompt": [100 * index + number for number in range(PIECES)]}


def bodies(*, budget_bytes: int = 1 << 20) -> Bodies:
    return Bodies(lambda index: b'{"n":%d,"prompt":[' % index, pieces, budget_bytes=budget_bytes)


def built(made: Bodies) -> list[int]:
    """What is ready once nothing more is built, in the order of building."""
    while made.build_slice():
        pass
    return list(made._ready)


@pytest.mark.parametrize("evidence", ["token_ids", "usage"])
def test_a_body_asks_for_exact_output_and_evidence_of_tokens(evidence: str) -> None:
    assert json.loads(build_body_preamble("m", 8, evidence) + b"1,2]}") == {
        "model": "m",
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": evidence == "usage"},
        "return_token_ids": evidence == "token_ids",
        "prompt": [1, 2],
    }


def test_what_is_expected_soon_is_built_before_what_comes_later() -> None:
    made = bodies()
    made.expect_later(0)
    made.expect_later(3)
    made.expect_soon(7)
    assert built(made) == [7, 0, 3]
    for index in (7, 0, 3):
        made.take_body(index)
    assert made.late == 0


def test_bodies_for_later_leave_room_for_those_that_are_expected_soon() -> None:
    made = bodies(budget_bytes=4 * SIZE)
    for index in (1, 3, 6, 9):
        made.expect_later(index)
    assert built(made) == [1, 3]
    made.expect_soon(6)
    assert built(made) == [1, 3, 6]


def test_a_body_that_was_not_ready_is_counted() -> None:
    made = bodies()
    made.expect_soon(0)
    made.expect_soon(1)
    made.build_first(1)
    made.take_body(0)
    assert made.late == 0
    made.take_body(1)
    assert made.late == 1


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("soon", "later", "build", "prepare", "take", "forget")), st.integers(0, 11)),
        max_size=60,
    ),
    budget=st.integers(0, 200),
)
@example(steps=[("soon", 0), ("later", 0), ("prepare", 2)], budget=50)
@settings(max_examples=examples(80), deadline=None)
def test_bodies_are_the_same_however_they_were_built_and_stay_in_their_budget(
    steps: list[tuple[str, int]], budget: int
) -> None:
    made, gone = bodies(budget_bytes=budget), set[int]()
    changes = {"soon": made.expect_soon, "later": made.expect_later, "forget": made.drop_body}
    for what, index in steps:
        if what == "build":
            made.build_slice()
        elif what == "prepare":
            made.build_first(index)
        elif index in gone:
            continue
        elif what == "take":
            assert json.loads(made.take_body(index)) == expected(index)
        else:
            changes[what](index)
        if what in ("take", "forget"):
            gone.add(index)
        assert made._held == sum(len(body) for body in made._ready.values()) <= budget + SIZE + PIECES + 1
        assert not gone & set(made._ready)
