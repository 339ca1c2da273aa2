"""Where every artifact of a run lives, and how a finished cell's files come to lie there.

The tree (specs/connector_tax, "Run artifacts"):

    RUN/
      state.sqlite  plan.json  run.log  host.csv  engine_faults.jsonl
      MANIFEST.tsv  reference_rates.json  report.md  report.html
      aggregate.json  aggregate.csv  aggregate.parquet  tax.json  tax.csv  verdicts.json
      figures/       figure_<n>.png  figure_<n>.svg  figure_<n>.csv
      preflight/     preflight_status.json  verify_<config>.log
      attempts/      <cell>/<n>/...              what a cell writes while it runs; kept when it never finished
      results/<date>_<config>/
        config.json  launch.sh  launches.jsonl  vllm_stdout.log  vllm_stderr.log  env.txt  summary.json
        rings/<launch>/                          raw step rings of each launch
        requests_<phase>_<cell>.jsonl (+ .parquet)  metrics_<phase>_<cell>.jsonl
        engine_step_<phase>_<cell>.jsonl (+ .parquet)  cell_<phase>_<cell>.json
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

TRANSFER_LOGS = "transfer.*.jsonl"
"""Files of the transfer probe in the folder of one launch."""


@dataclass(frozen=True, slots=True)
class ConfigLayout:
    """The folder of one config: `RUN/results/<date>_<config>/`."""

    root: Path

    @property
    def config_json(self) -> Path:
        return self.root / "config.json"

    @property
    def launch_sh(self) -> Path:
        return self.root / "launch.sh"

    @property
    def launches(self) -> Path:
        return self.root / "launches.jsonl"

    @property
    def stdout(self) -> Path:
        return self.root / "vllm_stdout.log"

    @property
    def stderr(self) -> Path:
        return self.root / "vllm_stderr.log"

    @property
    def env_txt(self) -> Path:
        return self.root / "env.txt"

    @property
    def summary_json(self) -> Path:
        return self.root / "summary.json"

    def rings(self, launch: int) -> Path:
        return self.root / "rings" / str(launch)

    def requests(self, phase: str, cell: str) -> Path:
        return self.root / f"requests_{phase}_{cell}.jsonl"

    def metrics(self, phase: str, cell: str) -> Path:
        return self.root / f"metrics_{phase}_{cell}.jsonl"

    def engine_step(self, phase: str, cell: str) -> Path:
        return self.root / f"engine_step_{phase}_{cell}.jsonl"

    def cell(self, phase: str, cell: str) -> Path:
        return self.root / f"cell_{phase}_{cell}.json"

    def cells(self, phases: Collection[str] | None = None) -> tuple[Path, ...]:
        """The cell records of these phases (None = all), by name."""
        return self._of("cell", "json", phases)

    def cells_of_requests(self, phases: Collection[str] | None = None) -> tuple[Path, ...]:
        """Where the cell record of each file of requests is, or would be."""
        requests = self._of("requests", "jsonl", phases)
        return tuple(self.root / f"cell_{path.stem.removeprefix('requests_')}.json" for path in requests)

    def _of(self, kind: str, ending: str, phases: Collection[str] | None) -> tuple[Path, ...]:
        paths = sorted(self.root.glob(f"{kind}_*.{ending}"))
        return tuple(path for path in paths if phases is None or path.stem.split("_")[1] in phases)


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The folder of one run."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.sqlite"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def log(self) -> Path:
        return self.root / "run.log"

    @property
    def host_csv(self) -> Path:
        return self.root / "host.csv"

    @property
    def engine_faults(self) -> Path:
        """Engines that died and steps that stalled; there is no file where there were none."""
        return self.root / "engine_faults.jsonl"

    @property
    def manifest(self) -> Path:
        return self.root / "MANIFEST.tsv"

    @property
    def reference_rates(self) -> Path:
        return self.root / "reference_rates.json"

    @property
    def aggregate_json(self) -> Path:
        return self.root / "aggregate.json"

    @property
    def aggregate_csv(self) -> Path:
        return self.root / "aggregate.csv"

    @property
    def aggregate_parquet(self) -> Path:
        return self.root / "aggregate.parquet"

    @property
    def tax_json(self) -> Path:
        return self.root / "tax.json"

    @property
    def tax_csv(self) -> Path:
        return self.root / "tax.csv"

    @property
    def verdicts_json(self) -> Path:
        return self.root / "verdicts.json"

    @property
    def report_md(self) -> Path:
        return self.root / "report.md"

    @property
    def report_html(self) -> Path:
        return self.root / "report.html"

    @property
    def pairs_json(self) -> Path:
        return self.root / "pairs.json"

    @property
    def pairs_csv(self) -> Path:
        return self.root / "pairs.csv"

    @property
    def migrations_csv(self) -> Path:
        return self.root / "migrations.csv"

    @property
    def figures(self) -> Path:
        return self.root / "figures"

    @property
    def trace(self) -> Path:
        """What every cell of `routing` replays."""
        return self.root / "trace" / "trace.jsonl"

    @property
    def trace_record(self) -> Path:
        """The commit mark of the trace."""
        return self.root / "trace" / "trace.json"

    @property
    def interference(self) -> Path:
        return self.results / "interference.jsonl"

    def interference_of(self, prefill_tokens: int) -> Path:
        """The rows of one cell, its commit mark."""
        return self.results / "interference" / f"n{prefill_tokens}.jsonl"

    def interference_parts(self) -> tuple[Path, ...]:
        """The rows of every cell, by prefill length."""
        parts = (self.results / "interference").glob("n*.jsonl")
        return tuple(sorted(parts, key=lambda path: int(path.stem[1:])))

    @property
    def results(self) -> Path:
        return self.root / "results"

    def trial(self, date: str, label: str, trial: int) -> TrialLayout:
        """The folder of one cell of `routing`; `label` is safe as a file name."""
        return TrialLayout(self.results / f"{date}_{label}" / f"trial_{trial}")

    @property
    def preflight_status(self) -> Path:
        return self.root / "preflight" / "preflight_status.json"

    def preflight_log(self, config: str) -> Path:
        return self.root / "preflight" / f"verify_{config}.log"

    def attempt(self, cell: str, attempt: int) -> Path:
        return self.root / "attempts" / cell.replace("/", "_") / str(attempt)

    def config(self, date: str, config: str) -> ConfigLayout:
        return ConfigLayout(self.results / f"{date}_{config}")

    def configs(self) -> tuple[ConfigLayout, ...]:
        """Every config folder there is, by name."""
        if not self.results.is_dir():
            return ()
        return tuple(ConfigLayout(path) for path in sorted(self.results.iterdir()) if path.is_dir())


@dataclass(frozen=True, slots=True)
class TrialLayout:
    """The folder of one cell."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    @property
    def engines(self) -> Path:
        return self.root / "engines.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "metrics.summary.json"

    @property
    def breakdown(self) -> Path:
        return self.root / "breakdown.json"

    @property
    def apc(self) -> Path:
        return self.root / "apc.json"

    @property
    def gpu_util(self) -> Path:
        return self.root / "gpu_util.csv"

    @property
    def cell(self) -> Path:
        return self.root / "cell.json"

    @property
    def router_spec(self) -> Path:
        return self.root / "router.spec.json"

    @property
    def instances(self) -> Path:
        """Folder of the cell's own instances."""
        return self.root / "engines"

    def scrapes(self, instance: str) -> Path:
        """`/metrics` of an instance, a MetricsRecord per second."""
        return self.instances / instance / "metrics.jsonl"

    def transfer_logs(self, instance: str = "*") -> tuple[Path, ...]:
        """The transfer probe's files of one instance, or of all, over its launches."""
        return tuple(sorted(self.instances.glob(f"{instance}/rings/*/{TRANSFER_LOGS}")))

    def instance_of(self, path: Path) -> str:
        """The instance whose folder holds `path`; empty where it is none of the cell's."""
        parts = path.relative_to(self.root).parts
        return parts[1] if len(parts) > 1 and parts[0] == self.instances.name else ""


