"""JSON that is cut, nested too deeply or no UTF-8, wherever a run or an engine may leave it: a gap or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from results.pd_lifecycle.read import CELL, read_links, read_plan
from results.records.engine_faults import list_engine_fault_gaps
from results.records.errors import ArtifactError, Refusal, ResultsError, RingError
from results.records.frames import Gap, read_cell, read_metrics
from results.records.instance_events import InstanceEvent
from results.records.layout import LifecycleLayout, RunLayout, is_complete
from results.records.reference_rates import ReferenceRates
from results.records.rings import RingReader
from results.records.run_folder import PlannedCell, RunFacts, run_facts
from results.records.skipped_cells import read_skipped
from results.records.transfer_log import read_probe
from results.registry import find_results, find_results_of_run
from results.report.differences import read_origin
from results.report.export import read_comparable
from results.routing.read import read_planned_cells, read_rows
from runners.experiments.kv_endpoints import kv_bytes_per_token
from runners.router.transfer.request_bodies import Unfit, read_answer, token_ids
from runners.router.transfer.transports import Unsound, engine_id
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.results.records.ring_file import RingFile, engine_rows
from tests.runners.load.test_stream import exchange

DEEP = b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}"
NO_UTF8 = b'{"x":"\xff"}'
DAMAGED = (
    pytest.param(DEEP, id="deep"),
    pytest.param(NO_UTF8, id="no UTF-8"),
    pytest.param(DEEP[:2000], id="deep and cut"),
    pytest.param(b"", id="empty"),
    pytest.param(b"\xff", id="no JSON"),
)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_plan_is_a_gap_and_names_no_experiment(data: bytes, tmp_path: Path) -> None:
    put(RunLayout(tmp_path).plan, data)
    _, gaps = run_facts(tmp_path)
    assert [gap.artifact for gap in gaps] == ["plan.json"]
    assert read_planned_cells(tmp_path) == ()
    assert read_plan(tmp_path)[0] == ()
    assert find_results_of_run(tmp_path) is find_results("")


LENGTHS, RATE = {"prior_context": 0, "new_tokens": 8, "output_length": 4}, {"rate_per_s": 2.0}
PLAN = msgspec.json.encode(
    {
        "experiment": "connector-tax",
        "profile": "cpu-tiny",
        "preset": "demo",
        "configs": ["plain"],
        "seed": 1,
        "cells": [
            {"cell": "a", "kind": "load", "config": "plain", "trial": 1, "params": {"phase": "A", "stem": "r4"}},
            {"cell": "b", "kind": CELL, "trial": 1, "params": LENGTHS},
        ],
        "inputs": {
            "simulated": "a model",
            "profile": {"engine": {"kind": "cpu"}},
            "engine": {"versions": {"vllm": "0.32.0"}},
            "grid": {
                "saturation": {"throughput_ratio": 0.95},
                "phase_b": {"input_tokens": [512], "output_tokens": [32], "shape_rates": {"512x32": RATE}},
                "slo": {"ttft_s": 1.0},
            },
        },
    }
)
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    "text",
    [],
    [[]],
    [{"a": 1}],
    ["text", 1],
    {},
    {"a": "text"},
    {"a": 10**400},
)


def list_places(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The keys that lead to every value inside this one."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [place, *(path for key, each in inner for path in list_places(each, (*place, key)))]


def replace_value(place: tuple[str | int, ...], value: object) -> bytes:
    """PLAN with another value there."""
    if not place:
        return msgspec.json.encode(value)
    plan = msgspec.json.decode(PLAN)
    *path, last = place
    reduce(getitem, path, plan)[last] = value
    return msgspec.json.encode(plan)


def read_all(root: Path) -> tuple[RunFacts, tuple[Gap, ...]]:
    """Whatever reads a plan reads this one."""
    facts, gaps = run_facts(root)
    read_planned_cells(root)
    read_plan(root)
    read_origin(root)
    if facts.experiment in ("", "connector-tax"):
        assert find_results_of_run(root) is find_results(facts.experiment)
    else:
        with pytest.raises(ResultsError, match="unknown experiment") as refused:
            find_results_of_run(root)
        assert refused.value.remedy
    return facts, gaps


PLACES = list_places(msgspec.json.decode(PLAN))


def test_a_whole_plan_has_no_gap(tmp_path: Path) -> None:
    put(RunLayout(tmp_path).plan, PLAN)
    facts, gaps = read_all(tmp_path)
    assert gaps == ()
    assert facts.cells == (PlannedCell("a", "plain", "A", "r4", trial=1),)
    assert (facts.shapes, facts.slo, facts.simulated) == ({"512x32": 2.0}, {"ttft_s": 1.0}, "a model")
    assert read_plan(tmp_path)[0][0].trial == 1


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:12])
def test_a_plan_with_a_value_of_another_type_is_read_as_far_as_possible(value: object, tmp_path: Path) -> None:
    for place in PLACES:
        put(RunLayout(tmp_path).plan, replace_value(place, value))
        facts, _ = read_all(tmp_path)
        assert msgspec.convert(msgspec.to_builtins(facts), RunFacts) == facts, place


@pytest.mark.parametrize("key", ["experiment", "seed", "configs", "cells", "inputs", "inputs.grid", "inputs.grid.slo"])
def test_a_value_of_another_type_is_a_gap_that_names_it(key: str, tmp_path: Path) -> None:
    for value in (1.5, True):
        put(RunLayout(tmp_path).plan, replace_value(tuple(key.split(".")), value))
        _, gaps = run_facts(tmp_path)
        assert [(gap.artifact, f"`{key}`" in gap.reason) for gap in gaps] == [("plan.json", True)]
    put(RunLayout(tmp_path).plan, replace_value((key.split(".")[0],), [None]))
    assert run_facts(tmp_path)[1]


@given(mutated([b'cell,t_unix_s,late_s,busy,stolen,waiting\na,1.0,0.3,0.5,0.2,0.1\n"b",2.0,0.1,,,\n']))
@settings(max_examples=examples(100))
@example(b'cell,t_unix_s,late_s,busy,stolen,waiting\n"' + b"x" * 200_000)
def test_samples_of_the_host(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Also where a lost quotation mark makes a cell longer than the parser allows."""
    root = tmp_path_factory.getbasetemp() / "sampled"
    put(RunLayout(root).plan, PLAN.replace(b'"simulated":"a model",', b""))
    put(RunLayout(root).host_csv, text)
    put(RunLayout(root).gpu_csv, text.replace(b"cell,t_unix_s,late_s,busy", b"t_ns,gpu,memory_used_mib,clock_mhz"))
    assert run_facts(root)[1] == ()


