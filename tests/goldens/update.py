"""Rewrite the expected documents: `python -m tests.goldens.update [EXPERIMENT ...]`, all of them without a name.

Reports per document what changed beyond the renames of `renames.toml`, and empties that file: its renames are part of
what is expected now. For a commit that keeps every number it reports 0 documents.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.goldens.comparison import differences, read_expected, read_renames, write_expected
from tests.goldens.fields import list_fields
from tests.goldens.fixture import HERE
from tests.goldens.outputs import EXPERIMENTS, collect_documents

NO_RENAMES = """\
# What a change renames, old name = new name; `python -m tests.goldens.update` makes it part of what is expected.
# A part of a dotted path may come before a field's name: "values.old" = "new".
[fields]

[words]
"""
SHOWN = 5


def update(experiment: str) -> dict[str, list[str]]:
    """Rewrite one experiment's golden; returns what changed beyond its renames, by document."""
    folder = HERE / experiment
    expected, renames = folder / "expected", folder / "renames.toml"
    if not renames.exists():
        renames.write_text(NO_RENAMES)
    with tempfile.TemporaryDirectory() as scratch:
        documents = collect_documents(experiment, Path(scratch))
        (run,) = Path(scratch).iterdir()
        fields = list_fields(run)
    changed = differences(read_expected(expected), documents, read_renames(renames))
    write_expected(expected, documents)
    (folder / "fields.txt").write_text(fields)
    renames.write_text(NO_RENAMES)
    return changed


def main(experiments: list[str]) -> None:
    for experiment in experiments or EXPERIMENTS:
        changed = update(experiment)
        print(f"{experiment}: {len(changed)} documents differ beyond the renames")
        for name, lines in changed.items():
            print(f"  {name}: {len(lines)} differences")
            for line in lines[:SHOWN]:
                print(f"    {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
