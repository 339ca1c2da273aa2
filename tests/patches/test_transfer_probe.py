from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest

from patches import mooncake_transfers, plugin, step_probe, transfer_log, transfer_probe

from . import fake_transfers, fake_vllm
from .conftest import PutModules
from .fake_transfers import (
    Connector,
    KVCacheBlocks,
    MooncakeConnectorWorker,
    NixlPullConnectorWorker,
    Pull,
    Request,
    Socket,
    Telemetry,
    decode_request,
    metadata,
    nixl_metadata,
    prefill_request,
    wanted,
)
from .fake_vllm import Role, make_factory, make_scheduler, step_output
from .ring_file import only_ring
from .transfer_file import Line, await_failure, events, latest_status, said

STATUSES = 2
"""One of the engine and one of the worker: both live in this process."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine built from stand-ins, watched, and where it writes."""

    scheduler: Any
    worker: Any
    """The worker's connector."""
    folder: Path

    def schedule(self, *requests: Request, cached: int = 0) -> None:
        """A step in which these requests begin."""
        self.scheduler.requests |= {request.request_id: request for request in requests}
        output = step_output({request.request_id: 1 for request in requests})
        for new in output.scheduled_new_reqs:
            new.num_computed_tokens = cached
        self.scheduler.next_output = output
        assert self.scheduler.schedule() is output

    def lines(self, count: int) -> list[Line]:
        """Its first `count` events."""
        found = events(said(self.folder, count + STATUSES))
        assert len(found) == count
        return found

    def status(self, role: str, lines: int = STATUSES) -> Line:
        return latest_status(said(self.folder, lines), role)


def start(
    put_modules: PutModules,
    folder: Path,
    worker: object = None,
    connector: Callable[[], Any] | None = None,
    scheduler: type | None = None,
    version: str = "0.32.0",
) -> Engine:
    """Install the probe on stand-ins and construct what vLLM constructs, worker first as it does."""
    factory: Any = make_factory(connector or (lambda: Connector(worker)))
    scheduler = scheduler or make_scheduler(lambda: factory.create_connector("config", Role.SCHEDULER, "kv"))
    put_modules(fake_vllm.modules(scheduler, factory, version))
    transfer_probe.install(str(folder))
    made = factory.create_connector("config", Role.WORKER, "kv")
    return Engine(scheduler(fake_vllm.config()), made, folder)


@pytest.fixture
def engine(tmp_path: Path, put_modules: PutModules) -> Engine:
    return start(put_modules, tmp_path)


def names(lines: list[Line]) -> list[str]:
    return [line["event"] for line in lines]


def test_the_scheduler_of_a_prefill_engine_tells_when_it_begins_and_ends(engine: Engine) -> None:
    request = prefill_request("p-1", "t-1")
    engine.schedule(request, cached=128)
    connector = engine.scheduler.connector
    assert connector.request_finished_all_groups(request, ([1, 2, 3], [4])) == (True, None)
    begun, done = engine.lines(2)
    assert begun["event"] == "scheduled"
    assert (begun["request"], begun["transfer"], begun["part"]) == ("p-1", "t-1", "prefill")
    assert (begun["prompt_tokens"], begun["cached_tokens"]) == (640, 128)
    assert done["event"] == "prefill_done"
    assert (done["request"], done["transfer"], done["blocks"], done["ok"]) == ("p-1", "t-1", 4, True)
    assert begun["t_ns"] < done["t_ns"]


def test_a_prefill_whose_blocks_are_not_kept_says_so(engine: Engine) -> None:
    engine.scheduler.connector.sends = False
    request = prefill_request("p-1", "t-1")
    request.status = SimpleNamespace(name="FINISHED_STOPPED")
    engine.scheduler.connector.request_finished_all_groups(request, ([1],))
    (done,) = engine.lines(1)
    assert (done["ok"], done["status"]) == (False, "FINISHED_STOPPED")


