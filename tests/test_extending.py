"""What docs/extending.md adds works as written there, from outside the packages: on the command line, in reports and in
the console. Its panel and its metric have further tests beside those of console and results.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from console.findings import Report, analyze_folder
from console.panels.stages import StagesPanel
from launch.profile import PROFILES_FOLDER
from results import registry as results_registry
from results.records.events import CellChanged, CellState, RunChanged, RunState
from results.records.layout import RunLayout
from results.report.table import Table
from runners.campaign.cell_loop import CellLoop
from runners.campaign.experiment import RunOptions
from runners.campaign.run_process import work
from runners.campaign.start import create_run
from runners.cli import app
from runners.errors import ExitCode
from runners.experiments import registry
from runners.router.policies import make_policy
from state import lease as leases
from state.store import RunStore
from state.workspace import Workspace
from tests.console.conftest import NARROW, press_and_see, sees, texts, until, watching
from tests.console.test_results import opened
from tests.doc_code import code_blocks, declared_metric, load_module
from tests.results.connector_tax import synthetic as taxes
from tests.results.routing import synthetic as routing
from tests.runners.prepared import prepare
from tests.runners.router import views

ROOT = Path(__file__).resolve().parent.parent
NAME = "start-time"
POLICY = "fewest_requests spare=1"
"""The policy with its parameter, as plans and reports name it."""
SHORT = (
    "trace.sessions=12",
    "trace.tokens=1.0",
    "trace.output_tokens=0.1",
    "trace.turns=3",
    "replay.time_scale=1.0",
    "simulation.step_noise=0.05",
)
"""Settings of a simulated run that takes seconds."""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[str]:
    """The experiment is registered; the path of a profile that has a preset of it."""
    code = code_blocks()
    entry = load_module(tmp_path / "entry.py", code["runners/experiments/start_time/entry.py"])
    results = load_module(tmp_path / "experiment.py", code["results/start_time/experiment.py"])
    profile = tmp_path / "mine.toml"
    profile.write_text((PROFILES_FOLDER / "cpu-tiny.toml").read_text(encoding="utf-8") + code["profile"])
    registry.register(entry.ENTRY)
    results_registry.register(results.RESULTS)
    yield str(profile)
    registry.unregister(NAME)
    results_registry.unregister(NAME)


def tracon(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


class Slot:
    """Engines that start at once."""

    async def get(self, config: str, purpose: str) -> None:
        await asyncio.sleep(0.01)

    async def release(self, reason: str) -> None: ...


def measured(profile: str, workspace: Path) -> Path:
    """A finished run of the toy experiment, its engines replaced."""
    prepared = prepare(RunOptions(NAME, profile))
    folder = create_run(Workspace(workspace), prepared)
    context: Any = SimpleNamespace(layout=RunLayout(folder), slot=Slot())
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        runner = registry.select_experiment(NAME).cell_runner(prepared.draft.grid, context)
        assert asyncio.run(CellLoop(store, lease, folder, runner).run()) == ExitCode.DONE
    return folder


def test_the_experiment_is_on_the_command_line(toy: str) -> None:
    plan = json.loads(tracon("plan", NAME, "-p", toy, "--set", "repetitions=2", "--json").stdout)
    assert [cell["cell"] for cell in plan["cells"]][:3] == [
        "start/plain/0",
        "start/noop_connector/0",
        "start/plain/1",
    ]
    assert len(plan["cells"]) == 5
    shown = " ".join(tracon("plan", "--help").stdout.replace("│", " ").split())
    assert "connector-tax, routing, pd-lifecycle, capacity, start-time" in shown
    assert "start-time: e.g. repetitions=5" in shown
    refused = tracon("plan", NAME, "-p", toy, "--set", "repetition=2")
    assert "repetition" in str(refused.exception)


def test_a_run_of_it_is_listed_reported_and_shown_in_the_console(toy: str, tmp_path: Path) -> None:
    workspace = tmp_path / "runs"
    folder = measured(toy, workspace)
    (row,) = json.loads(tracon("list", "-w", str(workspace), "--json").stdout)
    assert (row["experiment"], row["state"], row["fraction"]) == (NAME, "done", 1.0)
    status = json.loads(tracon("status", str(folder), "--json").stdout)
    assert status["experiment"] == NAME
    assert "Engine starts" in tracon("report", str(folder)).stdout
    reported = json.loads(tracon("report", str(folder), "--json").stdout)
    assert {config: len(values) for config, values in reported["aggregate"]["ready_s"].items()} == {
        "noop_connector": 3,
        "plain": 3,
    }
    compared = tracon("compare", str(folder), str(folder))
    assert "its configs are compared within it" in str(compared.exception)
    shown = analyze_folder(folder, NAME).report
    assert isinstance(shown, Report)
    assert [table.title for table in shown.sections.values()] == ["Engine starts"]


def test_a_name_is_registered_once(toy: str) -> None:
    for known in (NAME, "routing"):
        entry = next(one for one in registry.experiments() if one.name == known)
        with pytest.raises(ValueError, match=known):
            registry.register(entry)
        with pytest.raises(ValueError, match=known):
            results_registry.register(results_registry.find_results(known))


def test_without_its_line_the_experiment_is_unknown(tmp_path: Path) -> None:
    assert "unknown experiment 'start-time'" in str(tracon("plan", NAME).exception)
    (tmp_path / "plan.json").write_text('{"experiment": "start-time"}')
    assert "unknown experiment 'start-time'" in str(tracon("report", str(tmp_path)).exception)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "nixl_tcp.toml"
    path.write_text(code_blocks()["nixl_tcp.toml"])
    return str(path)


@pytest.mark.parametrize(
    ("experiment", "others"), [("connector-tax", ["-c", "plain"]), ("routing", []), ("pd-lifecycle", [])]
)
def test_a_config_by_its_path_is_planned_under_its_own_name(config: str, experiment: str, others: list[str]) -> None:
    arguments = ("plan", experiment, "--preset", "smoke", *others, "-c", config, "--json")
    done = tracon(*arguments)
    assert done.exit_code == 0, done.exception
    plan = json.loads(done.stdout)
    assert "nixl_tcp" in plan["configs"]
    assert "preflight/nixl_tcp" in [cell["cell"] for cell in plan["cells"]]
    assert not any(cell["config"] and "/" in cell["config"] for cell in plan["cells"])


def test_a_config_in_the_folder_is_known_everywhere(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plain` and the new one are all there is: `profiles` and `doctor` list the folder."""
    (tmp_path / "plain.toml").write_text('name = "plain"\ntitle = "plain"\nwhy = "no connector"\n')
    monkeypatch.setattr("launch.profile.CONFIGS_FOLDER", tmp_path)
    listed = json.loads(tracon("profiles", "--json").stdout)
    assert [one["name"] for one in listed["configs"]] == ["nixl_tcp", "plain"]
    plan = json.loads(
        tracon("plan", "connector-tax", "--preset", "smoke", "-c", "plain", "-c", "nixl_tcp", "--json").stdout
    )
    assert sorted(plan["configs"]) == ["nixl_tcp", "plain"]


