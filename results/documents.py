"""Every record of a run: those that it writes while it measures, and the documents that its analysis writes.

`python -m results.documents > docs/records.md` writes the page from the declarations,
`python -m results.documents --json-schema > docs/records.schema.json` the JSON Schemas.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from results.records.declaration import Declared, Field, list_record_fields, list_records_inside
from results.records.declared import DECLARED, OTHER_FILES
from results.registry import list_all_results
from results.report.documents import DOCUMENTS


def list_declared() -> tuple[Declared, ...]:
    """Those of every run, then those of each registered experiment; after each the records in its fields."""
    own = tuple(replace(one, experiment=results.name) for results in list_all_results() for one in results.declared())
    return tuple(_add_inside((*DECLARED, *DOCUMENTS, *own)))


def _add_inside(declared: Sequence[Declared]) -> Iterator[Declared]:
    """Each, then the records in its fields that are not among them; `where` of these names every record with one."""
    stated = {one.record for one in declared}
    holders: dict[type, dict[str, str]] = {}
    """Of each record inside others: their names, and whose runs have them."""
    listed: list[Declared] = []
    for one in declared:
        of_one = [one]
        for holder in of_one:  # it grows by what is inside
            for record in list_records_inside(holder.record):
                if record not in stated and record not in holders:
                    of_one.append(Declared(record, ()))
                holders.setdefault(record, {})[holder.record.__name__] = one.experiment
        listed += of_one
    for one in listed:
        if one.where:
            yield one
        else:
            own = holders[one.record]
            experiment = one.experiment if len(set(own.values())) > 1 else next(iter(own.values()))
            yield Declared(one.record, tuple(f"in {name}" for name in own), experiment=experiment)


_OPENING = """\
# Records

Every record of a run and the file that holds it. This page is made from the declarations in `results/records/` and,
for what the analysis writes, in each `results/<experiment>/documents.py`
(`python -m results.documents > docs/records.md`). Times ending in `_ns` are `time.perf_counter_ns()`: one clock for
every process of a host and boot. A value that was not measured is null, never 0. In a CSV a field that is a mapping or
a record has a column for each key or field. The records as JSON Schemas are in
[records.schema.json](records.schema.json) (`python -m results.documents --json-schema > docs/records.schema.json`).
"""


def make_records_page() -> str:
    """Every record with its fields, types, units and sentences, as Markdown."""
    parts = [_OPENING]
    for one in list_declared():
        rows = "".join(_make_row(field) for field in list_record_fields(one.record))
        parts.append(
            f"\n## {one.record.__name__}\n\n{_list_files(one)}\n\n| field | type | unit | |\n|---|---|---|---|\n{rows}"
        )
    rows = "".join(f"| `{one.where}` | {one.sentence} |\n" for one in OTHER_FILES)
    parts.append(f"\n## Other files\n\nLogs, pictures and copies of a run.\n\n| file | |\n|---|---|\n{rows}")
    return "".join(parts)


def _list_files(one: Declared) -> str:
    experiment = f" of `{one.experiment}`" if one.experiment else ""
    return ", ".join(f"`{each}`" for each in one.where) + experiment


def _make_row(field: Field) -> str:
    kind = getattr(field.kind, "__name__", str(field.kind)) if not hasattr(field.kind, "__args__") else str(field.kind)
    kind = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", kind)
    kind = kind.replace(" | None", " or null").replace(" | ", " or ")  # a pipe would end the cell of the table
    unit = "" if field.unit == "1" else field.unit
    null = " or null" if field.nullable else ""
    sentence = field.sentence.replace("|", "\\|")
    return f"| `{field.name}` | {kind}{null} | {unit} | {sentence} |\n"


_ABOUT_SCHEMAS = (
    "Made from the declarations in results/ by `python -m results.documents --json-schema`. `files` has the schema of "
    "a JSON file, or of each line of a JSONL file, by its path below the run's folder; `<name>` stands for any text "
    "without a slash. A file that several experiments write has one option for each. `$defs` has every record in its "
    "present version, with its files in `$comment`; one that is no JSON, as a row of a CSV, is described as it is "
    "read: an empty cell is null, and a mapping or a record stands for a column per key or field. Readers ignore keys "
    "that they do not know; those of a trace, of an engine model and of a spec (`*.spec.json`) refuse them. The "
    "document itself accepts any value: validate against an entry of `files` or `$defs`."
)


def make_json_schemas() -> dict[str, Any]:
    """Every record as a JSON Schema, and the schema of each JSON file: one document of draft 2020-12."""
    declared = list_declared()
    _, schemas = msgspec.json.schema_components([one.record for one in declared])
    for schema in schemas.values():
        if "description" in schema:  # a docstring, whose indentation Python keeps before 3.13
            schema["description"] = " ".join(schema["description"].split())
    for one in declared:
        schema = schemas[one.record.__name__]
        schema["$comment"] = ", ".join(one.where) + (f" of {one.experiment}" if one.experiment else "")
        properties = schema["properties"]
        for field in list_record_fields(one.record):
            unit = "" if field.unit in ("", "1") else f" Unit: {field.unit}."
            properties[field.name]["description"] = f"{field.sentence}{unit}"
        for name in ("version", "format"):  # a row without one may be of the first version
            properties.get(name, {}).pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Records of a Tracon run",
        "description": _ABOUT_SCHEMAS,
        "files": _make_file_schemas(declared),
        "$defs": dict(sorted(schemas.items())),
    }


def _make_file_schemas(declared: Iterable[Declared]) -> dict[str, Any]:
    """By the file's name in `Declared.where`: the schema of the document, in JSONL of each row."""
    files: dict[str, list[dict[str, Any]]] = {}
    for one in declared:
        schema: dict[str, Any] = {"$ref": f"#/$defs/{one.record.__name__}"}
        if one.by_name:
            schema = {"type": "object", "additionalProperties": schema}
        for name in one.where:
            if name.endswith((".json", ".jsonl")):
                files.setdefault(name, []).append(schema)
    return {name: options[0] if len(options) == 1 else {"anyOf": options} for name, options in files.items()}


def format_json_schemas() -> str:
    """The document of `make_json_schemas` as docs/records.schema.json holds it."""
    return msgspec.json.format(msgspec.json.encode(make_json_schemas()), indent=2).decode() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the page of all records as Markdown.")
    parser.add_argument("--json-schema", action="store_true", help="print the records as JSON Schemas instead")
    sys.stdout.write(format_json_schemas() if parser.parse_args().json_schema else make_records_page())
