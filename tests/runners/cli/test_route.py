"""`tracon route`: a standalone router, from the command line to its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx
import pytest
from typer.main import get_command

from results.records.errors import Refusal
from results.records.router_spec import InstanceSpec, KvEndpoint, Prewarm, RouterSpec, TransferRules
from runners.cli import app
from runners.cli.route import MOVES, _Narrator, _read_instances
from runners.errors import RunnerError
from runners.router.messages import RouterLine, RouterReady, RouterTick, TickInstance
from tests.e2e.cli import tracon
from tests.runners.router.routers import instances


def route(*words: str) -> None:
    """The command in this process."""
    get_command(app).main(["route", *words], standalone_mode=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[RouterSpec]:
    """Of the routers that the command would have served."""
    specs: list[RouterSpec] = []
    monkeypatch.setattr("runners.router.server.serve.serve", lambda spec, tell: specs.append(spec))
    return specs


async def test_it_routes_until_it_is_interrupted(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with instances("a", "b") as (a, b):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runners.cli", "route", "-i", f"first={a.url}", "-i", b.url, "--port", "0"),
            *("--policy", "round_robin", "--decisions", str(log), "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(30):
            ready = json.loads(await process.stdout.readline())["ready"]
            assert ready["instances"] == ["first", "i1"]
            async with httpx.AsyncClient(base_url=ready["url"], trust_env=False, verify=False) as http:
                for number in range(4):
                    body = {"prompt": [1, 2], "stream": True, "user": "u"}
                    answer = await http.post("/v1/completions", json=body, headers={"x-request-id": f"r-{number}"})
                    assert answer.status_code == 200
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
        end = json.loads(out.splitlines()[-1])["end"]
        assert (process.returncode, end["requests"], end["picks"]) == (0, 4, 4), err
        assert len(a.seen) == len(b.seen) == 2
        assert log.read_bytes().count(b"\n") == 4
    why = tracon("why", str(log), "r-2", workspace=tmp_path)
    assert why.returncode == 0, why.stderr
    assert "first" in why.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "it has no instance"),
        (("-i", "ftp://x"), "no http(s) URL"),
        (("-i", "http://h:99999"), "no http(s) URL"),
        (("-i", "http://h:port"), "no http(s) URL"),
        (("-i", "http://[h"), "no http(s) URL"),
        (("-i", "http://127.0.0.1:1", "--policy", "nope"), "no policy 'nope'"),
        (("-i", "http://127.0.0.1:1", "--policy", "unified", "--set", "nope=1"), "no parameter 'nope'"),
        (("-i", "http://127.0.0.1:1", "--set", "nope"), "KEY=VALUE"),
        (("-i", "http://127.0.0.1:1", "--index", "events"), "kv_events"),
        (("-i", "http://127.0.0.1:1", "--kv-events", "z=tcp://h:1"), "names z"),
        (("--spec", "/nowhere.json"), "/nowhere.json"),
        (("-i", "a=http://h:1", "--transfer", "mooncake"), "bootstrap '' is no http(s) URL"),
        (("-i", "a=http://h:1,bootstrap=http://h:99999", "--transfer", "mooncake"), "is no http(s) URL"),
        (("-i", "a=http://h:1", "--transfer", "pigeon"), "transport is 'pigeon'"),
        (("-i", "a=http://h:1,bootstrap=http://h:9"), "no transport is named"),
        (("-i", "a=http://h:1,shoe=9", "--transfer", "nixl"), "no setting shoe"),
        (("-i", "a=http://h:1,kv_bytes_per_token=x", "--transfer", "nixl"), "kv_bytes_per_token"),
        (("--prefill", "http://h:1,kv_role=kv_consumer", "--transfer", "nixl"), "its connector is a kv_consumer"),
        (("-i", "http://h:1", "--transfer", "nixl", "--transfer-timeout", "0"), "transfer time"),
    ],
)
def test_what_it_cannot_do_it_says_with_a_remedy(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        route(*arguments)
    assert said in str(refused.value)
    assert refused.value.remedy
    assert refused.value.exit_code == 2


def test_instances_are_named_and_given_their_roles() -> None:
    texts = {"both": ["http://h:1/?a=b", "x=http://h:2"], "prefill": ["http://h:3"], "decode": ["http://h:4"]}
    members = _read_instances(texts, {"p0": "tcp://h:5,tcp://h:6"}, 4096, None)
    assert [(member.instance, member.role) for member in members] == [
        ("i0", "both"),
        ("x", "both"),
        ("p0", "prefill"),
        ("d0", "decode"),
    ]
    assert (members[2].kv_events, members[2].kv_replay) == ("tcp://h:5", "tcp://h:6")
    assert members[0].kv_capacity_tokens == 4096
    with pytest.raises(RunnerError, match="names q"):
        _read_instances(texts, {"q": "tcp://h:5"}, None, None)


def test_a_transport_is_named_once_and_each_instance_says_the_rest() -> None:
    texts = {
        "both": ["a=http://h:1,bootstrap=http://h:9,kv_bytes_per_token=512"],
        "prefill": None,
        "decode": ["http://h:2,kv_role=kv_consumer"],
    }
    both, decode = _read_instances(texts, {}, None, "mooncake")
    assert both.transfer == KvEndpoint("mooncake", bootstrap="http://h:9", kv_bytes_per_token=512)
    assert (decode.url, decode.transfer) == ("http://h:2", KvEndpoint("mooncake", "kv_consumer"))
    (plain,) = _read_instances({"both": ["http://h:1"], "prefill": None, "decode": None}, {}, None, None)
    assert plain.transfer is None


def test_every_rule_of_transfers_can_be_told_and_the_help_names_its_default(served: list[RouterSpec]) -> None:
    route("-i", "http://h:1")
    values = {
        "--transfer-timeout": 9.0, "--transfer-attempts": 3, "--quarantine-failures": 4, "--quarantine-window": 5.0,
        "--quarantine": 6.0, "--quarantine-max": 7.0, "--transfer-min-tokens": 8, "--transfer-queue": 2,
        "--transfer-priority": -1,
    }  # fmt: skip
    options = [text for name, value in values.items() for text in (name, str(value))]
    route("-i", "http://h:1", *options, "--no-transfer-counts")
    usual, changed = (spec.transfer for spec in served)
    assert usual == TransferRules()
    assert changed == TransferRules(9.0, 3, 4, 5.0, 6.0, 7.0, 8, 2, count=False, priority=-1)
    params = {name: param for param in get_command(app).commands["route"].params for name in param.opts}  # type: ignore[attr-defined]
    fields = ("timeout_s", "attempts", "failures_to_quarantine", "window_s", "quarantine_s", "quarantine_max_s")
    for name, field in zip(values, (*fields, "min_tokens", "queue"), strict=False):
        assert f"(default: {getattr(usual, field):g})." in params[name].help
        assert params[name].rich_help_panel == MOVES


def test_a_person_is_told_of_instances_that_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    tell = _Narrator(RouterSpec((InstanceSpec("a", "http://h:1"),)))

    def tick(why: str) -> RouterLine:
        row = TickInstance("a", not why, why, 0, 0, 0, 0)
        return RouterLine(tick=RouterTick(0, "unified", (row,), 0, {}, (), 0, 0))

    for why in ("", "draining", "draining", ""):
        tell(tick(why))
    assert capsys.readouterr().err.splitlines() == ["a is not picked: draining", "a is picked again"]


def test_a_prompt_is_computed_ahead_by_every_instance(tmp_path: Path, served: list[RouterSpec]) -> None:
    shared = tmp_path / "shared.json"
    shared.write_text('{"model": "m", "token_ids": [1, 2, 3, 4]}')
    kv_aware = ("-i", "http://h:1", "--policy", "kv_aware")
    route(*kv_aware, "--prewarm", str(shared))
    route(*kv_aware, "--prewarm", str(shared), "--set", "prewarm_tokens=2")
    assert [spec.prewarm for spec in served] == [Prewarm("m", (1, 2, 3, 4)), Prewarm("m", (1, 2))]
    with pytest.raises(RunnerError, match="no prompt is named"):
        route(*kv_aware, "--set", "prewarm_tokens=2")
    shared.write_text('{"model": "m"}')
    with pytest.raises(RunnerError, match="token_ids"):
        route(*kv_aware, "--prewarm", str(shared))


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), 0), (("--reserved-output", "20"), 20), (("--reserved-output", "max_tokens"), "max_tokens")],
)
def test_what_is_reserved_for_an_answer_is_an_option(
    options: tuple[str, ...], expected: object, served: list[RouterSpec]
) -> None:
    route("-i", "http://h:1", *options)
    assert served[0].reserved_output == expected


@pytest.mark.parametrize(
    ("options", "announced"),
    [
        ((), "policy unified_spread: As unified, but new sessions go"),
        (("--policy", "unified"), "policy unified: The session's owner if"),
        (
            ("--policy", "unified", "--set", "spread_cold=true"),
            "policy unified with spread_cold=true, which is unified_spread: As unified, but new sessions go",
        ),
        (
            ("--policy", "unified_spread", "--set", "spread_cold=false"),
            "policy unified_spread with spread_cold=false, which is unified: The session's owner if",
        ),
        (
            ("--policy", "unified", "--set", "overload_factor=1.3", "--set", "bs_offset=1"),
            "policy unified with overload_factor=1.3, bs_offset=1: The session's owner if",
        ),
    ],
)
def test_it_says_by_which_rule_it_decides(
    options: tuple[str, ...], announced: str, served: list[RouterSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    route("-i", "http://h:1", *options)
    _Narrator(served[0])(RouterLine(ready=RouterReady("http://127.0.0.1:1", 1, ("i0",), 16)))
    assert announced in " ".join(capsys.readouterr().err.split())


def test_the_rule_of_a_file_s_own_variant_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from runners.router.policies.unified import Unified\n\n\n"
        "class Own(Unified, frozen=True, kw_only=True):\n"
        '    """My own rule."""\n\n    name = "own"\n    source = "mine"\n'
    )
    spec = RouterSpec((InstanceSpec("a", "http://h:1"),), policy=str(own), parameters={"spread_cold": True})
    _Narrator(spec)(RouterLine(ready=RouterReady("http://127.0.0.1:1", 1, ("a",), 16)))
    assert "with spread_cold=True: My own rule." in " ".join(capsys.readouterr().err.split())