def trial_layouts(run: Path) -> tuple[TrialLayout, ...]:
    """Every cell folder of a `routing` run, by label and trial."""
    return tuple(TrialLayout(path) for path in sorted((run / "results").glob("*/trial_*")) if path.is_dir())


class Labelled(Protocol):
    """A configuration of `pd-lifecycle` (`RequestConfig`)."""

    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LifecycleLayout:
    """Where the records of a run lie."""

    root: Path
    """The run's folder."""

    @property
    def folder(self) -> Path:
        return self.root / "results" / "lifecycle"

    @property
    def summary_csv(self) -> Path:
        return self.folder / "summary.csv"

    def record(self, config: Labelled, repetition: int) -> Path:
        return self.folder / f"{config.label}_rep{repetition}.json"

    def cell(self, config: Labelled) -> Path:
        """The commit mark of a configuration's cell."""
        return self.folder / "cells" / config.label / "cell.json"

    def failed(self, config: Labelled) -> Path:
        """Why a cell failed, where it did."""
        return self.cell(config).with_name("failed.json")

    def failures(self) -> tuple[Path, ...]:
        """What the cells that failed left, by name."""
        return tuple(sorted(self.folder.glob("cells/C*/failed.json")))

    @property
    def instances(self) -> Path:
        """Folder of the run's routers and instances, one folder per start."""
        return self.folder / "engines"

    def next_start(self) -> Path:
        """The folder of the next start."""
        taken = [int(path.name) for path in self.instances.glob("*") if path.name.isdigit()]
        return self.instances / str(max(taken, default=0) + 1)

    @property
    def link(self) -> Path:
        """What the link between the two instances carries."""
        return self.folder / "link.json"

    def records(self) -> tuple[Path, ...]:
        """Every record there is, by C, N, O and repetition."""
        named = ((_NAME.fullmatch(path.name), path) for path in self.folder.glob("C*_rep*.json"))
        return tuple(path for _, path in sorted((tuple(map(int, name.groups())), path) for name, path in named if name))