def test_the_scheduler_of_a_decode_engine_tells_of_blocks_promotion_and_its_steps(engine: Engine) -> None:
    request = decode_request("d-1", transfer_id="t-1")
    connector = engine.scheduler.connector
    engine.schedule()
    connector.update_state_after_alloc(request, KVCacheBlocks([[7, 8, 9]]), 384)
    for _ in range(4):
        engine.schedule()
    engine.scheduler._update_waiting_for_remote_kv(request)
    connector.update_state_after_alloc(request, KVCacheBlocks([[]]), 0)
    engine.schedule(request, cached=639)
    allocated, promoted, steps, begun = engine.lines(4)
    assert names([allocated, promoted, steps, begun]) == ["blocks_allocated", "promoted", "steps", "scheduled"]
    assert {line["request"] for line in (allocated, promoted, steps, begun)} == {"d-1"}
    assert (allocated["external_tokens"], allocated["local_tokens"], allocated["blocks"]) == (384, 256, 3)
    assert (promoted["ok"], promoted["num_computed"]) == (True, 639)
    assert steps["steps"] == 4
    assert steps["step_p50_us"] > 0
    assert (begun["part"], begun["cached_tokens"]) == ("decode", 639)
    assert connector.calls.count("update_state_after_alloc") == 2


def test_a_promotion_after_a_failed_load_is_not_ok(engine: Engine) -> None:
    request = decode_request("d-1", transfer_id="t-1")
    engine.scheduler.failed_recving_kv_req_ids.add("d-1")
    engine.scheduler._update_waiting_for_remote_kv(request)
    (promoted,) = engine.lines(1)
    assert promoted["ok"] is False
    assert engine.scheduler.failed_recving_kv_req_ids == set()


def test_a_full_hit_has_blocks_but_none_to_fill(engine: Engine) -> None:
    decode = decode_request("d-1", transfer_id="t-1")
    engine.scheduler.connector.update_state_after_alloc(decode, KVCacheBlocks([[1]]), 0)
    (allocated,) = engine.lines(1)
    assert (allocated["external_tokens"], allocated["blocks"]) == (0, 0)


def test_ordinary_requests_are_seen_when_scheduled_and_never_taken_for_parts_of_a_transfer(engine: Engine) -> None:
    request, again = Request("r-1"), Request("r-2", num_preemptions=1)
    engine.schedule(request, again)
    engine.scheduler.connector.update_state_after_alloc(request, KVCacheBlocks([[1]]), 0)
    engine.scheduler.connector.request_finished_all_groups(request, ([1],))
    engine.schedule(prefill_request("p-1", "t-1"))
    first, last = engine.lines(2)
    assert (first["request"], first["part"], first["transfer"]) == ("r-1", "none", None)
    assert last["request"] == "p-1", "what was preempted is not scheduled for the first time"


def mooncake(put_modules: PutModules, folder: Path) -> tuple[Engine, Any]:
    worker = MooncakeConnectorWorker()
    return start(put_modules, folder, worker), worker


def in_a_multi_connector(worker: object) -> fake_transfers.MultiConnector:
    return fake_transfers.MultiConnector(fake_vllm.Connector(), Connector(worker))


@pytest.mark.parametrize("wrap", [Connector, in_a_multi_connector], ids=["alone", "in a MultiConnector"])
def test_a_transfer_of_mooncake_is_followed_from_end_to_end(
    tmp_path: Path, put_modules: PutModules, wrap: Callable[[object], Any]
) -> None:
    worker: Any = MooncakeConnectorWorker()
    engine = start(put_modules, tmp_path, connector=partial(wrap, worker))
    pull, sock = Pull("d-1", "t-1", [[4, 5, 6]]), Socket()

    async def both_sides() -> None:
        await worker.record_send_reqs(metadata({"p-1": ("t-1", [])}))
        await worker.record_send_reqs(metadata({"p-1": ("t-1", [[1, 2, 3, 4, 5]])}))
        assert worker.start_load_kv(metadata(pulls=[pull])) == "started"
        await worker.receive_kv_from_single_worker("tcp://there", {"d-1": pull})
        await worker.send_kv_to_decode(b"d", sock, wanted(pull))

    asyncio.run(both_sides())
    worker.process_pulling_result(SimpleNamespace(ok_reqs=["d-1"], err_reqs=None), {"d-1": pull})
    lines = engine.lines(7)
    assert names(lines) == [
        "send_ready", "load_started", "pull_sent", "metadata_received", "write", "response_sent", "received",
    ]  # fmt: skip
    assert {line["transfer"] for line in lines} == {"t-1"}
    assert [line["request"] for line in lines] == ["p-1", "d-1", "d-1", "p-1", "p-1", None, "d-1"]
    assert [line["t_ns"] for line in lines] == sorted(line["t_ns"] for line in lines)
    ready, _, asked, got, write, _, received = lines
    assert (ready["blocks"], asked["blocks"], got["blocks"], received["blocks"]) == (5, 3, 3, 3)
    assert (got["decode_request"], received["ok"]) == ("d-1", True)
    assert got["t_ns"] < write["t5_ns"] <= write["t6_ns"]
    assert (write["bytes"], write["operations"], write["blocks"], write["layers"]) == (2 * 3 * 65536, 2, 3, 2)
    assert (write["ok"], write["code"], write["transfers"], write["decode_requests"]) == (True, 0, ["t-1"], ["d-1"])
    assert write["build_params_us"] > 0
    assert write["submit_us"] is None
    assert (worker.writes, sock.sent) == (1, [(b"d", b"answer")])


