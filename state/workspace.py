"""A workspace: the folder in which every run has its folder. Making, listing and finding runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

import msgspec
from platformdirs import user_state_dir

from results.records.events import RunState
from state.errors import RunNotFound, StateError, StoreUnusable
from state.lease import LeaseState, read_lease_state
from state.run import CELL_ENDED
from state.sqlite import explain_errors
from state.store import STATE_FILE, RunStore
from state.view import Progress, progress_fraction

_RUN_ID = re.compile(r"\d{8}-\d{6}-.+")
_NAMES_SHOWN = 8
_CLASHES = 1_000
_NO_PROGRESS = Progress(0, 0, 0.0)
_NO_LEASE = LeaseState("none")


def find_default_root() -> Path:
    """$TRACON_WORKSPACE, else the user's state folder."""
    named = os.environ.get("TRACON_WORKSPACE")
    return Path(named).expanduser() if named else Path(user_state_dir("tracon"))


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of the list of runs. Where `problem` is set, only `run` and `folder` are valid."""

    run: str
    folder: Path
    experiment: str = ""
    profile: str = ""
    preset: str = ""
    state: RunState = RunState.PLANNED
    reason: str = ""
    created_unix_s: float = 0.0
    progress: Progress = _NO_PROGRESS
    lease: LeaseState = _NO_LEASE
    problem: str = ""
    """Why the folder cannot be read."""

    @property
    def orphaned(self) -> bool:
        """Running or paused by its state, and no process runs it: the process died. `tracon resume` continues it."""
        return self.state in (RunState.RUNNING, RunState.PAUSED) and not self.lease.live


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder of runs. It need not exist before the first run."""

    root: Path

    def create_folder(self, experiment: str, profile: str, now: datetime) -> Path:
        """An empty folder for a new run, named `YYYYMMDD-HHMMSS-experiment-profile`, with -2, -3 ... on a clash.

        Raises StoreUnusable where the workspace cannot be written.
        """
        name = f"{now:%Y%m%d-%H%M%S}-{_make_slug(experiment)}-{_make_slug(profile)}"
        for number in range(1, _CLASHES):
            folder = self.root / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                message = f"workspace {self.root} cannot be written: {error.strerror}"
                remedy = "name a folder that this user can write, with --workspace or $TRACON_WORKSPACE"
                raise StoreUnusable(message, remedy=remedy) from error
            return folder
        raise StoreUnusable(f"{self.root} has {_CLASHES} runs named {name}", remedy="name another --workspace")

    def runs(self) -> tuple[RunEntry, ...]:
        """Every run, newest first; a folder that cannot be read is listed with its problem."""
        entries = [read_entry(folder) for folder in self._list_folders()]
        return tuple(sorted(entries, key=lambda e: (e.created_unix_s or _read_mtime(e.folder), e.run), reverse=True))

    def list_newest(self, count: int) -> list[Path]:
        """The folders of the newest runs, newest first, by their names: no run is opened, and none that the user has
        renamed is listed. Raises StoreUnusable where the workspace cannot be read.
        """
        dated = [folder for folder in self._list_folders() if _RUN_ID.fullmatch(folder.name)]
        return dated[: -count - 1 : -1]

    def find(self, name: str | Path | None = None) -> Path:
        """The folder of a run: its id, a path, the beginning of exactly one id, or None for the newest run.

        Raises RunNotFound with similar names.
        """
        if name is None:
            return self._find_newest()
        text = str(name)
        names = [folder.name for folder in self._list_folders()]
        if text in names:
            return self.root / text
        path = Path(name).expanduser()
        folder = path.parent if path.name == STATE_FILE else path
        if _holds_a_run(folder):
            return folder.resolve()
        matches = [each for each in names if text and each.startswith(text)]
        if len(matches) == 1:
            return self.root / matches[0]
        raise self._make_not_found(text, matches, names)

    def _find_newest(self) -> Path:
        usable = [each for each in self.runs() if not each.problem]
        if not usable:
            remedy = "`tracon run` starts one; --workspace names another folder"
            raise RunNotFound(f"no run in {self.root}", remedy=remedy)
        return usable[0].folder

    def _make_not_found(self, text: str, matches: Sequence[str], names: Sequence[str]) -> RunNotFound:
        if matches:
            shown = ", ".join(sorted(matches, reverse=True)[:_NAMES_SHOWN])
            return RunNotFound(f"{len(matches)} runs begin with {text!r}: {shown}", remedy="type more of the name")
        near = get_close_matches(text, names, n=3, cutoff=0.4) or [each for each in names if text in each][:3]
        listed = "`tracon list` shows the runs; --workspace names another folder"
        remedy = f"did you mean {', '.join(near)}?" if near else listed
        return RunNotFound(f"no run {text!r} in {self.root}", remedy=remedy)

    def _list_folders(self) -> list[Path]:
        try:
            folders = sorted(path for path in self.root.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            message = f"workspace {self.root} cannot be read: {error.strerror}"
            raise StoreUnusable(message, remedy="name another one, with --workspace or $TRACON_WORKSPACE") from error
        return [path for path in folders if _RUN_ID.fullmatch(path.name) or _holds_a_run(path)]


def read_entry(folder: Path) -> RunEntry:
    """A run's line, from its rows alone."""
    try:
        with RunStore.open(folder, read_only=True) as store, explain_errors(store.path):
            return _read_entry(store)
    except (StateError, OSError) as error:  # OSError: the folder is being removed
        return RunEntry(folder.name, folder, problem=str(error))


def _read_entry(store: RunStore) -> RunEntry:
    run = store.run_row()
    ((name, experiment, profile, preset),) = store.read("SELECT run, experiment, profile, preset FROM run")
    rows = store.read("SELECT state, estimated_s, fraction FROM cells")
    cells = msgspec.convert(rows, list[tuple[str, float, float]])
    ended = sum(state in CELL_ENDED for state, _, _ in cells)
    fraction = progress_fraction([(estimated_s, done) for _, estimated_s, done in cells])
    return RunEntry(
        run=str(name),
        folder=store.folder,
        experiment=str(experiment),
        profile=str(profile),
        preset=str(preset),
        state=run.state,
        reason=run.reason,
        created_unix_s=run.created_unix_s,
        progress=Progress(ended, len(cells), fraction),
        lease=read_lease_state(store),
    )


def _make_slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"


def _holds_a_run(folder: Path) -> bool:
    try:
        return (folder / STATE_FILE).is_file()
    except OSError:
        return False


def _read_mtime(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
