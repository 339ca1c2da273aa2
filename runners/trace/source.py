"""Reads the bytes of a trace: a file (plain, .gz or .xz), a tar of files (also .gz or .xz), or a folder.

The first bytes of a file decide its type, not its name. Nothing is unpacked to disk. A document is read once, in order,
line by line.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self, cast

from runners.errors import RunnerError

MAX_LINE_BYTES = 256 << 20
"""Longer lines are rejected, so that they do not fill the memory."""

MAX_DOCUMENT_BYTES = 128 << 20
"""Longer documents that are one object are rejected, for the same reason."""
MAX_HEADER_BYTES = 1 << 20
"""An archive's longer extended headers are rejected: they are read whole, before any of its files."""

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
)  # fmt: skip
_TAR = (257, b"ustar")
_ENDINGS = (".json", ".jsonl")
_PACKED = tuple(ending + packing for ending in _ENDINGS for packing in ("", ".gz", ".xz"))
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)


class TraceError(RunnerError):
    """A trace file violates its format: file, line and rule."""

    def __init__(self, file: str, line: int, rule: str) -> None:
        """`file`: its name; in an archive or a folder `archive/member`. `line`: from 1, where reading stopped."""
        super().__init__(
            f"{file}, line {line}: {rule}",
            remedy="correct the file, or name its actual format with --format (docs/traces.md lists the rules)",
        )
        self.file = file
        self.line = line
        self.rule = rule


OnProgress = Callable[[float], None]
"""Called from time to time with the share of the source that has been read, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a source."""

    name: str
    """Its name in errors: the file's name, or `archive/member`."""
    stream: BinaryIO


def open_documents(path: Path, on_progress: OnProgress | None = None) -> Generator[Document]:
    """Every document of `path`, in the archive's order, or by name in a folder. Read each before taking the next.

    In an archive or a folder, documents are files whose names end in .json or .jsonl (in a folder also .gz and .xz).
    Raises TraceError for damaged data and where there is no document, OSError where the file cannot be read.
    """
    watch = on_progress or (lambda share: None)
    if path.is_dir():
        yield from _open_folder(path, watch)
    else:
        yield from _open_file(path, path.name, watch)


def read_lines(document: Document) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of the lines that are not blank. Raises TraceError for damaged data."""
    number = 0
    while True:
        with _damage_named(document.name, number + 1):
            line = document.stream.readline(MAX_LINE_BYTES + 1)
        number += 1
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(document.name, number, f"the line is longer than {MAX_LINE_BYTES >> 20} MiB")
        if not line.isspace():
            yield number, line


def read_one_file(path: Path, kind: str, on_progress: OnProgress | None = None) -> Iterator[tuple[str, int, bytes]]:
    """(file, number, line) of a trace that is one file; raises TraceError for a second one. `kind`: `a ... trace`."""
    with closing(open_documents(path, on_progress)) as opened:
        for count, document in enumerate(opened):
            if count:
                raise TraceError(document.name, 1, f"{kind} is one file, and this is the second")
            for line, text in read_lines(document):
                yield document.name, line, text


def read_beginning(path: Path, size: int = 1 << 16) -> tuple[str, bytes]:
    """The name of the first document and up to `size` of its first bytes. Raises TraceError without a document."""
    with closing(open_documents(path)) as opened:
        document = next(opened)
        with _damage_named(document.name, 1):
            return document.name, document.stream.read(size)


def _open_folder(path: Path, watch: OnProgress) -> Iterator[Document]:
    files = sorted(file for file in path.iterdir() if file.name.endswith(_PACKED) and file.is_file())
    if not files:
        raise TraceError(path.name, 1, f"the folder holds no file that ends in {', '.join(_ENDINGS)}")
    for index, file in enumerate(files):
        yield from _open_file(file, f"{path.name}/{file.name}", _part_progress(watch, index, len(files)))


def _part_progress(watch: OnProgress, index: int, of: int) -> OnProgress:
    return lambda share: watch((index + share) / of)


def _open_file(path: Path, name: str, watch: OnProgress) -> Iterator[Document]:
    with closing(_Watched(path, watch)) as raw, closing(_open_unpacked(raw)) as stream:
        with _damage_named(name, 1):
            head = stream.read(512)
            stream.seek(0)
        if head[_TAR[0] : _TAR[0] + len(_TAR[1])] == _TAR[1]:
            yield from _open_members(stream, name)
        else:
            yield Document(name, stream)


class _Watched(io.FileIO):
    """A file that reports the share that has been read."""

    def __init__(self, path: Path, watch: OnProgress) -> None:
        super().__init__(path)
        self._watch = watch
        self._size = max(path.stat().st_size, 1)

    def readinto(self, buffer: object, /) -> int:
        count = super().readinto(buffer)  # type: ignore[arg-type]
        self._watch(min(self.tell() / self._size, 1.0))
        return count


def _open_unpacked(raw: io.FileIO) -> BinaryIO:
    magic = raw.read(len(_XZ)) or b""
    raw.seek(0)
    if magic.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=io.BufferedReader(raw, 1 << 18)), 1 << 18)
    if magic == _XZ:
        return io.BufferedReader(lzma.LZMAFile(io.BufferedReader(raw, 1 << 18)), 1 << 18)
    return io.BufferedReader(raw, 1 << 18)


class _Header(tarfile.TarInfo):
    """Raises for a damaged or missing header, which tarfile treats as the end of the archive, and for a huge one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if len(buf) == tarfile.BLOCKSIZE and not any(buf):
            return super().frombuf(buf, encoding, errors)  # the end
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"an archive's header: {error}") from error
        if header.type in _EXTENDED and header.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"an archive's header of {header.size} bytes, more than {MAX_HEADER_BYTES}")
        return header


def _open_members(stream: BinaryIO, name: str) -> Iterator[Document]:
    has_members = False
    with _damage_named(name, 1):
        archive = tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header)  # noqa: SIM115 - closed below
    with archive:
        while True:
            with _damage_named(name, 1):
                member = archive.next()
            if member is None:
                break
            if not member.isfile() or not member.name.endswith(_ENDINGS) or Path(member.name).name.startswith("."):
                continue
            has_members = True
            content = cast(BinaryIO, archive.extractfile(member))
            yield Document(f"{name}/{member.name}", content)
    if not has_members:
        raise TraceError(name, 1, f"the archive holds no file that ends in {' or '.join(_ENDINGS)}")


@contextmanager
def _damage_named(name: str, line: int) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise TraceError(name, line, f"the packed data is damaged or cut off ({error})") from error