class TimedSocket(Socket):
    """Knows when each answer left, and has the sender wait a little."""

    def __init__(self) -> None:
        super().__init__()
        self.left_ns: list[int] = []

    async def send_multipart(self, parts: object) -> None:
        self.left_ns.append(perf_counter_ns())
        await asyncio.sleep(0.01)
        await super().send_multipart(parts)


def test_an_answer_is_stamped_before_it_can_arrive(tmp_path: Path, put_modules: PutModules) -> None:
    """Else it bounds the offset between the clocks of two hosts from the wrong side."""
    engine, worker = mooncake(put_modules, tmp_path)
    worker.reqs_need_send = {"t-1": fake_transfers.Send("p-1", "t-1")}
    sock, begun_ns = TimedSocket(), perf_counter_ns()
    asyncio.run(worker.send_kv_to_decode(b"d", sock, wanted(Pull("d-1", "t-1", [[1]]))))
    (answer,) = [line for line in engine.lines(3) if line["event"] == "response_sent"]
    assert begun_ns < answer["t_ns"] <= sock.left_ns[-1]
    assert sock.sent == [(b"d", b"answer")]


def test_one_write_for_several_transfers_names_them_all_and_leaves_out_the_refused(
    tmp_path: Path, put_modules: PutModules
) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    pulls = [Pull("d-1", "t-1", [[1]]), Pull("d-2", "t-2", [[2, 3]]), Pull("d-3", "t-3", [[4]]), Pull("d-4", "t-4", [])]
    worker.refused = ["d-3"]
    worker.reqs_need_send = {
        pull.transfer_id: fake_transfers.Send(f"p{pull.d_req_id}", pull.transfer_id) for pull in pulls
    }
    asyncio.run(worker.send_kv_to_decode(b"d", Socket(), wanted(*pulls)))
    (write,) = [line for line in engine.lines(9) if line["event"] == "write"]
    assert (write["request"], write["transfer"]) == (None, None)
    assert (write["transfers"], write["decode_requests"]) == (["t-1", "t-2"], ["d-1", "d-2"])
    assert (write["blocks"], write["bytes"]) == (3, 2 * 3 * 65536)


def test_a_pull_of_what_nobody_prefills_is_seen_to_come_and_not_to_be_answered(
    tmp_path: Path, put_modules: PutModules
) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    with pytest.raises(KeyError):  # the worker's own error
        asyncio.run(worker.send_kv_to_decode(b"d", Socket(), wanted(Pull("d-1", "t-1", [[1, 2]]))))
    (asked,) = engine.lines(1)
    assert (asked["event"], asked["request"], asked["decode_request"]) == ("metadata_received", None, "d-1")
    assert (asked["transfer"], asked["blocks"]) == ("t-1", 2)


