"""The least host that engines run on: one core, AVX2 alone, no right of root, a read-only home, umask 077, a cgroup's
limits on memory and CPU time where one can be made."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch import patching
from launch.command import build_launch
from launch.environment import find_engine
from launch.environment import home as tracon_home
from launch.instance import make_http_client
from launch.local import LocalBackend
from launch.patching import NOT_WRITABLE
from launch.profile import PROFILES_FOLDER, list_config_names, load_config
from results.records.layout import ConfigLayout
from tests.cgroups import Cgroup, limited_cgroup
from tests.e2e.engine_pair import draw
from tests.e2e.least_host import OLDER_CPU, PREFIX, READY_S, kernels, profile_without_avx512
from tests.launch.engines import ignore_start
from tests.ports import own_port
from tests.unprivileged import UID, OtherUser, another_user, drop_capabilities

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


REPOSITORY = Path(__file__).resolve().parents[2]
LEASE = """
import os
from pathlib import Path
from state.lease import acquire, read_lease_state
from state.store import RunStore
from tests.state.plans import a_run
folder = Path(os.environ["TRACON_WORKSPACE"], "20260101-000000-other-user")
with a_run(folder) as store:
    with acquire(store) as lease:
        lease.heartbeat()
        assert read_lease_state(store).live
    assert not read_lease_state(store).live
"""
MEMORY_BYTES = psutil.virtual_memory().total * 3 // 4 // 2**20 * 2**20
CORES = 0.9
RUN_S = 500.0
"""Within which engines have done their work with less than a core, beside the tests of other engines."""


def become_least(cgroup: Cgroup, lose_rights: Callable[[], None]) -> None:
    """For `preexec_fn`: what the driver and its engines may use."""
    cgroup.join()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lose_rights()


@pytest.fixture(scope="module")
def user() -> Iterator[OtherUser]:
    engine = find_engine("cpu")
    patching.apply(engine)
    with another_user(engine.root) as made:
        yield made


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Cgroup]:
    with limited_cgroup(MEMORY_BYTES, CORES) as made:
        yield made


@pytest.fixture(scope="module")
def seen(user: OtherUser, cgroup: Cgroup, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver reports, of three engines started once for all tests of this file.

    Where there is no other user here, the driver keeps this test's user and loses root's rights.
    """
    if user.reason:
        folder = tmp_path_factory.mktemp("least")
        (folder / "home").mkdir(mode=0o500)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environ = {**kept, "HOME": str(folder / "home"), "TRACON_HOME": str(tracon_home())}
        python, arguments, lose_rights = Path(sys.executable), [], drop_capabilities
    else:
        folder, environ, python = user.folder, user.environ(), user.python
        arguments, lose_rights = [str(user.engine_python)], user.become
    done = subprocess.run(
        [python, "-m", "tests.e2e.least_host", str(folder / "engines"), *arguments], env=environ,
        cwd=REPOSITORY, capture_output=True, text=True, timeout=RUN_S, umask=0o077,
        preexec_fn=partial(become_least, cgroup, lose_rights),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**report, "folder": folder, "caches_home": environ["TRACON_HOME"]}


def test_without_avx512_and_amx_engines_answer_and_move_kv_with_the_avx2_kernels(seen: dict[str, Any]) -> None:
    assert seen["kernels"] == {"h": ["_C_AVX2"], "t": ["_C_AVX2"], "plain": ["_C_AVX2"]}
    assert (seen["transfer"]["status"], seen["transfer"]["reason"]) == ("transferred", "")
    assert seen["transfer"]["tokens"] >= PREFIX
    computed, moved, plain = seen["answers"]
    assert len(plain) == 8
    assert computed == moved == plain


def test_one_core_is_enough(seen: dict[str, Any]) -> None:
    assert seen["cores"] == {"h": 1, "t": 1, "plain": 1}


def test_engines_run_under_the_limits_of_a_cgroup(seen: dict[str, Any], cgroup: Cgroup) -> None:
    if cgroup.reason:
        pytest.skip(cgroup.reason)
    assert seen["limits"]["cores"] == CORES
    assert seen["limits"]["memory_bytes"] == MEMORY_BYTES
    assert 0 < seen["limits"]["memory_available_bytes"] < MEMORY_BYTES
    assert len(seen["answers"]) == 3


def test_no_right_of_root_is_needed(seen: dict[str, Any]) -> None:
    assert seen["capabilities"] == [0, 0, 0]


