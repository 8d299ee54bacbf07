"""Invalid orders harm no other pod: the next one of this node gets its slice, also after a restart."""

from collections.abc import Iterator

import pytest
from factories.broker.nonsense import nonsense
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.messages import AnyMessage, NodeOpened, SliceReady

SOME = 6
"""Of each order: every one costs two runs of an agent."""


def orders(node) -> Iterator[tuple[Address, AnyMessage]]:
    """A sensible message of every kind in this node's ledger: whole devices, shares, a revoke, the end, the head."""
    instance = node.booking("p1_r_1", (0, "1g.5gb", 0, 1))
    several = node.booking("p2_r_1", (0, "2g.10gb", 2, 2), (2, None, 0, 8))
    share = node.share("p3_r_1", (0, "3g.20gb", 4, 4), memory_mib=100, sm_partition=20, uid=7)
    for booking in (instance, several, share):
        grant = node.grant(booking, after=("p0_r_1",))
        yield subjects.ledger(node.name, booking.allocation), replace(grant, counts=booking.devices)
    yield subjects.ledger(node.name, instance.allocation), node.revoke(instance)
    yield subjects.ledger(node.name, instance.allocation), node.closed(instance)
    life = {"incarnation": node.incarnation, "agent_run": node.run}
    yield subjects.head(node.name), NodeOpened(node=node.name, boot_id="b", adopted=("p1_r_1",), **life)


def serves(node) -> None:
    """The node is opened (again), and a pod that comes now has its slice made."""
    node.open()
    node.work()
    node.order(node.grant(node.booking("fresh_r_1", (1, "3g.20gb", 0, 4), owner="pod-9")))
    node.tick(times=5)
    assert isinstance(node.word("fresh_r_1"), SliceReady), node.word("fresh_r_1")


@pytest.mark.parametrize("which", range(6))
def test_the_next_pod_is_served_behind_an_order_that_makes_no_sense(make_node, which):
    """One bad entry would otherwise end every run of this agent, and no pod of the node could start or end again."""
    address, sensible = list(orders(make_node()))[which]
    for poison in [None, *nonsense(address, sensible, some=SOME)]:
        node = make_node()
        life = {"incarnation": node.incarnation} if hasattr(poison, "incarnation") else {}
        entry = node.put(address.subject, replace(poison, **life) if poison is not None else None)
        node.happens(Observed(Stream.BOOK, entry))
        node.tick()
        node.live()  # what it wrote into its journal does not end the next run either
        serves(node)
