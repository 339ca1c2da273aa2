"""All that the analysis and the commands say of a fixture, as documents that can be stored and compared.

A document is a JSON value, or text. A table too long to be stored whole is a digest: rows, and per column what
`digest_column` says, to which a tolerance applies as to any number.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow.parquet as pq
from typer.testing import CliRunner

from runners.cli import app
from tests.goldens.fixture import ARCHIVE, HERE, unpack

EXPERIMENTS = ("connector-tax", "connector-tax-confirm", "routing", "pd-lifecycle", "capacity")
"""Names of the fixtures: of an experiment, and of a preset behind it."""
ROUTED_CELL = "EAR/trial_0"
"""Where `why`, `session` and `whatif` look in the routing fixture: its sessions migrate."""
COMPARE = ["compare", "RUN", "RUN", "--json"]
COMMANDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "connector-tax": {"compare": COMPARE},
    "connector-tax-confirm": {"compare": COMPARE},
    "routing": {
        "compare": COMPARE,
        "why": ["why", "RUN", "#12", "--cell", ROUTED_CELL, "--json"],
        "why_text": ["why", "RUN", "#12", "--cell", ROUTED_CELL],
        "session": ["session", "RUN", "s0", "--cell", ROUTED_CELL, "--json"],
        "session_text": ["session", "RUN", "s0", "--cell", ROUTED_CELL],
        "whatif": ["whatif", "RUN", "--policy", "lmetric", "--cell", ROUTED_CELL, "--json"],
    },
    "pd-lifecycle": {"compare": COMPARE},
    "capacity": {},
}
"""Beside report and status; RUN stands for the run's folder."""
LONG_ROWS, LONG_BYTES = 10, 12_000
"""A table with more rows that takes more bytes is stored as its digest."""
FEW_TEXTS = 12
RAW_MTIME = 0
"""Of every file in a fixture: one that is newer was written by the analysis."""
UNDRAWN = {"png": b"", "svg": b"<svg></svg>"}

Documents = dict[str, Any]
"""By name: `aggregate.json`, `aggregate.csv.json`, `report.md`, `report.html.txt`, `status.stdout.json`, ..."""


def collect_documents(experiment: str, into: Path) -> Documents:
    """Unpack the fixture into `into` and collect everything that is said of it. Figures are not drawn."""
    run = unpack(HERE / experiment / ARCHIVE, into)
    return analyze_again(run) | ask_commands(run, COMMANDS[experiment])


def analyze_again(run: Path) -> Documents:
    """What `tracon report --again --json` writes into the run's folder and prints."""
    with (
        patch("results.report.output.draw", lambda *_: UNDRAWN),
        patch("results.report.output.draw_beside", lambda *_: UNDRAWN["svg"].decode()),
        patch("results.report.output.store_page", lambda *_: None),  # in the report too; its digest is of this checkout
    ):
        reported = call(run, "report", "RUN", "--again", "--json")
    written = [path for path in _files(run) if path.stat().st_mtime > RAW_MTIME]
    documents = dict(named for path in written if (named := _read(path, str(path.relative_to(run)))) is not None)
    documents |= _digest_copies(run, [path for path in written if path.suffix == ".parquet"])
    return documents | {"report.stdout.json": _without_repeats(msgspec.json.decode(reported), run)}


def ask_commands(run: Path, commands: Mapping[str, Sequence[str]]) -> Documents:
    """What `report`, `status` and `commands` print of a run that was analyzed."""
    documents: Documents = {"report.stdout.txt": call(run, "report", "RUN")}
    documents["status.stdout.json"] = shorten(msgspec.json.decode(call(run, "status", "RUN", "--json")))
    for name, arguments in commands.items():
        said = call(run, *arguments)
        text = "--json" not in arguments
        documents[f"{name}.stdout.{'txt' if text else 'json'}"] = said if text else shorten(msgspec.json.decode(said))
    return documents


def call(run: Path, *arguments: str) -> str:
    """What the command prints on stdout; the folder of the run's folder reads RUNS."""
    done = CliRunner().invoke(app, [str(run) if word == "RUN" else word for word in arguments])
    assert done.exit_code == 0, f"tracon {' '.join(arguments)}: {done.exit_code} {done.stderr} {done.exception!r}"
    return done.stdout.replace(str(run.parent), "RUNS")


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith("state.sqlite"))


def _read(path: Path, name: str) -> tuple[str, Any] | None:
    """The name and the document of one file; None for an image, and for Parquet, whose files are taken together."""
    if path.suffix in (".parquet", ".png", ".svg"):
        return None
    if path.suffix == ".json":
        return name, shorten(msgspec.json.decode(path.read_bytes()))
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".csv", ".tsv"):
        return f"{name}.json", read_table(text, "\t" if path.suffix == ".tsv" else ",")
    return (f"{name}.txt", page_text(text)) if path.suffix == ".html" else (name, text)


def read_table(text: str, separator: str) -> Any:  # noqa: ANN401  # rows, or their digest
    """A table's rows, its numbers as numbers; its digest where it is long."""
    header, *lines = csv.reader(io.StringIO(text), delimiter=separator)
    rows = [dict(zip(header, map(_cell, line), strict=True)) for line in lines]
    return digest_table(rows) if len(rows) > LONG_ROWS and len(text) > LONG_BYTES else {"header": header, "rows": rows}


