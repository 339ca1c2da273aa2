"""Reads the bytes of a trace: a file (plain, .gz or .xz), a tar of files (also .gz or .xz), or a folder.

The first bytes of a file decide its type, not its name. Nothing is unpacked to disk. A document is read once, in order,
line by line.
"""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self, cast

from runners.errors import RunnerError

MAX_LINE_BYTES = 64 << 20
"""Longer lines are rejected, so that they do not fill the memory: decoded, a line takes four times its length."""

MAX_DOCUMENT_BYTES = 128 << 20
"""Longer documents that are one object are rejected, for the same reason. Half of such a text may be line breaks and
indentation."""
MAX_HEADER_BYTES = 16 << 10
"""An archive's longer extended headers are rejected: tarfile may take the square of their size in memory."""
MAX_HEADERS = 8
"""Headers of one member, with the extended and global ones before its own."""
MAX_GLOBAL_FIELDS = 1_000
MAX_MEMBERS = 100_000
MAX_NAME_CHARS = 4_096
MAX_UNPACKED_BYTES = 64 << 30
"""What one packed file may unpack to, and what one member of an archive may hold."""
MAX_RATIO = 1_000
"""Unpacked over packed bytes, from RATIO_FROM_BYTES on. By our estimate long shared prompts reach 200 in .xz."""
RATIO_FROM_BYTES = 1 << 30
MAX_XZ_MEMORY_BYTES = 256 << 20
"""What one .xz file may take to unpack: four times as much as the files of `xz -9` take."""

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
)  # fmt: skip
_TAR = (257, b"ustar")
_SKIPPED_BYTES = 1 << 16
"""Bytes of a member that is no document, at a time."""
_ENDINGS = (".json", ".jsonl")
_PACKED = tuple(ending + packing for ending in _ENDINGS for packing in ("", ".gz", ".xz"))
_END_OF_ARCHIVE = tarfile.EOFHeaderError  # type: ignore[attr-defined]
"""What tarfile raises within itself for the block of zeros that ends an archive."""
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)
_CORRECT = "correct the file, or name its actual format with --format (docs/traces.md lists the rules)"
_BREAK = "put each request or session on a line of its own (docs/traces.md lists the rules)"
_UNPACK = "if you trust the file, unpack it yourself and name the folder (docs/traces.md lists the bounds)"
_DEREFERENCE = "pack the files themselves (tar --dereference --hard-dereference)"


class TraceError(RunnerError):
    """A trace file violates its format: file, line and rule."""

    def __init__(self, file: str, line: int, rule: str, *, remedy: str = _CORRECT) -> None:
        """`file`: its name; in an archive or a folder `archive/member`. `line`: from 1, where reading stopped."""
        super().__init__(f"{file}, line {line}: {rule}", remedy=remedy)
        self.file = file
        self.line = line
        self.rule = rule


class _BoundExceeded(Exception):
    """A packed file has more of something than a trace needs; the message is the rule."""


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
            rule = f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"
            raise TraceError(document.name, number, rule, remedy=_BREAK)
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


def read_beginning(path: Path) -> tuple[str, bytes]:
    """The name of the first document and its first 64 KiB. Raises TraceError without a document."""
    with closing(open_documents(path)) as opened:
        document = next(opened)
        with _damage_named(document.name, 1):
            return document.name, document.stream.read(1 << 16)


def _open_folder(path: Path, watch: OnProgress) -> Iterator[Document]:
    files = sorted(file for file in path.iterdir() if file.name.endswith(_PACKED) and file.is_file())
    if not files:
        raise TraceError(path.name, 1, f"the folder holds no file that ends in {', '.join(_ENDINGS)}")
    for index, file in enumerate(files):
        yield from _open_file(file, f"{path.name}/{file.name}", _make_part_progress(watch, index, len(files)))


def _make_part_progress(watch: OnProgress, index: int, of: int) -> OnProgress:
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


class _XzReader(io.RawIOBase):
    """What an .xz file unpacks to, one stream after the other.

    `lzma.LZMAFile` would take the memory that a file asks for, up to 4 GiB for its dictionary.
    """

    def __init__(self, packed: io.BufferedIOBase) -> None:
        self._packed = packed
        self._stream = _open_xz_stream()

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """To the beginning, the only place that `_open_file` goes back to."""
        assert offset == whence == 0
        self._packed.seek(0)
        self._stream = _open_xz_stream()
        return 0

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        piece = self._read_piece(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def _read_piece(self, most: int) -> bytes:
        """The next bytes, at most `most`; empty at the end."""
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._find_next_stream()
                if not packed:
                    return b""
                self._stream = _open_xz_stream()
            elif self._stream.needs_input:
                packed = self._packed.read1()
                if not packed:
                    raise EOFError("the file ends within its data")
            piece = self._unpack(packed, most)
            if piece:
                return piece

    def _find_next_stream(self) -> bytes:
        """The bytes behind a stream and its padding of zeros; empty at the end of the file."""
        packed = self._stream.unused_data.lstrip(b"\0")
        while not packed and (read := self._packed.read1()):
            packed = read.lstrip(b"\0")
        return packed

    def _unpack(self, packed: bytes, most: int) -> bytes:
        try:
            return self._stream.decompress(packed, most)
        except lzma.LZMAError as error:
            if "memory usage limit" not in str(error).lower():
                raise
            rule = f"it takes more than {MAX_XZ_MEMORY_BYTES >> 20} MiB of memory to unpack"
            raise _BoundExceeded(rule) from error


def _open_xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)


