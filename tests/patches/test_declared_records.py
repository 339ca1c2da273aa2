"""What the probes write is what `results.records` declares: they run in another process and cannot import it."""

from __future__ import annotations

import ast
from pathlib import Path

from patches import hooks, ring, transfer_log
from patches.hooks import HookCheck
from patches.transfer_log import Report, TransferLog
from results.records import rings
from results.records.declaration import list_record_fields
from results.records.layout import TRANSFER_LOGS
from results.records.schemas import STEP_COLUMNS
from results.records.transfer_log import ProbeEvent, ProbeStatus
from tests.results.records import ring_file

PATCHES = Path(ring.__file__).parent
OF_PROBES = ("engine_transfers.py", "mooncake_transfers.py", "nixl_transfers.py")


def test_the_ring_has_one_format() -> None:
    assert (ring.MAGIC, ring.HEADER_BYTES, ring.MISSING) == (rings.MAGIC, rings._HEADER_BYTES, rings.MISSING)
    assert ring._COUNT_OFFSET == rings._COUNT_OFFSET
    assert rings._FIXED.size == ring._JSON_OFFSET
    assert rings._FIXED.format.removesuffix("4xI") == ring._HEADER.format
    assert ring._HEADER.size + 4 == ring._JSON_LENGTH_OFFSET
    assert (ring_file.ENGINE_FIELDS, ring_file.WORKER_FIELDS) == (hooks.ENGINE_FIELDS, hooks.WORKER_FIELDS)


def test_the_columns_of_both_rings_are_the_fields_of_a_step() -> None:
    columns = {
        name if name == "t_ns" or not name.endswith("_ns") else f"{name.removesuffix('_ns')}_us"
        for name in (*hooks.ENGINE_FIELDS, *hooks.WORKER_FIELDS)
    }
    assert columns | {"role"} == set(STEP_COLUMNS)


def test_every_key_of_a_transfer_line_is_a_field_of_an_event() -> None:
    written = {key for name in OF_PROBES for key in keys_of_lines(PATCHES / name)}
    assert written | {"event"} == {one.name for one in list_record_fields(ProbeEvent)}


def test_every_key_of_a_status_is_a_field_of_it() -> None:
    report = Report(TransferLog("/nowhere"), "engine", ("promoted",), HookCheck("0.0", {}))
    assert set(report.status()) - {"event"} == {one.name for one in list_record_fields(ProbeStatus)}


def test_the_log_has_the_name_that_readers_look_for() -> None:
    assert Path("transfer.123.jsonl").match(TRANSFER_LOGS)
    assert 'f"transfer.{os.getpid()}.jsonl"' in Path(transfer_log.__file__).read_text(encoding="utf-8")


def keys_of_lines(path: Path) -> set[str]:
    """Keys of every line that the module makes: of a dict with a stamp or a request, or a call of `_make_line`."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            own = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if own & {"t_ns", "request"}:
                keys |= {str(key) for key in own}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_make_line":
            keys |= {one.arg for one in node.keywords if one.arg}
    return keys