@pytest.mark.parametrize("data", DAMAGED[:-2])
def test_changes_that_cannot_be_read_are_said_to_be_so(data: bytes, tmp_path: Path) -> None:
    put(RunLayout(tmp_path).plan, b"{}")
    put(RunLayout(tmp_path).accepted_changes, data)
    facts, _ = run_facts(tmp_path)
    assert "cannot be read" in facts.host_notes[0]


def read_a_cell(path: Path) -> object:
    return read_cell(path)


def read_scrapes(path: Path) -> object:
    return read_metrics(path, ("a",)).gaps[0]


def read_events(path: Path) -> object:
    return read_rows(path, InstanceEvent)[1][0]


@pytest.mark.parametrize("data", DAMAGED[:3])
@pytest.mark.parametrize("read", [read_a_cell, read_scrapes, read_events])
def test_a_damaged_file_is_a_gap_that_names_it(read: Callable[[Path], object], data: bytes, tmp_path: Path) -> None:
    gap = read(put(tmp_path / "file.jsonl", data))
    assert isinstance(gap, Gap)
    assert "file.jsonl" in gap.artifact
    assert gap.reason.startswith("is damaged")


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_mark_finishes_no_cell(data: bytes, tmp_path: Path) -> None:
    assert not is_complete(put(tmp_path / "cell.json", data), "c")


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_document_is_refused_or_left_out(data: bytes, tmp_path: Path) -> None:
    put(RunLayout(tmp_path).comparable, data)
    with pytest.raises(ResultsError) as refused:
        read_comparable(tmp_path)
    assert refused.value.remedy
    with pytest.raises(ArtifactError, match="is damaged"):
        ReferenceRates.from_json(data)
    assert kv_bytes_per_token(put(tmp_path / "model" / "config.json", data).parent) is None


def test_a_bandwidth_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    put(LifecycleLayout(tmp_path).link, DEEP)
    links, _, gaps = read_links(LifecycleLayout(tmp_path), None)
    assert links == ()
    assert [gap.artifact for gap in gaps] == ["results/lifecycle/link.json"]


