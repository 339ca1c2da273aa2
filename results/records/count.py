"""A count with its noun in the singular or the plural."""

from __future__ import annotations


def format_count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
