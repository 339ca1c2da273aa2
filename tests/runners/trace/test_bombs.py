"""A small file that would become large in memory or on disk is an error, not the end of the process."""

from __future__ import annotations

import io
import resource
import tarfile
from pathlib import Path

import pytest

import runners.trace.formats.agentic
import runners.trace.formats.bailian
from runners.trace.formats.agentic import open_agentic
from runners.trace.formats.bailian import open_bailian
from runners.trace.source import MAX_HEADER_BYTES, TraceError, open_documents

LINE = (
    b'{"chat_id":%d,"parent_chat_id":-1,"timestamp":1,"input_length":16,"output_length":1,"type":"t","turn":1,'
    b'"hash_ids":[%d]}\n'
)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archives_header_is_bounded(kind: bytes, tmp_path: Path) -> None:
    size = 200 * MAX_HEADER_BYTES
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


def test_the_copy_of_a_trace_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.trace.formats.bailian, "MAX_COPY_BYTES", 10_000)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(LINE % (number, number + 1) for number in range(1_000)))
    with pytest.raises(TraceError, match="of text"):
        open_bailian(path)
