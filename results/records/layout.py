"""The path of every artifact of a run, and how a finished cell's files are published there.

The tree (specs/connector_tax, "Run artifacts"):

    RUN/
      state.sqlite  plan.json  run.log  host.csv  engine_faults.jsonl  skipped_cells.jsonl
      MANIFEST.tsv  reference_rates.json  report.md  report.html
      aggregate.json  aggregate.csv  aggregate.parquet  tax.json  tax.csv  verdicts.json
      figures/       figure_<n>.png  figure_<n>.svg  figure_<n>.csv
      preflight/     preflight_status.json  verify_<config>.log
      attempts/      <cell>/<n>/...              what a cell writes while it runs; it stays if the cell never finished
      results/<date>_<config>/
        config.json  launch.sh  launches.jsonl  vllm_stdout.log  vllm_stderr.log  env.txt  summary.json
        rings/<launch>/                          raw step rings of each launch
        requests_<phase>_<cell>.jsonl (+ .parquet)  metrics_<phase>_<cell>.jsonl
        engine_step_<phase>_<cell>.jsonl (+ .parquet)  cell_<phase>_<cell>.json
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from results.records.errors import DAMAGED_JSON

TRANSFER_LOGS = "transfer.*.jsonl"
"""Files of the transfer probe in the folder of one launch."""
_write_number = itertools.count()
Document = TypeVar("Document")


class Folder(Protocol):
    """A folder with a layout."""

    @property
    def root(self) -> Path: ...


class Below:
    """A file or folder of a layout, by its path below the root."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, folder: Folder, layout: type[Folder]) -> Path:
        return folder.root / self._path


