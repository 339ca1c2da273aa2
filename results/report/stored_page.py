"""The page of the last analysis, in `results/page.json`: a run's end shows it without a second analysis.

It is stored with a digest of what it was computed from, so that a page whose run has changed since is not shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from results.records.code import digest_code
from results.records.errors import DAMAGED_JSON
from results.records.layout import LifecycleLayout, RunLayout, write_atomic
from results.report.page import Page

FORMAT = 1
"""Version of page.json."""
_READ = frozenset({".json", ".jsonl", ".csv", ".txt", ".log", ".sh"})
"""Suffixes of the artifacts that an analysis reads or misses. Rings are in the JSONL; of Parquet see `_is_read`."""
_ANALYSIS = Path(__file__).resolve().parents[1]
"""The package whose code makes a page of artifacts."""


class StoredPage(msgspec.Struct, frozen=True):
    """`results/page.json`."""

    format: int
    """Format of this document."""
    inputs: str
    """`digest_inputs` from before the analysis."""
    page: Page
    """As the report begins with it."""


def digest_inputs(root: Path) -> str:
    """Over path, size and time of change of every artifact of the run, and over the code of the analysis.

    Take it before the analysis: an artifact that changes meanwhile changes the digest too.
    """
    digest = hashlib.sha256(f"{digest_code(_ANALYSIS)} {root.resolve().name}".encode())  # a page may name its run
    for path in sorted(_list_artifacts(root)):
        try:
            state = path.stat()
        except OSError:  # this run has no such file
            continue
        digest.update(repr((str(path.relative_to(root)), state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()


def _list_artifacts(root: Path) -> Iterator[Path]:
    """What the analysis may read, whether or not it exists; without what it writes itself."""
    layout = RunLayout(root)
    yield from (layout.plan, layout.host_csv, layout.gpu_csv, layout.accepted_changes, layout.engine_faults)
    yield from (layout.skipped_cells, layout.reference_rates)
    written = {layout.page, LifecycleLayout(root).summary_csv, *(config.summary_json for config in layout.configs())}
    claims = layout.variation("any").parent
    for folder in (layout.results, layout.trace.parent, layout.preflight_status.parent):
        for path in folder.rglob("*"):
            if _is_read(path) and path not in written and path.parent != claims:
                yield path


def _is_read(path: Path) -> bool:
    """A Parquet file is a copy that the analysis makes itself; one without its JSONL stands in for it."""
    return path.suffix in _READ or (path.suffix == ".parquet" and not path.with_suffix(".jsonl").exists())


def store_page(root: Path, page: Page, inputs: str) -> None:
    """Replace the run's stored page. `inputs`: `digest_inputs` from before the analysis. Raises OSError."""
    write_atomic(RunLayout(root).page, msgspec.json.encode(StoredPage(FORMAT, inputs, page)) + b"\n")


def read_page(root: Path) -> Page | None:
    """The stored page; None where there is none, it is damaged, or what it was computed from has changed since."""
    try:
        stored = msgspec.json.decode(RunLayout(root).page.read_bytes(), type=StoredPage)
    except (OSError, *DAMAGED_JSON):
        return None
    return stored.page if stored.inputs == digest_inputs(root) else None
