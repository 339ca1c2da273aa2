"""The commands about policies, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.runners.command import Tracon
from tests.runners.router.logs import simulate, write_log


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "20260131-120000-routing-cpu-tiny"
    for policy in ("lmetric", "unified"):
        write_log(folder / "results" / f"20260131_{policy}" / "trial_1" / "decisions.jsonl", simulate(policy))
    return folder


def test_policies_lists_all_and_details_one(tracon: Tracon) -> None:
    shown = tracon("policies")
    assert shown.returncode == 0, shown.stderr
    for part in ("round_robin", "approach_a", "overload_factor=2.0", "routing_log.md"):
        assert part in shown.stdout
    listed = {one["name"]: one for one in tracon("policies", "--json").data()}
    assert len(listed) == 13
    assert {one["name"] for one in listed["lmetric"]["parameters"]} == {"tie", "bs_offset"}
    assert {one["name"] for one in listed["ear"]["parameters"] if one["required"]} == {"hot_tokens", "cooldown_s"}
    assert "hot_tokens=(required)" in shown.stdout
    assert "can never fail" in " ".join(tracon("policies", "unified").stdout.split())


def test_why_answers_for_every_cell_and_for_one(tracon: Tracon, run: Path) -> None:
    both = tracon("why", str(run), "r0007")
    assert both.returncode == 0, both.stderr
    for part in ("20260131_lmetric/trial_1", "20260131_unified/trial_1", "Policy lmetric", "not picked"):
        assert part in both.stdout
    assert "gap: 20260131_lmetric/trial_1/cell.json is missing" in both.stderr
    one = tracon("why", str(run), "#7", "--cell", "unified", "--json").data()
    assert [row["cell"] for row in one] == ["20260131_unified/trial_1"]
    assert one[0]["picks"][0]["request"]["request"] == "r0007"
    assert any("Policy unified" in line for line in one[0]["text"])


@pytest.mark.parametrize("is_simulated", [True, False])
def test_why_says_that_a_log_without_its_run_is_simulated(tracon: Tracon, tmp_path: Path, is_simulated: bool) -> None:
    mark = {"simulated": True} if is_simulated else {}
    records = [msgspec.structs.replace(record, **mark) for record in simulate("unified")]
    path = write_log(tmp_path / "copied.jsonl", records)
    done = tracon("why", str(path), "r0007")
    assert done.returncode == 0, done.stderr
    assert ("SIMULATED, nothing was measured" in done.stderr) == is_simulated
    assert ("SIMULATED, nothing was measured" in done.stdout) == is_simulated


def test_why_refuses_what_it_cannot_find(tracon: Tracon, run: Path) -> None:
    done = tracon("why", str(run), "r00")
    assert done.returncode == 2
    assert "begins 40 requests" in done.stderr
    done = tracon("why", str(run), "nothing")
    assert done.returncode == 2
    assert "r0000" in done.stderr


def test_whatif_says_where_another_policy_differs(tracon: Tracon, run: Path) -> None:
    done = tracon("whatif", str(run), "--cell", "lmetric", "--policy", "sticky", "--set", "bound=1.3")
    assert done.returncode == 0, done.stderr
    for part in ("bound=1.3", "by reason", "by instance", "that differ", "recorded view", "--owners served"):
        assert part in done.stdout
    compared = tracon("whatif", str(run), "--policy", "lmetric", "--json").data()
    assert compared[0]["agreement"] == 1.0
    assert compared[1]["picks"] == 40
    assert len(compared[1]["differences"]) == 40 - compared[1]["agree"]


def test_whatif_says_how_many_migrations_there_would_have_been(tracon: Tracon, run: Path) -> None:
    done = tracon("whatif", str(run), "--cell", "unified", "-P", "ear", "-s", "hot_tokens=150", "--set", "cooldown_s=5")
    assert done.returncode == 0, done.stderr
    assert "would have been migrations, 0 were" in " ".join(done.stdout.split())


def test_whatif_reads_a_file_with_a_named_gap(tracon: Tracon, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    whole = (run / "results" / "20260131_lmetric" / "trial_1" / "decisions.jsonl").read_bytes()
    path.write_bytes(whole[:-100])
    done = tracon("whatif", str(path), "--policy", "lmetric", "--json")
    assert done.returncode == 0, done.stderr
    assert "line 40 is cut short" in done.stderr
    assert done.data()[0]["gaps"] == [{"artifact": "decisions.jsonl", "reason": "line 40 is cut short"}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--policy", "unifed"), "did you mean `unified`"),
        (("--policy", "unified", "--set", "ratio=1"), "no parameter 'ratio'"),
        (("--policy", "ear", "--set", "hot_tokens=4000"), "cooldown_s"),
        (("--policy", "unified", "--set", "ratio"), "not KEY=VALUE"),
        (("--policy", "unified", "--owners", "mine"), "--owners"),
        (("--policy", "unified", "--cell", "unknown"), "no decision log"),
    ],
)
def test_whatif_refuses_bad_input_with_a_remedy(tracon: Tracon, run: Path, given: tuple[str, ...], said: str) -> None:
    done = tracon("whatif", str(run), *given)
    assert done.returncode == 2
    assert said.lower() in done.stderr.lower()
    assert done.stdout == ""