@dataclass(frozen=True, slots=True)
class ConfigLayout:
    """The folder of one config: `RUN/results/<date>_<config>/`."""

    root: Path

    config_json = Below("config.json")
    launch_sh = Below("launch.sh")
    launches = Below("launches.jsonl")
    stdout = Below("vllm_stdout.log")
    stderr = Below("vllm_stderr.log")
    env_txt = Below("env.txt")
    summary_json = Below("summary.json")

    def rings(self, launch: int) -> Path:
        return self.root / "rings" / str(launch)

    def requests(self, phase: str, cell: str) -> Path:
        return self.root / f"requests_{phase}_{cell}.jsonl"

    def metrics(self, phase: str, cell: str) -> Path:
        return self.root / f"metrics_{phase}_{cell}.jsonl"

    def engine_step(self, phase: str, cell: str) -> Path:
        return self.root / f"engine_step_{phase}_{cell}.jsonl"

    def gpu_util(self, phase: str, cell: str) -> Path:
        return self.root / f"gpu_util_{phase}_{cell}.csv"

    def cell(self, phase: str, cell: str) -> Path:
        return self.root / f"cell_{phase}_{cell}.json"

    def cells(self, phases: Collection[str] | None = None) -> tuple[Path, ...]:
        """The cell records of these phases (None = all), by name."""
        return self._list_files("cell", "json", phases)

    def list_cells_of_requests(self, phases: Collection[str] | None = None) -> tuple[Path, ...]:
        """Where the cell record of each file of requests is, or would be."""
        requests = self._list_files("requests", "jsonl", phases)
        return tuple(self.root / f"cell_{path.stem.removeprefix('requests_')}.json" for path in requests)

    def _list_files(self, kind: str, ending: str, phases: Collection[str] | None) -> tuple[Path, ...]:
        paths = sorted(self.root.glob(f"{kind}_*.{ending}"))
        return tuple(path for path in paths if phases is None or path.stem.split("_")[1] in phases)


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The folder of one run."""

    root: Path

    state = Below("state.sqlite")
    plan = Below("plan.json")
    log = Below("run.log")
    host_csv = Below("host.csv")
    gpu_csv = Below("gpu.csv")
    accepted_changes = Below("accepted_changes.jsonl")
    """What had changed when the run was resumed with --accept-changes; absent where it was not."""
    engine_faults = Below("engine_faults.jsonl")
    """Engines that died and steps that stalled; absent where there were none."""
    skipped_cells = Below("skipped_cells.jsonl")
    """Cells that an operator skipped; absent where there were none."""
    manifest = Below("MANIFEST.tsv")
    reference_rates = Below("reference_rates.json")
    aggregate_json = Below("aggregate.json")
    aggregate_csv = Below("aggregate.csv")
    aggregate_parquet = Below("aggregate.parquet")
    tax_json = Below("tax.json")
    tax_csv = Below("tax.csv")
    verdicts_json = Below("verdicts.json")
    report_md = Below("report.md")
    report_html = Below("report.html")
    pairs_json = Below("pairs.json")
    pairs_csv = Below("pairs.csv")
    migrations_csv = Below("migrations.csv")
    comparable = Below("comparable.json")
    """Only in a folder that `tracon export` wrote: the numbers of the run for comparisons."""
    figures = Below("figures")
    trace = Below("trace/trace.jsonl")
    """The trace of every cell of `routing` that has none of its own."""
    points = Below("results/points")
    """Folder of the points of a search for the fewest instances."""
    engine_gates = Below("results/engine_gates.json")
    """What the engine model of a simulated run has shown against real runs; absent where nothing was checked."""
    interference = Below("results/interference.jsonl")
    page = Below("results/page.json")
    """The page of the last analysis, as data."""
    results = Below("results")
    preflight_status = Below("preflight/preflight_status.json")

    def trace_of(self, name: str = "", number: int = 0) -> Path:
        """The run's trace with this name; empty = `trace`. Its commit mark is the `.json` beside it.

        `number`: of a simulated run, which has several of each.
        """
        return self.trace.parent / name / (str(number) if number else "") / self.trace.name

    def name_interference_part(self, prefill_tokens: int) -> Path:
        """The rows of one cell, its commit mark."""
        return self.results / "interference" / f"n{prefill_tokens}.jsonl"

    def list_interference_parts(self) -> tuple[Path, ...]:
        """The rows of every cell, by prefill length."""
        parts = (self.results / "interference").glob("n*.jsonl")
        return tuple(sorted(parts, key=lambda path: int(path.stem[1:])))

    def trial(self, date: str, label: str, trial: int) -> TrialLayout:
        """The folder of one cell of `routing`; `label` is safe as a file name."""
        return TrialLayout(self.results / f"{date}_{label}" / f"trial_{trial}")

    def variation(self, name: str) -> Path:
        """The claims under one variation of a simulated run."""
        return self.results / "variations" / f"{name}.json"

    def point(self, label: str, size: str, trial: int) -> Path:
        """One point of a search; `label` is safe as a file name."""
        return self.points / label / f"{size}_{trial}.json"

    def preflight_log(self, config: str) -> Path:
        return self.root / "preflight" / f"verify_{config}.log"

    def attempt(self, cell: str, attempt: int) -> Path:
        return self.root / "attempts" / cell.replace("/", "_") / str(attempt)

    def config(self, date: str, config: str) -> ConfigLayout:
        return ConfigLayout(self.results / f"{date}_{config}")

    def configs(self) -> tuple[ConfigLayout, ...]:
        """Every config folder, by name."""
        if not self.results.is_dir():
            return ()
        return tuple(ConfigLayout(path) for path in sorted(self.results.iterdir()) if path.is_dir())


@dataclass(frozen=True, slots=True)
class TrialLayout:
    """The folder of one cell."""

    root: Path

    config = Below("config.json")
    metrics = Below("metrics.jsonl")
    decisions = Below("decisions.jsonl")
    instance_events = Below("instance_events.jsonl")
    engines = Below("engines.jsonl")
    summary = Below("metrics.summary.json")
    breakdown = Below("breakdown.json")
    apc = Below("apc.json")
    gpu_util = Below("gpu_util.csv")
    cell = Below("cell.json")
    router_spec = Below("router.spec.json")
    simulation_spec = Below("simulation.spec.json")
    instances = Below("engines")
    """Folder of the cell's own instances."""

    def scrapes(self, instance: str) -> Path:
        """`/metrics` of an instance, a MetricsRecord per second."""
        return self.instances / instance / "metrics.jsonl"

    def transfer_logs(self, instance: str = "*") -> tuple[Path, ...]:
        """The transfer probe's files of one instance, or of all, over its launches."""
        return tuple(sorted(self.instances.glob(f"{instance}/rings/*/{TRANSFER_LOGS}")))

    def find_instance_of(self, path: Path) -> str:
        """The instance whose folder holds `path`; empty where no folder of the cell's instances does."""
        parts = path.relative_to(self.root).parts
        return parts[1] if len(parts) > 1 and parts[0] == self.instances.name else ""


def list_trial_layouts(run: Path) -> tuple[TrialLayout, ...]:
    """Every cell folder of a `routing` run, by label and trial."""
    return tuple(TrialLayout(path) for path in sorted((run / "results").glob("*/trial_*")) if path.is_dir())


def digest_cells(run: Path) -> str:
    """SHA-256 over the records of all cells of a `routing` run, or of all points of a search: it changes with any."""
    digest = hashlib.sha256()
    for path in (*(layout.cell for layout in list_trial_layouts(run)), *sorted(RunLayout(run).points.glob("*/*.json"))):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Labeled(Protocol):
    """A configuration of `pd-lifecycle` (`RequestConfig`)."""

    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LifecycleLayout:
    """The records of a `pd-lifecycle` run."""

    root: Path
    """The run's folder."""

    folder = Below("results/lifecycle")
    summary_csv = Below("results/lifecycle/summary.csv")
    link = Below("results/lifecycle/link.json")
    """What the link between the two instances carries."""
    instances = Below("results/lifecycle/engines")
    """Folder of the run's routers and instances, one folder per start."""

    def record(self, config: Labeled, repetition: int, trial: int = 0) -> Path:
        return self.folder / f"{append_trial(config.label, trial)}_rep{repetition}.json"

    def cell(self, config: Labeled, trial: int = 0) -> Path:
        """The commit mark of a configuration's cell in one trial."""
        return self.folder / "cells" / append_trial(config.label, trial) / "cell.json"

    def failed(self, config: Labeled, trial: int = 0) -> Path:
        """Why a cell failed."""
        return self.cell(config, trial).with_name("failed.json")

    def failures(self) -> tuple[Path, ...]:
        """The `failed.json` of every cell that failed, by name."""
        return tuple(sorted(self.folder.glob("cells/C*/failed.json")))

    def name_next_start(self) -> Path:
        """The folder of the next start."""
        taken = [int(path.name) for path in self.instances.glob("*") if path.name.isdigit()]
        return self.instances / str(max(taken, default=0) + 1)

    def records(self) -> tuple[Path, ...]:
        """Every record, by trial, C, N, O and repetition."""
        named = ((_NAME.fullmatch(path.name), path) for path in self.folder.glob("C*_rep*.json"))
        return tuple(path for _, path in sorted((_record_order(name), path) for name, path in named if name))


