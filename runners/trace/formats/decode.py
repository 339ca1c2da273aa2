"""A line of JSON to a typed row, or the rule that it breaks."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from runners.trace.errors import TraceError
from runners.trace.rules import MAX_HASH

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
HashId = Annotated[int, msgspec.Meta(ge=0, le=MAX_HASH)]

T = TypeVar("T")

_BYTE = re.compile(r"\(byte (\d+)\)")


def decode(decoder: msgspec.json.Decoder[T], text: bytes, file: str, line: int) -> T:
    """The row; `line` is where `text` begins. Raises TraceError with what is wrong and where in the row."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(file, line + _lines_before(text, str(error)), _words(str(error))) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(file, line, f"not JSON: {error}") from error


def _lines_before(text: bytes, message: str) -> int:
    """How many line ends lie before the byte that the message names."""
    place = _BYTE.search(message)
    return text.count(b"\n", 0, int(place[1])) if place else 0


def _words(message: str) -> str:
    """msgspec says `Expected ... - at $.input_length`; the dollar is the row."""
    return message.replace("`$.", "`").replace("$", "row").rstrip(".")
