"""Which rows of two runs are the same thing: by what identifies it in every run, else by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Matched(Generic[Row]):
    pairs: tuple[tuple[Row, Row], ...]
    """In the order of the first run."""
    only_first: tuple[Row, ...]
    only_second: tuple[Row, ...]


def match_rows(
    first: Sequence[Row],
    second: Sequence[Row],
    identify: tuple[Callable[[Row], str], Callable[[Row], str]],
    name: Callable[[Row], str],
) -> Matched[Row]:
    """Rows of one identity are a pair. `identify`: of each run's rows, empty = not known; `name`: unique in a run.

    Where one of two rows has no identity, which exports of older versions lack, one name makes the pair. An identity
    that several rows of a run have is none.
    """
    firsts, seconds = (_identify_once(rows, own) for rows, own in zip((first, second), identify, strict=True))
    by_identity = {identity: index for index, identity in enumerate(seconds) if identity}
    by_name = {name(row): index for index, row in enumerate(second)}
    partner: dict[int, int] = {}
    for index, identity in enumerate(firsts):
        if identity in by_identity:
            partner[index] = by_identity[identity]
    taken = set(partner.values())
    for index, row in enumerate(first):
        other = by_name.get(name(row))
        if index in partner or other is None or other in taken or (firsts[index] and seconds[other]):
            continue
        partner[index] = other
        taken.add(other)
    return Matched(
        tuple((first[index], second[partner[index]]) for index in sorted(partner)),
        tuple(row for index, row in enumerate(first) if index not in partner),
        tuple(row for index, row in enumerate(second) if index not in taken),
    )


def _identify_once(rows: Sequence[Row], identify: Callable[[Row], str]) -> list[str]:
    identities = [identify(row) for row in rows]
    counts = Counter(identities)
    return [identity if counts[identity] == 1 else "" for identity in identities]
