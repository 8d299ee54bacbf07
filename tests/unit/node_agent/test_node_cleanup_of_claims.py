"""What the plugin for ResourceClaims leaves on a node goes with Sluice, unless a pod still needs it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories.gpus.mps import short_directory

from sluice_node_agent.csi.node_cleanup import clean_node
from sluice_node_agent.kubelet.sockets import claims_socket


@pytest.fixture
def node() -> Iterator[Path]:
    with short_directory() as path:
        yield path


def _clean(tmp_path, *claims):
    return clean_node(tmp_path / "run/pods", tmp_path / "run/mps", tmp_path / "kubelet", claims)


def _left_by_a_killed_plugin(tmp_path):
    own = claims_socket(tmp_path / "kubelet")
    own.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own))
    return own


def test_the_sockets_of_a_killed_plugin_go(node):
    """A kubelet would call a driver that is gone, and wait for it with every pod."""
    own = _left_by_a_killed_plugin(node)
    assert _clean(node) == []
    assert not own.parent.exists()


def test_a_prepared_claim_keeps_the_plugin(node):
    """Its pods stay Terminating for as long as no driver answers."""
    own = _left_by_a_killed_plugin(node)
    (kept,) = _clean(node, "u2", "u1")
    assert kept.startswith("pods on this node have 2 ResourceClaims of Sluice, such as the one with UID u1")
    assert own.exists()
