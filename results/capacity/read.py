"""Reads the points of a search from the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from results.capacity.search import Size
from results.records.points import PointRecord

_POINT = msgspec.json.Decoder(PointRecord)


def read_points(folder: Path) -> Mapping[Size, list[PointRecord]]:
    """The points in the folder of one policy, by size, in the order of their traces; empty where there is no folder.

    Raises msgspec.DecodeError for a damaged file, OSError where the folder or a file cannot be read.
    """
    points: dict[Size, list[PointRecord]] = {}
    try:
        paths = sorted(folder.iterdir())  # `glob` takes a folder that it cannot open for an empty one
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for path in (path for path in paths if path.suffix == ".json"):
        point = _POINT.decode(path.read_bytes())
        points.setdefault(Size(point.instances, point.prefill_instances), []).append(point)
    return {size: sorted(rows, key=lambda one: one.trial) for size, rows in points.items()}
