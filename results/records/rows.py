"""Rows of JSONL files whose record has older versions. Each row states its version; one without is of version 1.

The rows of one file may have several versions: `interference.jsonl` is assembled from the files of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from results.records.decisions import DECISION_VERSION, DecisionRecord
from results.records.declaration import UnknownVersion, Upgrade, decode_versioned, rename_fields
from results.records.samples import INTERFERENCE_VERSION, InterferenceRecord

_Row = TypeVar("_Row")


class _Stated(msgspec.Struct):
    version: int = 1


def decode_rows(raw: bytes, kind: type[_Row]) -> tuple[_Row, ...]:
    """The rows of a file. Raises one of DAMAGED_JSON for a damaged row, msgspec.DecodeError for an unknown version."""
    decoder = msgspec.json.Decoder(kind)
    if kind not in _VERSIONS:
        return tuple(decoder.decode_lines(raw))
    return tuple(decode_row(line, decoder) for line in raw.splitlines() if line.strip())


def decode_row(line: bytes, decoder: msgspec.json.Decoder[_Row]) -> _Row:
    """One row of the decoder's type, upgraded to the present version. Raises msgspec.DecodeError, as `decode_rows`."""
    present, upgrades = _VERSIONS[decoder.type]
    try:
        if _read_version(line).version == present:
            return decoder.decode(line)
        return decode_versioned(line, decoder.type, present, upgrades, unstated=1)
    except UnknownVersion as error:
        raise msgspec.DecodeError(str(error)) from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


_read_version = msgspec.json.Decoder(_Stated).decode


def upgrade_decision_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """`ttft_s` and `e2e_s` of the outcome are the first and the last byte; an instance retains what it kept."""
    loads = [rename_fields(load, {"kept_tokens": "retained_tokens"}) for load in row["cluster"]["instances"]]
    outcome = row.get("outcome")
    return row | {
        "cluster": row["cluster"] | {"instances": loads},
        "outcome": outcome and rename_fields(outcome, {"ttft_s": "first_byte_s", "e2e_s": "last_byte_s"}),
        "version": 2,
    }


def upgrade_decision_from_2(row: dict[str, Any]) -> dict[str, Any]:
    """When the pick was made and how long it waited for KV were not recorded."""
    return row | {"version": 3}


def upgrade_interference_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """What was called TPOT is the gap between two tokens, ITL."""
    names = {f"tpot_{part}_s": f"itl_{part}_s" for part in ("before", "during", "after")}
    return rename_fields(row, names) | {"version": 2}


_VERSIONS: Mapping[type, tuple[int, Mapping[int, Upgrade]]] = {
    DecisionRecord: (DECISION_VERSION, {1: upgrade_decision_from_1, 2: upgrade_decision_from_2}),
    InterferenceRecord: (INTERFERENCE_VERSION, {1: upgrade_interference_from_1}),
}
"""Present version and upgrades of every record that has older versions."""
