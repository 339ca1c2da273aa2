"""Where libraries put their caches when the user's home folder cannot be written: below TRACON_HOME."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDERS = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "TRITON_CACHE_DIR": "triton"}
"""Variable to folder name. vLLM, numba, fontconfig, matplotlib, uv and Hugging Face's hub follow the first two."""


def make_cache_env(environ: Mapping[str, str], home: Path, fallback: Path) -> dict[str, str]:
    """Variables that move caches from `home` to `fallback`; empty where `home` can be written.

    A variable that is set keeps its value. Where `fallback` cannot be written either, caches go into a private folder
    among the temporary files. Models that were downloaded into the home folder stay where they are: HF_HOME names them.
    """
    if can_write(home):
        return {}
    base = fallback if can_write(fallback) else make_private_folder(f"tracon-caches-{os.getuid()}")
    moved = {name: str(base / folder) for name, folder in FOLDERS.items() if name not in environ}
    hub = home / ".cache" / "huggingface"
    if not {"HF_HOME", "XDG_CACHE_HOME"} & environ.keys() and hub.is_dir():
        moved["HF_HOME"] = str(hub)
    return moved


def can_write(folder: Path) -> bool:
    """Whether a file can be created in this folder, or the folder itself."""
    for path in (folder, *folder.parents):
        try:
            if path.exists():
                return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
        except OSError:
            return False
    return False


def make_private_folder(name: str) -> Path:
    """The folder of that name among the temporary files. A new folder beside it where that name is a link, another
    user's folder, or one that others may write into: code is loaded from caches."""
    folder = Path(tempfile.gettempdir()) / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))
