"""Text from outside, made harmless before a terminal gets it.

Session ids, logs of engines, traces and names of files may contain escape sequences: they could write the clipboard
(OSC 52), rename the window or hide what follows. Every place that writes to a terminal passes its text through here.
"""

from __future__ import annotations

import re

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LONE_SURROGATES = "\ud800-\udfff"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_LONE_SURROGATES}]")
_UNSAFE_IN_LINE = re.compile(f"[\x00-\x1f\x7f-\x9f{_BIDI}{_LONE_SURROGATES}]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f{_BIDI}]")
_PICTURES = 0x2400
_PICTURE_OF_DELETE = "\u2421"
_REPLACEMENT = "\ufffd"


def visible(text: str) -> str:
    """`text` with control characters (C0 but tab and line feed, DEL, C1, bidirectional) as signs of one column."""
    return _UNSAFE.sub(_make_picture, text)


def visible_line(text: str) -> str:
    """The same for text that has to stay on its line: tab and line feed are replaced too."""
    return _UNSAFE_IN_LINE.sub(_make_picture, text)


def has_controls(text: str) -> bool:
    """Whether `visible_line` would change it."""
    return not text.isprintable() and _UNSAFE_IN_LINE.search(text) is not None


def escape_controls(json: bytes) -> bytes:
    """The same JSON document with every control character escaped; JSON itself asks for that of C0 only."""
    if json.isascii() and b"\x7f" not in json:
        return json
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", json.decode()).encode()


def _make_picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return _PICTURE_OF_DELETE if code == 0x7F else _REPLACEMENT
