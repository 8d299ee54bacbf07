"""Shared devices of a node under test: where homes can be, and a node with nothing left."""

import pytest

ON_MIG = (0, "3g.20gb", 4, 4)
SMALL = (0, "2g.10gb", 4, 2)
WHOLE = (2, None, 0, 8)
KINDS = ("instance", "share of an instance", "whole GPU", "share of a whole GPU")
PLACES = pytest.mark.parametrize("place", [ON_MIG, WHOLE], ids=["instance", "whole GPU"])


def booked(node, kind):
    """A booking a1 of one of the KINDS."""
    book = node.share if kind.startswith("share") else node.booking
    return book("a1", WHOLE if kind.endswith("whole GPU") else SMALL)


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