@pytest.mark.parametrize(
    ("said", "waited_us"), [("900 2000 3", 5.0), (None, None), ("", None), ("x y z", None)], ids=repr
)
def test_a_write_says_how_long_its_thread_waited_for_a_core_where_the_kernel_does(
    tmp_path: Path, put_modules: PutModules, monkeypatch: pytest.MonkeyPatch, said: str | None, waited_us: float | None
) -> None:
    path = tmp_path / "schedstat"
    monkeypatch.setattr(mooncake_transfers, "SCHEDSTAT", path)
    if said is not None:
        path.write_text(said)
    engine, worker = mooncake(put_modules, tmp_path / "log")

    async def write() -> None:
        built = await worker._build_transfer_params(
            [("d-1", fake_transfers.Send("p-1", "t-1"))], wanted(Pull("d-1", "t-1", [[1, 2]])), [], []
        )
        if waited_us is not None:
            worker.on_write = lambda: path.write_text("950 7000 4")
        assert worker._send_blocks("session", *built[:3]) == 0

    asyncio.run(write())
    (line,) = engine.lines(1)
    assert (line["ok"], line["run_delay_us"]) == (True, waited_us)


@pytest.mark.parametrize("code", [7, RuntimeError("the peer is gone")], ids=["an error code", "an exception"])
def test_a_write_that_fails_is_not_ok(tmp_path: Path, put_modules: PutModules, code: int | Exception) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    worker.code = code
    lengths: list[int] = []

    async def write() -> object:
        built = await worker._build_transfer_params(
            [("d-1", fake_transfers.Send("p-1", "t-1"))], wanted(Pull("d-1", "t-1", [[1, 2]])), [], []
        )
        lengths.extend(built[2])
        return worker._send_blocks("session", *built[:3])

    if isinstance(code, Exception):
        with pytest.raises(RuntimeError, match="the peer is gone"):
            asyncio.run(write())
    else:
        assert asyncio.run(write()) == code
    (line,) = engine.lines(1)
    assert line["ok"] is False
    assert line["code"] == (None if isinstance(code, Exception) else code)
    assert line["bytes"] == sum(lengths)


def test_a_pull_that_fails_is_told_once_and_one_that_waits_for_others_not_yet(
    tmp_path: Path, put_modules: PutModules
) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    pulls = {"d-1": Pull("d-1", "t-1", [[1]], pull_tasks_count=2), "d-2": Pull("d-2", "t-2", [[2]])}
    worker.process_pulling_result(SimpleNamespace(ok_reqs=["d-1"], err_reqs=["d-2"], err_msg="expired"), pulls)
    worker._handle_failed_recv(pulls, ["d-2", "unknown"], "again")
    worker.process_pulling_result(SimpleNamespace(ok_reqs=["d-1", "d-2"], err_reqs=None), pulls)
    failed, received = engine.lines(2)
    assert (failed["request"], failed["ok"], failed["reason"]) == ("d-2", False, "expired")
    assert (received["request"], received["ok"]) == ("d-1", True)


def nixl(put_modules: PutModules, folder: Path, ranks: int = 1) -> tuple[Engine, Any]:
    worker = NixlPullConnectorWorker(ranks)
    return start(put_modules, folder, worker), worker


def test_a_read_of_nixl_is_followed_from_end_to_end(tmp_path: Path, put_modules: PutModules) -> None:
    engine, worker = nixl(put_modules, tmp_path)
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[4, 5, 6]])}, send=["p-9"]))
    worker.get_transfer_results()
    lines = engine.lines(5)
    assert names(lines) == ["load_started", "pull_sent", "send_ready", "write", "received"]
    loading, asked, ready, write, received = lines
    assert {line["transfer"] for line in lines} == {None}
    assert {line["remote_request"] for line in (loading, asked, write, received)} == {"p-1"}
    assert (ready["request"], ready["remote_request"]) == ("p-9", None)
    assert (loading["blocks"], asked["blocks"], write["blocks"], write["layers"]) == (3, 3, 3, 2)
    assert (write["bytes"], write["operations"], write["post_us"]) == (196608, 2, 300)
    assert asked["t_ns"] < write["t5_ns"]
    assert write["t6_ns"] == write["t5_ns"] + 1_000
    assert (write["t6_from"], write["ok"], write["submit_us"]) == ("telemetry", True, None)
    assert write["build_params_us"] > 0
    assert received["ok"]


