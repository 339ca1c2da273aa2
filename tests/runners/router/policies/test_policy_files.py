"""Naming policies and their parameters: ours, a user's, and everything that can be wrong with either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runners.router.policies import describe_policies, find_policy_class, list_parameters, make_policy
from runners.router.policies.kv_aware import KvAware
from runners.router.policies.policy import PolicyError
from runners.router.policies.unified import Unified
from tests.policy_table import PAGE, make_table, read_table
from tests.runners.router.logs import NEEDED
from tests.runners.router.views import ask, load, view

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from results.records.decisions import ClusterView, Decision, RoutedRequest


@dataclass(frozen=True)
class Last:
    """The last instance by name."""

    name: ClassVar[str] = "last"
    source: ClassVar[str] = "mine"
    skip: int = 0

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        return Decision(self.name, cluster.instances[-1 - self.skip].instance, "last")
'''


def test_every_policy_has_a_source_and_explains_its_parameters() -> None:
    for info in describe_policies():
        assert info.source
        assert info.summary.endswith(".")
        assert all(one.text and one.kind for one in info.parameters), info.name
        needed = NEEDED.get(info.name, {})
        assert {one.name for one in info.parameters if one.required} == set(needed)
        values = {one.name: one.default for one in info.parameters} | dict(needed)
        assert list_parameters(make_policy(info.name, needed)) == values


def test_parameters_may_be_text_as_the_command_line_has_them() -> None:
    made = make_policy(
        "unified", {"overload_factor": "1.3", "hard_ceiling": "8", "update_affinity": "false", "bs_offset": "1"}
    )
    assert made == Unified(overload_factor=1.3, hard_ceiling=8, update_affinity=False, bs_offset=1)
    assert make_policy("kv_aware", {"backpressure_above": "null", "floor_form": "max"}) == KvAware(floor_form="max")


@pytest.mark.parametrize(
    ("name", "parameters", "message", "remedy"),
    [
        ("unifed", {}, "there is no policy 'unifed'", "did you mean `unified`"),
        ("unified", {"overload": 2}, "unified has no parameter 'overload'", "overload_factor"),
        ("round_robin", {"tie": "rr"}, "round_robin has no parameter 'tie'", "it has none"),
        ("unified", {"affinity_ratio": 1.5}, r"affinity_ratio", "tracon policies unified"),
        ("unified", {"overload_factor": "many"}, r"overload_factor", "tracon policies unified"),
        ("lmetric", {"tie": "random"}, r"tie", "tracon policies lmetric"),
        ("lmetric", {"bs_offset": 2}, r"bs_offset", "tracon policies lmetric"),
        ("kv_aware", {"load_floor_bonus": 1.5}, r"load_floor_bonus", "tracon policies kv_aware"),
    ],
)
def test_what_is_wrong_is_named(name: str, parameters: dict[str, object], message: str, remedy: str) -> None:
    with pytest.raises(PolicyError, match=message) as caught:
        make_policy(name, parameters)
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_users_file_gives_a_policy_with_parameters(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    policy = make_policy(str(path), {"skip": "1"})
    assert policy.decide(ask(), view(load("a"), load("b"))).instance == "a"
    assert list_parameters(policy) == {"skip": 1}
    with pytest.raises(PolicyError, match="last has no parameter 'skipp'"):
        make_policy(str(path), {"skipp": 1})


def test_one_of_several_classes_is_named_after_a_colon(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(MINE + MINE.replace("class Last", "class Other").replace('"last"', '"other"'))
    with pytest.raises(PolicyError, match="2 classes"):
        find_policy_class(str(path))
    assert find_policy_class(f"{path}:Other").name == "other"
    with pytest.raises(PolicyError, match="no policy class 'Third'"):
        find_policy_class(f"{path}:Third")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "0 classes"),
        ("def broken(:", r"line 1: SyntaxError"),
        ("import not_a_module_anywhere", "ModuleNotFoundError"),
        (MINE.replace('    source: ClassVar[str] = "mine"\n', ""), "Last has no `source`"),
    ],
)
def test_a_users_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(PolicyError, match=message):
        make_policy(str(path), {})


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PolicyError, match=r"nowhere\.py: No such file"):
        make_policy("/nowhere.py", {})


def test_the_policy_in_the_documentation_works(tmp_path: Path) -> None:
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "mine.py").write_text(code)
    policy = make_policy(str(tmp_path / "mine.py"), {"limit": "4"})
    assert policy.decide(ask(1000, {"a": 900}), view(load("a", bs=3), load("b"))).instance == "a"
    assert policy.decide(ask(1000, {"a": 900}), view(load("a", bs=4), load("b"))).instance == "b"
    assert policy.decide(ask(tried=["a"]), view(load("a"))).instance == ""


def test_the_page_has_the_table_of_the_registry() -> None:
    assert read_table() == make_table(), "run: python -m tests.policy_table"


TOY = '''
from typing import ClassVar
from results.records.decisions import ClusterView, Decision, RoutedRequest

REASONS = {"first_by_name": "it is the first by name"}

class Toy:
    """Always the first instance."""
    name: ClassVar[str] = "toy"
    source: ClassVar[str] = "a test"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        return Decision(self.name, cluster.instances[0].instance, "first_by_name")
'''


def test_a_policy_is_one_file_and_one_line(tmp_path: Path) -> None:
    """In a process of its own, where the file is in the package and the line among the modules."""
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    code = (
        "import pathlib, sys, runners.router.policies as policies\n"
        "policies.__path__.append(sys.argv[1])\n"
        "policies.MODULES += ('toy',)\n"
        "policies.POLICIES.update(policies.collect_policies(['toy']))\n"
        "from runners.router.policies.reasons import REASONS\n"
        "assert REASONS['first_by_name'] == 'it is the first by name'\n"
        "from results.report.policy_pens import OTHER_PENS, assign_pens\n"
        "assert assign_pens({'toy': 'toy'})['toy'] in OTHER_PENS\n"
        "from tests.policy_table import make_table\n"
        "assert '| `toy` | always the first instance | yes | none |' in make_table()\n"
        "from runners.cli import app\n"
        "app(['policies', 'toy'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Always the first instance." in done.stdout
