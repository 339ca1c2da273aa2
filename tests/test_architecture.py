"""The way of one turn, as docs/architecture.md lists it, is the way that the imports allow."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import pytest

from tests import house_counts

ROW = re.compile(r"^\| `([\w/]+\.py)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
BACK = re.compile(r"back in `([\w/]+\.py)`")
MOST_MODULES = 26
"""46 at e7ebcb5."""


@dataclass(frozen=True)
class Step:
    path: str
    """The module's file."""
    reaches: str
    """How control or data reaches the next step: `import`, `file ...`, `socket ...` or `back in ...`."""

    @property
    def module(self) -> str:
        return name_of(self.path)


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def listed_steps(page: str) -> list[Step]:
    part = page.partition("## The way of one turn")[2].partition("\n## ")[0]
    return [Step(path, reaches.strip()) for path, reaches in ROW.findall(part)]


def faults(steps: list[Step], graph: dict[str, set[str]]) -> list[str]:
    """What is wrong with the list: a module that is missing, or a step that nothing connects to the next."""
    missing = [f"{step.path} does not exist" for step in steps if step.module not in graph]
    if missing:
        return missing
    faulty = []
    for position, (step, following) in enumerate(itertools.pairwise(steps)):
        if step.reaches.startswith(("file `", "socket to ")):
            continue
        origin = step.module
        if back := BACK.fullmatch(step.reaches):
            origin = name_of(back.group(1))
            if origin not in {earlier.module for earlier in steps[:position]}:
                faulty.append(f"{step.path}: {origin} is no earlier step")
                continue
        elif step.reaches != "import":
            faulty.append(f"{step.path}: {step.reaches!r} is no way to the next step")
            continue
        if following.module not in graph[origin] and origin not in graph[following.module]:
            faulty.append(f"{origin} and {following.module} do not import each other")
    return faulty


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return house_counts.import_graph(house_counts.read_modules(house_counts.ROOT))


def test_the_way_of_a_turn_is_the_imports_way(graph: dict[str, set[str]]) -> None:
    steps = listed_steps(house_counts.PAGE.read_text(encoding="utf-8"))
    assert 20 <= len(steps) <= MOST_MODULES
    assert len({step.path for step in steps}) == len(steps), "a module is listed twice"
    assert faults(steps, graph) == []


def test_a_wrong_list_is_seen() -> None:
    graph = {"a": {"b"}, "b": set(), "c": set()}
    assert faults([Step("a.py", "import"), Step("b.py", "import")], graph) == []
    assert faults([Step("b.py", "import"), Step("a.py", "import")], graph) == []
    assert faults([Step("b.py", "import"), Step("c.py", "import")], graph) == ["b and c do not import each other"]
    assert faults([Step("b.py", "file `x.jsonl`"), Step("c.py", "import")], graph) == []
    assert faults([Step("b.py", "magic"), Step("c.py", "")], graph) == ["b.py: 'magic' is no way to the next step"]
    assert faults([Step("gone.py", "import")], graph) == ["gone.py does not exist"]
    steps = [Step("a.py", "file `x`"), Step("c.py", "back in `a.py`"), Step("b.py", "file `y`")]
    assert faults(steps, graph) == []
    assert faults(steps[1:], graph) == ["c.py: a is no earlier step"]


def test_circles_and_lengths_are_counted() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}
    assert house_counts.circles({name: imported - {name} for name, imported in graph.items()}) == [["b", "c"]]
    assert house_counts.spread([1, 2, 3]) == "2/4/3"
    assert house_counts.share(1, 3) == "33 %"


def test_the_page_has_the_part_that_the_counts_go_into() -> None:
    page = house_counts.PAGE.read_text(encoding="utf-8")
    part = page.partition(house_counts.BEGIN)[2].partition(house_counts.END)[0]
    assert [title for title in house_counts.BEFORE if f"| {title} |" not in part] == []
