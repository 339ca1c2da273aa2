"""Pre-flight: a config that does not really work here is a failed gate, with the reason, in the log and as data."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from launch import preflight
from launch.ports import PortTaken
from launch.preflight import GateResult, verify
from launch.preflight_checks import GateFailed, Subject, check_connector_launched
from launch.profile import load_config
from tests.launch.engines import PROFILE, program, started
from tests.launch.fake_engine import FakeEngine, asked_about
from tests.launch.programs import SERVER

CREATED = "Creating v1 connector with name: {} and engine_id: 1"
HANDLER = "class Handler(http.server.BaseHTTPRequestHandler):\n"
BROKEN_ANSWER = 'self.answer({"error": "no"}, 500)'
COMPLETION = 'self.answer({"choices": [{"text": ""}], "usage": {"completion_tokens": body["max_tokens"]}})'


async def verified(folder: Path, code: str = SERVER, config: str = "plain", limit_s: float = 30.0) -> GateResult:
    settings = load_config(config)
    settings = msgspec.structs.replace(settings, preflight=msgspec.structs.replace(settings.preflight, limit_s=limit_s))
    async with started(program(folder, code, config)) as instance:
        await instance.wait_ready(30.0)
        return await verify(instance, settings, PROFILE, folder / "preflight" / f"verify_{config}.log")


def printing(line: str) -> str:
    """The server, with one more line in its log."""
    return f"print({line!r}, flush=True)\n{SERVER}"


def outcome(result: GateResult) -> dict[str, bool]:
    return {check.name: check.passed for check in result.checks}


async def test_a_sound_engine_passes_every_numbered_check_and_the_log_tells_it(tmp_path: Path) -> None:
    result = await verified(tmp_path)
    assert result.passed
    assert result.reason == ""
    assert [check.number for check in result.checks] == [1, 2, 3, 4]
    assert result.checks[1].detail == "5 of 5, 32 tokens each"
    assert " s of 30 s, the slowest " in result.checks[2].detail
    lines = (tmp_path / "preflight" / "verify_plain.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ", line) for line in lines)
    assert sum("request" in line and ": 200 in" in line for line in lines) == 5
    assert lines[-1].endswith("PASS")
    assert msgspec.json.decode(msgspec.json.encode(result), type=GateResult) == result


async def test_another_process_on_a_port_of_the_second_engine_fails_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def need_port(subject: Subject) -> str:
        raise PortTaken("port 1 is taken by pid 2")

    monkeypatch.setattr(preflight, "gates", lambda config: {"a second engine": need_port})
    with pytest.raises(PortTaken):
        await verified(tmp_path)


async def test_a_connector_that_left_no_trace_fails(tmp_path: Path) -> None:
    result = await verified(tmp_path, config="nixl_both")
    assert not result.passed
    assert "no connector was created, not NixlConnector or NixlPullConnector" in result.reason


@pytest.mark.parametrize(
    ("config", "created", "passed"),
    [
        ("noop_connector", "NoOpConnector", True),
        ("nixl_both", "NixlPullConnector", True),
        ("mooncake_both", "MooncakeConnector", True),
        ("mooncake_both", "NoOpConnector", False),
        ("plain", "NoOpConnector", False),
    ],
)
async def test_the_connector_in_the_log_must_be_the_configs_own(
    tmp_path: Path, config: str, created: str, passed: bool
) -> None:
    result = await verified(tmp_path, printing(CREATED.format(created)), config)
    assert result.checks[0].name.startswith("launched ")
    assert result.checks[0].passed is passed


async def test_a_connector_that_is_loaded_and_does_not_work_fails(tmp_path: Path) -> None:
    said = f"{CREATED.format('LMCacheConnectorV1')}\nSystem will operate in degraded mode (recompute)."
    result = await verified(tmp_path, printing(said), "lmcache_only")
    assert "degraded mode" in result.reason


async def test_requests_that_are_not_answered_200_fail(tmp_path: Path) -> None:
    result = await verified(tmp_path, SERVER.replace(COMPLETION, BROKEN_ANSWER))
    assert outcome(result)["requests are answered"] is False
    assert "request 1 was answered 500" in result.reason


async def test_requests_that_take_longer_than_the_limit_fail(tmp_path: Path) -> None:
    slow = SERVER.replace(COMPLETION, f"import time; time.sleep(0.4); {COMPLETION}")
    result = await verified(tmp_path, slow, limit_s=1.0)
    assert outcome(result)["requests are answered"] is False
    assert "the limit of 1 s" in result.reason


async def test_fewer_tokens_than_asked_for_fail(tmp_path: Path) -> None:
    result = await verified(tmp_path, SERVER.replace('body["max_tokens"]}}', "7}}"))
    assert "returned 7 tokens, not 32" in result.reason


async def test_an_engine_that_dies_under_the_requests_fails_every_check_that_needs_it(tmp_path: Path) -> None:
    result = await verified(tmp_path, SERVER.replace(COMPLETION, "import os; os._exit(9)"))
    assert not result.passed
    assert outcome(result)["requests are answered"] is False
    assert outcome(result)["engine did not crash"] is False


async def test_a_dead_engine_core_in_the_log_fails_even_when_the_server_still_answers(tmp_path: Path) -> None:
    result = await verified(tmp_path, printing("vllm.v1.engine.exceptions.EngineDeadError: gone"))
    assert outcome(result) == {
        "launched without a connector": True,
        "requests are answered": True,
        "requests are in time": True,
        "engine did not crash": False,
    }


@pytest.mark.parametrize(("value", "passed"), [("0.0", True), ("1.0", False)])
async def test_a_failure_counter_counts_where_the_engine_has_one(tmp_path: Path, value: str, passed: bool) -> None:
    exposition = f'vllm:engine_core_failed_total{{engine="0"}} {value}'
    code = SERVER.replace("self.answer({}, 404)", f"self.send_error(404, explain={exposition!r})")
    code = code.replace(HANDLER, f"{HANDLER}    error_message_format = '%(explain)s'\n")
    result = await verified(tmp_path, code)
    assert result.passed is passed
    assert "engine_core_failed_total is" in result.checks[-1].detail


async def test_without_a_log_no_connector_is_proven() -> None:
    async with asked_about(FakeEngine(), "mooncake_both") as subject:
        with pytest.raises(GateFailed, match="the engine has no log"):
            await check_connector_launched(subject)


async def test_the_consumers_checks_have_the_specifications_numbers(tmp_path: Path) -> None:
    result = await verified(tmp_path, printing(CREATED.format("MooncakeConnector")), "mooncake_consumer")
    assert [(check.number, check.name) for check in result.checks[:5]] == [
        (1, "dummy bootstrap answers"),
        (2, "launched with its connector"),
        (3, "model is served"),
        (4, "short request completes"),
        (5, "engine did not crash"),
    ]
    assert all(check.passed for check in result.checks[:5])
    assert result.checks[1].detail.endswith("kv_consumer")


async def test_a_connector_that_only_looks_alive_fails_its_proof(tmp_path: Path) -> None:
    result = await verified(tmp_path, printing(CREATED.format("LMCacheConnectorV1")), "lmcache_only")
    assert [check.passed for check in result.checks] == [True, True, True, True, False, True]
    assert result.reason.startswith("check 5 (proof: store and retrieve): ")


async def test_nothing_is_proven_with_an_engine_that_failed_before(tmp_path: Path) -> None:
    result = await verified(tmp_path, config="lmcache_only")
    assert not result.checks[0].passed
    assert len(result.checks) == 4


def test_the_consumer_is_asked_what_the_specification_asks() -> None:
    settings = load_config("mooncake_consumer").preflight
    assert (settings.requests, settings.max_tokens, settings.limit_s) == (1, 4, 30.0)
    multi = load_config("multi_mooncake_lmcache").preflight
    assert (multi.requests, multi.max_tokens, multi.limit_s) == (5, 32, 60.0)
