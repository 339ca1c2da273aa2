from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches import hooks, step_probe
from patches.engine_steps import count_tokens

from . import fake_vllm
from .conftest import PutModules
from .fake_vllm import Role, decode_step, make_factory, make_scheduler, sent_to_worker, step_output, work
from .ring_file import only_ring

STEP_TIMES = ("step_duration_ns", "exec_ns", "update_ns", "engine_step_ns")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine built from stand-ins, probed, and where its rings lie."""

    scheduler: Any
    worker: Any
    folder: Path

    def step(self, output: fake_vllm.SchedulerOutput, counts: tuple[int, int] = (1, 0)) -> object:
        """One step as the engine core makes it, with the worker in another process."""
        self.scheduler.next_output, self.scheduler.counts = output, counts
        scheduled = self.scheduler.schedule()
        assert scheduled is output
        if self.worker is not None:
            work(self.worker, sent_to_worker(scheduled.kv_connector_metadata))
        result: object = self.scheduler.update_from_output(scheduled, "model output")
        return result


def start(
    put_modules: PutModules,
    folder: Path,
    connector: Callable[[], Any] | None = fake_vllm.Connector,
    scheduler: type | None = None,
    factory: type | None = None,
    batches: int | None = 1,
    **replaced: Any,
) -> Engine:
    """Install the probe on stand-ins and construct what vLLM constructs, worker first as it does."""
    factory = factory or make_factory(connector or fake_vllm.Connector)
    create = getattr(factory, "create_connector", None)

    def for_scheduler() -> object:
        return factory.create_connector("config", Role.SCHEDULER, "kv")  # type: ignore[attr-defined]

    scheduler = scheduler or make_scheduler(for_scheduler if connector is not None else None)
    put_modules(fake_vllm.modules(scheduler, factory, **replaced))
    step_probe.install(str(folder / "engine_step.jsonl"))
    worker = None
    if connector is not None and create is not None:
        worker = factory.create_connector("config", Role.WORKER, "kv")  # type: ignore[attr-defined]
    return Engine(scheduler(fake_vllm.config(batches)), worker, folder)


def test_a_step_is_recorded_with_its_times_and_counts(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    result = engine.step(step_output({"a": 7}, {"b": (1, 3), "c": (5, 0)}), counts=(3, 2))
    assert result == ("updated", "model output")
    (row,) = only_ring(tmp_path).rows
    assert row["step_id"] == 1
    assert (row["num_running"], row["num_waiting"], row["scheduled_requests"]) == (3, 2, 3)
    assert (row["prefill_tokens"], row["decode_tokens"]) == (12, 1)
    times = {field: row[field] for field in STEP_TIMES}
    assert all(value is not None and value > 0 for value in times.values())
    assert row["step_duration_ns"] + row["exec_ns"] + row["update_ns"] == row["engine_step_ns"]  # type: ignore[operator]
    assert 0 < row["build_meta_ns"] < row["step_duration_ns"]  # type: ignore[operator]


def test_the_status_is_there_before_the_first_step(tmp_path: Path, put_modules: PutModules) -> None:
    start(put_modules, tmp_path, batches=2)
    status = only_ring(tmp_path).status
    assert status["step_timing_available"] is True
    assert status["reason"] is None
    assert status["unavailable"] == {}
    assert status["batch_queue"] is True
    assert status["untested_version"] is False
    assert set(status["hooks"].values()) == {True}
    assert only_ring(tmp_path, "worker").status["step_timing_available"] is True


def test_worker_records_carry_the_engines_step_ids(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    for _ in range(20):
        engine.step(decode_step(3))
    steps = [row["step_id"] for row in only_ring(tmp_path).rows]
    rows = only_ring(tmp_path, "worker").rows
    assert [row["step_id"] for row in rows] == steps == list(range(1, 21))
    for field in ("get_finished_ns", "start_load_kv_ns", "wait_for_save_ns"):
        assert all((row[field] or 0) > 0 for row in rows)


def test_the_connector_does_its_work_as_before(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    output = decode_step(1)
    engine.step(output)
    assert work(engine.worker, output.kv_connector_metadata) == "results"
    assert engine.worker.calls == ["start_load_kv", "wait_for_save", "get_finished"] * 2
    assert engine.scheduler.connector.calls == ["build_connector_meta"]


def test_without_a_connector_there_is_no_worker_ring_and_the_field_says_why(
    tmp_path: Path, put_modules: PutModules
) -> None:
    engine = start(put_modules, tmp_path, connector=None)
    engine.step(decode_step(2))
    ring = only_ring(tmp_path)
    assert ring.rows[0]["build_meta_ns"] is None
    assert ring.status["unavailable"] == {"build_meta_ns": "no KV connector in this engine"}
    assert ring.status["step_timing_available"] is True
    assert list(tmp_path.glob("*.worker.*")) == []


def test_multi_connector_and_its_children_do_their_work_as_before(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path, connector=fake_vllm.MultiConnector)
    output = decode_step(1)
    engine.step(output)
    (row,) = only_ring(tmp_path, "worker").rows
    assert row["step_id"] == 1
    assert row["get_finished_ns"] is not None
    assert work(engine.worker, output.kv_connector_metadata) == "results+results"
    for child in engine.worker._connectors:
        assert child.calls == ["start_load_kv", "get_finished"] * 2


def test_versions_before_transfer_results_are_timed_at_get_finished(tmp_path: Path, put_modules: PutModules) -> None:
    class Older(fake_vllm.Connector):
        get_transfer_results = None  # type: ignore[assignment]

    class OldConnector:
        def __init__(self) -> None:
            self.inner = Older()

        def __getattr__(self, name: str) -> object:
            if name == "get_transfer_results":
                raise AttributeError(name)
            return getattr(self.inner, name)

    engine = start(put_modules, tmp_path, connector=OldConnector)
    engine.scheduler.next_output = output = decode_step(1)
    engine.scheduler.schedule()
    engine.worker.bind_connector_metadata(output.kv_connector_metadata)
    engine.worker.get_finished(set())
    engine.worker.clear_connector_metadata()
    (row,) = only_ring(tmp_path, "worker").rows
    assert row["get_finished_ns"] is not None
    assert row["start_load_kv_ns"] is None


def test_steps_that_overlap_keep_their_own_times(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    first, second = decode_step(1), decode_step(2)
    for output in (first, second):
        engine.scheduler.next_output = output
        engine.scheduler.schedule()
    for output in (first, second):
        engine.scheduler.update_from_output(output, None)
    rows = only_ring(tmp_path).rows
    assert [(row["step_id"], row["decode_tokens"]) for row in rows] == [(1, 1), (2, 2)]
    assert rows[1]["t_ns"] < rows[0]["t_ns"] + rows[0]["engine_step_ns"]  # type: ignore[operator]
    exits = [row["t_ns"] + row["engine_step_ns"] for row in rows]  # type: ignore[operator]
    assert rows[1]["period_ns"] == exits[1] - exits[0]


def test_the_period_is_unknown_after_idleness(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    for busy in (True, False, True):
        engine.scheduler.busy = busy
        engine.step(decode_step(1))
    assert [row["period_ns"] is None for row in only_ring(tmp_path).rows] == [True, False, True]


def test_outputs_that_never_come_back_do_not_pile_up(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    kept = [decode_step(1) for _ in range(1000)]
    for output in kept:
        engine.scheduler.next_output = output
        engine.scheduler.schedule()
    engine.step(decode_step(4))
    assert only_ring(tmp_path).rows[-1]["decode_tokens"] == 4
    assert only_ring(tmp_path).count == 1


def test_metadata_that_takes_no_stamp_costs_the_join_only(tmp_path: Path, put_modules: PutModules) -> None:
    class Slotted(fake_vllm.Connector):
        metadata = fake_vllm.SlottedMetadata

    engine = start(put_modules, tmp_path, connector=Slotted)
    engine.step(decode_step(1))
    (row,) = only_ring(tmp_path, "worker").rows
    assert row["step_id"] is None
    assert row["get_finished_ns"] is not None
    ring = only_ring(tmp_path)
    assert ring.rows[0]["build_meta_ns"] is not None
    assert any("AttributeError" in str(why) for why in ring.status["hooks"].values())


def test_a_probe_that_fails_stops_itself_and_not_the_step(
    tmp_path: Path, put_modules: PutModules, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = start(put_modules, tmp_path)
    engine.step(decode_step(1))
    engine.scheduler.get_request_counts = lambda: "not two numbers"
    for _ in range(3):
        assert engine.step(decode_step(1)) == ("updated", "model output")
    ring = only_ring(tmp_path)
    assert ring.count == 1
    assert ring.status["step_timing_available"] is False
    assert "ValueError" in ring.status["reason"]
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_an_unwritable_log_harms_nothing(tmp_path: Path, put_modules: PutModules) -> None:
    (tmp_path / "file").write_text("")
    engine = start(put_modules, tmp_path / "file")
    for _ in range(3):
        assert engine.step(decode_step(1)) == ("updated", "model output")


def test_installing_twice_measures_once(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path)
    step_probe.install(str(tmp_path / "engine_step.jsonl"))
    engine.step(decode_step(1))
    assert only_ring(tmp_path).count == 1


@dataclass(frozen=True, slots=True)
class Misfit:
    """A vLLM that differs in one place, and what that must cost."""

    name: str
    damage: Callable[[type], None]
    null: frozenset[str]
    timing_available: bool = True


def _replace(method: str, function: object) -> Callable[[type], None]:
    return lambda scheduler: setattr(scheduler, method, function)


def _remove(method: str) -> Callable[[type], None]:
    return lambda scheduler: delattr(scheduler, method)


MISFITS = (
    Misfit(
        "Scheduler.update_from_output",
        _replace("update_from_output", lambda self, scheduler_output, output: ("updated", output)),
        frozenset({"exec_ns", "update_ns", "engine_step_ns", "period_ns"}),
        timing_available=False,
    ),
    Misfit("Scheduler.get_request_counts", _remove("get_request_counts"), frozenset({"num_running", "num_waiting"})),
    Misfit(
        "Scheduler.get_request_counts",
        _replace("get_request_counts", lambda self, kind: 0),
        frozenset({"num_running", "num_waiting"}),
    ),
    Misfit("Scheduler.has_requests", _remove("has_requests"), frozenset({"period_ns"})),
)


@pytest.mark.parametrize("misfit", MISFITS, ids=lambda misfit: misfit.name)
def test_a_scheduler_hook_that_does_not_fit_costs_its_fields(
    tmp_path: Path, put_modules: PutModules, misfit: Misfit
) -> None:
    scheduler = make_scheduler()
    misfit.damage(scheduler)
    engine = start(put_modules, tmp_path, connector=None, scheduler=scheduler)
    for _ in range(2):
        assert engine.step(decode_step(1)) == ("updated", "model output")
    ring = only_ring(tmp_path)
    assert ring.status["hooks"][misfit.name] is not True
    assert ring.status["step_timing_available"] is misfit.timing_available
    assert (ring.status["reason"] is None) is misfit.timing_available
    null = {field for field, value in ring.rows[-1].items() if value is None and not field.startswith("pad")}
    assert null == misfit.null | {"build_meta_ns", *hooks.CHILD_FIELDS}
    assert misfit.null <= set(ring.status["unavailable"])


def test_a_schedule_of_unknown_signature_is_left_alone(tmp_path: Path, put_modules: PutModules) -> None:
    scheduler = make_scheduler()
    scheduler.schedule = lambda self, budget=0: self.next_output  # type: ignore[attr-defined]
    original = scheduler.schedule  # type: ignore[attr-defined]
    engine = start(put_modules, tmp_path, connector=None, scheduler=scheduler)
    assert scheduler.schedule is original  # type: ignore[attr-defined]
    assert engine.step(decode_step(1)) == ("updated", "model output")
    ring = only_ring(tmp_path)
    assert ring.count == 0
    assert ring.status["step_timing_available"] is False
    assert "unknown signature (self, budget)" in ring.status["reason"]
    assert set(hooks.ENGINE_FIELDS) <= set(ring.status["unavailable"])


def test_outputs_of_unknown_shape_cost_the_token_counts(tmp_path: Path, put_modules: PutModules) -> None:
    @dataclass
    class Renamed:
        req_ids: list[str]

    engine = start(put_modules, tmp_path, connector=None, cached=Renamed)
    engine.step(decode_step(3))
    ring = only_ring(tmp_path)
    assert (ring.rows[0]["prefill_tokens"], ring.rows[0]["decode_tokens"]) == (None, None)
    assert ring.rows[0]["scheduled_requests"] == 3
    assert "no attribute num_output_tokens" in ring.status["unavailable"]["prefill_tokens"]


def test_a_factory_of_unknown_signature_costs_the_callbacks(tmp_path: Path, put_modules: PutModules) -> None:
    class KVConnectorFactory:
        @classmethod
        def create_connector(cls, config: object, role: Role) -> object:
            return fake_vllm.Connector()

    engine = start(put_modules, tmp_path, connector=None, factory=KVConnectorFactory)
    engine.step(decode_step(1))
    ring = only_ring(tmp_path)
    assert ring.status["step_timing_available"] is True
    lost = {"build_meta_ns", "get_finished_ns", "start_load_kv_ns", "wait_for_save_ns"}
    assert set(ring.status["unavailable"]) == lost
    assert ring.rows[0]["engine_step_ns"] is not None


@pytest.mark.parametrize(
    ("method", "lost", "timed"),
    [
        ("start_load_kv", {"start_load_kv_ns"}, True),
        ("wait_for_save", {"wait_for_save_ns"}, True),
        ("clear_connector_metadata", set(hooks.WORKER_FIELDS), False),
    ],
)
def test_a_connector_hook_that_does_not_fit_costs_its_field(
    tmp_path: Path, put_modules: PutModules, method: str, lost: set[str], timed: bool
) -> None:
    def too_many(self: object, one: object, two: object, three: object) -> None:
        return None

    connector = type("Connector", (fake_vllm.Connector,), {method: too_many})
    engine = start(put_modules, tmp_path, connector=connector)
    assert method not in vars(engine.worker)
    status = only_ring(tmp_path, "worker").status
    assert set(status["unavailable"]) == lost
    assert status["step_timing_available"] is timed
    assert f"connector.{method}" in status["hooks"]


def test_the_connectors_inside_a_multiconnector_are_timed_apart(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path, connector=fake_vllm.MultiConnector)
    engine.step(decode_step(1))
    ring, worker = only_ring(tmp_path), only_ring(tmp_path, "worker")
    assert ring.status["children"] == ["Connector", "Connector"]
    for rows, whole in ((ring.rows, "build_meta_ns"), (worker.rows, "get_finished_ns")):
        (row,) = rows
        assert (row["child1_ns"] or 0) > 0
        assert (row["child2_ns"] or 0) > 0
        most = (row[whole] or 0) + (row.get("start_load_kv_ns") or 0)
        assert (row["child1_ns"] or 0) + (row["child2_ns"] or 0) < most


def test_a_connector_alone_has_no_children(tmp_path: Path, put_modules: PutModules) -> None:
    start(put_modules, tmp_path).step(decode_step(1))
    ring = only_ring(tmp_path)
    assert ring.status["children"] == []
    assert [row["child1_ns"] for row in (*ring.rows, *only_ring(tmp_path, "worker").rows)] == [None, None]


def test_the_header_states_what_vllm_settled_on(tmp_path: Path, put_modules: PutModules) -> None:
    config = fake_vllm.config(2)
    config.scheduler_config = SimpleNamespace(async_scheduling=True, max_num_seqs=256)
    config.compilation_config = SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"))
    config.cache_config = SimpleNamespace(num_gpu_blocks=4096, kv_cache_layout="LBHNC")
    put_modules(fake_vllm.modules(scheduler := make_scheduler(), make_factory(fake_vllm.Connector)))
    step_probe.install(str(tmp_path / "engine_step.jsonl"))
    scheduler(config)
    settings = only_ring(tmp_path).status["settings"]
    assert (settings["async_scheduling"], settings["max_num_seqs"]) == (True, 256)
    assert (settings["cudagraph_mode"], settings["kv_blocks"]) == ("FULL_AND_PIECEWISE", 4096)
    assert settings["kv_cache_layout"] == "LBHNC"
    assert settings["kv_capacity_tokens"] is None


def test_another_version_whose_hooks_fit_is_used_and_marked(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path, version="0.26.0", batches=None)
    engine.step(decode_step(1))
    ring = only_ring(tmp_path)
    assert ring.status["untested_version"] is True
    assert ring.status["batch_queue"] is None
    assert ring.count == 1


requests = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.tuples(st.integers(1, 100), st.integers(0, 5)), max_size=12
)


@given(new=st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.integers(1, 100), max_size=5), cached=requests)
def test_every_scheduled_token_is_prefill_or_decode(new: dict[str, int], cached: dict[str, tuple[int, int]]) -> None:
    output = step_output(new, cached)
    output.scheduled_cached_reqs.resumed_req_ids = resumed = set(list(cached)[:2])
    decode = sum(tokens for request, (tokens, produced) in cached.items() if produced and request not in resumed)
    assert count_tokens(output) == (output.total_num_scheduled_tokens - decode, decode)


def test_an_engine_whose_stderr_is_gone_serves_on(
    tmp_path: Path, put_modules: PutModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    (tmp_path / "file").write_text("")
    monkeypatch.setattr("patches.engine_log.os.write", refuse)
    engine = start(put_modules, tmp_path / "file")
    assert engine.step(decode_step(1)) == ("updated", "model output")
