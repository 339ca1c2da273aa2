"""A run's state is kept on a local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import state.file_system
from state.errors import StoreUnusable
from state.file_system import find_file_system
from state.lease import acquire
from state.store import RunStore
from tests.state.plans import a_run

MOUNTS = """\
22 1 0:20 / / rw - overlay overlay rw
30 22 0:30 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:31 / /home/me/local\\040disk rw - ext4 /dev/sda1 rw
32 22 0:32 / /mnt/tab\\011and\\134 rw - 9p share rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    monkeypatch.setattr(state.file_system, "MOUNTS", path)
    return path


def test_the_innermost_mount_counts(mounts: Path) -> None:
    assert find_file_system(Path("/var/lib")) == "overlay"
    assert find_file_system(Path("/home/me/runs/new")) == "nfs4"
    assert find_file_system(Path("/home/me/local disk/runs")) == "ext4"
    assert find_file_system(Path("/mnt/tab\tand\\/runs")) == "9p"
    mounts.unlink()
    assert find_file_system(Path("/home")) == ""


@pytest.mark.parametrize("kind", ["nfs", "wekafs", "fuse.blobfuse2"])
def test_no_run_begins_or_goes_on_where_its_state_is_not_safe(tmp_path: Path, mounts: Path, kind: str) -> None:
    with a_run(tmp_path / "run") as store:
        acquire(store).release()
        mounts.write_text(MOUNTS + f"40 22 0:40 / {tmp_path} rw - {kind} server:/x rw\n")
        with pytest.raises(StoreUnusable, match="network file system"):
            acquire(store)
        with pytest.raises(StoreUnusable) as refused:
            RunStore.create(tmp_path / "other", "other", store.plan, "test")
        assert "--workspace" in refused.value.remedy
        assert not (tmp_path / "other").exists()
        with RunStore.open(store.folder, read_only=True) as reader:
            assert reader.view().run
