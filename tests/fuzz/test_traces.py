"""Whatever bytes a trace has, in whatever format: it is read and sound, or refused by file, line and rule."""

from __future__ import annotations

import gzip
import lzma
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.trace.formats import FORMATS, detect_format, read_trace
from runners.trace.source import TraceError
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.trace import files

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
CPU_S = 10.0
"""Within which a file of some KB is read or refused; it takes milliseconds."""
CHECKSUM = slice(148, 156)
FIELDS = (
    slice(0, 100), slice(124, 136), slice(136, 148), slice(156, 157), slice(157, 257), slice(257, 265),
    slice(329, 337), slice(345, 500),
)  # fmt: skip
"""Of an archive's header: name, size, time, type, link, magic, device, prefix."""
TYPES = tuple(bytes([byte]) for byte in b"0000\x001234567xgXLKSDVMN\xff")
NUMBERS = (
    b"77777777777\0", b"-0000000001\0", b"99999999999\0", b"00000000017 ", b"\0" * 12, b"\xff" * 12,
    b"\x80" + (60 << 30).to_bytes(11, "big"),
)  # fmt: skip
NAMES = ("a.jsonl", "traces/b.json", "readme.txt", "./._c.jsonl", "d.jsonl/", "x" * 120 + ".jsonl")
RECORDS = (
    b"16 path=b.jsonl\n", b"10 size=1\n", b"12 size=-51\n", b"20 size=99999999999\n", b"0 a=b\n", b"99999 a=b\n",
    b"21 GNU.sparse.size=4\n", b"25 GNU.sparse.realsize=0\n", b"21 hdrcharset=BINARY\n", b"2 " * 200 + b"=",
)  # fmt: skip
"""Of extended headers."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    paths = files.write_all(tmp_path_factory.mktemp("traces"))
    return {format: path.read_bytes() for format, path in paths.items()}


@st.composite
def archives(draw: st.DrawFn, documents: Sequence[bytes]) -> bytes:
    """Members that hold a trace or an extended header's fields, some with wrong headers under right checksums."""
    parts: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        content = draw(st.sampled_from([*documents, *RECORDS]) | st.binary(max_size=40))
        member = tarfile.TarInfo(draw(st.sampled_from(NAMES)))
        member.type, member.size = draw(st.sampled_from(TYPES)), len(content)
        header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        for field in draw(st.lists(st.sampled_from(FIELDS), max_size=2)):
            piece = draw(st.sampled_from((*TYPES, *NUMBERS)) | st.binary(max_size=12))[: field.stop - field.start]
            header[field.start : field.start + len(piece)] = piece
        header[CHECKSUM] = b" " * 8
        header[CHECKSUM] = b"%06o\0 " % sum(header[:512])
        parts += [bytes(header), content, b"\0" * (-len(content) % 512)]
    return b"".join(parts) + b"\0" * 1024


def assert_sound_or_refused(path: Path, format: str) -> None:
    try:
        files.assert_sound(read_trace(path, format))
        detect_format(path)
    except TraceError as error:
        assert error.file.partition("/")[0] == path.name
        assert error.line >= 1
        assert error.rule


@given(data=st.data(), format=st.sampled_from(list(FORMATS)), suffix=st.sampled_from(list(PACKERS)))
@settings(max_examples=examples(100))
def test_a_trace_is_sound_or_refused(
    data: st.DataObject, format: str, suffix: str, made: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = data.draw(mutated([made[format]]))
    packed = data.draw(mutated([PACKERS[suffix](text)])) if suffix else text
    path: Path = tmp_path_factory.getbasetemp() / f"fuzzed.jsonl{suffix}"
    path.write_bytes(packed)
    assert_sound_or_refused(path, format)


@given(data=st.data(), format=st.sampled_from(list(FORMATS)), suffix=st.sampled_from(list(PACKERS)))
@settings(max_examples=examples(100))
def test_an_archive_is_sound_or_refused_in_bounded_time(
    data: st.DataObject, format: str, suffix: str, made: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = data.draw(mutated([data.draw(archives([made[format]]))]))
    packed = data.draw(mutated([PACKERS[suffix](archive)])) if suffix else archive
    path: Path = tmp_path_factory.getbasetemp() / f"fuzzed.tar{suffix}"
    path.write_bytes(packed)
    began_s = process_time()
    assert_sound_or_refused(path, format)
    assert process_time() - began_s < CPU_S
