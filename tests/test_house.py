"""The import rules: what each package and each room may import, by the import graph and by a real start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import house_counts

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "console": {"state", "results"},
    "runners": {"launch", "state", "results"},
    "launch": {"state", "results"},
    "results": set(),
    "state": {"results.records"},
    "patches": set(),
}


def imports_of(path: Path) -> set[str]:
    """Dotted names of the modules that the file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        ours = {name for name in imports_of(path) if name.split(".")[0] in MAY_IMPORT and not is_within(name, package)}
        wrong = {name for name in ours if not any(is_within(name, allowed) for allowed in MAY_IMPORT[package])}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


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


POLICIES = ROOT / "runners" / "router" / "policies"
POLICIES_MAY_IMPORT = {"results.records", "runners.errors", "runners.router.policies"}
LOADS_A_FILE = "user_file.py"  # runs the file of a user's policy, before the router starts
IMPURE = {
    "asyncio", "concurrent", "contextvars", "datetime", "http", "httpx", "io", "logging", "multiprocessing", "os",
    "pathlib", "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid", "uvloop", "zmq",
}  # fmt: skip
"""Modules of a clock, of chance, or of the world outside the process."""
IMPURE_CALLS = {"__import__", "eval", "exec", "input", "open", "print"}


def impurities(path: Path) -> set[str]:
    """What a module imports or calls that a pure function has no use for."""
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return {name.split(".")[0] for name in imports_of(path)} & IMPURE | called & IMPURE_CALLS


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.py")), ids=lambda path: path.name)
def test_a_policy_is_a_pure_function(path: Path) -> None:
    ours = {name for name in imports_of(path) if name.split(".")[0] in MAY_IMPORT}
    assert {name for name in ours if not any(is_within(name, allowed) for allowed in POLICIES_MAY_IMPORT)} == set()
    if path.name != LOADS_A_FILE:
        assert impurities(path) == set()


def test_an_impure_policy_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "policy.py"
    path.write_text("import math\nfrom time import monotonic\n\n\ndef decide():\n    import os.path\n    open('x')\n")
    assert impurities(path) == {"time", "os", "open"}


def named_imports() -> dict[str, set[str]]:
    """What the registries import by name, which no import statement shows."""
    from console.panels.registry import MODULES as PANELS
    from results.registry import FOLDERS as RESULTS
    from runners.experiments.registry import FOLDERS as EXPERIMENTS
    from runners.router.policies import MODULES as POLICY_MODULES

    policies = {f"runners.router.policies.{name}" for name in POLICY_MODULES}
    return {
        "console.panels.registry": {f"console.panels.{name}" for name in PANELS},
        "results.registry": {f"results.{folder}.experiment" for folder in RESULTS},
        "runners.experiments.registry": {f"runners.experiments.{folder}.entry" for folder in EXPERIMENTS},
        "runners.router.policies": policies,
        "runners.router.policies.reasons": policies,
    }


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Every module of ours with those that it imports: inside functions, for type checkers and by name too."""
    imported = house_counts.import_graph(house_counts.read_modules(ROOT))
    for registry, modules in named_imports().items():
        assert modules <= set(imported)
        imported[registry] |= modules
    return imported


def test_no_import_runs_in_a_circle(graph: dict[str, set[str]]) -> None:
    assert house_counts.circles(graph) == []


@pytest.mark.parametrize(
    ("module", "imports"),
    [
        ("state.run", "state.store"),
        ("console.panels.events", "console.panels.registry"),
        ("results.routing.write", "results.registry"),
        ("runners.router.policies.ear", "runners.router.policies"),
        ("runners.router.policies.balance", "runners.router.policies.reasons"),
    ],
)
def test_a_circle_is_noticed(graph: dict[str, set[str]], module: str, imports: str) -> None:
    """Also one that closes only through what a registry imports by name."""
    closed = {**graph, module: graph[module] | {imports}}
    assert [group for group in house_counts.circles(closed) if {module, imports} <= set(group)]


LENT: dict[str, set[str]] = {
    "capacity": {
        f"runners.experiments.routing.{name}" for name in ("engine_model", "grid", "plan", "simulation", "trace")
    }
}
"""By experiment of `runners`, the modules that it imports from another: docs/decisions/capacity-on-routing.md."""


def folders_of(package: str) -> set[str]:
    """Names of the folders with modules, which are the experiments' own beside those that a contract names."""
    return {path.parent.name for path in (ROOT / package).glob("*/*.py")}


