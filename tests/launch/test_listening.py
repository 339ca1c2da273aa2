"""What listens where is written down in docs/security.md: every row is compared with the code or with a socket."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.doctor import examine
from launch.doctor_rows import OK, WARN
from launch.dummy_bootstrap import DummyBootstrap
from launch.guard import SOCKETS
from launch.ports import LOOPBACK
from launch.profile import list_config_names, list_profile_names, load_config, load_profile
from results.records.layout import RunLayout, write_atomic
from results.records.router_spec import RouterSpec
from results.records.run_folder import run_facts
from runners.router.server.several import hold_port
from tests.launch import test_doctor
from tests.launch.listening import listening_addresses
from tests.launch.test_command import spec_of
from tests.launch.test_doctor import rows
from tests.runners.router.routers import instances, router

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("console", "launch", "patches", "results", "runners", "state")
LISTENS = {"bind", "create_server", "create_unix_server", "listen", "start_server", "start_unix_server"}
"""Functions by which a program of ours could listen."""
ROUTER, PROCESSES, ENGINE = "`tracon route`, a run's router", "`tracon route --processes N`", "an engine's HTTP server"
NIXL, UCX, MOONCAKE = "`VLLM_NIXL_SIDE_CHANNEL_PORT`", "UCX, NIXL's transport", "`VLLM_MOONCAKE_BOOTSTRAP_PORT`"
AMONG, DUMMY, EVENTS = "an engine's processes among themselves", "the dummy bootstrap of pre-flight", "KV events"
LINK, PROBE, OTHERS = "the receiver of `pd-lifecycle`'s measurement", "the check whether a port is free", "console"
ROWS_BY_MODULE = {
    "runners/router/server/server.py": ROUTER,
    "runners/router/server/several.py": PROCESSES,
    "runners/router/instances/kv_events.py": EVENTS,
    "runners/experiments/pd_lifecycle/link_bandwidth.py": LINK,
    "launch/dummy_bootstrap.py": DUMMY,
    "launch/ports.py": PROBE,
}
"""The row of every module of ours that listens."""
OF_ENGINES = (ENGINE, NIXL, UCX, MOONCAKE, AMONG)
python = test_doctor.python


def table() -> dict[str, str]:
    """Address by what listens, of the page's first table."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    part = page.partition("## What listens where")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in cells[1:]}


def address_of(row: str) -> str:
    (address,) = [address for what, address in table().items() if what.startswith(row)]
    return address


def modules_that_listen() -> set[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)) for path in paths if calls_of(path) & LISTENS}


def calls_of(path: Path) -> set[str]:
    """Names of the methods and functions of other modules that it calls, without `inspect.Signature.bind`."""
    text = path.read_text(encoding="utf-8")
    if not any(name in text for name in LISTENS):
        return set()
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return {
        call.func.attr
        for call in calls
        if isinstance(call.func, ast.Attribute) and "signature" not in ast.unparse(call.func.value)
    }


def test_every_module_that_listens_has_its_row_and_every_row_its_test() -> None:
    assert modules_that_listen() == set(ROWS_BY_MODULE)
    tested = (*ROWS_BY_MODULE.values(), *OF_ENGINES, OTHERS)
    rows_of = {row: [what for what in table() if what.startswith(row)] for row in tested}
    assert all(len(matches) == 1 for matches in rows_of.values()), rows_of
    assert {what for matches in rows_of.values() for what in matches} == set(table())


def test_every_port_of_every_config_is_in_the_table() -> None:
    named = set(re.findall(r"`(VLLM_\w+_PORT)`", " ".join(table())))
    assert named == {port for config in list_config_names() for port in load_config(config).ports}


