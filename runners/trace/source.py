"""Where the bytes of a trace come from: a file, plain or .gz or .xz, a tar of files (.gz and .xz too), or a folder.

What a file is shows in its first bytes, not in its name. Nothing is unpacked to disk, and a document is read once, in
order, a line at a time.
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

from runners.trace.errors import TraceError

MAX_LINE_BYTES = 256 << 20
"""A line that is longer is refused instead of being held in memory."""

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_TAR = (257, b"ustar")
_ENDINGS = (".json", ".jsonl")
_PACKED = tuple(ending + packing for ending in _ENDINGS for packing in ("", ".gz", ".xz"))
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)

OnProgress = Callable[[float], None]
"""Told now and then which share of the source has been read, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a source."""

    name: str
    """What errors call it: the file's name, or `archive/member`."""
    stream: BinaryIO


def documents(path: Path, on_progress: OnProgress | None = None) -> Generator[Document]:
    """Every document of `path`, in the archive's order, or a folder's by name; read each before asking for the next.

    Of an archive and of a folder those count whose names end in .json or .jsonl (in a folder .gz and .xz too). Raises
    TraceError for damaged data and where there is none, OSError where the file cannot be read.
    """
    watch = on_progress or (lambda share: None)
    if path.is_dir():
        yield from _folder(path, watch)
    else:
        yield from _file(path, path.name, watch)


def numbered_lines(document: Document) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of the document's lines that are not blank. Raises TraceError for damaged data."""
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


def beginning(path: Path, size: int = 1 << 16) -> tuple[str, bytes]:
    """The name of the first document and its first `size` bytes at most. Raises TraceError where there is none."""
    with closing(documents(path)) as found:
        document = next(found)
        with _damage_named(document.name, 1):
            return document.name, document.stream.read(size)


def _folder(path: Path, watch: OnProgress) -> Iterator[Document]:
    files = sorted(file for file in path.iterdir() if file.name.endswith(_PACKED) and file.is_file())
    if not files:
        raise TraceError(path.name, 1, f"the folder holds no file that ends in {', '.join(_ENDINGS)}")
    for place, file in enumerate(files):
        yield from _file(file, f"{path.name}/{file.name}", _part(watch, place, len(files)))


def _part(watch: OnProgress, place: int, of: int) -> OnProgress:
    return lambda share: watch((place + share) / of)


def _file(path: Path, name: str, watch: OnProgress) -> Iterator[Document]:
    with closing(_Watched(path, watch)) as raw, closing(_unpacked(raw)) as stream:
        with _damage_named(name, 1):
            head = stream.read(512)
            stream.seek(0)
        if head[_TAR[0] : _TAR[0] + len(_TAR[1])] == _TAR[1]:
            yield from _members(stream, name)
        else:
            yield Document(name, stream)


class _Watched(io.FileIO):
    """A file that tells how far it was read."""

    def __init__(self, path: Path, watch: OnProgress) -> None:
        super().__init__(path)
        self._watch = watch
        self._size = max(path.stat().st_size, 1)

    def readinto(self, buffer: object, /) -> int:
        count = super().readinto(buffer)  # type: ignore[arg-type]
        self._watch(min(self.tell() / self._size, 1.0))
        return count


def _unpacked(raw: io.FileIO) -> BinaryIO:
    """The file's content, by its first bytes."""
    magic = raw.read(len(_XZ)) or b""
    raw.seek(0)
    if magic.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=io.BufferedReader(raw, 1 << 18)), 1 << 18)
    if magic == _XZ:
        return io.BufferedReader(lzma.LZMAFile(io.BufferedReader(raw, 1 << 18)), 1 << 18)
    return io.BufferedReader(raw, 1 << 18)


class _Header(tarfile.TarInfo):
    """A header that is damaged or missing is an error: tarfile takes it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if len(buf) == tarfile.BLOCKSIZE and not any(buf):
            return super().frombuf(buf, encoding, errors)  # the end
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"an archive's header: {error}") from error


def _members(stream: BinaryIO, name: str) -> Iterator[Document]:
    found = False
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
            found = True
            content = cast(BinaryIO, archive.extractfile(member))
            yield Document(f"{name}/{member.name}", content)
    if not found:
        raise TraceError(name, 1, f"the archive holds no file that ends in {' or '.join(_ENDINGS)}")


@contextmanager
def _damage_named(name: str, line: int) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise TraceError(name, line, f"the packed data is damaged or cut off ({error})") from error