_NAME = re.compile(r"C(\d+)_N(\d+)_O(\d+)_rep(\d+)\.json")


@dataclass(frozen=True, slots=True)
class AttemptLayout:
    """What an attempt at a cell of `connector-tax` or `pd-lifecycle` writes while it runs, or a standalone replay."""

    root: Path

    @property
    def requests(self) -> Path:
        return self.root / "requests.jsonl"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def engine_step(self) -> Path:
        return self.root / "engine_step.jsonl"

    @property
    def scrapes(self) -> Path:
        """`/metrics` of a standalone replay's server."""
        return self.root / "engine.jsonl"

    @property
    def trace(self) -> Path:
        """The trace of a standalone replay, in the project's own form."""
        return self.root / "trace.jsonl"

    @property
    def decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    @property
    def router_spec(self) -> Path:
        return self.root / "router.spec.json"

    @property
    def cell(self) -> Path:
        return self.root / "cell.json"

    @property
    def records(self) -> Path:
        """Folder of the records that count."""
        return self.root / "records"

    def discarded(self, repetition: int, number: int) -> Path:
        """A record that does not count; `number` counts them."""
        return self.root / "discarded" / f"rep{repetition}_{number}.json"

    def probe(self, side: str) -> Path:
        """Folder of what one instance's transfer probe wrote during the cell."""
        return self.root / "probe" / side


def beside_cell(cell_json: Path, kind: str) -> Path:
    """`cell_A_r4.json` -> `<kind>_A_r4.jsonl` in the same folder."""
    return cell_json.with_name(f"{kind}_{cell_json.stem.removeprefix('cell_')}.jsonl")


def spec_beside(requests: Path) -> Path:
    """The options of the load that wrote these requests."""
    return requests.with_name(f"{requests.stem}.spec.json")


def parquet_beside(jsonl: Path) -> Path:
    """The Parquet copy of a JSONL file."""
    return jsonl.with_suffix(".parquet")


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash either the old content or the new is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(path.parent)


def publish(moves: Mapping[Path, Path]) -> None:
    """Flush each source file and rename it to its place, in order: the last one is the commit mark.

    Source and destination lie on one file system. Raises FileNotFoundError where a source is missing.
    """
    for source, target in moves.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file:
            os.fsync(file.fileno())
        source.replace(target)
        _sync_folder(target.parent)


def is_complete(record: Path, cell: str) -> bool:
    """Whether the record, a commit mark, is this cell's, and every file that it names lies beside it unchanged."""
    try:
        written = msgspec.json.decode(record.read_bytes())
        names: dict[str, str] = written["checksums"]
        return written["cell"] == cell and all(sha256(record.parent / name) == digest for name, digest in names.items())
    except (OSError, KeyError, TypeError, msgspec.DecodeError):
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