def test_a_user_who_may_only_read_the_engine_runs_it_and_leaves_its_patches(
    seen: dict[str, Any], user: OtherUser
) -> None:
    if user.reason:
        pytest.skip(user.reason)
    assert seen["users"] == [UID] * 3
    assert seen["patches"].startswith(NOT_WRITABLE)
    assert (user.folder / "tracon" / "models" / "tiny-qwen3" / "model.safetensors").stat().st_uid == UID


def write_older_profile(folder: Path) -> Path:
    """The CPU profile whose engines see AVX2 alone."""
    path = folder / "older.toml"
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in OLDER_CPU.items())
    text = (PROFILES_FOLDER / "cpu-tiny.toml").read_text()
    path.write_text(text.replace("[engine.env]\n", f"[engine.env]\n{lines}", 1))
    return path


def test_a_run_is_done_on_the_least_host(user: OtherUser, cgroup: Cgroup, tmp_path: Path) -> None:
    """`tracon run` itself: pre-flight, a KV transfer proven, load, analysis."""
    if user.reason:
        pytest.skip(user.reason)
    profile = write_older_profile(tmp_path)
    settings = (
        "phase_a.rates_per_s=[8]", "min_duration_s=1", "min_completed=4",
        "fidelity.lateness_p99_s=60",  # of a load of one second, which a busy host delays as a whole
    )  # fmt: skip
    short = [word for setting in settings for word in ("--set", setting)]
    shared = Path(tempfile.mkdtemp(prefix="tracon-older-"))
    try:
        shared.chmod(0o755)
        shutil.copy(profile, shared)
        done = subprocess.run(
            [
                user.python, "-m", "runners.cli", "run", "connector-tax", "--profile", shared / profile.name,
                "--preset", "smoke", "--config", "plain", "--config", "nixl_both", *short, "--json",
                "--port", str(own_port(23_700, 12)), "--engine-python", user.engine_python,
            ],
            env=user.environ(TRACON_WORKSPACE=str(user.folder / "runs")), cwd=REPOSITORY, umask=0o077,
            preexec_fn=partial(become_least, cgroup, user.become), capture_output=True, text=True, timeout=RUN_S,
        )  # fmt: skip
    finally:
        shutil.rmtree(shared)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert {cell["state"] for cell in status["cells"]} == {"done"}
    assert {cell["cell"] for cell in status["cells"]} >= {"preflight/nixl_both", "phase-a/nixl_both/r8"}


def test_a_user_who_may_only_read_the_engine_asks_the_doctor_and_holds_a_lease(user: OtherUser) -> None:
    if user.reason:
        pytest.skip(user.reason)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [user.python, *arguments], env=user.environ(TRACON_WORKSPACE=str(user.folder / "runs")),
            preexec_fn=user.become, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    report = json.loads(run("-m", "runners.cli", "doctor", "--json", "--engine-python", str(user.engine_python)))
    states = {row["what"]: row["state"] for row in report["rows"]}
    assert [states[what] for what in ("engine", "patches", "disk for engines", "disk for runs")] == ["ok"] * 4
    assert all(config["ok"] for config in report["configs"])
    run("-c", LEASE)
    assert "20260101-000000-other-user" in run("-m", "runners.cli", "list", "--json")


def test_nothing_is_written_into_a_read_only_home(seen: dict[str, Any]) -> None:
    assert seen["caches"] == [str(Path(seen["caches_home"]) / "caches" / "cache")] * 3
    assert not list((seen["folder"] / "home").iterdir())


def test_under_a_strict_umask_the_owner_reads_everything(seen: dict[str, Any]) -> None:
    assert seen["answers"]
    files = [path for path in (seen["folder"] / "engines").rglob("*") if path.is_file()]
    assert any(path.suffix == ".jsonl" for path in files)
    assert not [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o477 != 0o400]


@pytest.mark.long
@pytest.mark.parametrize("config", list_config_names())
async def test_every_config_answers_with_the_avx2_kernels(config: str, tmp_path: Path) -> None:
    profile, engine = profile_without_avx512(), find_engine("cpu")
    patching.apply(engine)
    async with LocalBackend(engine) as backend:
        spec = build_launch(
            profile, load_config(config), engine,
            instance="older", port=own_port(23_600, 4), layout=ConfigLayout(tmp_path), launch=1,
        )  # fmt: skip
        instance = await backend.start(spec, ignore_start)
        await instance.wait_ready(READY_S)
        async with make_http_client(instance.url) as client:
            body = {"model": instance.model, "prompt": draw(PREFIX), "max_tokens": 4, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body, timeout=60.0)
        assert answer.status_code == 200, answer.text
        assert kernels(instance) == {"_C_AVX2"}
        await instance.stop(profile.launch.stop_grace_s, 0.0)
