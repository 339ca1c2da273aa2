"""The phases of `connector-tax`: plans, records and file names use a tag, reports a name."""

from __future__ import annotations

CONFIRM_TAG = "C"
CONFIRM = "confirm"
"""The cells of the confirm stage."""


def name_phase(tag: str) -> str:
    """`A`, `B` and `Bp` are their own names."""
    return CONFIRM if tag == CONFIRM_TAG else tag
