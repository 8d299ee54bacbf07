"""An agent whose folders were removed on the node ends, so that its next container gets new ones."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from sluice.runtime.grpc.health import Health
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.runner import pod_volumes
from sluice_node_agent.shell.runner.pod_volumes import CutOffError, is_cut_off, volumes_served


@pytest.fixture
def removed(tmp_path):
    """The path of a folder that is there and was removed, as a mounted one is after its removal on the node."""
    folder = tmp_path / "removed"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    folder.rmdir()
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_a_folder_that_was_removed_under_its_mount_is_cut_off(tmp_path, removed):
    assert is_cut_off(removed)
    assert is_cut_off(removed / "below")
    assert not is_cut_off(tmp_path)
    assert not is_cut_off(tmp_path / "not" / "made" / "yet")


@pytest.mark.parametrize("field", ["pods_dir", "cdi_dir"])
def test_an_agent_ends_when_a_folder_that_it_shares_with_its_node_was_removed(tmp_path, monkeypatch, removed, field):
    monkeypatch.setattr(pod_volumes, "_LOOK_EVERY_S", 0.01)
    folders = {"pods_dir": tmp_path / "pods", "cdi_dir": tmp_path / "cdi", field: removed}
    settings = NodeAgentSettings(nodes=("n1",), kubelet_root=tmp_path / "kubelet", role="agent", **folders)

    async def run() -> None:
        async with asyncio.timeout(5), volumes_served(settings, Health(time.monotonic)):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(run())
    assert found.group_contains(CutOffError, match=str(removed))
