"""A run's folder as a fixture: raw artifacts only, without this machine's names and paths.

`python -m tests.goldens.fixture RUN_FOLDER [EXPERIMENT]` writes `tests/goldens/EXPERIMENT/run.tar.xz`.

Dropped are files that the analysis makes again, step rings (their JSONL remains), attempts, the text of engine
logs, and of each cell's engine steps all but the first in its window. Checksums are computed again: contents change.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from results.records.layout import sha256

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent
ARCHIVE = "run.tar.xz"
STATE = "state.sqlite"
BOOT_ID = "00000000-0000-0000-0000-000000000000"

DROPPED = re.compile(
    r"(^|/)(figures|attempts)/"
    r"|\.(ring|parquet|png|svg|partial)$|-(wal|shm)$"
    r"|^(report\.(md|html)|(aggregate|tax|pairs|migrations|verdicts|summary)\.(json|csv)|MANIFEST\.tsv|run\.log)$"
    r"|^results/([^/]+/summary\.(json|csv)|page\.json)$"
)
"""Of paths below the run's folder."""
LOGS = ("vllm_stdout.log", "vllm_stderr.log", "fork_server.log", "launch.sh")
"""Looked for by the analysis, read by nothing: their text is dropped."""
TEXTS = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".log")
STEPS = 48
"""Engine steps that a cell of `connector-tax` keeps."""
ENV_SECTIONS = ("engine", "gpu")
"""Of env.txt, whose other sections describe the machine."""


def make_fixture(
    run: Path, archive: Path, *, dropped: re.Pattern[str] = DROPPED, steps: int | None = STEPS, source: Path = SOURCE
) -> None:
    """Write the fixture of the run in the folder `run`, which stays as it is.

    dropped: of paths below the run's folder. steps: engine steps that a cell keeps; None = all. source: the tree of the
    Tracon that measured it. Raises ValueError where a path of this machine is left in it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / run.name
        _copy_files(run, copy, dropped)
        replaced = _replacements(run, source)
        _copy_state(run / STATE, copy / STATE, replaced)
        for path in _files(copy):
            _neutralise(path, replaced)
        if steps is not None:
            for record in copy.glob("results/*/cell_*.json"):
                _thin_steps(record, steps)
        write_checksums(copy)
        _refuse_paths(copy, replaced)
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(pack(copy))


def pack(folder: Path) -> bytes:
    """The folder as `.tar.xz`; the same folder gives the same bytes."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:xz", preset=9) as tar:
        for path in sorted(_files(folder)):
            entry = tarfile.TarInfo(str(path.relative_to(folder.parent)))
            content = path.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return sink.getvalue()


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a fixture; returns the run's folder, which bears the run's name."""
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[0] for name in tar.getnames()}
        tar.extractall(into, filter="data")
    (name,) = names
    return into / name


def write_checksums(folder: Path) -> None:
    """Write into every record below `folder` the checksums that its files have now."""
    for record in sorted(folder.rglob("*.json")):
        content = msgspec.json.decode(record.read_bytes())
        if not isinstance(content, dict) or not isinstance(content.get("checksums"), dict):
            continue
        sums = {name: sha256(record.parent / name) for name in content["checksums"]}
        if sums != content["checksums"]:
            record.write_bytes(msgspec.json.format(msgspec.json.encode(content | {"checksums": sums}), indent=2))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _copy_files(run: Path, copy: Path, dropped: re.Pattern[str]) -> None:
    for path in _files(run):
        name = str(path.relative_to(run))
        if name != STATE and not dropped.search(name):
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _replacements(run: Path, source: Path) -> Mapping[str, str]:
    """This machine's paths and names to neutral ones, longest first."""
    home = os.environ.get("TRACON_HOME", str(Path.home()))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        str(run.resolve().parent): "/runs",
        str(Path(home).resolve()): "/home/tracon",
        str(HERE.resolve() / "golden.toml"): "tests/goldens/golden.toml",  # from where a test resumes the run
        str(source.resolve()): "/src/tracon",
        boot: BOOT_ID,
    }


def _copy_state(source: Path, target: Path, replaced: Mapping[str, str]) -> None:
    """The state file in one piece, its texts neutral, the host's name gone."""
    reader = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    writer = sqlite3.connect(target)
    with writer:
        reader.backup(writer)
    reader.close()
    host = os.uname().nodename
    tables = [name for (name,) in writer.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        columns = [row[1] for row in writer.execute(f"PRAGMA table_info({table})") if row[2] == "TEXT"]
        for column in columns:
            for old, new in replaced.items():
                writer.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
            writer.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (f'"host":"{host}"', '"host":"host"')
            )
    writer.execute("DELETE FROM lease")
    writer.commit()
    writer.execute("PRAGMA journal_mode = DELETE")
    writer.execute("VACUUM")
    writer.close()


def _neutralise(path: Path, replaced: Mapping[str, str]) -> None:
    if path.name in LOGS:
        path.write_text("not part of the fixture\n")
    elif path.suffix in TEXTS:
        text = path.read_text(encoding="utf-8")
        for old, new in replaced.items():
            text = text.replace(old, new)
        path.write_text(_without_machine(text) if path.name == "env.txt" else text, encoding="utf-8")


def _thin_steps(record: Path, count: int) -> None:
    """Keep the first `count` engine steps in the window of the cell whose record this is."""
    steps = record.with_name(record.name.replace("cell_", "engine_step_", 1)).with_suffix(".jsonl")
    if not steps.exists():
        return
    start_ns = msgspec.json.decode(record.read_bytes())["t_window_start_ns"]
    lines = steps.read_bytes().splitlines(keepends=True)
    inside = [line for line in lines if msgspec.json.decode(line)["t_ns"] >= start_ns]
    steps.write_bytes(b"".join(inside[:count]))


def _without_machine(text: str) -> str:
    head, *sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    kept = [section for section in sections if section[1:].partition("]")[0] in ENV_SECTIONS]
    return head + "".join(kept)


def _refuse_paths(folder: Path, replaced: Mapping[str, str]) -> None:
    places = (Path.home(), Path(tempfile.gettempdir()), HERE.parent.parent.parent)
    forbidden = [*replaced, *(str(place) for place in places if place != Path("/")), os.uname().release]
    for path in _files(folder):
        content = path.read_bytes()
        left = [text for text in forbidden if text.encode() in content]
        if left:
            raise ValueError(f"{path.relative_to(folder)} still names {', '.join(left)}")


def main(arguments: list[str]) -> None:
    run = Path(arguments[0])
    plan: dict[str, Any] = msgspec.json.decode((run / "plan.json").read_bytes())
    archive = HERE / (arguments[1] if len(arguments) > 1 else plan["experiment"]) / ARCHIVE
    make_fixture(run, archive)
    print(f"{archive}: {archive.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