@pytest.mark.parametrize("profile", list_profile_names())
@pytest.mark.parametrize("config", list_config_names())
def test_engines_get_the_addresses_of_the_table(tmp_path: Path, profile: str, config: str) -> None:
    spec = spec_of(tmp_path, config, profile)
    hosts = [word for before, word in zip(spec.argv, spec.argv[1:], strict=False) if before == "--host"]
    assert hosts == [address_of(ENGINE)]
    assert not any("0.0.0.0" in text for text in (*spec.argv, *spec.env.values()))
    assert "127.0.0.1, vLLM's default" in address_of(NIXL)
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in spec.env
    uses_nixl = "VLLM_NIXL_SIDE_CHANNEL_PORT" in spec.env
    (for_cpu,) = re.findall(r"CPU engines \(`UCX_NET_DEVICES=(\w+)`\)", address_of(UCX))
    assert spec.env.get("UCX_NET_DEVICES") == (for_cpu if uses_nixl and spec.kind == "cpu" else None)


def test_the_router_listens_where_the_table_says() -> None:
    (default,) = re.findall(r"`--host`, default (\S+)$", address_of(ROUTER))
    assert default == RouterSpec.__dataclass_fields__["host"].default == LOOPBACK
    assert address_of(PROCESSES).startswith("the same")


async def test_the_routers_socket_is_on_the_loopback() -> None:
    before = listening_addresses(os.getpid())
    async with instances("a") as backends:
        of_instances = listening_addresses(os.getpid()) - before
        async with router(backends):
            opened = listening_addresses(os.getpid()) - before - of_instances
    assert {address for address, _ in opened} == {LOOPBACK}


def test_a_held_port_does_not_listen() -> None:
    before = listening_addresses(os.getpid())
    with hold_port(LOOPBACK, 0):
        assert listening_addresses(os.getpid()) == before


async def test_the_dummy_bootstrap_listens_on_the_loopback() -> None:
    before = listening_addresses(os.getpid())
    async with DummyBootstrap(0) as bootstrap:
        ((address, port),) = listening_addresses(os.getpid()) - before
        assert bootstrap.url == f"http://{address}:{port}"
    assert address == address_of(DUMMY)


def test_the_links_receiver_listens_on_the_loopback() -> None:
    argv = [sys.executable, "-m", "runners.experiments.pd_lifecycle.link_bandwidth", "1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as receiver:
        try:
            assert receiver.stdout is not None
            port = int(receiver.stdout.readline())
            assert listening_addresses(receiver.pid) == {(address_of(LINK), port)}
        finally:
            receiver.kill()


def test_the_loopback_is_what_the_table_calls_it() -> None:
    """The check for a free port, and the KV events of a run: tests/runners/campaign/test_engine_group.py."""
    assert address_of(PROBE).startswith(LOOPBACK)
    assert address_of(EVENTS).endswith(f"a run names {LOOPBACK}")
    assert address_of(OTHERS).startswith("nothing")
    assert f"`{SOCKETS}*`" in address_of(AMONG), "tests/launch/test_sockets.py has its mode and its end"


def test_mooncake_alone_is_said_to_listen_on_every_interface() -> None:
    """That it does, and that no other config does, is seen of real engines: tests/launch/test_real_proofs.py."""
    assert [what for what, address in table().items() if "0.0.0.0" in address] == [
        what for what in table() if what.startswith(MOONCAKE)
    ]


def test_doctor_says_what_cannot_choose(python: Path) -> None:
    report = examine(load_profile("cpu-tiny"), {"mooncake_both": ("mooncake",)}, engine_python=python)
    assert rows(report)["engine"].state == OK
    row = rows(report)["mooncake ports"]
    assert (row.state, "all interfaces" in row.detail, "firewall" in row.remedy) == (WARN, True, True)


def test_a_report_says_which_engines_were_open_to_other_machines(tmp_path: Path) -> None:
    write_atomic(RunLayout(tmp_path).plan, b"{}")
    ports = {"plain": {}, "mooncake_both": {"VLLM_MOONCAKE_BOOTSTRAP_PORT": 18501}}
    for config, used in ports.items():
        launch = {"config": config, "ports": {"http": 18500, **used}}
        write_atomic(tmp_path / "results" / f"20261122_{config}" / "config.json", json.dumps(launch).encode())
    notes = " ".join(run_facts(tmp_path)[0].host_notes)
    assert "Engines of mooncake_both listened on every interface" in notes
    assert "firewall" in notes
    assert "plain" not in notes