def finish_cells(folder: Path, stage: str) -> Path:
    """The run has ended, by its journal, with the cells of this stage measured."""
    with RunStore.open(folder) as store:
        done = [CellChanged(cell.cell, CellState.DONE, 1) for cell in store.plan.cells if cell.stage == stage]
        store.append(RunChanged(RunState.RUNNING), *done, RunChanged(RunState.DONE))
    return folder


@pytest.fixture
def taxed(config: str, tmp_path: Path) -> Path:
    """A run of the config, planned by its path; its artifacts are made up."""
    prepared = prepare(RunOptions("connector-tax", preset="smoke", configs=("plain", "noop_connector", config)))
    folder = create_run(Workspace(tmp_path / "runs"), prepared)
    configs = {name: taxes.Behavior() for name in prepared.plan.configs}
    taxes.write_run(folder, taxes.Run(configs, rates_per_s=(4.0, 8.0), requests=80, steps=60))
    return finish_cells(folder, "phase-a")


async def test_a_config_by_its_path_is_in_the_report_and_in_the_console(taxed: Path) -> None:
    assert "nixl_tcp" in tracon("report", str(taxed)).stdout
    async with watching(taxed, NARROW) as pilot:
        await sees(pilot, "nixl_tcp")  # Stages
        panel = await opened(pilot, "configs")
        await sees(pilot, "nixl_tcp")
        assert panel.report is not None
        lines = [line.name for line in panel.report.charts[0].lines]
    assert lines == ["plain", "noop_connector", "nixl_tcp"], "after those of the specification"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "fewest_requests.py"
    path.write_text(code_blocks()["fewest_requests.py"], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def routed(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run under the policy, its engines simulated. No figure is drawn: that takes longer than all else."""
    options = RunOptions(
        "routing",
        "h20-qwen3-coder-30b",
        "baselines",
        policies=(str(policy),),
        settings=("spare=1", *SHORT),
        trials=1,
        simulated=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACON_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr("results.routing.write.build_figures", lambda analysis: ())
        folder = create_run(Workspace(tmp_path_factory.mktemp("runs")), prepare(options))
        assert work(folder, registry.select_experiment, accept_changes=False) == ExitCode.DONE
    return folder


def test_the_policy_is_used_by_its_path(policy: Path) -> None:
    cluster = views.view(views.load("a", 3), views.load("b", 1))
    assert make_policy(str(policy), {}).decide(views.ask(), cluster).instance == "b"
    assert make_policy(str(policy), {"spare": 1}).decide(views.ask(tried=("b",)), cluster).reason == "no_instance"


def test_the_policy_is_described_and_planned_on_the_command_line(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(policy.parent)
    described = tracon("policies", "./fewest_requests.py").stdout
    for part in ("fewest_requests: The instance with the fewest requests in flight.", "source: mine", "spare"):
        assert part in described
    arguments = ("--policy", "./fewest_requests.py", "--set", "spare=1", "-w", str(tmp_path), "--json")
    plan = json.loads(tracon("plan", "routing", *arguments).stdout)
    replays = [cell for cell in plan["cells"] if cell["kind"] == "replay"]
    assert {cell["label"] for cell in replays} == {POLICY}
    assert all(cell["params"]["parameters"] == {"spare": 1} for cell in replays)


def test_a_run_under_the_policy_is_reported_and_explained(policy: Path, routed: Path) -> None:
    assert POLICY in tracon("report", str(routed)).stdout
    aggregate = json.loads(tracon("report", str(routed), "--json").stdout)["aggregate"]
    assert [(row["label"], row["policy"]) for row in aggregate["policies"]] == [(POLICY, str(policy))]
    assert [set(cell["reasons"]) for cell in aggregate["cells"]] == [{"fewest_requests"}]
    (explained,) = json.loads(tracon("why", str(routed), "#0", "--json").stdout)
    assert any(line.startswith("Policy fewest_requests, reason `fewest_requests`") for line in explained["text"])
    arguments = ("--policy", str(policy), "--set", "spare=1", "--json")
    (repeated,) = json.loads(tracon("whatif", str(routed), *arguments).stdout)
    assert repeated["agreement"] == 1.0


async def test_a_run_under_the_policy_is_in_the_console(routed: Path) -> None:
    async with watching(routed, NARROW) as pilot:
        stages = pilot.app.screen.query_one(StagesPanel)
        await until(pilot, lambda: any(POLICY in " ".join(texts(row)) for row in stages.table.rows), "no such cell")
        await press_and_see(pilot, "7", "fewest_requests   trials/fewest_requests_spare", "decided by  fewest_requests")
        await opened(pilot, "end-to-end")
        await sees(pilot, POLICY)


@pytest.fixture
def waited(tmp_path: Path) -> Iterator[Path]:
    """A run whose artifacts are made up while the metric is declared."""
    with declared_metric(tmp_path):
        options = RunOptions("routing", preset="smoke", policies=("lmetric", "sticky"))
        folder = create_run(Workspace(tmp_path / "runs"), prepare(options))
        truths = (routing.Truth("lmetric", ttft_s=0.1), routing.Truth("sticky", ttft_s=0.2))
        routing.write_run(folder, routing.World(sessions=6, turns=3, trials=2), truths)
        yield finish_cells(folder, "trials")


async def test_the_metric_is_a_table_of_the_report_and_a_section_of_the_console(waited: Path) -> None:
    assert "client wait (ms)" in tracon("report", str(waited)).stdout
    async with watching(waited, NARROW) as pilot:
        panel = await opened(pilot, "client-wait-ms")
        assert panel.report is not None
        table = panel.report.sections["client-wait-ms"]
        lines = " ".join(" ".join(panel.table.text()).split())
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["lmetric", "sticky"]
    for row in table.rows:
        assert all(text in lines for text in row), row


STAMP: Mapping[str, tuple[tuple[str, str], ...]] = {
    "results/records/schemas.py": (
        (
            '    """Why it failed, or was never sent."""\n',
            '    t_head_ns: int | None = None\n    """The response head."""\n',
        ),
    ),
    "runners/load/stream.py": (
        ("    t_first_ns: int = 0\n", "    t_head_ns: int = 0\n"),
        ('            "error": self.error,\n', '            "t_head_ns": self.t_head_ns or None,\n'),
    ),
    "results/measures/latency.py": (
        (
            "    declare(_metric)\n",
            'declare(RequestMetric("head_s", "head", ("t_send_ns", "t_head_ns"), lambda a, b: (b - a) / 1e9))\n',
        ),
    ),
}
"""What a metric of a new stamp edits in Tracon's own tree: by file, a text and what is written below it."""
MEASURED = """
from pathlib import Path
import msgspec
from results.measures.latency import collect_metric_samples
from results.measures.replay_numbers import replay_numbers
from results.records.frames import REQUEST_SCHEMA, read_table
from results.records.schemas import RequestStatus
from results.records.trace_lines import Turn
from runners.load.replay import make_turn_record
from runners.load.replay_plan import Pace, plan_replay
from runners.load.stream import Exchange
from runners.trace.session import Session, Trace, TraceFacts

exchange = Exchange(0, None, 1, status=RequestStatus.OK, t_send_ns=10**9, t_first_ns=4 * 10**9, t_last_ns=5 * 10**9)
exchange.t_head_ns = 3 * 10**9
facts = TraceFacts(source="made", block_tokens=16, tail_rule="floor", hash_scope="session")
turn = Turn(arrival_s=0.0, input_tokens=3, output_tokens=2, hashes=())
plan = plan_replay(Trace(facts, (Session("s", (turn,)),)), [(0, 0)], Pace())
turns, requests = Path("metrics.jsonl"), Path("requests.jsonl")
turns.write_bytes(msgspec.json.encode(make_turn_record(plan, exchange, "r", 0.0)) + b"\\n")
requests.write_bytes(msgspec.json.encode(exchange.record(3, 2)) + b"\\n")
table, _ = read_table(requests, REQUEST_SCHEMA)
print(replay_numbers(turns)["head_p50_s"].value, collect_metric_samples(table)["head_s"].tolist())
"""


def test_a_metric_of_a_new_stamp_edits_three_files(tmp_path: Path) -> None:
    for package in ("launch", "results", "runners", "state"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in STAMP.items():
        path = tmp_path / name
        text = path.read_text(encoding="utf-8")
        for above, new in edits:
            assert text.count(above) == 1, f"{name}: {above}"
            text = text.replace(above, above + new)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "2.0 [2.0]\n"