def test_no_experiment_imports_another_except_the_modules_lent_to_capacity() -> None:
    """Each lent module is imported too, so that no unused permission stays in `LENT`."""
    from runners.experiments.registry import FOLDERS

    folders = folders_of("runners/experiments")
    assert set(FOLDERS) <= folders
    for folder in folders:
        others = {f"runners.experiments.{other}" for other in folders - {folder}}
        paths = (ROOT / "runners" / "experiments" / folder).rglob("*.py")
        imported = {name for path in paths for name in imports_of(path) if any(is_within(name, one) for one in others)}
        lent = LENT.get(folder, set())
        assert {name for name in imported if not any(is_within(name, module) for module in lent)} == set(), folder
        assert {module for module in lent if not any(is_within(name, module) for name in imported)} == set(), folder


ABOVE_EXPERIMENTS = {"documents", "registry"}
"""Layers of `results` that list the experiments, and import them by name."""


def layers_of_results() -> set[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = [one for one in contracts if one.get("containers") == ["results"]]
    return {name for layer in layers["layers"] for name in layer.split(" | ")}


def wrong_imports_of_experiments(graph: dict[str, set[str]], experiments: set[str]) -> set[tuple[str, str]]:
    """Imports in `results` of another experiment's folder, of one by what is below it, of what is above by one."""
    pairs = {(module, name) for module, imported in graph.items() for name in imported}
    wrong = set()
    for module, name in pairs:
        if not (module.startswith("results.") and name.startswith("results.")):
            continue
        room, imported_room = module.split(".")[1], name.split(".")[1]
        reaches_up = room in experiments and imported_room in ABOVE_EXPERIMENTS
        reaches_another = imported_room in experiments - {room} and room not in ABOVE_EXPERIMENTS
        if reaches_up or reaches_another:
            wrong.add((module, name))
    return wrong


def test_a_folder_of_results_is_a_layer_of_the_contract_or_belongs_to_one_experiment(
    graph: dict[str, set[str]],
) -> None:
    from results.registry import FOLDERS

    layers = layers_of_results()
    experiments = folders_of("results") - layers
    assert set(FOLDERS) <= experiments
    assert {path.stem for path in (ROOT / "results").glob("*.py")} - layers == {"__init__"}
    assert wrong_imports_of_experiments(graph, experiments) == set()


@pytest.mark.parametrize(
    ("module", "imports"),
    [
        ("results.routing.read", "results.capacity.read"),
        ("results.traces.figures", "results.routing.read"),
        ("results.routing.write", "results.documents"),
        ("results.routing.write", "results.registry"),
        ("results.report.page", "results.routing.page"),
        ("results.experiment", "results.traces.tables"),
    ],
)
def test_a_wrong_import_of_an_experiment_is_seen(graph: dict[str, set[str]], module: str, imports: str) -> None:
    changed = {**graph, module: graph[module] | {imports}}
    experiments = folders_of("results") - layers_of_results()
    assert wrong_imports_of_experiments(changed, experiments) == {(module, imports)}


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


MAX_FUNCTION_LINES = 60


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_function_fits_on_a_screen(package: str) -> None:
    longer = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert longer == []


MAY_NAME_FILES = {
    "results/records/layout.py",
    # name each file once more, for docs/records.md
    "results/records/declared.py",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "results").glob("*/documents.py")),
    "results/records/rings.py",  # the ring's name is the probe's
    "results/report/output.py",  # <stem>.csv in the folder of figures
    "results/pd_lifecycle/read.py",  # names the plan in a gap
    "results/connector_tax/verdicts.py",  # the same
    "runners/standalone_engine.py",  # an engine that belongs to no run
    "runners/experiments/kv_endpoints.py",  # the model's own config.json
}
NAMED_FILE = re.compile(r"""["'/}][\w.*{}\-]+\.(?:jsonl?|csv|tsv|parquet|sqlite|log|ring)["']""")
DOCUMENTED = re.compile(r'^\s*(?:#|""")|"""$')


@pytest.mark.parametrize("package", ["results", "runners"])
def test_every_path_of_a_run_is_in_the_layout(package: str) -> None:
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in MAY_NAME_FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NAMED_FILE.search(line) and not DOCUMENTED.search(line)
    ]
    assert named == []
