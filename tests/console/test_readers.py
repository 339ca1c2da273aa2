"""One truth: every reader of a run makes the same of its journal."""

from __future__ import annotations

import json
import threading
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from console.feed import Picture, RunFeed
from runners.cli import main
from state.events import Recorded
from state.model import EMPTY
from state.status import to_json
from state.store import RunStore
from state.view import fold
from tests.state.moves import CELL, STORY
from tests.state.plans import a_run

RUN = "20260101-120000-connector-tax-cpu-tiny"
PARTS = ("routing", "migrations", "lifecycle", "cells", "cell_counts", "last_seq")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / RUN
    with a_run(folder, RUN) as store:
        for event in STORY:
            store.append(event)
        assert store.find_problems() == ()
    return folder


def recorded(folder: Path) -> list[Recorded]:
    with RunStore.open(folder, read_only=True) as store:
        return list(store.events())


def comparable(shown: dict[str, Any]) -> dict[str, Any]:
    return {part: json.loads(json.dumps(shown[part])) for part in PARTS}


def console_picture(folder: Path) -> Picture:
    pictures: list[Picture] = []
    loaded = threading.Event()

    def post(picture: Picture) -> None:
        pictures.append(picture)
        if not picture.loading:
            loaded.set()

    feed = RunFeed(folder, post, tick_s=0.05)
    feed.start()
    assert loaded.wait(30.0)
    feed.stop()
    return pictures[-1]


def test_store_console_command_line_and_replay_tell_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = recorded(folder)
    replayed = reduce(fold, events[9:], reduce(fold, events[:9], EMPTY))
    wanted = comparable(to_json(replayed, 2_000.0))
    assert wanted["migrations"]["cells"][0]["done"] == 1
    assert wanted["lifecycle"]["cells"][0]["counted"] == 1
    with RunStore.open(folder, read_only=True) as store:
        assert comparable(to_json(store.view(), 2_000.0)) == wanted
    picture = console_picture(folder)
    assert comparable(to_json(picture.view, 2_000.0)) == wanted
    monkeypatch.setattr("sys.argv", ["tracon", "status", str(folder), "--json"])
    with pytest.raises(SystemExit):
        main()
    assert comparable(json.loads(capsys.readouterr().out)) == wanted


def test_the_console_remembers_of_a_past_cell_what_the_view_said_of_it(folder: Path) -> None:
    picture = console_picture(folder)
    past = picture.pasts[CELL]
    assert picture.view.routing is not None
    assert past.lives == picture.view.routing.lives
    assert [dict(pending) for _, pending in past.pending] == [{"e0": 9_000, "e1": 200}] * 4
    assert past.policy == "ear"


def test_following_a_run_prints_its_feed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["tracon", "watch", str(folder)])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    for line in reduce(fold, recorded(folder), EMPTY).feed:
        assert line.text in printed
    assert "migrated e0 -> e1: 1024 tokens transferred" in printed
    assert printed.count("no_colder_target") == 1, "the second refusal was not reported"
    assert printed.splitlines()[-1] == f"{folder.name} is interrupted: `tracon resume {folder.name}`"
