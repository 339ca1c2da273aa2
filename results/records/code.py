"""Which code computed something: what other code computed is computed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest_code(folder: Path, packages: Iterable[str] = ("",)) -> str:
    """SHA-256 over the modules of these packages in the folder, by name and content; by default over all of them."""
    digest = hashlib.sha256()
    for path in sorted(path for package in packages for path in (folder / package).rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
