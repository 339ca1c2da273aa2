"""Where every artifact of a run lives, and how a finished cell's files come to lie there.

The tree (specs/connector_tax, "Run artifacts"):

    RUN/
      state.sqlite  plan.json  run.log  host.csv  MANIFEST.tsv  reference_rates.json  report.md  report.html
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec


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
    def figures(self) -> Path:
        return self.root / "figures"

    @property
    def preflight_status(self) -> Path:
        return self.root / "preflight" / "preflight_status.json"

    def preflight_log(self, config: str) -> Path:
        return self.root / "preflight" / f"verify_{config}.log"

    def attempt(self, cell: str, attempt: int) -> Path:
        return self.root / "attempts" / cell.replace("/", "_") / str(attempt)

    def config(self, date: str, config: str) -> ConfigLayout:
        return ConfigLayout(self.root / "results" / f"{date}_{config}")

    def configs(self) -> tuple[ConfigLayout, ...]:
        """Every config folder there is, by name."""
        folder = self.root / "results"
        if not folder.is_dir():
            return ()
        return tuple(ConfigLayout(path) for path in sorted(folder.iterdir()) if path.is_dir())


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
