"""Expected and actual documents side by side: numbers to 1e-12, text exactly, renamed fields and words as renamed."""

from __future__ import annotations

import difflib
import math
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.goldens.outputs import Documents

RELATIVE = 1e-12
"""Where the order of a sum changes, its last digits do."""
ABSOLUTE = 1e-15
"""For an R^2 near 0, which is 1 less a quotient: other processors' linear algebra differs there by some 1e-16."""


@dataclass(frozen=True, slots=True)
class Renames:
    """What a change renames. `renames.toml`:

    [fields]    keys of objects, columns, fields: `old = "new"`; `"values.old" = "new"` only below `values`
    [words]     words in texts and in values that are text, as whole words, one after the other: `"old" = "new"`
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def field(self, path: str) -> str:
        """The new name of the last part of a dotted path; the longest entry that fits decides."""
        parts = path.split(".")
        names = (".".join(parts[start:]) for start in range(len(parts)))
        return next((self.fields[name] for name in names if name in self.fields), parts[-1])

    def text(self, text: str) -> str:
        for old, new in self.words.items():
            text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new.replace("\\", r"\\"), text)
        return text

    def document(self, value: Any, path: str = "") -> Any:  # noqa: ANN401  # a JSON value, or text
        """The document with all renames made."""
        if isinstance(value, dict) and "digest_of_rows" in value:
            columns = {self._column(path, name): self._digest(each) for name, each in value["columns"].items()}
            return value | {"columns": columns}
        if isinstance(value, dict):
            below = {name: f"{path}.{name}".lstrip(".") for name in value}
            return {self.field(below[name]): self.document(each, below[name]) for name, each in value.items()}
        if isinstance(value, list):
            return [self.field(each) if path == "header" else self.document(each, path) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def _column(self, path: str, name: str) -> str:
        """A column of a digest is a dotted path itself: every part of it is renamed."""
        parts = name.split(".")
        return ".".join(self.field(f"{path}.{'.'.join(parts[: count + 1])}") for count in range(len(parts)))

    def _digest(self, column: Mapping[str, Any]) -> dict[str, Any]:
        texts = column.get("texts")
        if not isinstance(texts, dict):
            return dict(column)
        return dict(column) | {"texts": {self.text(text): count for text, count in texts.items()}}


def read_renames(path: Path) -> Renames:
    """Of `renames.toml`. Raises msgspec.ValidationError where it has other tables."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return Renames(**{name: dict(table) for name, table in content.items()})


def read_expected(folder: Path) -> Documents:
    """All documents below `expected/`, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _read(path) for path in paths}


def _read(path: Path) -> Any:  # noqa: ANN401  # a JSON value, or text
    text = path.read_text(encoding="utf-8")
    return msgspec.json.decode(text) if path.suffix == ".json" else text


def write_expected(folder: Path, documents: Documents) -> None:
    """Replace all below `expected/`."""
    if folder.exists():
        shutil.rmtree(folder)
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = document if path.suffix != ".json" else _indented(document)
        path.write_text(text, encoding="utf-8")


def _indented(document: Any) -> str:  # noqa: ANN401  # a JSON value
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def differences(expected: Documents, actual: Documents, renames: Renames) -> dict[str, list[str]]:
    """By document, what differs, a line each: nothing where all is as expected and renamed."""
    listed = {}
    for name in sorted({*expected, *actual}):
        if name not in actual or name not in expected:
            listed[name] = ["is not made any more" if name in expected else "is new"]
        elif lines := list(_compare(renames.document(expected[name]), actual[name], "")):
            listed[name] = lines
    return listed


def _compare(expected: Any, actual: Any, path: str) -> Iterator[str]:  # noqa: ANN401  # JSON values, or texts
    if _is_number(expected) and _is_number(actual):
        if not _is_close(expected, actual):
            yield f"{path}: {expected!r} became {actual!r}"
    elif type(expected) is not type(actual):
        yield f"{path}: {_short(expected)} became {_short(actual)}"
    elif isinstance(expected, dict):
        yield from _compare_objects(expected, actual, path)
    elif isinstance(expected, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} elements became {len(actual)}"
        for place, (before, now) in enumerate(zip(expected, actual, strict=False)):
            yield from _compare(before, now, f"{path}[{place}]")
    elif expected != actual:
        yield from _compare_texts(expected, actual, path)


def _compare_objects(expected: Mapping[str, Any], actual: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in [*expected, *(name for name in actual if name not in expected)]:
        if name not in actual or name not in expected:
            yield f"{path}.{name}: {'is gone' if name in expected else 'is new'}"
        else:
            yield from _compare(expected[name], actual[name], f"{path}.{name}")


def _compare_texts(expected: Any, actual: Any, path: str) -> Iterator[str]:  # noqa: ANN401  # texts, bools, nulls
    if isinstance(expected, str) and "\n" in expected + actual:
        lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), n=0, lineterm="")
        yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))
    else:
        yield f"{path}: {_short(expected)} became {_short(actual)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_close(expected: float, actual: float) -> bool:
    if isinstance(expected, int) and isinstance(actual, int):
        return expected == actual
    return math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
