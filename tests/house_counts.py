"""Count the house: size, function lengths, names that recur, import circles, prose that reads as translated.

`python -m tests.house_counts` prints the table and writes it into docs/size.md beside the counts of e7ebcb5.
`--root FOLDER --json` counts another tree; BEFORE was made so from e7ebcb5.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "size.md"
WAY_PAGE = "docs/architecture.md"
"""Has the table of the modules on the way of one turn."""
BEGIN, END = "<!-- counts: made by `python -m tests.house_counts` -->", "<!-- end of counts -->"
PACKAGES = ("console", "runners", "patches", "launch", "state", "results")
TRANSLATED = re.compile(
    r"\bso (?:many|long|much)\b|\b(?:no|some|every)body\b|\bwhoever\b|\bhears\b|\btold\b|\banew\b"
    r"|_again(?:_and_again)|\bstrangers\b|\btaken apart\b",
    re.IGNORECASE,
)
"""What a pattern can recognize of the prose that docs and code are to lose; a measure, not a filter."""

BEFORE = {
    "`console`: modules; lines; function length; docstrings": "48; 7,351; 4/14/27; 43 %, 92 %",
    "`runners`: modules; lines; function length; docstrings": "168; 26,259; 7/21/224; 57 %, 91 %",
    "`patches`: modules; lines; function length; docstrings": "17; 2,490; 7/16/37; 39 %, 79 %",
    "`launch`: modules; lines; function length; docstrings": "24; 4,478; 8/17/62; 58 %, 94 %",
    "`state`: modules; lines; function length; docstrings": "21; 3,725; 6/18/35; 51 %, 85 %",
    "`results`: modules; lines; function length; docstrings": "122; 20,406; 7/22/67; 62 %, 95 %",
    "lines of source": "64,709",
    "of these: code; docstrings; blank; imports; comments": "42,347; 6,977; 10,856; 4,460; 69",
    "lines of tests": "42,663",
    "of tests: code; docstrings; blank; imports; comments": "30,160; 1,110; 8,087; 3,271; 35",
    "docs without the examples: lines; words": "2,826; 39,322",
    "longest function": "`route` in `runners/cli/route.py`, 224 lines",
    "functions of more than 60 lines": "6",
    "module names that recur": "46",
    "names of module-level functions that recur": "292",
    "class names that recur": "50",
    "functions whose name is one word": "62 %",
    "assignments to `found`": "313",
    "modules with one importer": "122",
    "import circles, modules in them": "8, 33",
    "phrases that read as translated": "964",
    "modules on the way of one turn": "46",
    "declarations of a turn": "11",
    "names on the way of one request": "19",
    "types of a judgement; enums of outcomes": "8; 6",
}

TURN_DECLARATIONS = (
    ("results/records/trace_lines.py", "Turn"),
    ("runners/load/replay_plan.py", "PlannedTurn"),
    ("runners/load/stream.py", "Exchange"),
    ("runners/load/stream.py", "sent_fields"),
    ("runners/load/replay.py", "make_turn_record"),
    ("results/records/turns.py", "TurnRecord"),
    ("results/measures/turns.py", "Turns"),
    ("runners/cli/session.py", "_describe_pick"),
)
"""What lists fields of a turn: file and name. At e7ebcb5 also a schema and the columns of counts, both derived now, and
the row of a turn that was never sent.
"""

OUTCOME_FIELDS = ("outcome", "answer", "verdict", "cause")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """One source file of ours: its name, its lines, its tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root)
        parts = self.path.with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)

    def functions(self) -> Iterator[Function]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


