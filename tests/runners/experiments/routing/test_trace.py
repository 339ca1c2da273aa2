"""The trace of a run: the same file every time, no turn that no engine could take, and a change of it is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest

from results.records.layout import RunLayout
from runners.errors import CellFailed
from runners.experiments.routing.grid import TraceChoice
from runners.experiments.routing.trace import prepare_trace, require_trace
from runners.load.block_prompts import BlockShape, make_prompt_ids
from runners.trace.formats import read_trace


def test_the_generated_trace_is_the_same_every_time_and_changed_ones_are_noticed(tmp_path: Path) -> None:
    choice = TraceChoice(sessions=4, seed=5, tokens=1 / 64)
    first = prepare_trace(choice, 4096, tmp_path / "one.jsonl")
    again = prepare_trace(choice, 4096, tmp_path / "two.jsonl")
    assert first == again
    assert first.sessions == 4
    assert first.requests > 4
    assert require_trace(tmp_path / "one.jsonl") == first
    with (tmp_path / "one.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(CellFailed, match=r"one\.jsonl is missing or changed since the run made it: restore it"):
        require_trace(tmp_path / "one.jsonl")


def test_a_further_trace_has_a_folder_and_a_mark_of_its_own(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    paths = (layout.trace_of(), layout.trace_of("flat"))
    own = prepare_trace(TraceChoice(sessions=4, seed=5, tokens=1 / 64), 4096, paths[0])
    other = prepare_trace(TraceChoice(sessions=3, seed=5, tokens=1 / 64), 4096, paths[1], "flat")
    assert (own.name, other.name) == ("", "flat")
    assert [require_trace(path) for path in paths] == [own, other]
    with pytest.raises(CellFailed, match="missing or changed"):
        require_trace(layout.trace_of("steep"))


def test_a_trace_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match=r"trace\.tokens"):
        prepare_trace(TraceChoice(sessions=2, seed=5), 16, tmp_path / "trace.jsonl")


def test_scaled_to_tiny_blocks_sessions_still_share_no_more_than_their_hashes_say(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record = prepare_trace(TraceChoice(sessions=12, seed=5, tokens=1 / 32), 4096, path)
    trace = read_trace(path)
    shape = BlockShape(1, record.block_tokens, trace.facts.hash_scope, 0, 256)
    assert record.block_tokens == 2
    prompts = [
        (
            session.turns[-1].hashes,
            make_prompt_ids(shape, session.session, len(session.turns) - 1, session.turns[-1]).tolist(),
        )
        for session in trace.sessions
    ]
    for (hashes, ids), (others, other_ids) in combinations(prompts, 2):
        shared = common(hashes, others) * record.block_tokens
        assert shared <= common(ids, other_ids) <= shared + 2 * record.block_tokens


def common(one: Sequence[int], two: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
