"""A run of an older Tracon as a fixture: `python -m tests.old_runs.fixture RUN_FOLDER SOURCE_TREE` writes `RUN.tar.xz`.

It is as that version left it, its report and its attempts among it. Dropped are step rings, images, Parquet copies and
the text of engine logs. SOURCE_TREE is that version's, whose path is made neutral.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.goldens.fixture import make_fixture

HERE = Path(__file__).parent
DROPPED = re.compile(r"\.(ring|parquet|png|svg|partial)$|-(wal|shm)$|^report\.html$")


def main(arguments: list[str]) -> None:
    run, source = map(Path, arguments)
    archive = HERE / f"{run.name}.tar.xz"
    make_fixture(run, archive, dropped=DROPPED, steps=None, source=source)
    print(f"{archive}: {archive.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