def read_modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> list[Module]:
    return [Module(root, path) for package in packages for path in sorted((root / package).rglob("*.py"))]


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """For each module the modules of ours that it imports, inside functions too."""
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        imported: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = absolute_base(module, node)
                imported |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        graph[module.name] = (imported & names) - {module.name}
    return graph


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    """The package that a `from` import names, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    inside = module.path.with_suffix("").parts[: -node.level]
    return ".".join([*inside, *([node.module] if node.module else [])])


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other in a circle, the largest first."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    groups.discard(())
    return sorted(map(list, groups), key=len, reverse=True)


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph.get(name, ())
    return reached


def spread(values: list[int]) -> str:
    """Median, 90th percentile and maximum."""
    if not values:
        return "-"
    high = statistics.quantiles(values, n=10)[8] if len(values) > 1 else values[0]
    return f"{statistics.median(values):.0f}/{high:.0f}/{max(values)}"


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def documented(nodes: Sequence[Function | ast.ClassDef]) -> str:
    """The share of these that have a docstring."""
    return share(sum(ast.get_docstring(node) is not None for node in nodes), len(nodes))


def recurring(names: Counter[str]) -> int:
    return sum(count > 1 for count in names.values())


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def counts(root: Path) -> dict[str, str]:
    """Row title to value, as shown."""
    modules = read_modules(root)
    rows: dict[str, str] = {}
    for package in PACKAGES:
        own = [module for module in modules if module.path.parts[0] == package]
        functions = [function for module in own for function in module.functions()]
        classes = [one for module in own for one in module.classes()]
        filled = [module for module in own if module.text.strip()]
        lines = sum(module.text.count("\n") for module in own)
        rows[f"`{package}`: modules; lines; function length; docstrings"] = (
            f"{len(filled)}; {lines:,}; {spread([length(one) for one in functions])}; "
            f"{documented(functions)}, {documented(classes)}"
        )
    return rows | whole_house(root, modules)


def whole_house(root: Path, modules: list[Module]) -> dict[str, str]:
    functions = [(module, function) for module in modules for function in module.functions()]
    longest_in, longest = max(functions, key=lambda pair: length(pair[1]))
    names = Counter(function.name for _, function in functions if not is_dunder(function.name))
    files = Counter(module.path.stem for module in modules if module.path.stem != "__init__")
    graph = import_graph(modules)
    importers = Counter(name for imported in graph.values() for name in imported)
    groups = circles(graph)
    tests = sorted((root / "tests").rglob("*.py"))
    one_word = sum("_" not in name.strip("_") for name in names.elements())
    return {
        "lines of source": f"{sum(module.text.count(chr(10)) for module in modules):,}",
        "of these: code; docstrings; blank; imports; comments": count_kinds(module.text for module in modules),
        "lines of tests": f"{sum(map(count_lines, tests)):,}",
        "of tests: code; docstrings; blank; imports; comments": count_kinds(path.read_text("utf-8") for path in tests),
        "docs without the examples: lines; words": (
            f"{sum(map(count_lines, pages(root))):,}; {sum(map(count_words, pages(root))):,}"
        ),
        "longest function": f"`{longest.name}` in `{longest_in.path}`, {length(longest)} lines",
        "functions of more than 60 lines": str(sum(length(one) > 60 for _, one in functions)),
        "module names that recur": str(recurring(files)),
        "names of module-level functions that recur": str(recurring(Counter(top_level_functions(modules)))),
        "class names that recur": str(recurring(Counter(one.name for module in modules for one in module.classes()))),
        "functions whose name is one word": share(one_word, sum(names.values())),
        "assignments to `found`": str(sum(assigned_found(module) for module in modules)),
        "modules with one importer": str(sum(importers[name] == 1 for name in graph)),
        "import circles, modules in them": f"{len(groups)}, {sum(map(len, groups))}",
        "phrases that read as translated": str(sum(translated_in(path) for path in prose_files(root))),
        "modules on the way of one turn": str(count_turn_steps(root)),
        "declarations of a turn": str(sum(defines(modules, path, name) for path, name in TURN_DECLARATIONS)),
        "names on the way of one request": str(len(request_names(modules))),
        "types of a judgement; enums of outcomes": "{}; {}".format(*count_judgements(modules)),
    }


def top_level_functions(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        yield from (node.name for node in module.tree.body if isinstance(node, Function))


def assigned_found(module: Module) -> int:
    targets = (node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return sum(node.id == "found" for node in targets)


def count_turn_steps(root: Path) -> int:
    """Rows of the table that tests/test_architecture.py holds against the imports."""
    page = root / WAY_PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    part = text.partition("## The way of one turn")[2].partition("\n## ")[0]
    return part.count("\n| `")


def defines(modules: list[Module], path: str, name: str) -> bool:
    """Whether the file has a class, function or method of this name."""
    return any(
        isinstance(node, Function | ast.ClassDef) and node.name == name
        for module in modules
        if str(module.path) == path
        for node in ast.walk(module.tree)
    )


def request_names(modules: list[Module]) -> set[str]:
    """Parameters and variables of the dispatcher's pick and of the methods of its own that it calls."""
    dispatch = next(module for module in modules if str(module.path) == "runners/router/dispatch.py")
    dispatcher = next(one for one in dispatch.classes() if one.name == "Dispatcher")
    methods = {node.name: node for node in dispatcher.body if isinstance(node, Function)}
    names: set[str] = set()
    waiting: list[str] = [name for name in ("pick", "pick_instance") if name in methods]
    while waiting:
        method = methods.pop(waiting.pop())
        for node in ast.walk(method):
            if isinstance(node, ast.arg) and node.arg != "self":
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr in methods and node.attr not in waiting:
                waiting.append(node.attr)
    return names


