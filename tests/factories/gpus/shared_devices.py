"""Shared devices of a node under test: where homes can be, and a node with nothing left."""

import pytest

ON_MIG = (0, "3g.20gb", 4, 4)
WHOLE = (2, None, 0, 8)
PLACES = pytest.mark.parametrize("place", [ON_MIG, WHOLE], ids=["instance", "whole GPU"])


def compute_modes(node):
    """Of each GPU: whether it takes one process only."""
    return [gpu.exclusive_process for gpu in node.hardware.read().gpus]


def is_clean(node):
    """Nothing is left of any home: instance, daemon, compute mode, ticket."""
    assert [node.instances(n) for n in (0, 1, 2)] == [[], [], []]
    assert node.mps.homes == {}
    assert not any(compute_modes(node))
    assert node.tickets.names() == ()
    snapshot = node.agent.snapshot()
    assert snapshot.slices == ()
    assert not any(gpu.daemons for gpu in snapshot.gpus)
    assert not any(gpu.quarantined for gpu in snapshot.gpus)
