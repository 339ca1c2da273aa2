"""A small file that would become large in memory or on disk is an error, not the end of the process."""

from __future__ import annotations

import gzip
import io
import lzma
import resource
import tarfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import runners.trace.formats.agentic
import runners.trace.formats.bailian
import runners.trace.formats.tracon
import runners.trace.session
import runners.trace.source
from runners.errors import RunnerError
from runners.trace.formats import read_trace
from runners.trace.formats.agentic import open_agentic
from runners.trace.formats.bailian import open_bailian
from runners.trace.session import MAX_CHAINED_ID, Chain
from runners.trace.source import MAX_NAME_CHARS, TraceError, open_documents, read_lines

LINE = (
    b'{"chat_id":%d,"parent_chat_id":-1,"timestamp":1,"input_length":16,"output_length":1,"type":"t","turn":1,'
    b'"hash_ids":[%d]}\n'
)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archives_header_is_bounded(kind: bytes, tmp_path: Path) -> None:
    size = 200 << 20
    header = tarfile.TarInfo("bomb")
    header.type, header.size = kind, size
    path = tmp_path / "trace.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.addfile(header, io.BytesIO(b"\0" * size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceError, match="header of"):
        list(open_documents(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "in KiB"


def test_an_object_over_many_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.trace.formats.agentic, "MAX_DOCUMENT_BYTES", 10_000)
    path = tmp_path / "session.json"
    path.write_bytes(b"{\n" + b'"x": 1,\n' * 10_000)
    with pytest.raises(TraceError, match="begins on line 1 is longer"):
        open_agentic(path)


@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, compresslevel=1)])
def test_a_line_is_bounded(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(pack(b'{"x":1}\n[' + b"0," * (33 << 20)))
    with pytest.raises(TraceError, match="longer than 64 MiB") as caught:
        count_lines(path)
    assert (caught.value.file, caught.value.line) == ("trace.jsonl", 2)
    assert "on a line of its own" in caught.value.remedy


def test_the_copy_of_a_trace_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.trace.formats.bailian, "MAX_COPY_BYTES", 10_000)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(LINE % (number, number + 1) for number in range(1_000)))
    with pytest.raises(TraceError, match="of text"):
        open_bailian(path)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, fields: Mapping[str, str] | None = None
) -> tarfile.TarInfo:
    """`fields`: of its extended header."""
    made = tarfile.TarInfo(name)
    made.type, made.size, made.pax_headers = kind, size, dict(fields or {})
    return made


def write_archive(path: Path, *members: tarfile.TarInfo, format: int = tarfile.PAX_FORMAT) -> Path:
    """Each member holds as many newlines as its size says."""
    with tarfile.open(path, "w", format=format) as archive:
        for each in members:
            archive.addfile(each, io.BytesIO(b"\n" * each.size))
    return path


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        list(open_documents(path))
    return caught.value