def count_judgements(modules: list[Module]) -> tuple[int, int]:
    """Classes of `results` with a field that holds the outcome of a rule, and the enums of such outcomes.

    A `Verdict`, the side of no effect on which an interval is, is no rule's outcome.
    """
    classes = [one for module in modules if module.path.parts[0] == "results" for one in module.classes()]
    enums = [one.name for one in classes if "StrEnum" in map(ast.unparse, one.bases) and one.name != "Verdict"]
    used = [
        ast.unparse(field.annotation)
        for one in classes
        for field in one.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) in OUTCOME_FIELDS
    ]
    return sum(name in enums for name in used), sum(name in used for name in enums)


def count_kinds(texts: Iterable[str]) -> str:
    """Lines of code, docstrings, blank lines, imports and comments; a docstring is any string that is a statement."""
    kinds = Counter(kind for text in texts for kind in kinds_of_lines(text))
    return "; ".join(f"{kinds[kind]:,}" for kind in ("code", "docstring", "blank", "import", "comment"))


def kinds_of_lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    kinds = ["comment" if line.startswith("#") else "code" if line else "blank" for line in lines]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            kind = kind_of_statement(node)
            end = node.end_lineno or node.lineno
            kinds[node.lineno - 1 : end] = [kind or one for one in kinds[node.lineno - 1 : end]]
    return kinds


def kind_of_statement(node: ast.Import | ast.ImportFrom | ast.Expr) -> str:
    """Empty where its lines are what they look like."""
    if not isinstance(node, ast.Expr):
        return "import"
    return "docstring" if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else ""


def count_lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def count_words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def pages(root: Path) -> list[Path]:
    return [path for path in sorted((root / "docs").rglob("*.md")) if "examples" not in path.relative_to(root).parts]


def prose_files(root: Path) -> list[Path]:
    """Everything a person reads of ours: source, tests, README and docs, without the examples' frozen reports."""
    source = [path for package in (*PACKAGES, "tests") for path in sorted((root / package).rglob("*.py"))]
    return [*source, root / "README.md", *pages(root)]


def translated_in(path: Path) -> int:
    return len(TRANSLATED.findall(path.read_text(encoding="utf-8")))


def table(after: Mapping[str, str], before: Mapping[str, str]) -> str:
    lines = ["| | e7ebcb5 | now |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {title} | {before.get(title, '')} | {value} |" for title, value in after.items())])


def write(text: str) -> None:
    """Replace the marked part of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} has no marked part")
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the house and write the table into docs/size.md.")
    parser.add_argument("--root", type=Path, default=ROOT, help="count this tree instead, and write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    after = counts(options.root.resolve())
    print(json.dumps(after, indent=1) if options.json else table(after, BEFORE))
    if options.root == ROOT and not options.json:
        write(table(after, BEFORE))


if __name__ == "__main__":
    main()
