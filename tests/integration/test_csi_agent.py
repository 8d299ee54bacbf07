"""Agent and driver together on a node with a kubelet: from the order to what a container sees of its daemon."""

import signal
from contextlib import closing

import pytest
from factories.agent_driver import AgentDriver, daemons_below
from factories.broker.bus_rigs import broker_and_bus
from factories.cluster.kubelet_node import NODE, KubeletNode, can_connect, in_time
from factories.system import fleet_text
from factories.waiting import wait_until

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.names import is_ticket_name
from sluice.contracts.messages import Share
from sluice.contracts.ticket_paths import ticket_of

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
FLEET = fleet_text(1, 1, prefix=NODE)


@pytest.fixture(params=[("all",), ("csi", "agent")], ids=["one process", "two"])
def node(request):
    """A node with simulated GPUs, and the roles of its processes."""
    there = KubeletNode("container")
    (there.folder / "fleet.toml").write_text(FLEET)
    there.roles = request.param
    with closing(there):
        yield there


def _start(node, url, roles):
    told = {
        "SLUICE_NATS_URL": url,
        "SLUICE_DATA_DIR": str(node.folder),
        "SLUICE_NODE_AGENT_FLEET_FILE": str(node.folder / "fleet.toml"),
        "SLUICE_NODE_AGENT_TICK_S": "0.05",
        "SLUICE_NODE_AGENT_BACK_OFF_FIRST_S": "0.1",
    }
    number = -1
    for role in roles:
        number = node.start(wait=role != "agent", **told, SLUICE_NODE_AGENT_ROLE=role)
    return number


async def test_a_pods_container_reaches_its_share_through_its_volume(node, tmp_path):
    """A pod with a share has its daemon, also after the agent was killed, and leaves nothing behind."""
    async with broker_and_bus(tmp_path) as (broker, bus):
        number = _start(node, broker.url, node.roles)
        desk = AgentDriver(bus, node.folder)
        news = await desk.open(NodeName(NODE))
        share = Share(mode="mps", uid=0, memory_mib=4096)
        booking = await desk.grant(NODE, "a1_R_1", (0, "3g.20gb", 4, 4), share=share, owner=UID, source="cluster")
        word = await desk.ready(NodeName(NODE), "a1_R_1")
        ticket = ticket_of(word.ticket, word.containers[0])
        assert is_ticket_name(ticket)
        await node.publish(UID)
        assert can_connect(node.start_container(UID, "main", ticket) / "pipe" / "control")
        node.stop(number, signal.SIGKILL)
        _start(node, broker.url, node.roles[-1:])
        await desk.open(NodeName(NODE), known_run=news.agent_run)
        await node.publish(UID)
        assert can_connect(node.start_container(UID, "again", ticket) / "pipe" / "control")
        await desk.revoke(booking)
        await desk.gone(NodeName(NODE), "a1_R_1")
        assert list(node.seen(node.target(UID)).iterdir()) == []
        for name in ("main", "again"):
            node.run("umount", str(node.root / "pods" / UID / "c" / name))
        await in_time(node.unpublish(UID))
        assert not (node.pods / UID).exists()
        wait_until(lambda: not daemons_below(node.folder), "the daemon ends with its last tenant")


@pytest.mark.parametrize("node", [("all",)], indirect=True)
def test_volumes_are_served_before_anything_of_the_agent_and_their_end_is_clean(node):
    """An agent that cannot start leaves no dead socket behind."""
    (node.folder / "fleet.toml").write_text("nonsense")
    number = node.start(
        wait=False, SLUICE_NODE_AGENT_ROLE="all", SLUICE_NODE_AGENT_FLEET_FILE=str(node.folder / "fleet.toml")
    )
    assert node.drivers[number].wait(60) == 78
    events = [line["event"] for line in node.lines(number)]
    assert "serving volumes" in events
    assert any("fleet.toml" in event for event in events[events.index("serving volumes") :])
    assert not node.registration.exists()
    assert not node.socket.exists()
