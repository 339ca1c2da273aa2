"""Code is known by its content and its place."""

from __future__ import annotations

from pathlib import Path

from results.records.code import digest_code


def test_another_content_or_place_of_a_module_gives_another_digest(tmp_path: Path) -> None:
    module = tmp_path / "routing" / "gate.py"
    module.parent.mkdir()
    module.write_text("LIMIT = 1")
    digests = {digest_code(tmp_path)}
    module.write_text("LIMIT = 2")
    digests.add(digest_code(tmp_path))
    module.rename(module.with_name("other.py"))
    digests.add(digest_code(tmp_path))
    assert len(digests) == 3


def test_only_modules_of_the_packages_count(tmp_path: Path) -> None:
    for package in ("routing", "report"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "gate.py").write_text("LIMIT = 1")
    before = digest_code(tmp_path, ("routing",)), digest_code(tmp_path)
    (tmp_path / "report" / "gate.py").write_text("LIMIT = 2")
    (tmp_path / "routing" / "notes.txt").write_text("nothing")
    assert digest_code(tmp_path, ("routing",)) == before[0]
    assert digest_code(tmp_path) != before[1]