@pytest.mark.parametrize(
    "map_of",
    [
        {"GNU.sparse.size": "4", "GNU.sparse.numblocks": "0"},
        {"GNU.sparse.map": "0,4"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    ],
)
def test_a_sparse_file_is_refused_before_its_map_is_read(map_of: dict[str, str], tmp_path: Path) -> None:
    error = refusal(write_archive(tmp_path / "trace.tar", member("a.jsonl", size=4, fields=map_of)))
    assert "sparse" in error.rule
    assert "unpack it yourself" in error.remedy


def test_a_sparse_file_of_the_old_form_is_refused(tmp_path: Path) -> None:
    sparse = member("a.jsonl", tarfile.GNUTYPE_SPARSE, 4)
    path = write_archive(tmp_path / "trace.tar", sparse, format=tarfile.GNU_FORMAT)
    assert "sparse" in refusal(path).rule


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_in_a_documents_place_is_refused(kind: bytes, tmp_path: Path) -> None:
    other = member("b.jsonl", kind)
    other.linkname = "a.jsonl"
    error = refusal(write_archive(tmp_path / "trace.tar", member("a.jsonl", size=1), other))
    assert error.file == "trace.tar/b.jsonl"
    assert "a link or a device" in error.rule
    assert "--dereference" in error.remedy


def test_folders_hidden_files_and_links_of_other_names_are_left_out(tmp_path: Path) -> None:
    others = member("a.json", tarfile.DIRTYPE), member("a.json/.b.jsonl", size=3), member("latest", tarfile.SYMTYPE)
    path = write_archive(tmp_path / "trace.tar", *others, member("a.json/c.jsonl", size=1))
    assert [document.name for document in open_documents(path)] == ["trace.tar/a.json/c.jsonl"]


@pytest.mark.parametrize("size", [1 << 62, -512])
def test_a_member_of_an_impossible_size_is_refused_at_once(size: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.tar"
    path.write_bytes(member("readme.txt", size=size).tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    assert "member of" in refusal(path).rule


def test_a_member_that_states_more_than_the_file_holds_is_refused_after_few_reads(tmp_path: Path) -> None:
    path = tmp_path / "trace.tar"
    path.write_bytes(member("readme.txt", size=60 << 30).tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    reads: list[float] = []
    with closing(open_documents(path, reads.append)) as opened, pytest.raises(TraceError, match="unexpected end"):
        next(opened)
    assert len(reads) < 100


def test_a_size_in_an_extended_header_is_bounded(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "trace.tar", member("a.jsonl", size=4, fields={"size": "9" * 30}))
    assert "states a size" in refusal(path).rule


def test_a_header_that_is_no_number_is_damage(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "trace.tar", member("a.jsonl", size=4, fields={"GNU.sparse.realsize": "x"}))
    assert "damaged" in refusal(path).rule


def test_the_members_of_an_archive_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.trace.source, "MAX_MEMBERS", 5)
    path = write_archive(tmp_path / "trace.tar", *(member(f"{number}.jsonl") for number in range(6)))
    assert "more than 5 members" in refusal(path).rule


def test_the_name_of_a_member_is_bounded(tmp_path: Path) -> None:
    error = refusal(write_archive(tmp_path / "trace.tar", member("x" * MAX_NAME_CHARS + ".jsonl")))
    assert "name of a member" in error.rule
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("headers", "fields", "rule"), [(2_000, 1, "more than 8 headers"), (1, 1_200, "global headers have more than")]
)
def test_the_headers_of_an_archive_are_bounded(headers: int, fields: int, rule: str, tmp_path: Path) -> None:
    one = tarfile.TarInfo.create_pax_global_header({f"k{number}": "v" for number in range(fields)})
    path = tmp_path / "trace.tar"
    path.write_bytes(one * headers + member("a.jsonl").tobuf() + b"\0" * 1024)
    assert rule in refusal(path).rule


def count_lines(path: Path) -> int:
    with closing(open_documents(path)) as opened:
        return sum(1 for document in opened for _ in read_lines(document))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize(
    ("bounds", "rule"),
    [
        ({"MAX_UNPACKED_BYTES": 1 << 20}, "unpacks to more than 0 GiB"),
        ({"RATIO_FROM_BYTES": 1 << 20, "MAX_RATIO": 100}, "unpacks to more than 100 times"),
    ],
)
def test_what_a_packed_file_unpacks_to_is_bounded(
    bounds: dict[str, int],
    rule: str,
    pack: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "trace.jsonl.packed"
    path.write_bytes(pack(b'{"x":1}\n' * 500_000))
    assert count_lines(path) == 500_000
    for name, value in bounds.items():
        monkeypatch.setattr(runners.trace.source, name, value)
    with pytest.raises(TraceError) as caught:
        count_lines(path)
    assert rule in caught.value.rule
    assert caught.value.line > 1


def state_dictionary(packed: bytes, size_code: int) -> bytes:
    """An .xz of one block whose header states another size of the dictionary; 40 = 4 GiB."""
    head = packed[12:16] + bytes([size_code]) + packed[17:20]
    assert packed[12:16] == b"\x02\x00\x21\x01", "one filter, LZMA2"
    return packed[:12] + head + zlib.crc32(head).to_bytes(4, "little") + packed[24:]


def test_the_memory_that_an_xz_file_asks_for_is_bounded(tmp_path: Path) -> None:
    path, packed = tmp_path / "trace.jsonl.xz", lzma.compress(b'{"x":1}\n', preset=6)
    path.write_bytes(state_dictionary(packed, 30))  # 128 MiB
    assert count_lines(path) == 1
    path.write_bytes(state_dictionary(packed, 40))
    with pytest.raises(TraceError, match="more than 256 MiB of memory") as caught:
        count_lines(path)
    assert "unpack it yourself" in caught.value.remedy


@pytest.mark.parametrize("padding", [b"", b"\0" * 8])
def test_an_xz_file_of_several_streams_is_read_to_its_end(padding: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(padding.join([lzma.compress(b"1\n2"), lzma.compress(b""), lzma.compress(b"3\n4\n")]) + padding)
    assert count_lines(path) == 3


@pytest.mark.parametrize("behind", [b"garbage", b"\xfd7zXZ\x00" + b"\1" * 20])
def test_what_is_behind_an_xz_stream_is_not_passed_over(behind: bytes, tmp_path: Path) -> None:
    """`lzma.LZMAFile` reads a damaged second stream as the end of the file."""
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(lzma.compress(b"1\n") + behind)
    with pytest.raises(TraceError, match="damaged or cut off"):
        count_lines(path)


def write_sharing(path: Path, turns: int, hashes: int) -> Path:
    """A trace of one session whose turns share all hashes of the first one but the last: a hundred bytes each."""
    facts = '{"block_tokens":1,"tail_rule":"floor","hash_scope":"session","hashes_chained":false,"has_sessions":true}'
    first = f'{{"arrival_s":0,"input_tokens":{hashes},"output_tokens":1,"hashes":{list(range(hashes))}}}'
    others = [
        f'{{"arrival_s":0,"input_tokens":{hashes - 1},"output_tokens":1,"hashes":[],"turn":{turn},'
        f'"shared":[0,{hashes - 1}]}}'
        for turn in range(1, turns)
    ]
    path.write_text(
        f'{{"tracon_trace":1,"origin":"","facts":{facts}}}\n'
        f'{{"session":"s","turns":[{",".join([first, *others])}]}}\n'
        f'{{"end":{{"sessions":1,"requests":{turns}}}}}\n'
    )
    return path


def test_what_the_turns_of_a_session_share_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sharing(tmp_path / "trace.jsonl", turns=20, hashes=100)
    assert read_trace(path).requests == 20
    for module in (runners.trace.session, runners.trace.formats.tracon):
        monkeypatch.setattr(module, "MAX_SESSION_HASHES", 1_000)
    with pytest.raises(TraceError, match="more than 1000 hashes over its turns") as caught:
        read_trace(path)
    assert caught.value.line == 2


def test_a_trace_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sharing(tmp_path / "trace.jsonl", turns=20, hashes=100)
    monkeypatch.setattr(runners.trace.formats, "MAX_HASHES", 1_000)
    with pytest.raises(RunnerError, match="more than 1000 block hashes") as caught:
        read_trace(path)
    assert "sample" in caught.value.remedy


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_one_high_hash_takes_no_table_of_all_below_it() -> None:
    before, chain = resident_bytes(), Chain()
    assert chain.find_fault(np.array([MAX_CHAINED_ID - 1])) == ""
    assert resident_bytes() - before < 50 << 20
    assert "comes twice" in chain.find_fault(np.array([5, 6, 5]))
