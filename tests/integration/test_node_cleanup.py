"""What is left on a node after Sluice: nothing that was Sluice's, and everything that may be in use."""

import signal
import subprocess
import sys

import pytest
from factories.cluster.kubelet_node import NODE
from factories.processes import own_environment

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
TICKET = "5f1c-run-1"


def clean(node, **settings):
    """As in the container that replaces the agent's: it has the host's processes, and enters its mounts."""
    environment = own_environment() | {
        "SLUICE_NODE_AGENT_ROLE": "csi",
        "SLUICE_NODE_AGENT_NODES": NODE,
        "SLUICE_NODE_AGENT_KUBELET_ROOT": str(node.root),
        "SLUICE_NODE_AGENT_PODS_DIR": str(node.pods),
        **settings,
    }
    command = [sys.executable, "-m", "sluice_node_agent", "clean-node", "--of-process", str(node.holder.pid)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize("node", ["host", "container"], indirect=True)
async def test_mounts_sockets_and_directories_go_also_after_a_driver_that_was_killed(node):
    """A mount and a socket stayed on every node, and a kubelet called a driver that was gone."""
    (node.folder / "mps" / NODE).mkdir(parents=True)  # as after the last share of a node
    await node.publish(UID)
    await node.unpublish(UID)
    assert str(node.pods / ".sealed") in node.all_mounts()
    node.stop(how=signal.SIGKILL)
    done = clean(node)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.all_mounts() == [str(node.root)]
    assert not node.seen(node.pods).exists()
    assert not (node.folder / "mps").exists()
    assert not node.socket.parent.exists()
    assert list((node.root / "plugins_registry").iterdir()) == []
    assert clean(node).returncode == 0, "a node that is clean already"


async def test_what_may_be_in_use_stays_and_is_named(node):
    """A pod's slice, a running driver, an MPS daemon: taking them away would break what runs."""
    (node.folder / "mps" / NODE / "home").mkdir(parents=True)
    running = clean(node)
    assert running.returncode == 1
    assert f"a driver still answers at {node.registration}: stop it" in running.stderr
    node.agent("make", TICKET, UID)
    await node.publish(UID)
    node.stop()
    (node.socket.parent / "notes.txt").write_text("of an administrator")
    kept = clean(node)
    assert kept.returncode == 1
    assert f"holds the slices of 1 pods, such as {UID}" in kept.stderr
    assert "holds the files of MPS daemons" in kept.stderr
    assert f"{node.socket.parent} holds files that are not Sluice's" in kept.stderr
    assert node.seen(node.target(UID) / TICKET).is_dir()


def test_a_node_without_a_kubelet_has_nothing_to_clean(node):
    """Whatever lies at the default paths is another's."""
    done = clean(node, SLUICE_NODE_AGENT_KUBELET_ROOT="", SLUICE_NODE_AGENT_ROLE="all")
    assert done.returncode in {1, 2}
    assert "kubelet_root" in done.stderr
