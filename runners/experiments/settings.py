"""`--set KEY=VALUE`: what the user changes of a preset, before the preset is checked."""

from __future__ import annotations

import tomllib
from typing import Any

from runners.errors import RunnerError


def setting(text: str, example: str) -> tuple[str, Any]:
    """Key and value of one setting, the value as TOML writes it; what is no TOML value is text.

    Raises RunnerError, with `example` in its remedy, where there is no key or no value.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RunnerError(f"{text!r} is no setting", remedy=f"write KEY=VALUE, e.g. --set {example}")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return key.strip(), parsed


def put(raw: dict[str, Any], key: str, value: object) -> None:
    """Set the value of a dotted key in nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
    raw[last] = value