def test_a_request_read_from_several_workers_is_one_write(tmp_path: Path, put_modules: PutModules) -> None:
    engine, worker = nixl(put_modules, tmp_path, ranks=3)
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[4, 5]])}))
    worker.get_transfer_results()
    (write,) = [line for line in engine.lines(6) if line["event"] == "write"]
    assert (write["bytes"], write["operations"], write["blocks"]) == (3 * 196608, 6, 6)


@pytest.mark.parametrize(
    ("telemetry", "volume"),
    [(None, (None, None)), (Telemetry(xferDuration=3_600_000_000), (196608, 2))],
    ids=["its volume is unknown without telemetry", "whatever nixl says"],
)
def test_a_read_ends_no_later_than_the_worker_saw_its_end(
    tmp_path: Path, put_modules: PutModules, telemetry: Telemetry | None, volume: tuple[int | None, int | None]
) -> None:
    engine, worker = nixl(put_modules, tmp_path)
    worker.nixl_wrapper.telemetry = telemetry
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[4]])}))
    worker.get_transfer_results()
    (write,) = [line for line in engine.lines(4) if line["event"] == "write"]
    assert (write["t6_from"], write["t6_ns"]) == ("poll", write["t_ns"])
    assert (write["bytes"], write["operations"], write["ok"]) == (*volume, True)


def test_a_read_that_fails_is_not_ok_and_the_next_one_of_that_request_is_its_own(
    tmp_path: Path, put_modules: PutModules
) -> None:
    engine, worker = nixl(put_modules, tmp_path)
    worker.broken = {"d-1"}
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[4]])}))
    worker.get_transfer_results()
    worker.broken = set()
    worker.nixl_wrapper.telemetry = Telemetry(totalBytes=5)
    worker.start_load_kv(nixl_metadata({"d-1": ("p-2", [[4]])}))
    worker.get_transfer_results()
    lines = engine.lines(8)
    assert [(line["remote_request"], line["ok"]) for line in lines if line["event"] == "received"] == [
        ("p-1", False), ("p-2", True),
    ]  # fmt: skip
    assert [(line["ok"], line["bytes"]) for line in lines if line["event"] == "write"] == [(False, None), (True, 5)]


def test_a_full_hit_is_no_read(tmp_path: Path, put_modules: PutModules) -> None:
    engine, worker = nixl(put_modules, tmp_path)
    worker.start_load_kv(nixl_metadata({"d-1": ("p-1", [[]])}))
    worker.get_transfer_results()
    assert names(engine.lines(3)) == ["load_started", "pull_sent", "received"]


def test_the_status_says_what_nixl_cannot_show(tmp_path: Path, put_modules: PutModules) -> None:
    engine, _ = nixl(put_modules, tmp_path)
    status = engine.status("worker")
    unseen = {"metadata_received", "response_sent", "write_submit"}
    assert {event for event, there in status["available"].items() if not there} == unseen == set(status["reasons"])


def test_an_engine_without_a_connector_says_what_it_cannot_show(tmp_path: Path, put_modules: PutModules) -> None:
    scheduler = make_scheduler()
    put_modules(fake_vllm.modules(scheduler, make_factory(fake_vllm.Connector)))
    transfer_probe.install(str(tmp_path))
    engine = Engine(scheduler(fake_vllm.config()), None, tmp_path)
    engine.schedule(Request("r-1"))
    status, begun = said(tmp_path, 2)
    assert (status["event"], status["role"], status["connector"]) == ("status", "engine", None)
    assert status["available"] == {
        "scheduled": True, "prefill_done": False, "blocks_allocated": False, "promoted": False, "steps": False,
    }  # fmt: skip
    assert set(status["reasons"].values()) == {"no KV connector in this engine"}
    assert (begun["event"], begun["request"]) == ("scheduled", "r-1")


def test_a_connector_that_moves_nothing_between_engines_says_so(tmp_path: Path, put_modules: PutModules) -> None:
    engine = start(put_modules, tmp_path, connector=fake_vllm.MultiConnector)
    status = engine.status("worker")
    assert not any(status["available"].values())
    assert "MultiConnector has no worker of Mooncake's or NIXL's" in status["reasons"]["write"]


def _without(kind: type, method: str) -> type:
    """That class of another version, in which a method has another name."""
    members = {name: member for name, member in vars(kind).items() if name not in (method, "__dict__", "__weakref__")}
    return type(kind.__name__, (), members)


