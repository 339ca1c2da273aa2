"""The command that starts an engine: exact, re-runnable, and recorded without secrets."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from launch.command import LaunchSpec, Unwritable, build_launch, build_whole_env, count_ports_needed, write_launch
from launch.environment import Engine
from launch.profile import ConnectorConfig, Profile, list_config_names, list_profile_names, load_config, load_profile
from results.records.layout import ConfigLayout

SECRET = "hf_" + "x" * 30


def spec_of(
    folder: Path,
    config: str | ConnectorConfig = "plain",
    profile: str | Profile = "cpu-tiny",
    launch: int = 1,
    **options: Any,
) -> LaunchSpec:
    settings = load_profile(profile) if isinstance(profile, str) else profile
    engine = Engine(
        kind=settings.engine.kind, python=Path(sys.executable), root=folder, site_packages=folder, versions={},
        env={"LD_LIBRARY_PATH": "/somewhere/lib"},
    )  # fmt: skip
    config = load_config(config) if isinstance(config, str) else config
    return build_launch(
        settings, config, engine,
        instance=f"{config.name}-{launch}", port=18123, layout=ConfigLayout(folder), launch=launch, **options,
    )  # fmt: skip


def with_engine(**changes: Any) -> Profile:
    """The CPU profile with other settings of its engine."""
    profile = load_profile("cpu-tiny")
    return msgspec.structs.replace(profile, engine=msgspec.structs.replace(profile.engine, **changes))


@pytest.mark.parametrize("config", list_config_names())
def test_what_proofs_need_of_an_engine_is_never_given_to_a_measured_one(tmp_path: Path, config: str) -> None:
    measured, proven = (spec_of(tmp_path, config, preflight=preflight) for preflight in (False, True))
    assert proven.argv == measured.argv
    assert {name: value for name, value in proven.env.items() if name not in measured.env} == (
        load_config(config).preflight.env
    )
    assert not set(measured.env) & {"VLLM_SERVER_DEV_MODE", "TRACON_REPAIRS"}


def test_the_transfer_log_is_written_beside_the_rings_of_launches_that_ask_for_it(tmp_path: Path) -> None:
    without, logged = (spec_of(tmp_path, "mooncake_both", launch=2, transfer_log=log) for log in (False, True))
    assert "TRACON_TRANSFER_LOG" not in without.env
    assert {name: value for name, value in logged.env.items() if name not in without.env} == {
        "TRACON_TRANSFER_LOG": str(logged.rings)
    }


def test_a_profile_cannot_let_a_cpu_engine_compile(tmp_path: Path) -> None:
    compiling = {"TORCHDYNAMO_DISABLE": "0", "TORCH_COMPILE_DISABLE": "0"}
    spec = spec_of(tmp_path, profile=with_engine(enforce_eager=False, env=compiling))
    assert "--enforce-eager" not in spec.argv
    assert (spec.env["TORCHDYNAMO_DISABLE"], spec.env["TORCH_COMPILE_DISABLE"]) == ("1", "1")


def test_neither_can_a_config_nor_take_what_a_cpu_engine_needs(tmp_path: Path) -> None:
    taken = {"TORCHDYNAMO_DISABLE": "0", "TRACON_CPU_CONNECTORS": "0", "TRACON_RUN_FIRST": "0"}
    spec = spec_of(tmp_path, msgspec.structs.replace(load_config("plain"), env=taken))
    assert {name: spec.env[name] for name in taken} == dict.fromkeys(taken, "1")


def option(spec: LaunchSpec, name: str) -> str:
    return spec.argv[spec.argv.index(name) + 1]


def test_a_cell_may_give_its_engines_a_block_size_arguments_and_variables(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, profile=with_engine(block_size=32),
        extra_args=("--kv-events-config", "{}"), extra_env={"CUDA_VISIBLE_DEVICES": "3"},
    )  # fmt: skip
    assert option(spec, "--block-size") == "32"
    assert option(spec, "--kv-events-config") == "{}"
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert "--block-size" not in spec_of(tmp_path).argv


@pytest.mark.parametrize("profile", list_profile_names())
@pytest.mark.parametrize("config", list_config_names())
def test_every_config_of_every_profile_gives_a_command_on_loopback(tmp_path: Path, profile: str, config: str) -> None:
    spec = spec_of(tmp_path, config, profile)
    assert spec.argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert (option(spec, "--host"), option(spec, "--port")) == ("127.0.0.1", "18123")
    assert option(spec, "--served-model-name") == spec.model == load_profile(profile).model.served_name
    assert spec.env["VLLM_PLUGINS"] == "tracon"
    assert spec.env["AGENTIC_STEP_LOG_PATH"] == str(tmp_path / "rings" / "1" / "engine_step.jsonl")
    assert ("TRACON_CPU_CONNECTORS" in spec.env) == (spec.kind == "cpu")
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        wanted = "1" if spec.kind == "cpu" else None
        assert spec.env.get(name) == spec.base_env.get(name) == wanted, "a fork server imports torch with base_env"
    assert len(spec.ports) == count_ports_needed(load_config(config)) == len(set(spec.ports.values()))


def test_plain_has_no_connector_and_a_connector_travels_as_json(tmp_path: Path) -> None:
    assert "--kv-transfer-config" not in spec_of(tmp_path, "plain").argv
    noop = json.loads(option(spec_of(tmp_path, "noop_connector"), "--kv-transfer-config"))
    assert noop == {
        "kv_connector": "NoOpConnector",
        "kv_connector_module_path": "tracon_patches.noop_connector",
        "kv_role": "kv_both",
    }


def test_ports_a_connector_needs_are_set_in_its_environment(tmp_path: Path) -> None:
    assert spec_of(tmp_path, "mooncake_both").env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "18124"
    assert spec_of(tmp_path, "nixl_both").env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "18124"


def test_the_one_process_executor_of_a_cpu_engine_needs_its_environment_variable(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert (spec.env["VLLM_ENABLE_V1_MULTIPROCESSING"], spec.started_by) == ("0", "fork_server/uni")
    gpu = spec_of(tmp_path, profile="h20-qwen3-coder-30b")
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in gpu.env
    assert gpu.started_by == "spawn/default"
    assert option(gpu, "--gpu-memory-utilization") == "0.9"


def test_a_cuda_engine_names_its_gpus_and_counts_them_as_nvidia_smi_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert spec_of(tmp_path).devices == (), "a CPU engine has none"
    gpu = spec_of(tmp_path, profile="h20-qwen3-coder-30b")
    assert (gpu.devices, gpu.env["CUDA_DEVICE_ORDER"]) == (("0",), "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    chosen = spec_of(tmp_path, profile="h20-qwen3-coder-30b")
    assert chosen.devices == ("5",)
    write_launch(chosen, ConfigLayout(tmp_path))
    assert "CUDA_VISIBLE_DEVICES=5,6" in (tmp_path / "launch.sh").read_text()
    own = spec_of(tmp_path, profile="h20-qwen3-coder-30b", extra_env={"CUDA_VISIBLE_DEVICES": "6"})
    assert (own.devices, own.env["CUDA_VISIBLE_DEVICES"]) == (("6",), "6")


def test_the_shared_environment_says_nothing_of_one_config(tmp_path: Path) -> None:
    shared = {frozenset(spec_of(tmp_path, config).base_env.items()) for config in list_config_names()}
    assert len(shared) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o027, 0o750)])
def test_launch_sh_is_executable_for_those_who_may_read_it(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        layout = ConfigLayout(tmp_path)
        write_launch(spec_of(tmp_path), layout)
    finally:
        os.umask(before)
    assert layout.launch_sh.stat().st_mode & 0o777 == mode


def test_launch_sh_runs_exactly_the_recorded_command(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "folder" $HOME'
    show = "import json, os, sys; print(json.dumps([sys.argv, os.environ['ODD'], os.getcwd()]))"
    argv = (sys.executable, "-c", show, "--kv-transfer-config", '{"a": "b c"}', "two words", "")
    spec = replace(spec_of(folder), argv=argv, env={"ODD": "it's $odd \"`\\"})
    write_launch(spec, ConfigLayout(folder))
    ran = subprocess.run([str(folder / "launch.sh")], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [["-c", *argv[3:]], "it's $odd \"`\\", str(folder)]


@pytest.mark.parametrize("environ", [{}, {"no_proxy": "corp.example"}, {"NO_PROXY": "corp.example"}, {"no_proxy": "*"}])
def test_an_engine_of_launch_sh_asks_its_own_servers_without_a_proxy(tmp_path: Path, environ: dict[str, str]) -> None:
    """As an engine that Tracon starts."""
    show = "import os; print(os.environ['no_proxy'], os.environ['NO_PROXY'])"
    write_launch(replace(spec_of(tmp_path), argv=(sys.executable, "-c", show), env={}), ConfigLayout(tmp_path))
    inherited = environ | {"PATH": os.environ["PATH"], "http_proxy": "http://proxy.example:3128"}
    expected = build_whole_env({}, inherited)
    for shell in (["sh"], ["sh", "-u"]):
        argv = [*shell, str(tmp_path / "launch.sh")]
        ran = subprocess.run(argv, env=inherited, capture_output=True, text=True, check=True)
        assert ran.stdout == f"{expected['no_proxy']} {expected['NO_PROXY']}\n"


@pytest.mark.parametrize("name", ["WITH SPACE", "A.B", "X$(touch ran)", "Y;touch ran;Z"])
def test_launch_sh_sets_a_variable_of_any_name_and_runs_no_name(tmp_path: Path, name: str) -> None:
    show = f"import os; print(os.environ[{name!r}])"
    spec = replace(spec_of(tmp_path), argv=(sys.executable, "-c", show), env={name: "value $HOME"})
    write_launch(spec, ConfigLayout(tmp_path))
    ran = subprocess.run([str(tmp_path / "launch.sh")], capture_output=True, text=True, check=True)
    assert ran.stdout == "value $HOME\n"
    assert not (tmp_path / "ran").exists()


def test_a_secret_of_the_profile_reaches_no_artifact_and_the_script_still_runs(tmp_path: Path) -> None:
    show = "import os; print(os.environ['HF_TOKEN'])"
    spec = replace(spec_of(tmp_path), argv=(sys.executable, "-c", show), env={"HF_TOKEN": SECRET})
    write_launch(spec, ConfigLayout(tmp_path))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 3
    assert all(SECRET not in path.read_text() for path in written)
    script = [str(tmp_path / "launch.sh")]
    ran = subprocess.run(script, env={**os.environ, "HF_TOKEN": SECRET}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == SECRET
    without = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    assert (
        "is a secret: set it" in subprocess.run(script, env=without, capture_output=True, text=True, check=False).stderr
    )


def test_no_secret_of_an_argument_is_written_and_the_script_asks_for_it(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[2:])"
    argv = (sys.executable, "-c", show, "--api-key", "swordfish", "--hf-token=trout", "--max-tokens", "5")
    write_launch(replace(spec_of(tmp_path), argv=argv, env={"A;B": "1"}), ConfigLayout(tmp_path))
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or not {"swordfish", "trout"} & set(path.read_text().replace("=", " ").split())
    assert json.loads((tmp_path / "config.json").read_text())["argv"][3:] == [
        "--api-key", "<redacted>", "--hf-token=<redacted>", "--max-tokens", "5",
    ]  # fmt: skip
    secrets = {"TRACON_SECRET_ARGUMENT": "first", "TRACON_SECRET_ARGUMENT_2": "second"}
    script, env = [str(tmp_path / "launch.sh")], {**os.environ, **secrets}
    ran = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['first', '--hf-token=second', '--max-tokens', '5']"


def test_a_secret_inside_a_json_argument_is_hidden_alone_and_the_script_runs_with_it(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    transfer = json.dumps({"kv_role": "kv_both", "kv_connector_extra_config": {"redis_password": "swordfish"}})
    argv = (sys.executable, "-c", show, "--kv-transfer-config", transfer, "--max-tokens", "5")
    write_launch(replace(spec_of(tmp_path), argv=argv, env={}), ConfigLayout(tmp_path))
    assert all("swordfish" not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    shown = json.loads((tmp_path / "config.json").read_text())["argv"][4]
    assert json.loads(shown) == {"kv_role": "kv_both", "kv_connector_extra_config": {"redis_password": "<redacted>"}}
    script, env = [str(tmp_path / "launch.sh")], {**os.environ, "TRACON_SECRET_ARGUMENT": transfer}
    ran = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(list(argv[3:]))


def test_an_engine_inherits_no_secret_but_its_own() -> None:
    names = (
        "TRACON_REDIS_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "GITHUB_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "DB_PASSWORD",
    )  # fmt: skip
    own = ("PATH", "HF_TOKEN", "VLLM_API_KEY", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES")
    inherited = dict.fromkeys((*names, *own), "x")
    assert set(build_whole_env({}, inherited)) == set(own)
    assert "AWS_SESSION_TOKEN" in build_whole_env({}, {**inherited, "TRACON_PASS_ENV": "AWS_SESSION_TOKEN, OTHER"})
    assert build_whole_env({"DB_PASSWORD": "profile's"}, inherited)["DB_PASSWORD"] == "profile's"


def test_every_launch_is_kept_and_the_last_one_is_the_config(tmp_path: Path) -> None:
    layout = ConfigLayout(tmp_path)
    for launch in (1, 2):
        write_launch(spec_of(tmp_path, launch=launch), layout)
    rows = [json.loads(line) for line in layout.launches.read_text().splitlines()]
    assert [row["launch"] for row in rows] == [1, 2]
    assert json.loads(layout.config_json.read_text())["instance"] == "plain-2"
    assert shlex.quote(sys.executable) in layout.launch_sh.read_text()
    assert layout.rings(2).is_dir()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "below"
    with pytest.raises(Unwritable) as caught:
        write_launch(spec_of(folder), ConfigLayout(folder))
    assert str(folder) in str(caught.value)
    assert "free space" in caught.value.remedy


def test_the_engine_does_not_inherit_the_settings_of_our_own_python() -> None:
    env = build_whole_env({"A": "1"}, {"PATH": "/bin", "PYTHONHOME": "/ours", "VIRTUAL_ENV": "/ours", "A": "0"})
    assert env == {"PATH": "/bin", "A": "1"}


OWN_HOSTS = "127.0.0.1,localhost,::1"


@pytest.mark.parametrize(
    ("inherited", "lower", "upper"),
    [
        ({}, OWN_HOSTS, OWN_HOSTS),
        ({"no_proxy": "corp.example, localhost"}, *["corp.example,localhost,127.0.0.1,::1"] * 2),
        ({"NO_PROXY": "corp.example"}, *[f"corp.example,{OWN_HOSTS}"] * 2),
        ({"no_proxy": "a.example", "NO_PROXY": "b.example"}, f"a.example,{OWN_HOSTS}", f"b.example,{OWN_HOSTS}"),
        ({"no_proxy": "*"}, "*", "*"),
    ],
    ids=["none", "lower case", "upper case", "both", "every host"],
)
@pytest.mark.parametrize("proxy", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_on_a_host_with_a_proxy_an_engine_reaches_its_own_servers_directly(
    proxy: str, inherited: dict[str, str], lower: str, upper: str
) -> None:
    env = build_whole_env({}, {**inherited, proxy: "http://proxy.example:3128"})
    assert (env["no_proxy"], env["NO_PROXY"]) == (lower, upper)
    assert env[proxy] == "http://proxy.example:3128"


def test_the_client_of_mooncakes_connector_asks_its_bootstrap_server_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is httpx's, with the settings that httpx takes from the environment."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in build_whole_env({}, {"http_proxy": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        answering = thread.submit(_answer_once, server)
        assert httpx.get(f"http://127.0.0.1:{server.getsockname()[1]}/query", timeout=10).text == "direct"
        assert answering.result() == "GET /query HTTP/1.1"


def _answer_once(server: socket.socket) -> str:
    """The first line of the request."""
    server.settimeout(10)
    connection, _ = server.accept()
    with connection:
        request = connection.recv(65536).decode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\ndirect")
    return request.partition("\r\n")[0]


def test_a_host_without_a_proxy_adds_nothing_and_no_record_of_a_launch_has_the_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_whole_env({}, {"no_proxy": "corp.example", "http_proxy": ""}) == {
        "no_proxy": "corp.example", "http_proxy": "",
    }  # fmt: skip
    before = spec_of(tmp_path)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert spec_of(tmp_path) == before


@pytest.mark.parametrize(
    ("online", "usable"),
    [
        ({0}, {0}),
        (set(range(4)), set(range(4))),
        (set(range(64)), {5, 63}),
        ({*range(0, 32), *range(40, 96)}, {*range(0, 32), *range(40, 96)}),
    ],
    ids=["1 core", "4 cores", "2 of 64 cores", "2 sockets with cores 32 to 39 offline"],
)
@pytest.mark.parametrize("config", ["plain", "nixl_both"])
def test_an_engine_gets_one_thread_and_every_core_of_any_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, online: set[int], usable: set[int]
) -> None:
    """Two engines of a comparison must compute alike: no thread count follows from the host, and none is pinned."""
    here = spec_of(tmp_path, config)

    def refuse(*_: object) -> None:
        raise AssertionError("the affinity is the user's")

    monkeypatch.setattr(os, "cpu_count", lambda: len(online))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert spec_of(tmp_path, config) == here
    inherited = {"OMP_NUM_THREADS": "64", "OMP_PLACES": "{0:64}", "OMP_PROC_BIND": "true", "GOMP_CPU_AFFINITY": "0-63"}
    env = build_whole_env(here.env, inherited)
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "nobind")
    assert not env.keys() & {"OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}
    with_threads = build_whole_env({"A": "1"}, inherited)
    assert with_threads["OMP_PROC_BIND"] == "true", "an engine of a profile without a thread count keeps the user's"


def test_a_profile_of_another_model_writes_no_tiny_model(tmp_path: Path) -> None:
    assert spec_of(tmp_path, profile="h20-qwen3-coder-30b").model_folder is None
    tiny = spec_of(tmp_path).model_folder
    assert tiny is not None
    assert option(spec_of(tmp_path), "--model") == str(tiny)


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@pytest.mark.parametrize("profile", [name for name in list_profile_names() if name.endswith("-dummy")])
@pytest.mark.parametrize("config", list_config_names())
@pytest.mark.parametrize("preflight", [False, True])
def test_no_engine_with_dummy_weights_asks_a_hub(tmp_path: Path, profile: str, config: str, preflight: bool) -> None:
    spec = spec_of(tmp_path, config, profile, preflight=preflight)
    assert {name: spec.env.get(name) for name in OFFLINE} == OFFLINE
    assert spec.model_folder is not None
    assert spec.url == f"http://127.0.0.1:{spec.port}"
    assert spec.env["VLLM_HOST_IP"] == "127.0.0.1"
