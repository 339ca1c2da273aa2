"""An engine environment of its own for a further pytest-xdist worker: patches that it applies are not in another's.

Its packages are links to those of the environment that Tracon has built: it takes no time and no room.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.environment import Engine, find_engine
from launch.patching import PACKAGE


@contextmanager
def linked_home() -> Iterator[Path]:
    """A TRACON_HOME with a CPU environment; removed at the end. Raises EngineMissing where there is none to link to."""
    engine = find_engine("cpu")
    with tempfile.TemporaryDirectory(prefix="tracon-home-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        home.chmod(0o755)  # tests use the environment as another user
        link_environment(engine, home / "engines" / engine.root.name)
        yield home


def link_environment(engine: Engine, root: Path) -> None:
    """Make an environment in `root` with the Python and the packages of `engine`, but without its patches."""
    packages = root / engine.site_packages.relative_to(engine.root)
    packages.mkdir(parents=True)
    for path in engine.site_packages.iterdir():
        if PACKAGE not in path.name:
            (packages / path.name).symlink_to(path)
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(engine.python.resolve())
    for name in ("pyvenv.cfg", "engine.json"):
        shutil.copy(engine.root / name, root)
