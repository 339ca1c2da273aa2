"""The pages name only files that exist, and their links resolve, anchors included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/decisions").glob("*.md"))]
EXAMPLES = sorted((ROOT / "docs/examples").glob("*/README.md"))
FILE = re.compile(r"`((?:console|docs|launch|patches|results|runners|state|tests)/[\w./-]+\.(?:py|toml|lock|in|md))`")
MODULE = re.compile(r"`?python -m ((?:console|launch|results|runners|state|tests)[\w.]*)")
EXAMPLE = "/start_time/"
"""The folder that docs/extending.md tells a reader to make."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """The page without its fenced code, where `](` is no link and a name may be an example's."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_module_on_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = (name for name in FILE.findall(text) if EXAMPLE not in name)
    assert [name for name in named if not (ROOT / name).is_file()] == []
    modules = [ROOT / name.rstrip(".").replace(".", "/") for name in MODULE.findall(text)]
    assert [path for path in modules if not path.with_suffix(".py").is_file() and not path.is_dir()] == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {page.name for page in PAGES if page.parent == ROOT / "docs"} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def test_a_wrong_name_or_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing\n[a](gone.md) [b](#one-thing) [c](page.md#nothing) [d](https://x.y/z)\n`runners/gone.py`\n"
    )
    assert broken_links(page) == ["gone.md", "page.md#nothing"]
    assert FILE.findall(page.read_text()) == ["runners/gone.py"]
