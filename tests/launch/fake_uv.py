"""A stand-in for uv that needs no network: it makes a real, empty environment and puts stubs of what is locked in.

Run as a program: `fake_uv.py LOG FAILURE ...uv's arguments`. Every call is a line of LOG. FAILURE is a text to print
before exiting with 2 in the packages step, or empty.
"""

from __future__ import annotations

import sys
from pathlib import Path
from venv import EnvBuilder

STUBS = {
    "torch.py": "class version:\n    cuda = '13.0'\n",
    "vllm/__init__.py": "",
    "vllm/_version.py": "__version__ = version = '0.32.0'\n__commit_id__ = commit_id = 'gabcdef012'\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": "",
    "mooncake/__init__.py": "",
    "mooncake/engine.py": "",
    "nixl/__init__.py": "",
    "nixl/_api.py": "",
    "lmcache.py": "raise ImportError('no stub of lmcache')\n",
}


def program(log: Path, failure: str = "") -> str:
    """The text of a shell script that stands in for uv's binary."""
    quoted = "'" + failure.replace("'", "") + "'"
    return f"#!/bin/sh\nexec '{sys.executable}' '{Path(__file__)}' '{log}' {quoted} \"$@\"\n"


def main(log: Path, failure: str, arguments: list[str]) -> int:
    with log.open("a") as file:
        file.write(" ".join(arguments) + "\n")
    if arguments[0] == "venv":
        make_environment(Path(arguments[-1]))
        return 0
    if "--requirements" in arguments:
        if failure:
            print(failure)
            return 2
        python = Path(arguments[arguments.index("--python") + 1])
        lock = Path(arguments[arguments.index("--requirements") + 1])
        install_stubs(python.parent.parent / "lib" / "python3.11" / "site-packages", lock)
    print("Installed 1 package in 1ms")
    return 0


def make_environment(root: Path) -> None:
    EnvBuilder(symlinks=True).create(root)
    wanted = root / "lib" / "python3.11"
    if not wanted.exists():  # the tests run on another Python than the engines do
        wanted.symlink_to(next((root / "lib").glob("python3.*")).name)


def install_stubs(site_packages: Path, lock: Path) -> None:
    for name, text in STUBS.items():
        path = site_packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for line in lock.read_text().splitlines():
        if line.startswith("    --hash="):
            continue
        name, _, version = line.removesuffix(" \\").partition("==")
        add_metadata(site_packages, name, version)


def add_metadata(site_packages: Path, name: str, version: str) -> None:
    folder = site_packages / f"{name.replace('-', '_').replace('.', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
