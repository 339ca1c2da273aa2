"""A file that contradicts its format is refused, whatever the fault: which file, which line, which rule."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.trace.formats import FORMATS, detect_format, read_trace
from runners.trace.source import TraceError
from tests.examples import examples
from tests.runners.trace import files
from tests.runners.trace.files import Row
from tests.runners.trace.mutations import MUTATIONS, Mutation

ALL = [(format, mutation) for format, mutations in MUTATIONS.items() for mutation in mutations]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The text of a good file of each format."""
    written = files.write_all(tmp_path_factory.mktemp("good"))
    return {format: path.read_bytes() for format, path in written.items()}


def refusal(path: Path, format: str | None) -> TraceError:
    with pytest.raises(TraceError) as refused:
        read_trace(path, format)
    return refused.value


def test_of_each_format_there_are_twenty_faults_or_more() -> None:
    assert set(MUTATIONS) == set(FORMATS)
    for mutations in MUTATIONS.values():
        assert len({mutation.name for mutation in mutations}) >= 20


@pytest.mark.parametrize(("format", "mutation"), ALL, ids=[f"{format}: {mutation.name}" for format, mutation in ALL])
def test_a_fault_is_met_by_file_line_and_rule(
    format: str, mutation: Mutation, made: dict[str, bytes], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in made[format].splitlines()]
    mutation.change(rows)
    path = tmp_path / f"{format}.jsonl"
    path.write_bytes(files.lines(rows))
    error = refusal(path, format)
    assert (error.file, error.line) == (path.name, mutation.line), error.rule
    assert mutation.rule in error.rule
    assert str(error) == f"{path.name}, line {error.line}: {error.rule}"
    assert error.exit_code == 2
    assert error.remedy


def cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


def flipped(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 0xFF]) + text[middle + 1 :]


def archive(text: bytes) -> bytes:
    return files.tar_of(("inside.jsonl", text))


@pytest.mark.parametrize(
    "damaged",
    [
        lambda text: cut(gzip.compress(text)),
        lambda text: cut(lzma.compress(text)),
        lambda text: flipped(lzma.compress(text)),
        lambda text: gzip.compress(text)[:-4],
        lambda text: archive(text)[:700],
        lambda text: gzip.compress(archive(text)[:700]),
        lambda text: archive(text)[: -(-len(text) // 512 + 1) * 512],
    ],
    ids=["gz cut", "xz cut", "xz flipped", "gz without its end", "tar cut", "tar.gz cut", "tar without its end"],
)
@pytest.mark.parametrize("format", list(FORMATS))
def test_damaged_packing_is_refused(
    format: str, damaged: Callable[[bytes], bytes], made: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "packed"
    path.write_bytes(damaged(made[format]))
    error = refusal(path, format)
    assert error.file.startswith("packed")
    assert error.line >= 1


@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.parametrize(
    ("text", "rule"),
    [(b"", ""), (b"\n\n  \n", ""), (b"\x00\x01\x02", "malformed"), (b'{"a": 1', ""), (b"[]", "Expected `object`")],
)
def test_what_is_no_trace_at_all_is_refused(format: str, text: bytes, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "nothing.jsonl"
    path.write_bytes(text)
    assert rule in refusal(path, format).rule
    with pytest.raises(TraceError, match="none of the formats"):
        detect_format(path)


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_broken_line_is_named_by_its_number(format: str, made: dict[str, bytes], tmp_path: Path) -> None:
    text = made[format].splitlines(keepends=True)
    text[2] = text[2][: len(text[2]) // 2] + b"\n"
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"".join(text))
    error = refusal(path, format)
    assert error.line == 3
    assert "malformed" in error.rule or "truncated" in error.rule


def test_bytes_that_are_no_text_are_refused(made: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(made["bailian"].replace(b'"text"', b'"te\xff\xfet"', 1))
    assert refusal(path, "bailian").line == 1


def test_a_syntax_fault_in_an_object_of_many_lines_has_its_own_line(tmp_path: Path) -> None:
    text = json.dumps(files.agentic_session(), indent=1).splitlines()
    at = next(place for place, line in enumerate(text) if '"think_time"' in line)
    text[at] = '"think_time": ,'
    path = tmp_path / "pretty.json"
    path.write_text("\n".join(text))
    assert refusal(path, "agentic").line == at + 1


def two_sessions(second: Row) -> bytes:
    members = (("a/one.json", files.agentic_session("one")), ("a/two.json", second))
    return files.tar_of(*((name, json.dumps(content).encode()) for name, content in members))


@pytest.mark.parametrize("damage", ["header", "cut"])
def test_an_archive_does_not_end_at_a_damaged_member(damage: str, tmp_path: Path) -> None:
    packed = two_sessions(files.agentic_session("two"))
    second = packed.index(b"a/two.json")
    path = tmp_path / "sessions.tar"
    path.write_bytes(packed[:second] + b"X" + packed[second + 1 :] if damage == "header" else packed[:second])
    assert "damaged or cut off" in refusal(path, None).rule


def test_an_archive_names_the_member(tmp_path: Path) -> None:
    session = files.agentic_session()
    del session["block_size"]
    path = tmp_path / "sessions.tar.gz"
    path.write_bytes(gzip.compress(two_sessions(session)))
    error = refusal(path, None)
    assert (error.file, error.line) == ("sessions.tar.gz/a/two.json", 1)


@pytest.mark.parametrize("format", ["mooncake", "bailian", "tracon"])
def test_an_archive_of_two_is_no_trace_of_one_file(format: str, made: dict[str, bytes], tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(made[format])
    error = refusal(tmp_path, format)
    assert error.file.endswith("b.jsonl")
    assert "this is the second" in error.rule


def test_an_archive_without_a_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.tar"
    path.write_bytes(files.tar_of(("readme.txt", b"")))
    assert "holds no file that ends in" in refusal(path, "agentic").rule
    (tmp_path / "folder").mkdir()
    assert "holds no file that ends in" in refusal(tmp_path / "folder", "agentic").rule


@given(data=st.data(), format=st.sampled_from(list(FORMATS)))
@settings(max_examples=examples(150), deadline=None)
def test_whatever_bytes_change_a_file_is_read_or_refused(
    data: st.DataObject, format: str, made: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Never another exception, never a trace that breaks the rules of the internal form."""
    text = bytearray(made[format])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.getbasetemp() / "changed.jsonl"
    path.write_bytes(bytes(text))
    refused: TraceError | None = None
    try:
        files.assert_sound(read_trace(path, format))
    except TraceError as error:
        refused = error
    if refused is not None:
        assert refused.file == path.name
        assert 1 <= refused.line <= text.count(b"\n") + 1
        assert refused.rule
