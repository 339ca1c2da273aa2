"""Decodes a line of JSON to a typed row, or names the rule that it violates."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from runners.trace.source import TraceError

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

T = TypeVar("T")

_BYTE = re.compile(r"\(byte (\d+)\)")


def decode_row(decoder: msgspec.json.Decoder[T], text: bytes, file: str, line: int) -> T:
    """`line`: the line on which `text` begins. Raises TraceError with the fault and its position in the row."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(file, line + _count_lines_before(text, str(error)), _make_plain_message(str(error))) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(file, line, f"not JSON: {error}") from error


def _count_lines_before(text: bytes, message: str) -> int:
    """Number of line ends before the byte that the message names."""
    position = _BYTE.search(message)
    return text.count(b"\n", 0, int(position[1])) if position else 0


def _make_plain_message(message: str) -> str:
    """Replace the dollar in msgspec's `Expected ... - at $.input_length`, which stands for the row."""
    return message.replace("`$.", "`").replace("$", "row").rstrip(".")
