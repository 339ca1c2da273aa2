"""The way of one turn, as docs/architecture.md lists it: each step reaches the next, nothing it imports is missing, and
where turns run (tests/turn_run.py), every step's code runs and no other.
"""

from __future__ import annotations

import importlib
import itertools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import house_counts
from tests.turn_run import record_modules, run_turns

ROW = re.compile(r"^\| `([\w/]+\.py)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
BACK = re.compile(r"back in `([\w/]+\.py)`")
MOST_MODULES = 60
AROUND: Mapping[str, tuple[str, ...]] = {
    "errors and words": (
        "results.records.count", "results.records.errors", "results.records.percent", "results.records.visible",
        "runners.errors",
    ),
    "paths, versions and schemas of files": (
        "results.records.code", "results.records.declaration", "results.records.layout", "results.records.plan",
        "results.records.rows", "results.records.run_folder",
    ),
    "clocks, processes, addresses, and the heads of requests": (
        "runners.load.pacer", "runners.load.process_settings", "runners.router.driver", "runners.target",
    ),
    "settings, ticks and outcomes of a whole process": (
        "results.records.load_specs", "results.records.router_spec", "results.records.spec_rules",
        "runners.load.messages", "runners.load.replay_messages", "runners.router.messages", "runners.router.tick",
    ),
    "declares what a line of the trace holds": ("results.records.trace_lines",),
    "decodes a line of JSON": ("runners.trace.formats.decode",),
    "compares policies over the trials of a run, not turns": (
        "results.statistics.blocks", "results.statistics.pairwise",
    ),
    "finds the format's reader, once for a file": ("runners.trace.formats",),
    "finds the policy, once for a router": ("runners.router.policies",),
    "generates a trace where none is read": ("runners.trace.synth",),
    "settings of the run": ("runners.experiments.routing.grid", "runners.experiments.routing.plan"),
    "arithmetic of hashes and ids": ("results.traces.prefix_keys", "runners.load.prompts"),
    "judges a whole replay, or shows its last seconds": (
        "results.measures.amplification", "runners.load.fidelity", "runners.load.recent_latencies",
    ),
    "knows which paths the router serves": ("runners.router.server.paths",),
    "declares a request as it was parsed, and its lines that go on": ("runners.router.server.http_message",),
    "bounds the memory that requests take, and refuses none here": ("runners.router.server.held_bytes",),
    "health and changes of instances: they follow from turns and change nothing of one": (
        "results.records.instance_events", "runners.router.breaker", "runners.router.health",
        "runners.router.instances.fleet", "runners.router.instances.internal_request",
        "runners.router.instances.probes", "runners.router.reporting",
    ),
    "counts for operators, and what the console shows of migrations": (
        "results.records.migrations", "runners.router.counts", "runners.router.migration_feed",
        "runners.router.server.pages",
    ),
    "only where an attempt fails": ("runners.experiments.first_error", "runners.router.failure"),
    "moves KV between instances, here none": (
        "runners.router.transfer.engines", "runners.router.transfer.move_rules", "runners.router.transfer.movement",
        "runners.router.transfer.quarantine", "runners.router.transfer.transfers",
    ),
    "only where routers share bindings": ("runners.router.sessions.shared_bindings",),
    "only where a request continues a stored response": ("runners.router.sessions.responses",),
    "what a cell publishes beside its turns": (
        "launch.redaction", "results.records.gpu", "results.records.routing_cells", "results.records.samples",
        "runners.campaign.context", "runners.campaign.experiment", "runners.campaign.provenance",
        "runners.samplers.engine_counters",
    ),
    "names and percentiles of a cell's summary": ("results.measures.replay_numbers", "results.measures.summary"),
    "a number with its interval, as a step hands it on": ("results.records.estimate",),
    "the form of a figure": (
        "results.report.csv_cells",
        "results.report.direct_labels", "results.report.figure", "results.report.ink", "results.report.policy_pens",
        "results.routing.figure_kinds", "results.routing.shown",
    ),
    "documents and tables beside the report": (
        "results.report.documents", "results.report.record_rows", "results.routing.documents",
    ),
    "what a report has beside this figure": (
        "results.records.engine_faults", "results.records.skipped_cells", "results.report.content",
        "results.report.document",
        "results.report.engine_gates", "results.report.html", "results.report.judgements", "results.report.page",
        "results.report.print_sheet",
        "results.report.stored_page", "results.report.table", "results.report.terms", "results.routing.cautions",
        "results.routing.claim_rules",
        "results.routing.comparison_tables", "results.routing.conditional_claims", "results.routing.coupling",
        "results.routing.decision_points", "results.routing.floor_facts", "results.routing.floor_measurements",
        "results.routing.floor_tables",
        "results.routing.interference", "results.routing.launch_noise",
        "results.routing.load_figures", "results.routing.load_floor", "results.routing.loads", "results.routing.logs",
        "results.routing.migration_figures", "results.routing.migration_tables", "results.routing.migrations",
        "results.routing.moves", "results.routing.occupancy", "results.routing.page", "results.routing.pools",
        "results.routing.recomputing", "results.routing.report", "results.routing.scale", "results.routing.schematics",
        "results.routing.sensitivity_figures", "results.routing.specification", "results.routing.tables",
        "results.routing.sweep_claims", "results.routing.transfer_tables", "results.routing.transfers",
        "results.routing.verdicts",
        "results.statistics.judgement", "results.statistics.student",
    ),
}  # fmt: skip
"""What steps import or what runs beside them, and is no step: nothing of the turn is decided or changed there."""
FIELDS_ONLY = {"results.records.decisions", "results.records.schemas"}
"""Steps of which no function runs: msgspec makes decisions in C, and a `SentRequest` is made as a `TurnRecord`."""


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


def omissions(steps: list[Step], graph: dict[str, set[str]], beside: set[str]) -> list[str]:
    """The modules that a step imports and that are neither steps nor `beside` them."""
    known = beside | {step.module for step in steps}
    return [f"{name}, which {step.path} imports" for step in steps for name in sorted(graph[step.module] - known)]


@pytest.fixture(scope="module")
def modules() -> list[house_counts.Module]:
    return house_counts.read_modules(house_counts.ROOT)


@pytest.fixture(scope="module")
def graph(modules: list[house_counts.Module]) -> dict[str, set[str]]:
    return house_counts.import_graph(modules)


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return listed_steps((house_counts.ROOT / house_counts.WAY_PAGE).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(steps: list[Step], modules: list[house_counts.Module], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of ours whose functions run for turns."""
    for name in (*(step.module for step in steps), *itertools.chain.from_iterable(AROUND.values())):
        importlib.import_module(name)  # now: a function that a module runs when it is imported is not the turn's
    return run_turns(tmp_path_factory.mktemp("run")) & {module.name for module in modules}


def test_the_way_of_a_turn_is_the_imports_way(steps: list[Step], graph: dict[str, set[str]]) -> None:
    assert 20 <= len(steps) <= MOST_MODULES
    assert len({step.path for step in steps}) == len(steps), "a module is listed twice"
    assert faults(steps, graph) == []


def test_no_module_that_a_step_imports_is_left_out(
    steps: list[Step], modules: list[house_counts.Module], graph: dict[str, set[str]]
) -> None:
    """A module without a function or a class does nothing."""
    idle = {module.name for module in modules if not any(module.functions()) and not any(module.classes())}
    around = {name for names in AROUND.values() for name in names}
    assert omissions(steps, graph, around | idle) == []


def test_every_step_runs_where_turns_run(steps: list[Step], ran: set[str]) -> None:
    assert {step.module for step in steps} - ran == FIELDS_ONLY


def test_no_module_that_runs_for_turns_is_left_out(steps: list[Step], ran: set[str]) -> None:
    around = {name for names in AROUND.values() for name in names}
    assert ran - around - {step.module for step in steps} == set()


def test_what_is_around_the_way_is_imported_by_a_step_or_runs_and_is_no_step(
    steps: list[Step], graph: dict[str, set[str]], ran: set[str]
) -> None:
    imported = {name for step in steps for name in graph[step.module]}
    around = [name for names in AROUND.values() for name in names]
    assert len(set(around)) == len(around), "a module has two reasons"
    assert set(around) - imported - ran == set()
    assert set(around) & {step.module for step in steps} == set()


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


def test_an_omission_is_seen() -> None:
    graph: dict[str, set[str]] = {"a": {"b", "c", "d"}, "b": set(), "c": set(), "d": set()}
    steps = [Step("a.py", "import"), Step("b.py", "file `x`")]
    assert omissions(steps, graph, {"d"}) == ["c, which a.py imports"]
    assert omissions(steps, graph, {"c", "d"}) == []


def test_a_module_is_recorded_where_a_function_of_it_runs_also_a_generated_one_or_in_a_thread() -> None:
    with record_modules() as generated:
        Step("a.py", "import")
    with record_modules() as threaded:
        thread = threading.Thread(target=name_of, args=("a.py",))
        thread.start()
        thread.join()
    with record_modules() as imported:
        exec("class Body: pass", {"__name__": "imported"})
    assert __name__ in generated & threaded
    assert "imported" not in imported


def test_circles_and_lengths_are_counted() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}
    assert house_counts.circles({name: imported - {name} for name, imported in graph.items()}) == [["b", "c"]]
    assert house_counts.spread([1, 2, 3]) == "2/4/3"
    assert house_counts.share(1, 3) == "33 %"


def test_lines_are_counted_by_kind() -> None:
    head = '"""One.\n\nTwo.\n"""\n\nfrom a import (\n    b,\n)\n\n'
    text = head + '# why\nVALUE = """x\ny"""  # what\n"""Its."""\nprint(b)\n'
    assert house_counts.count_kinds([text]) == "3; 5; 2; 3; 1"


def test_an_outcome_is_counted_by_its_enum_whatever_its_field_is_called(tmp_path: Path) -> None:
    text = (
        "class Cause(StrEnum): ...\nclass Verdict(StrEnum): ...\nclass Unused(StrEnum): ...\n"
        "class A:\n    cause: Cause\nclass B:\n    verdict: Verdict\nclass C:\n    outcome: str\n"
    )
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rules.py").write_text(text)
    assert house_counts.count_judgements(house_counts.read_modules(tmp_path, ("results",))) == (1, 1)


def test_the_page_has_the_part_that_the_counts_go_into() -> None:
    page = house_counts.PAGE.read_text(encoding="utf-8")
    part = page.partition(house_counts.BEGIN)[2].partition(house_counts.END)[0]
    assert [title for title in house_counts.BEFORE if f"| {title} |" not in part] == []