class _Unpacked(io.RawIOBase):
    """What a packed file unpacks to, as far as that stays within the bounds."""

    def __init__(self, unpacker: gzip.GzipFile | _XzReader, packed: io.FileIO) -> None:
        self._unpacker = unpacker
        self._packed = packed
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = self._unpacker.seek(offset, whence)
        return self._position

    def readinto(self, buffer: object, /) -> int:
        count = self._unpacker.readinto(buffer)  # type: ignore[arg-type]
        self._position += count
        if self._position > MAX_UNPACKED_BYTES:
            raise _BoundExceeded(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB")
        if self._position > RATIO_FROM_BYTES and self._position > MAX_RATIO * self._packed.tell():
            raise _BoundExceeded(f"it unpacks to more than {MAX_RATIO} times its size, as no trace does")
        return count

    def close(self) -> None:
        self._unpacker.close()
        super().close()


def _open_unpacked(raw: io.FileIO) -> BinaryIO:
    magic = raw.read(len(_XZ)) or b""
    raw.seek(0)
    packed = io.BufferedReader(raw, 1 << 18)
    if magic.startswith(_GZIP):
        return io.BufferedReader(_Unpacked(gzip.GzipFile(fileobj=packed), raw), 1 << 18)
    if magic == _XZ:
        return io.BufferedReader(_Unpacked(_XzReader(packed), raw), 1 << 18)
    return packed


class _Archive(tarfile.TarFile):
    """Reads the headers of an archive in bounded memory; each member is forgotten once it is returned."""

    members: list[tarfile.TarInfo]
    firstmember: tarfile.TarInfo | None
    """Until `next` has returned it; tarfile reads its header when it opens the archive."""
    _headers = 0
    """Headers of the member that is being read."""

    def next(self) -> tarfile.TarInfo | None:
        self._headers = 0
        if self.firstmember is None:
            self._skip_content()
        try:
            member = super().next()
        except ValueError as error:  # a number or a text of a header
            raise tarfile.ReadError(f"an archive's header: {error}") from error
        self.members.clear()
        return member

    def _skip_content(self) -> None:
        """What is left of the last member, to the end of the file at most: tarfile would read on, millions of times."""
        while (rest := self.offset - 1 - self.fileobj.tell()) > 0:
            if not self.fileobj.read(min(rest, _SKIPPED_BYTES)):
                raise tarfile.ReadError("unexpected end of data")

    def count_header(self) -> None:
        """Raises _BoundExceeded for one header too many; each nests tarfile's calls."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise _BoundExceeded(f"a member of the archive has more than {MAX_HEADERS} headers")
        if len(self.pax_headers) > MAX_GLOBAL_FIELDS:
            raise _BoundExceeded(f"the archive's global headers have more than {MAX_GLOBAL_FIELDS} fields")


class _Header(tarfile.TarInfo):
    """Raises for a damaged or missing header, which tarfile treats as the end of the archive, and for a huge one."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except _END_OF_ARCHIVE:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"an archive's header: {error}") from error

    def _proc_member(self, archive: _Archive) -> tarfile.TarInfo:
        """Tarfile calls it for every header, before it reads what follows; within itself for a member's next header."""
        archive.count_header()
        what, most = ("header", MAX_HEADER_BYTES) if self.type in _EXTENDED else ("member", MAX_UNPACKED_BYTES)
        if not 0 <= self.size <= most:
            raise _BoundExceeded(f"an archive's {what} of {self.size} bytes; at most {most} are read")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _refuse_sparse(self, *_: object) -> None:
        raise _BoundExceeded("the archive has a sparse file, which may be any size in a few bytes")

    # tarfile reads the map of a sparse file whole before it returns the member, in these methods of its four formats
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _open_members(stream: BinaryIO, name: str) -> Iterator[Document]:
    has_documents = False
    with _damage_named(name, 1):
        archive = _Archive.open(fileobj=stream, mode="r|", tarinfo=_Header)
    with archive:
        for count in itertools.count(1):
            with _damage_named(name, 1):
                member = archive.next()
            if member is None:
                break
            if not _is_document(member, name, count):
                continue
            has_documents = True
            content = cast(BinaryIO, archive.extractfile(member))
            yield Document(f"{name}/{member.name}", content)
    if not has_documents:
        raise TraceError(name, 1, f"the archive holds no file that ends in {' or '.join(_ENDINGS)}")


def _is_document(member: tarfile.TarInfo, archive: str, count: int) -> bool:
    """Whether the member, the archive's `count`-th, is a document.

    Raises TraceError for one beyond the bounds, and for a link or device in a document's place: to leave it out would
    change the trace.
    """
    name = f"{archive}/{member.name[:MAX_NAME_CHARS]}"
    if count > MAX_MEMBERS:
        raise TraceError(archive, 1, f"the archive has more than {MAX_MEMBERS} members", remedy=_UNPACK)
    if len(member.name) > MAX_NAME_CHARS:
        raise TraceError(archive, 1, f"the name of a member is longer than {MAX_NAME_CHARS}", remedy=_UNPACK)
    if not 0 <= member.size <= MAX_UNPACKED_BYTES:
        rule = f"its header states a size that is not within 0 and {MAX_UNPACKED_BYTES >> 30} GiB"
        raise TraceError(name, 1, rule, remedy=_UNPACK)
    if member.isdir() or not member.name.endswith(_ENDINGS) or Path(member.name).name.startswith("."):
        return False
    if not member.isfile():
        raise TraceError(name, 1, "it is a link or a device, not a file", remedy=_DEREFERENCE)
    return True


@contextmanager
def _damage_named(name: str, line: int) -> Iterator[None]:
    try:
        yield
    except _BoundExceeded as error:
        raise TraceError(name, line, str(error), remedy=_UNPACK) from error
    except _DAMAGE as error:
        raise TraceError(name, line, f"the packed data is damaged or cut off ({error})") from error