@given(mutated([b'{"event":"promoted","t_ns":1,"bytes":3}\n{"event":"status","t_ns":2,"pid":1}\n']))
@settings(max_examples=examples(100))
@example(DEEP + b"\n")
@example(NO_UTF8 + b"\n")
def test_a_transfer_log(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp() / "probe" / "transfer.engine.1.jsonl", text)
    log = read_probe(path.parent)
    assert all(event.t_ns is not None for event in log.events)
    assert all(gap.reason for gap in log.gaps)


@given(mutated([b'{"t_unix_s":1.0,"instance":"a","config":"plain","what":"death","text":"died"}\n' * 2]))
@settings(max_examples=examples(100))
@example(DEEP)
@example(NO_UTF8)
@example(b'{"t_unix_s":1.0,"instance":"\xff","config":"plain","what":"death","text":"died"}')
def test_deaths_and_stalls(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "faults"
    put(RunLayout(root).engine_faults, text)
    assert all(gap.artifact for gap in list_engine_fault_gaps(root))


@given(mutated([b'{"t_unix_s":1.0,"cell":"phase-a/plain/r4","reason":"too slow"}\n' * 2]))
@settings(max_examples=examples(100))
@example(DEEP)
@example(NO_UTF8)
@example(b'{"t_unix_s":1.0,"cell":"\xff"}')
def test_skipped_cells(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "skips"
    put(RunLayout(root).skipped_cells, text)
    _, gaps = read_skipped(root)
    assert all(gap.reason for gap in gaps)


ANSWER = b'{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":3},"tokens":[1,2],"0":{"engine_id":"e"}}'


@given(mutated([ANSWER]) | st.binary(max_size=40))
@settings(max_examples=examples(200))
@example(DEEP)
@example(NO_UTF8)
@example(b'{"0":{"engine_id":' + b"[" * 3000 + b"]" * 3000 + b"}}")
def test_what_engines_answer_about_a_transfer(page: bytes) -> None:
    for read in (read_answer, token_ids, engine_id):
        try:
            assert read(page)
        except (Unfit, Unsound) as error:
            assert str(error)


@given(mutated([b'{"error":{"message":"too long","code":400}}', b'{"detail":"\xc3\xa9"}']) | st.binary(max_size=40))
@settings(max_examples=examples(200))
@example(DEEP)
@example(NO_UTF8)
@example(b'{"error":{"message":"caf\xe9"}}')
def test_an_error_that_a_server_answers_is_text(body: bytes) -> None:
    made = exchange()
    made.http_status = 500
    made.feed(body, 20)
    made.complete(30)
    assert (made.error or "").startswith("HTTP 500: ")
    json.dumps(made.error).encode()


@given(data=st.data())
@settings(max_examples=examples(100))
def test_a_step_ring_cut_or_damaged_anywhere(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Damage inside a record cannot be seen: it is bare numbers. A header that cannot be right is refused."""
    path = tmp_path_factory.getbasetemp() / "engine_step.engine.7.ring"
    RingFile(path, "engine", 7, capacity=16).put(engine_rows(10))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    text = bytearray(whole[:cut] if data.draw(st.booleans()) else whole)
    for _ in range(data.draw(st.integers(0, 3)) if text else 0):
        place = data.draw(st.integers(0, min(len(text), 1000) - 1))  # the header's numbers and its JSON
        text[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path.write_bytes(bytes(text))
    try:
        with RingReader(path) as reader:
            rows = reader.read_new()
            assert rows.ndim == 2
            assert len(rows) <= reader.header.capacity
    except RingError as error:
        assert isinstance(error, Refusal)
        assert path.name in str(error)
        assert error.remedy


@pytest.mark.parametrize(
    "content", [pytest.param(b"[" * 3000, id="deep"), pytest.param(b'{"fields":["\xff"]}', id="no UTF-8")]
)
def test_a_step_ring_whose_header_cannot_be_read_is_refused(content: bytes, tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "engine_step.engine.7.ring", "engine", 7, capacity=16)
    with ring.path.open("r+b") as file:
        file.seek(60)  # how long its JSON is
        file.write(len(content).to_bytes(4, "little") + content)
    with pytest.raises(RingError, match="no JSON"):
        RingReader(ring.path)
