"""The table of docs/policies.md: each policy with its rule and its parameters, from the registry.

`python -m tests.policy_table` writes it into the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from runners.router.policies import POLICIES, PolicyInfo, describe_policies, make_policy
from tests.runners.router.logs import NEEDED
from tests.runners.router.views import ask, load, view

PAGE = Path(__file__).resolve().parent.parent / "docs" / "policies.md"
BEGIN, END = "<!-- policies: made by `python -m tests.policy_table` -->", "<!-- end of policies -->"


def make_table() -> str:
    """The rows of all registered policies, in the order of the registry."""
    head = "| policy | rule | binds | parameters |", "|---|---|---|---|"
    return "\n".join((*head, *map(_make_row, describe_policies())))


def _make_row(info: PolicyInfo) -> str:
    rule = getattr(POLICIES[info.name], "rule", "") or _begin_small(info.summary)
    parameters = ", ".join(f"`{one.name}`" for one in info.parameters) or "none"
    return f"| `{info.name}` | {rule} | {'yes' if _binds(info) else 'no'} | {parameters} |"


def _begin_small(summary: str) -> str:
    return f"{summary[:1].lower()}{summary[1:].removesuffix('.')}"


def _binds(info: PolicyInfo) -> bool:
    """Whether it makes the instance that it picks for a new session its owner."""
    values = NEEDED.get(info.name, {one.name: 1 for one in info.parameters if one.required})
    return make_policy(info.name, values).decide(ask(), view(load("a"), load("b"))).binds


def read_table() -> str:
    """The table in the page."""
    return _split_page()[1].strip()


def _split_page() -> tuple[str, str, str]:
    text = PAGE.read_text(encoding="utf-8")
    parts = re.fullmatch(f"(.*{re.escape(BEGIN)}\n)(.*)({re.escape(END)}.*)", text, re.DOTALL)
    if parts is None:
        sys.exit(f"{PAGE} has no marked part")
    before, table, after = parts.groups()
    return before, table, after


def main() -> None:
    before, _, after = _split_page()
    PAGE.write_text(f"{before}{make_table()}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
