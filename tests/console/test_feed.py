"""The thread that reads the journal."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from console.feed import TRAIL_STEP_S, Picture, RunFeed, Trails
from results.records.events import InstanceSampled, Noted
from state.model import InstanceView
from state.store import RunStore
from state.view import HISTORY_SAMPLES

LIMIT_S = 10.0


@contextmanager
def feeding(run: Path) -> Iterator[queue.Queue[Picture]]:
    """The pictures of a feed that runs."""
    pictures: queue.Queue[Picture] = queue.Queue()
    feed = RunFeed(run, pictures.put, tick_s=0.05)
    feed.start()
    try:
        yield pictures
    finally:
        feed.stop()


def test_every_tick_is_one_picture_and_nothing_new_is_no_picture(dead_run: Path) -> None:
    with feeding(dead_run) as pictures:
        first = pictures.get(timeout=LIMIT_S)
        assert not first.loading
        with RunStore.open(dead_run) as store:
            assert first.view == store.view()
            store.append(Noted("info", "a", "1"), Noted("info", "a", "2"))
        second = pictures.get(timeout=LIMIT_S)
        assert second.view.last_seq == first.view.last_seq + 2
        assert pictures.empty()


def test_a_folder_without_a_run_is_reported_and_tried_again(dead_run: Path, tmp_path: Path) -> None:
    away = dead_run.rename(tmp_path / "away")
    with feeding(dead_run) as pictures:
        assert "holds no run" in pictures.get(timeout=LIMIT_S).trouble
        away.rename(dead_run)
        assert pictures.get(timeout=LIMIT_S).view.run


def test_a_long_journal_gives_signs_of_life(dead_run: Path) -> None:
    with RunStore.open(dead_run) as store:
        store.append(*(Noted("info", "a", str(i)) for i in range(12_000)))
    with feeding(dead_run) as pictures:
        seen = [pictures.get(timeout=LIMIT_S)]
        while seen[-1].loading:
            seen.append(pictures.get(timeout=LIMIT_S))
    assert [picture.folded for picture in seen[:-1]] == [5_000, 10_000]


def test_what_the_view_forgets_is_kept_thinned_with_its_worst_second() -> None:
    trails = Trails()
    seconds = HISTORY_SAMPLES + 600
    samples = [InstanceSampled(instance="p-1", cell="c", ttft_p90_s=1.0 if i == 37 else 0.1) for i in range(seconds)]
    for i, sample in enumerate(samples):
        trails.add(1_000_000.0 + i, sample)
    thinned = trails.frozen()["p-1"]
    assert len(thinned) <= seconds / TRAIL_STEP_S + 1
    assert (1_000_037.0, samples[37]) in thinned


def test_the_history_joins_the_trail_to_the_view(dead_run: Path) -> None:
    with RunStore.open(dead_run, read_only=True) as store:
        view = store.view()
    instance: InstanceView = next(each for each in view.instances.values() if len(each.history) > 20)
    old = tuple((t - 10_000, sample) for t, sample in instance.history[:5])
    overlapping = (*old, instance.history[3])
    picture = Picture(view, trails={instance.instance: overlapping})
    assert picture.history(instance.instance) == (*old, *instance.history)
    assert replace(picture, trails={}).history(instance.instance) == instance.history
