"""Tails a run's journal in its own thread and posts one frozen picture per tick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from console.pasts import Past, Pasts
from results.records.events import InstanceSampled, MigrationChanged, RouterSampled
from state.errors import StateError
from state.events import Recorded
from state.lease import HEARTBEAT_S, LeaseState, read_lease_state
from state.model import EMPTY, RunView
from state.store import RunStore
from state.view import HISTORY_SAMPLES, fold

LOADING_STEP = 5_000
"""Events between two progress messages while a long journal is read."""
TRAIL_STEP_S = 10.0
"""Samples older than the view holds are thinned: per instance and this many seconds, the one with the worst TTFT."""

Sample = tuple[float, InstanceSampled]


@dataclass(frozen=True, slots=True)
class Picture:
    """The journal and the lease at one moment."""

    view: RunView = EMPTY
    lease: LeaseState | None = None
    trails: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """Per instance, thinned samples from before what `view` keeps."""
    pasts: Mapping[str, Past] = field(default_factory=dict)
    """Per cell that was routed, its whole past; thinned where it is long."""
    folded: int = 0
    loading: bool = True
    trouble: str = ""
    """Why the run cannot be read now."""
    frozen_unix_s: float | None = None
    """When the operator froze the screen; None = it is live."""

    @property
    def live(self) -> bool:
        """A process holds the run's lease."""
        return self.lease is not None and self.lease.live

    def history(self, instance: str) -> tuple[Sample, ...]:
        """All samples of an instance; old ones are thinned."""
        recent = self.view.instances[instance].history
        old = self.trails.get(instance, ())
        if not old or not recent:
            return recent or old
        return (*(sample for sample in old if sample[0] < recent[0][0]), *recent)


class Trails:
    """Samples that the view has dropped, thinned."""

    def __init__(self) -> None:
        self._trails: dict[str, list[Sample]] = {}
        self._frozen: dict[str, tuple[Sample, ...]] = {}
        self._seen: dict[str, int] = {}

    def add(self, t_unix_s: float, sample: InstanceSampled) -> None:
        name = sample.instance
        self._seen[name] = self._seen.get(name, 0) + 1
        trail = self._trails.setdefault(name, [])
        new = (t_unix_s, sample)
        if trail and t_unix_s // TRAIL_STEP_S == trail[-1][0] // TRAIL_STEP_S:
            if _is_worse(sample, trail[-1][1]):
                trail[-1] = new
        else:
            trail.append(new)

    def frozen(self) -> Mapping[str, tuple[Sample, ...]]:
        """The trails of instances whose oldest samples the view has dropped."""
        for name, trail in self._trails.items():
            if self._seen[name] > HISTORY_SAMPLES and len(self._frozen.get(name, ())) != len(trail):
                self._frozen[name] = tuple(trail)
        return dict(self._frozen)


def _is_worse(new: InstanceSampled, old: InstanceSampled) -> bool:
    return (new.ttft_p90_s or 0.0, new.tpot_p90_s or 0.0) > (old.ttft_p90_s or 0.0, old.tpot_p90_s or 0.0)


class RunFeed:
    """Reads one run until it is stopped. `post` is called from the feed's thread, at most once per tick."""

    def __init__(self, folder: Path, post: Callable[[Picture], object], *, tick_s: float) -> None:
        self.folder = folder
        self._post = post
        self._tick_s = tick_s
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._follow_store, name=f"feed-{folder.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it does within a tick."""
        self._ending.set()
        self._woken.set()

    def wake(self) -> None:
        """Read now instead of at the next tick: an operator has just submitted a request."""
        self._woken.set()

    def _follow_store(self) -> None:
        while not self._ending.is_set():
            try:
                with RunStore.open(self.folder, read_only=True) as store:
                    self._read_tail(store)
            except (StateError, OSError) as error:
                self._post(Picture(trouble=f"{error}. {getattr(error, 'remedy', '')}".strip()))
                self._sleep(max(2.0, self._tick_s))

    def _read_tail(self, store: RunStore) -> None:
        view, trails, pasts = EMPTY, Trails(), Pasts()
        shown: tuple[object, ...] | None = None
        while not self._ending.is_set():
            for recorded in store.events(after=view.last_seq):
                view = fold(view, recorded)
                if isinstance(recorded.event, InstanceSampled):
                    trails.add(recorded.t_unix_s, recorded.event)
                elif isinstance(recorded.event, RouterSampled | MigrationChanged):
                    _store_routed(pasts, view, recorded)
                if shown is None and recorded.seq % LOADING_STEP == 0:
                    self._post(Picture(folded=recorded.seq))
                if self._ending.is_set():
                    return
            lease = read_lease_state(store)
            news = (view.last_seq, lease.state, lease.pid, lease.host, _count_silent_tens(lease))
            if news != shown:
                shown = news
                self._post(Picture(view, lease, trails.frozen(), pasts.frozen(), view.last_seq, loading=False))
            self._sleep(self._tick_s)

    def _sleep(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()


def _store_routed(pasts: Pasts, view: RunView, recorded: Recorded) -> None:
    """Store what the view derives from a router's sample or a migration."""
    event = recorded.event
    if isinstance(event, RouterSampled) and event.cell in view.cells:
        pasts.add(recorded.t_unix_s, event, view.cells[event.cell].attempt)
    if view.routing is not None:
        pasts.remember(view.routing)


def _count_silent_tens(lease: LeaseState) -> int:
    """Tens of seconds since the last heartbeat; 0 within three heartbeats."""
    return 0 if lease.age_s is None or lease.age_s < 3 * HEARTBEAT_S else int(lease.age_s // 10)


def now_unix_s() -> float:
    """The clock of everything that is shown."""
    return time.time()


def find_now(picture: Picture) -> float:
    """Unix seconds of the picture: now while a process runs the run (or when it was frozen), else its last event."""
    if picture.frozen_unix_s is not None:
        return picture.frozen_unix_s
    return now_unix_s() if picture.live else picture.view.last_t_unix_s
