"""The name of every field of every artifact of a run, raw or written: what `fields.txt` lists.

A line per object: artifact, path of the object (`[]` = each element of a list), its keys. Objects of one parent with
the same fields, as the estimates of many metrics, share a line whose path holds their number: `values.*14`. A table has
one line, of Parquet with types. The state file has a line per table, and lines per kind of event.
"""

from __future__ import annotations

import csv
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from tests.goldens.outputs import artifact_kind

NAME = re.compile(r"[A-Za-z_]\w*$")
"""A key that is a field; any other one, a file name or the name of an engine's metric, is listed as `*`."""

Shape = dict[str, Any]
"""The keys below an object, each with its own shape; `[]` is a list's element. Empty: a plain value."""


def list_fields(run: Path) -> str:
    """The text of `fields.txt` for the run in the folder `run`."""
    shapes: dict[str, Shape] = {}
    for path in sorted(run.rglob("*")):
        if path.is_file():
            _add_artifact(shapes.setdefault(artifact_kind(path, run), {}), path)
    lines = [f"{kind}\t{line}" for kind, shape in shapes.items() for line in _lines(shape, "")]
    return "".join(f"{line}\n" for line in sorted(lines))


def renamed_lines(text: str, fields: Mapping[str, str]) -> list[str]:
    """The lines of a `fields.txt`, its fields renamed and in order again."""
    lines = []
    for line in text.splitlines():
        artifact, path, keys = line.split("\t")
        path = re.sub(r"\w+", lambda word: fields.get(word[0], word[0]), path)
        renamed = (re.sub(r"^\w+", lambda word: fields.get(word[0], word[0]), key) for key in keys.split())
        lines.append(f"{artifact}\t{path}\t{' '.join(sorted(renamed))}")
    return sorted(lines)


def _add_artifact(shape: Shape, path: Path) -> None:
    if path.suffix == ".json":
        _add(shape, msgspec.json.decode(path.read_bytes()))
    elif path.suffix == ".jsonl":
        for line in path.read_bytes().splitlines():
            _add(shape, msgspec.json.decode(line))
    elif path.suffix in (".csv", ".tsv"):
        with path.open(newline="", encoding="utf-8") as file:
            _add(shape, dict.fromkeys(next(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","), [])))
    elif path.suffix == ".parquet":
        shape |= {f"{field.name}:{str(field.type).replace(' ', '')}": {} for field in pq.read_schema(path)}
    elif path.suffix == ".sqlite":
        _add_state(shape, path)


def _add(shape: Shape, value: Any) -> None:  # noqa: ANN401  # a JSON value
    if isinstance(value, dict):
        for name, each in value.items():
            _add(shape.setdefault(name if NAME.match(name) else "*", {}), each)
    elif isinstance(value, list) and value:
        element = shape.setdefault("[]", {})
        for each in value:
            _add(element, each)


def _add_state(shape: Shape, path: Path) -> None:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = (row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        shape[f"table/{table}"] = {column: {} for column in columns}
    for kind, body in connection.execute("SELECT kind, body FROM journal"):
        _add(shape.setdefault(f"event/{kind}", {}), msgspec.json.decode(body))
    connection.close()


def _lines(shape: Shape, path: str) -> Iterator[str]:
    keys = sorted(key for key in shape if key != "[]")
    if keys:
        yield f"{path}\t{' '.join(keys)}"
    groups: dict[str, list[str]] = {}
    for name, below in shape.items():
        if below:
            groups.setdefault(repr(_sorted(below)), []).append(name)
    for names in groups.values():
        step = names[0] if len(names) == 1 else f"*{len(names)}"
        yield from _lines(shape[names[0]], f"{path}[]" if step == "[]" else f"{path}.{step}".lstrip("."))


def _sorted(shape: Shape) -> list[Any]:
    return [(name, _sorted(shape[name])) for name in sorted(shape)]