_NAME = re.compile(r"C(?P<c>\d+)_N(?P<n>\d+)_O(?P<o>\d+)(_t(?P<trial>\d+))?_rep(?P<rep>\d+)\.json")


def append_trial(name: str, trial: int) -> str:
    """The name with its trial; the first trial has no number."""
    return f"{name}_t{trial}" if trial else name


def _record_order(name: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(name[part] or 0) for part in ("trial", "c", "n", "o", "rep"))


@dataclass(frozen=True, slots=True)
class AttemptLayout:
    """The files of an attempt at a `connector-tax` or `pd-lifecycle` cell, or of a standalone replay or simulation."""

    root: Path

    requests = Below("requests.jsonl")
    metrics = Below("metrics.jsonl")
    engine_step = Below("engine_step.jsonl")
    gpu_util = Below("gpu_util.csv")
    scrapes = Below("engine.jsonl")
    """`/metrics` of a standalone replay's server."""
    trace = Below("trace.jsonl")
    """The trace of a standalone replay, in the project's own form."""
    decisions = Below("decisions.jsonl")
    router_spec = Below("router.spec.json")
    cell = Below("cell.json")
    records = Below("records")
    """Folder of the records that count."""

    def discarded(self, repetition: int, number: int) -> Path:
        """A record that does not count; `number` counts them."""
        return self.root / "discarded" / f"rep{repetition}_{number}.json"

    def probe(self, side: str) -> Path:
        """Folder of what one instance's transfer probe wrote during the cell."""
        return self.root / "probe" / side


def name_file_beside_cell(cell_json: Path, kind: str) -> Path:
    """`cell_A_r4.json` -> `<kind>_A_r4.jsonl` in the same folder."""
    return cell_json.with_name(f"{kind}_{cell_json.stem.removeprefix('cell_')}.jsonl")


def name_spec_beside(requests: Path) -> Path:
    """The options of the load that wrote these requests."""
    return requests.with_name(f"{requests.stem}.spec.json")


def name_parquet_beside(jsonl: Path) -> Path:
    """The Parquet copy of a JSONL file."""
    return jsonl.with_suffix(".parquet")


NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What opening a path raises that names no file. Any other OSError says nothing about whether the file exists."""


@contextlib.contextmanager
def _add_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError of reading it: only opening it does so by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex. Raises OSError with the file's name."""
    with _add_file_name(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the content of `path`: after a crash it is either the old or the new content, whole."""
    with open_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that replaces `path` once it is whole and on disk; of several writers the last one wins.

    `durable=False` does not wait for the disk: for a file that can be made again, and is checked when it is read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_write_number)}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_indented_json(path: Path, value: object) -> None:
    """Replace the content of `path` by indented JSON. Raises OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=2))


def read_json(path: Path, model: type[Document]) -> Document | None:
    """The document in a JSON file; None where it is missing, damaged, or of a version with other fields."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=model)
    except (OSError, *DAMAGED_JSON):
        return None


def append_rows(path: Path, rows: Sequence[object]) -> None:
    """Add a line of JSON for each row; none makes no file. Raises OSError."""
    if rows:
        with path.open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(rows))


def publish(moves: Mapping[Path, Path]) -> None:
    """Flush each source file and rename it to its target, in order: the last one is the commit mark.

    Source and target are on one file system. Raises FileNotFoundError where a source is missing.
    """
    for source, target in moves.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file:
            os.fsync(file.fileno())
        source.replace(target)
        sync_folder(target.parent)


def is_complete(record: Path, cell: str) -> bool:
    """Whether the record, a commit mark, is of this cell, and every file that it names is beside it unchanged.

    Raises OSError with the file's name where a file exists and cannot be read.
    """
    try:
        with _add_file_name(record):
            written = msgspec.json.decode(record.read_bytes())
        names: dict[str, str] = written["checksums"]
        return written["cell"] == cell and all(sha256(record.parent / name) == digest for name, digest in names.items())
    except (*NO_FILE, *DAMAGED_JSON, KeyError, TypeError, AttributeError):
        return False


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