@pytest.mark.parametrize(
    ("kind", "method", "lost"),
    [
        (MooncakeConnectorWorker, "record_send_reqs", {"send_ready"}),
        (MooncakeConnectorWorker, "start_load_kv", {"load_started"}),
        (MooncakeConnectorWorker, "receive_kv_from_single_worker", {"pull_sent"}),
        (MooncakeConnectorWorker, "send_kv_to_decode", {"metadata_received", "response_sent"}),
        (MooncakeConnectorWorker, "_build_transfer_params", {"write"}),
        (MooncakeConnectorWorker, "_send_blocks", {"write"}),
        (MooncakeConnectorWorker, "process_pulling_result", {"received"}),
        (MooncakeConnectorWorker, "_handle_failed_recv", {"received"}),
        (NixlPullConnectorWorker, "_read_blocks", {"pull_sent", "write"}),
        (NixlPullConnectorWorker, "_pop_done_transfers", {"write"}),
        (NixlPullConnectorWorker, "get_transfer_results", {"received"}),
    ],
)
def test_a_hook_that_another_version_lacks_costs_its_events_and_no_other(
    tmp_path: Path, put_modules: PutModules, kind: type, method: str, lost: set[str]
) -> None:
    whole = start(put_modules, tmp_path / "whole", kind()).status("worker")
    worker = _without(kind, method)()
    engine = start(put_modules, tmp_path / "lacking", worker, version="0.99.0")
    status = engine.status("worker")
    assert status["untested_version"] is True
    assert {event for event in lost if status["reasons"][event] == f"{kind.__name__}.{method}: missing"} == lost
    before = {event for event, there in whole["available"].items() if there}
    assert {event for event, there in status["available"].items() if there} == before - lost
    assert method not in vars(worker)


def test_a_method_with_other_parameters_is_left_alone(tmp_path: Path, put_modules: PutModules) -> None:
    class Older(MooncakeConnectorWorker):
        async def _build_transfer_params(self, ready_reqs: object, agent_meta: object) -> str:  # type: ignore[override]
            return "as before"

    worker = Older()
    engine = start(put_modules, tmp_path, worker)
    status = engine.status("worker")
    assert "unknown signature (ready_reqs, agent_meta)" in status["reasons"]["write"]
    assert "_build_transfer_params" not in vars(worker)
    assert "_send_blocks" not in vars(worker), "without the one the other tells nothing"
    assert asyncio.run(worker._build_transfer_params(None, None)) == "as before"


@pytest.mark.parametrize(
    ("method", "lost"), [("_update_waiting_for_remote_kv", {"promoted", "steps"}), ("schedule", {"scheduled", "steps"})]
)
def test_a_scheduler_hook_that_does_not_fit_costs_its_events(
    tmp_path: Path, put_modules: PutModules, method: str, lost: set[str]
) -> None:
    factory: Any = make_factory(lambda: Connector(MooncakeConnectorWorker()))
    scheduler = make_scheduler(lambda: factory.create_connector("config", Role.SCHEDULER, "kv"))

    def other(self: object, step: object) -> str:
        return "as before"

    setattr(scheduler, method, other)
    put_modules(fake_vllm.modules(scheduler, factory))
    assert set(transfer_probe.install(str(tmp_path)).misfits) == {f"Scheduler.{method}"}
    made = scheduler(fake_vllm.config())
    assert getattr(made, method)(None) == "as before"
    status = latest_status(said(tmp_path, 1), "engine")
    assert {event for event, there in status["available"].items() if not there} == lost
    assert all("unknown signature (self, step)" in status["reasons"][event] for event in lost)


