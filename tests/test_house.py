"""The package order is a contract: what each package may import, proven by the import graph and by a real start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "console": {"state", "results"},
    "runners": {"launch", "state", "results"},
    "launch": {"state", "results"},
    "results": set(),
    "state": set(),
    "patches": set(),
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        ours = (imports_of(path) & set(MAY_IMPORT)) - {package}
        assert ours <= MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {ours - MAY_IMPORT[package]}"


def test_patches_need_nothing_but_the_standard_library_to_be_imported() -> None:
    allowed = set(sys.stdlib_module_names) | {"patches"}
    for path in (ROOT / "patches").rglob("*.py"):
        top = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
            for node in top.body
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
            for alias in node.names
        }
        lazily_imported_with = {"vllm", "torch"} if path.name in ("noop_connector.py", "cpu_connectors.py") else set()
        assert names <= allowed | lazily_imported_with, f"{path.name} imports {names - allowed}"


@pytest.mark.parametrize(
    ("start", "must_not_load"),
    [
        (["-m", "runners.cli", "--help"], {"textual", "console", "pandas", "patches", "vllm"}),
        (["-c", "import console.app"], {"runners", "launch", "patches"}),
    ],
)
def test_a_real_start_does_not_reach_what_it_may_not(start: list[str], must_not_load: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *start], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert loaded & must_not_load == set()