def _cell(text: str) -> str | int | float:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def page_text(page: str) -> str:
    """What a reader of the page reads: no tags, styles, scripts or drawings; one line per block of text."""
    bare = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    bare = re.sub(r"</?code>", "`", bare)
    bare = re.sub(r"</?(?:b|i|em|strong|span|a|sup|sub)\b[^>]*>", "", bare)
    lines = (" ".join(html.unescape(line).split()) for line in re.sub(r"<[^>]*>", "\n", bare).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def shorten(value: Any) -> Any:  # noqa: ANN401  # a JSON value
    """The value, with the digest of every list of objects in it that is long."""
    if isinstance(value, dict):
        return {name: shorten(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    rows = all(isinstance(each, dict) for each in value)
    if rows and len(value) > LONG_ROWS and len(msgspec.json.encode(value)) > LONG_BYTES:
        return digest_table([dict(_leaves(each)) for each in value])
    return [shorten(each) for each in value]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # a JSON value
    """Every value in `value` that is no object and no list, with its dotted path; an empty one is one too."""
    if isinstance(value, dict | list) and value:
        parts = value.items() if isinstance(value, dict) else ((str(place), each) for place, each in enumerate(value))
        for name, each in parts:
            yield from _leaves(each, f"{path}.{name}" if path else str(name))
    else:
        yield path, value if not isinstance(value, dict | list) else str(value)


def digest_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A long table: how many rows, and each column."""
    names = sorted({name for row in rows for name in row})
    columns = {name: digest_column([row.get(name) for row in rows]) for name in names}
    return {"digest_of_rows": len(rows), "columns": columns}


def digest_column(values: Sequence[Any]) -> dict[str, Any]:
    """How many numbers and their sums, plain and weighted by row, so that no number and no order changes unseen.

    Sums of positive and of negative numbers are apart: nothing cancels, and a relative tolerance has its meaning. Sums
    of integers are exact, modulo 2^53. Texts with their counts where few differ, else the SHA-256 of all in order.
    """
    placed = list(enumerate(values, 1))
    numbers = [(place, each) for place, each in placed if _is_number(each)]
    texts = [str(each) for each in values if each is not None and not _is_number(each)]
    column: dict[str, Any] = {"missing": len(values) - len(numbers) - len(texts)}
    signed = {
        "above_0": [(place, each) for place, each in numbers if each > 0],
        "below_0": [(place, each) for place, each in numbers if each < 0],
    }
    for sign, chosen in signed.items():
        if chosen:
            column[sign] = {
                "count": len(chosen),
                "sum": _sum([each for _, each in chosen]),
                "sum_by_row": _sum([place * each for place, each in chosen]),
            }
    if numbers:
        column["zeros"] = sum(each == 0 for _, each in numbers)
    if texts:
        counts = Counter(texts)
        few = len(counts) <= FEW_TEXTS
        column["texts"] = dict(sorted(counts.items())) if few else hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return column


def _sum(numbers: Sequence[int | float]) -> int | float:
    if all(isinstance(number, int) for number in numbers):
        return int(sum(numbers)) % 2**53
    return math.fsum(numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _digest_copies(run: Path, copies: Sequence[Path]) -> Documents:
    """The Parquet files, those of one kind together: `parquet/requests.json`."""
    kinds: dict[str, list[Path]] = {}
    for path in copies:
        kinds.setdefault(artifact_kind(path, run), []).append(path)
    return {
        f"parquet/{kind.replace('/', '-').replace('*', 'N').removesuffix('.parquet')}.json": {
            "files": len(paths),
            **digest_table([dict(_leaves(row)) for path in paths for row in pq.read_table(path).to_pylist()]),
        }
        for kind, paths in kinds.items()
    }


def artifact_kind(path: Path, run: Path) -> str:
    """The path below the run's folder with `*` for what differs between files of one kind."""
    kind = str(path.relative_to(run))
    for pattern, shown in (
        (r"^results/points/[^/]+/[^/]+\.", "results/points/*/*_*."),
        (r"^results/(?!points/)[^/]+/", "results/*/"),
        (r"^trace/\d+/", "trace/*/"),
        (r"/(trial_|C)\d[^/]*/", r"/\1*/"),
        (r"/engines/[^/]+/", "/engines/*/"),
        (r"/rings/[^/]+/", "/rings/*/"),
        (r"/transfer\.\d+", "/transfer.*"),
        (r"/(requests|metrics|engine_step|cell|verify)_[^/]*\.", r"/\1_*."),
        (r"/figure_\w+\.", "/figure_*."),
        (r"/C\d+_N\d+_O\d+\w*", "/C*_N*_O*"),
    ):
        kind = re.sub(pattern, shown, kind)
    return kind


def _without_repeats(reported: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Where `report --json` prints what a file holds, the name of the file."""
    files = {path.name: msgspec.json.decode(path.read_bytes()) for path in run.glob("*.json")}
    return {
        name: next((f"as in {file}" for file, content in files.items() if content == value), None) or shorten(value)
        for name, value in reported.items()
    }