class Hostile:
    """Whatever is asked of it is not what was expected."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"no {name} in this version")


def test_an_error_of_the_probe_ends_its_event_and_nothing_else(
    tmp_path: Path, put_modules: PutModules, capfd: pytest.CaptureFixture[str]
) -> None:
    engine, worker = mooncake(put_modules, tmp_path)
    connector = engine.scheduler.connector
    engine.scheduler.requests = Hostile()
    output = step_output({"r-1": 1})
    engine.scheduler.next_output = output
    for _ in range(3):
        assert engine.scheduler.schedule() is output
    hostile = Hostile()
    assert connector.request_finished_all_groups(hostile, ()) == (True, None)
    with pytest.raises(AttributeError, match="no kv_transfer_params"):  # the connector's own, as without a probe
        connector.update_state_after_alloc(hostile, None, 0)
    with pytest.raises(AttributeError, match="no request_id"):
        engine.scheduler._update_waiting_for_remote_kv(hostile)
    assert worker.start_load_kv(hostile) == "started"

    async def pull() -> None:
        await worker.receive_kv_from_single_worker("tcp://there", Hostile())

    asyncio.run(pull())
    worker._handle_failed_recv({}, ["d-1"], "lost")
    worker.process_pulling_result(SimpleNamespace(ok_reqs=None, err_reqs=None), Hostile())
    pull_1 = Pull("d-1", "t-1", [[1]])
    worker.process_pulling_result(SimpleNamespace(ok_reqs=["d-1"], err_reqs=None), {"d-1": pull_1})
    lines = said(tmp_path, STATUSES + 6)
    stopped = {"scheduled", "prefill_done", "blocks_allocated", "load_started", "pull_sent"}
    worn = latest_status(lines, "engine")["reasons"] | latest_status(lines, "worker")["reasons"]
    assert {event for event, why in worn.items() if why.startswith("stopped: ")} == stopped
    assert names(events(lines)) == ["received"]
    assert capfd.readouterr().err == ""


def test_an_engine_whose_folder_cannot_be_written_serves_on(
    tmp_path: Path, put_modules: PutModules, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    engine, worker = mooncake(put_modules, tmp_path / "file")
    for number in range(3):
        engine.schedule(prefill_request(f"p-{number}", f"t-{number}"))
        assert worker.start_load_kv(metadata()) == "started"
    (log,) = [log for log in transfer_log._LOGS if log._folder == tmp_path / "file"]
    await_failure(log)
    engine.schedule(prefill_request("p-9", "t-9"))
    assert capfd.readouterr().err.count("[tracon] transfer log off: ") == 1
    assert (tmp_path / "file").read_text() == ""


def test_two_probes_see_the_same_engine(tmp_path: Path, put_modules: PutModules) -> None:
    for first, second in ((step_probe.install, transfer_probe.install), (transfer_probe.install, step_probe.install)):
        folder = tmp_path / first.__module__
        factory: Any = make_factory(lambda: Connector(MooncakeConnectorWorker()))
        scheduler = make_scheduler(partial(factory.create_connector, "config", Role.SCHEDULER, "kv"))
        put_modules(fake_vllm.modules(scheduler, factory))
        for install in (first, second, first, second):
            install(str(folder / "engine_step.jsonl") if install is step_probe.install else str(folder))
        worker = factory.create_connector("config", Role.WORKER, "kv")
        engine = Engine(scheduler(fake_vllm.config()), worker, folder)
        engine.schedule(prefill_request("p-1", "t-1"))
        engine.scheduler.update_from_output(engine.scheduler.next_output, "model output")
        fake_vllm.work(worker, engine.scheduler.next_output.kv_connector_metadata)
        assert names(engine.lines(1)) == ["scheduled"]
        assert [ring.count for ring in (only_ring(folder), only_ring(folder, "worker"))] == [1, 1]


def test_the_variable_turns_the_probe_on(
    tmp_path: Path, put_modules: PutModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(plugin.STEP_LOG_VARIABLE, raising=False)
    scheduler = make_scheduler()
    put_modules(fake_vllm.modules(scheduler, make_factory(fake_vllm.Connector)))
    monkeypatch.delenv(plugin.TRANSFER_LOG_VARIABLE, raising=False)
    untouched = dict(vars(scheduler))
    plugin.register()
    assert dict(vars(scheduler)) == untouched
    monkeypatch.setenv(plugin.TRANSFER_LOG_VARIABLE, str(tmp_path / "transfers"))
    plugin.register()
    Engine(scheduler(fake_vllm.config()), None, tmp_path).schedule(Request("r-1"))
    assert names(said(tmp_path / "transfers", 2)) == ["status", "scheduled"]
